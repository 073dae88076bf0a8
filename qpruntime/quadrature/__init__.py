"""Integration of one tilted density: log Z, moments, sigma*, and the projections of W_p."""
