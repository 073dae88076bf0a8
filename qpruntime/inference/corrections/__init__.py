"""Marginals and evidence more accurate than EP's own, computed from its fixed point."""
