"""Fits by inducing points: stages on samples of rows and on all, their checkpoint, their end."""
