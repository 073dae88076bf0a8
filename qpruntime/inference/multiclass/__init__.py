"""Classes jointly: C Gaussian processes, of which a label says that one is the largest."""


# --- Classes jointly by inducing points: sites of all rows, algebra of M numbers for each class.
