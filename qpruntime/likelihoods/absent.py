"""Stand-ins for what a likelihood does not provide: kernels call an address whether or not."""

from __future__ import annotations

import numpy as np

from qpruntime.jit import (
    COORDINATES,
    FRAME,
    LANDMARK,
    MOMENTS,
    RAISED_MOMENTS,
    SPLIT,
    Pointer,
)
from qpruntime.likelihoods.reduction import INTEGRATE

__all__ = [
    "ABSENT_COORDINATES",
    "ABSENT_FRAME",
    "ABSENT_LANDMARK",
    "ABSENT_MOMENTS",
    "ABSENT_RAISED",
    "ABSENT_SPLIT",
    "NO_RULE",
]


def _absent_split(f, y, theta):
    return np.nan, np.nan


def _absent_moments(mu, sigma, y, theta):
    return np.nan, np.nan, np.nan


def _absent_raised(mu, sigma, y, theta, power):
    return np.nan, np.nan, np.nan


def _absent_frame(mu, sigma, y, theta):
    return np.nan, np.nan, np.nan, np.nan


def _absent_landmark(y, theta, k):
    return np.nan


def _absent_coordinates(mu, sigma, y, theta):
    return INTEGRATE, np.nan, np.nan


#: What is never called.
NO_RULE = 0
ABSENT_LANDMARK = Pointer(_absent_landmark, LANDMARK)
ABSENT_SPLIT = Pointer(_absent_split, SPLIT)
ABSENT_MOMENTS = Pointer(_absent_moments, MOMENTS)
ABSENT_RAISED = Pointer(_absent_raised, RAISED_MOMENTS)
ABSENT_FRAME = Pointer(_absent_frame, FRAME)
ABSENT_COORDINATES = Pointer(_absent_coordinates, COORDINATES)
