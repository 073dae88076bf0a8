"""Log-logistic times: log T = f + scale e, e logistic; times may be censored.

An observation is a row of the first and the last time that T can be: `spans`.
"""

from __future__ import annotations

from typing import Any

from qpruntime.arrays import Array
from qpruntime.likelihoods.kinds.any_censoring import time_likelihood
from qpruntime.likelihoods.kinds.spans import LOGISTIC

__all__ = ["likelihood"]


def _distribution(shape: float, scale: Array) -> Any:
    from scipy import stats  # takes longer to import than all likelihoods

    return stats.fisk(shape, scale=scale)


likelihood = time_likelihood("log-logistic", LOGISTIC, _distribution)
