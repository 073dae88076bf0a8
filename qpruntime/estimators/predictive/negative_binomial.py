"""Log probabilities of the negative binomial, kernels only: Poisson counts with a gamma rate.

In the saddle-point form of Loader (2000), "Fast and accurate computation of binomial
probabilities": no difference of large log Gammas.
"""

from __future__ import annotations

import math

from qpruntime.jit import kernel
from qpruntime.likelihoods.series import log1p_less, stirling_error

__all__ = ["log_pmf", "log_pmf_many"]

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


@kernel
def log_pmf(rate, c, y):
    """Log probability of y for a gamma rate of this mean and of scale c, its variance over it."""
    k = rate / c
    if y == 0.0:
        return -rate * (math.log1p(c) / c)
    gap = (y - rate) / (1.0 + c)
    short = -gap / y
    rest = log1p_less(short) if short > -0.9 else math.log((k + y) / y * c / (1.0 + c)) - short
    deviance = -k * log1p_less(gap / k) - y * rest
    return (
        stirling_error(k + y)
        - stirling_error(k)
        - stirling_error(y)
        - deviance
        - 0.5 * (math.log(y) + math.log1p(y / k))
        - _HALF_LOG_2PI
    )


@kernel
def log_pmf_many(rate, c, y, out):
    for i in range(y.size):
        out[i] = log_pmf(rate[i], c[i], y[i])
