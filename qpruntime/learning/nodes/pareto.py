"""The shape k of the tail of importance weights, by which they are judged.

A generalised Pareto distribution is fitted to the largest weights; beyond 0.7 more draws hardly
help (Vehtari, Simpson, Gelman, Yao & Gabry 2024). The fit is that of Zhang & Stephens (2009).
"""

from __future__ import annotations

import math

import numpy as np

from qpruntime.arrays import Array

__all__ = ["TRUSTED", "pareto_k", "pareto_shape"]

#: Weights whose k is above this are not relied on.
TRUSTED = 0.7
# Draws of the tail at least.
_FEWEST = 5
# The prior of Zhang & Stephens, and how much k is drawn to one half, in draws.
_GRID, _PRIOR, _DRAWN = 30, 3.0, 10.0


def pareto_k(log_weights: Array) -> float:
    """Return k of S importance weights given by their logarithms; NaN of too few."""
    logs = np.sort(log_weights[np.isfinite(log_weights)])
    S = logs.size
    tail = math.ceil(min(0.2 * S, 3.0 * math.sqrt(S)))
    if tail < _FEWEST or S - tail < 1:
        return math.nan
    largest = np.exp(logs - logs[-1])
    beyond = largest[-tail:] - largest[-tail - 1]
    # Equal weights have no tail.
    if not beyond[-1] > 1e-12:
        return -math.inf
    return pareto_shape(np.maximum(beyond, 1e-300), _DRAWN)


def pareto_shape(x: Array, prior: float = 0.0) -> float:
    """Shape k of a generalised Pareto distribution from sorted positive draws (n,).

    `prior` draws at k = 1/2 are added.
    """
    n = x.size
    count = _GRID + int(math.sqrt(n))
    quarter = x[int(n / 4.0 + 0.5) - 1]
    steps = np.sqrt(count / (np.arange(1, count + 1) - 0.5))
    # theta = -k / sigma, Section 3 there.
    theta = 1.0 / x[-1] + (1.0 - steps) / (_PRIOR * quarter)
    shapes = -np.log1p(-theta[:, None] * x).mean(axis=1)
    logs = n * (np.log(theta / shapes) + shapes - 1.0)
    weights = 1.0 / np.exp(np.minimum(logs - logs[:, None], 700.0)).sum(axis=1)
    at = float(theta @ weights / weights.sum())
    k = float(np.log1p(-at * x).mean())
    return (n * k + 0.5 * prior) / (n + prior)
