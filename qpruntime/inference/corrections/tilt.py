"""Variances as second derivatives of the corrected evidence: EP twice more for every point.

A linear term lambda f_* added to the log density moves the prior mean by lambda K_*; the second
derivative of the log evidence by lambda is the variance of f_*. Of EP's own evidence the first
derivative is EP's mean, which is differentiated once; the sums over pairs are differenced twice.
"""

from __future__ import annotations

import numpy as np

from qpruntime.arrays import Array
from qpruntime.errors import NumericalError
from qpruntime.inference.corrections.fixed_point import FixedPoint
from qpruntime.inference.corrections.response import pair_sums

__all__ = ["tilted_variances"]

#: Step, in units of one over the standard deviation.
_STEP = 0.1


def tilted_variances(found: FixedPoint, K_star: Array, prior: Array, std: Array) -> Array:
    """Variances of T points, of covariances `K_star` (T, N) and prior variances (T,).

    Raises
    ------
    NumericalError
        If EP does not settle beside the fixed point, or a variance is not positive.
    """
    observed = found.observed
    middle = pair_sums(found.V, found.fixed, found.tilted.hermite).shift
    out = np.empty(std.size)
    for i in range(std.size):
        step = _STEP / std[i]
        means, shifts = [], []
        for sign in (1.0, -1.0):
            moved = found.moved(observed.prior + sign * step * K_star[i])
            means.append(sign * (step * prior[i]) + K_star[i] @ moved.factor.weights)
            shifts.append(pair_sums(moved.V, moved.fixed, moved.tilted.hermite).shift)
        first = (means[0] - means[1]) / (2.0 * step)
        out[i] = first + (shifts[0] - 2.0 * middle + shifts[1]) / step**2
    if not (out > 0.0).all():
        raise NumericalError(
            f'a variance of correction "tilt" is {out.min():.3g}: densities jump or EP is not '
            'accurate enough here; use "blend" or "sample"'
        )
    return out
