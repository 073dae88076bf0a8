"""Log-logistic times: log T = f + scale e, e logistic; times may be censored.

An observation is a row of the first and the last time that T can be: `spans`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.jit import (
    FRAME,
    LANDMARK,
    MOMENTS,
    RAISED_FRAME,
    RAISED_MOMENTS,
    SPLIT,
    Pointer,
)
from qpruntime.likelihoods.contract import Likelihood, Powers
from qpruntime.likelihoods.kinds.observed import spans
from qpruntime.likelihoods.kinds.times import (
    LOGISTIC,
    edge_of,
    moments_of,
    raised_frame_of,
    raised_moments_of,
    time_split,
)
from qpruntime.quadrature.adaptive import adaptive_rule

__all__ = ["likelihood"]


def _constants(scale):
    return (math.log(scale),)


def _split(f, y, theta):
    return time_split(LOGISTIC, f, y, theta), 0.0


def _frame(mu, sigma, y, theta):
    return raised_frame_of(LOGISTIC, mu, sigma, y, theta, 1.0)


def _raised_frame(mu, sigma, y, theta, power):
    return raised_frame_of(LOGISTIC, mu, sigma, y, theta, power)


def _moments(mu, sigma, y, theta):
    return moments_of(LOGISTIC, mu, sigma, y, theta)


def _raised_moments(mu, sigma, y, theta, power):
    return raised_moments_of(LOGISTIC, mu, sigma, y, theta, power)


def _edge(y, theta, k):
    return edge_of(y, theta, k)


def _given(f: Array, theta: Array) -> Any:
    from scipy import stats  # takes longer to import than all likelihoods

    return stats.fisk(1.0 / theta[0], scale=np.exp(np.clip(f, -700.0, 700.0)))


likelihood = Likelihood(
    name="log-logistic",
    outcomes="pairs (first, last) of times",
    split=Pointer(_split, SPLIT),
    validate=spans,
    columns=2,
    moments=Pointer(_moments, MOMENTS),
    frame=Pointer(_frame, FRAME),
    powers=Powers(
        Pointer(_raised_moments, RAISED_MOMENTS), Pointer(_raised_frame, RAISED_FRAME), whole=False
    ),
    rule=adaptive_rule,
    landmarks=Pointer(_edge, LANDMARK),
    parameters={"scale": 0.5},
    limits={"scale": (1e-4, 1e4)},
    derive=_constants,
    given=_given,
)
