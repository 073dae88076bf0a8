"""Classes jointly by inducing points: sites of all rows, algebra of M numbers for each class."""
