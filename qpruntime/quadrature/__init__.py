"""One tilted density integrated: log Z, moments, sigma*, and the projections of W_p."""
