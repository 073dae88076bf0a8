"""Linear algebra of a posterior whose kernel matrix is an array."""
