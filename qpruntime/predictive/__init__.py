"""Distributions of observations whose latent value is normal."""
