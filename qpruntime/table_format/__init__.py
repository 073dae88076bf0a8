"""A table file, read safely: its seal, its metadata, and JSON of strangers."""
