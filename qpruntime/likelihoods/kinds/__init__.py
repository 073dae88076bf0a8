"""Kinds of y that estimators learn: likelihoods with parameters, one file each, found by name."""
