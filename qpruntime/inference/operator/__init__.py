"""Sites along linear functionals of the latent values: rows of an operator, on either side."""
