"""Likelihoods of times with any censoring, made of a family of `times` and its distribution."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.jit import (
    FRAME,
    LANDMARK,
    MOMENTS,
    RAISED_FRAME,
    RAISED_MOMENTS,
    RULE,
    SPLIT,
    Pointer,
)
from qpruntime.likelihoods.contract import Likelihood, Powers
from qpruntime.likelihoods.kinds.observed import spans
from qpruntime.likelihoods.kinds.times import edge_of, frame_of, moments_of, rule_of, time_split

__all__ = ["time_likelihood"]


def time_likelihood(
    name: str, family: int, distribution: Callable[[float, Array], Any]
) -> Likelihood:
    """Return the likelihood of log T = f + scale e, e of a family.

    Parameters
    ----------
    name : str
    family : int
        As kernels of `qpruntime.likelihoods.kinds.times` know it.
    distribution : callable
        SciPy's distribution of T, of 1/scale and e^f.
    """

    def split(f, y, theta):
        return time_split(family, f, y, theta), 0.0

    def moments(mu, sigma, y, theta):
        return moments_of(family, mu, sigma, y, theta, 1.0)

    def frame(mu, sigma, y, theta):
        return frame_of(family, mu, sigma, y, theta, 1.0)

    def raised_moments(mu, sigma, y, theta, power):
        return moments_of(family, mu, sigma, y, theta, power)

    def raised_frame(mu, sigma, y, theta, power):
        return frame_of(family, mu, sigma, y, theta, power)

    def rule(split, landmark, power, mu, sigma, y, theta):
        return rule_of(family, mu, sigma, y, theta, power)

    def edge(y, theta, k):
        return edge_of(y, theta, k)

    def given(f: Array, theta: Array) -> Any:
        return distribution(1.0 / theta[0], np.exp(np.clip(f, -700.0, 700.0)))

    return Likelihood(
        name=name,
        outcomes="pairs (first, last) of times",
        split=Pointer(split, SPLIT),
        validate=spans,
        columns=2,
        moments=Pointer(moments, MOMENTS),
        frame=Pointer(frame, FRAME),
        powers=Powers(Pointer(raised_moments, RAISED_MOMENTS), Pointer(raised_frame, RAISED_FRAME)),
        rule=Pointer(rule, RULE),
        landmarks=Pointer(edge, LANDMARK),
        parameters={"scale": 0.5},
        limits={"scale": (1e-4, 1e4)},
        derive=lambda scale: (math.log(scale),),
        given=given,
    )
