"""Fitted models and posteriors in one file that another machine opens: no code comes with it."""
