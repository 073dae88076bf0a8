"""Marginals and evidence truer than EP's own, from its fixed point: means, variances, shapes."""
