"""Tables of whole projections, from a log density alone."""
