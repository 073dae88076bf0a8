"""Beta: shares y strictly between 0 and 1, of mean m = 1/(1 + e^-f), variance m(1-m)/(1+precision).

Moments are integrated by the adaptive rule.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.jit import LANDMARK, SPLIT, Pointer
from qpruntime.likelihoods.contract import Likelihood
from qpruntime.likelihoods.kinds.observed import shares

__all__ = ["likelihood"]

#: Shapes below this are this.
_LEAST = 1e-290


def _constants(precision):
    return (math.lgamma(precision),)


def _split(f, y, theta):
    small = math.exp(-abs(f))
    less = max(theta[0] * small / (1.0 + small), _LEAST)
    more = max(theta[0] / (1.0 + small), _LEAST)
    a, b = (more, less) if f > 0.0 else (less, more)
    log_p = theta[1] - math.lgamma(a) - math.lgamma(b)
    return log_p + (a - 1.0) * math.log(y) + (b - 1.0) * math.log1p(-y), 0.0


def _middle(y, theta, k):
    return math.log(y) - math.log1p(-y) if k == 0 else math.nan


def _given(f: Array, theta: Array) -> Any:
    from scipy import stats  # takes longer to import than all likelihoods

    small = np.exp(-np.abs(f))
    less, more = np.maximum(theta[0] * small / (1.0 + small), _LEAST), theta[0] / (1.0 + small)
    return stats.beta(np.where(f > 0.0, more, less), np.where(f > 0.0, less, more))


likelihood = Likelihood(
    name="beta",
    outcomes="numbers strictly between 0 and 1",
    split=Pointer(_split, SPLIT),
    validate=shares,
    log_concave=False,
    parameters={"precision": 10.0},
    limits={"precision": (1e-3, 1e8)},
    landmarks=Pointer(_middle, LANDMARK),
    derive=_constants,
    given=_given,
)
