"""Tilted densities that are mixtures: of what says something of f, and of what says nothing."""

from __future__ import annotations

import math

from qpruntime.jit import kernel

__all__ = ["log_sum", "mixed"]


@kernel
def log_sum(a, b):
    """log(e^a + e^b)."""
    top = max(a, b)
    return top + math.log1p(math.exp(min(a, b) - top)) if top > -math.inf else top


@kernel
def mixed(log_nothing, mu, sigma, log_z, mean, variance):
    """Moments of e^log_nothing N(mu, sigma^2) plus a density of these moments."""
    total = log_sum(log_nothing, log_z)
    share, other = math.exp(log_z - total), math.exp(log_nothing - total)
    gap = mean - mu
    spread = share * variance + other * sigma * sigma + share * other * gap * gap
    return total, mu + share * gap if share < 0.5 else mean - other * gap, spread
