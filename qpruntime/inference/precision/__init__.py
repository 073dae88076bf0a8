"""Latent values with a sparse precision, seen along sparse rows: linear algebra and engine."""
