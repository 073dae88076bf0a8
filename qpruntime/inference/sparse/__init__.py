"""Inference by inducing points: engine, evidence and gradient in O(N M^2)."""
