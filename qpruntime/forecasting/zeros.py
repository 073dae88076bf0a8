"""Whether counts have zeros of their own, by counts alone: before a model with them is fitted."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize, minimize_scalar
from scipy.special import gammaln

from qpruntime.arrays import Array

__all__ = ["zeros_gain"]

#: Logarithms of dispersions, and of means over that of the positive counts.
_DISPERSION, _MEAN = (-5.0, 8.0), (-5.0, 1.0)


def zeros_gain(y: Array) -> float:
    """Return what a probability of its own for 0 adds to the log likelihood.

    Of equal negative binomial rates at all times, both maximised: a hurdle before counts that are
    not 0, less no hurdle.

    Parameters
    ----------
    y : ndarray, shape (n,)
        Counts, some of them 0 and some not.
    """
    values, times = np.unique(y, return_counts=True)
    positive, seen = values[1:], times[1:]
    n, m = float(times.sum()), float(seen.sum())

    def log_mass(log_r: float, log_mean: float, at: Array) -> Array:
        r, log_top = np.exp(log_r), np.logaddexp(log_r, log_mean)
        ways = gammaln(at + r) - gammaln(r) - gammaln(at + 1.0)
        return ways + r * (log_r - log_top) + at * (log_mean - log_top)

    def lost(log_r: float) -> float:
        return -float(times @ log_mass(log_r, float(np.log(times @ values / n)), values))

    def lost_beyond(at: Array) -> float:
        none = log_mass(at[0], at[1], np.zeros(1))[0]
        rest = np.log(max(-np.expm1(none), 1e-300))
        return -float(seen @ log_mass(at[0], at[1], positive)) + m * rest

    one = minimize_scalar(lost, bounds=_DISPERSION, method="bounded").fun
    top = np.log(seen @ positive / m)
    ends = [_DISPERSION, (top + _MEAN[0], top + _MEAN[1])]
    two = min(
        minimize(lost_beyond, [start, top - 0.1], method="L-BFGS-B", bounds=ends).fun
        for start in (0.0, 4.0)
    )
    return one - two + float(m * np.log(m / n) + (n - m) * np.log1p(-m / n))
