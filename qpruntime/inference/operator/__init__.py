"""Observations of linear functionals of the latent values, solved on the smaller side."""
