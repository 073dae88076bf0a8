"""Classes jointly: C Gaussian processes, of which a label says that one is the largest."""
