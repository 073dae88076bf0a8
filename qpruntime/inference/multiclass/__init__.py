"""Joint models of C classes: one Gaussian process per class, and labels that name the largest."""
