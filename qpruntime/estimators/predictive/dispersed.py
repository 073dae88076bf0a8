"""Distribution function of a negative binomial count whose mean e^f is log-normal.

Given f, P(Y <= y) is an incomplete beta function; it is integrated over f by the trapezoid rule.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import betainc

from qpruntime.arrays import Array
from qpruntime.likelihoods.poisson_exp import LogNormalRate
from qpruntime.likelihoods.rates import CUT, STEP

__all__ = ["DispersedRate", "dispersed_tail"]

# Steps in f where the incomplete beta function is wide, and in units of its width where it is not.
# It has singularities at pi i from the real axis: errors are exp(-2 pi^2/step).
_WIDE, _SHARP = 0.5, 0.35
# Largest exponent of a rate.
_MOST = 700.0
# Rates and nodes that are looked at at a time, for the sake of memory.
_PRODUCTS = 1_000_000


@dataclass(frozen=True)
class DispersedRate(LogNormalRate):
    """e^f for f ~ N(mean, std^2); counts have a variance of e^f + e^2f/dispersion given f."""

    dispersion: Array

    def roots(self, low: Array, high: Array) -> tuple[Array, Array]:
        """Roots of e^f times the gamma variable that makes a Poisson count negative binomial."""
        # Half of what is allowed goes to either of the two.
        low, high = low + np.log(2.0), high + np.log(2.0)
        first, last = super().roots(low, high)
        below = np.maximum(1.0 - np.sqrt(2.0 * low / self.dispersion), 0.0)
        above = 1.0 + np.sqrt(2.0 * high / self.dispersion) + high / self.dispersion
        return first * np.sqrt(below), last * np.sqrt(above)


def dispersed_tail(rate: DispersedRate, y: Array, upper: bool) -> Array:
    """P(Y <= y), or P(Y > y), for T rates and as many counts y >= 0, shape (T,)."""
    shape, r = y + 1.0, rate.dispersion
    # Of log(rate), as the distribution function has it.
    width = np.sqrt(1.0 / shape + 1.0 / r)
    step = np.minimum(STEP, np.minimum(_WIDE, _SHARP * width) / rate.std)
    reach, out = np.sqrt(2.0 * CUT), np.empty(y.size)
    nodes = np.ceil(reach / step).astype(int)
    start = 0
    for end in _blocks(nodes):
        some = slice(start, end)
        half = int(nodes[some].max())
        z = np.linspace(-reach, reach, 2 * half + 1)
        weights = np.exp(-0.5 * z * z)
        f = rate.mean[some, None] + rate.std[some, None] * z
        # Of e^f in e^f + r, without overflow.
        t = np.exp(np.clip(np.log(r[some, None]) - f, -_MOST, _MOST))
        a, b = shape[some, None], r[some, None]
        p = betainc(a, b, 1.0 / (1.0 + t)) if upper else betainc(b, a, t / (1.0 + t))
        out[some] = (p * weights).sum(axis=1) / weights.sum()
        start = end
    return out


def _blocks(nodes: Array) -> list[int]:
    """Ends of blocks of rows whose nodes fit into memory together."""
    ends, most, first = [], 0, 0
    for i, count in enumerate(nodes):
        most = max(most, int(count))
        if i > first and 2 * most * (i + 1 - first) > _PRODUCTS:
            ends.append(i)
            first, most = i, int(count)
    return [*ends, len(nodes)]
