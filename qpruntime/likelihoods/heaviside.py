"""Heaviside: p(y|f) = 1 if y f > 0 else 0, y in {-1, +1}. The probit without its noise.

Every tilted density is a normal cut off at 0, so sigma*/sigma depends on y mu/sigma alone.
"""

from __future__ import annotations

import math

import numpy as np

from qpruntime._numba import kernel
from qpruntime._pointers import COORDINATES, SPLIT, Pointer
from qpruntime._special import log_ndtr, probit_series
from qpruntime._typing import Array, Floats
from qpruntime.likelihoods.base import Likelihood, Powers, Reduction
from qpruntime.likelihoods.responses import signs
from qpruntime.table_format.metadata import Axis

__all__ = ["likelihood"]

#: z beyond which nothing changes but overflow.
_FAR = 1e8


def _split(f: float, y: float, theta: Array) -> tuple[float, float]:
    return (0.0 if y * f > 0.0 else -math.inf), 0.0


# 0 and 1 are what they are to every power.
@kernel
def _moments(
    mu: float, sigma: float, y: float, theta: Array, power: float
) -> tuple[float, float, float]:
    # z = y mu/sigma, r = phi(z)/Phi(z): mean mu + y sigma r, variance sigma^2 (1 - r (r + z)).
    z = y * mu / sigma
    if z > _FAR:
        return 0.0, mu, sigma * sigma
    r, r_plus_z, v = probit_series(z)
    mean = y * sigma * r_plus_z if z < 0.0 else mu + y * sigma * r
    return log_ndtr(z), mean, sigma * sigma * v


@kernel
def _frame(mu: float, sigma: float, y: float, theta: Array, power: float) -> Floats:
    z = y * mu / sigma
    if z > 8.5:
        # The mass beyond the edge is below 1e-17: a normal, whole.
        return mu, sigma, 1.0, 0.0
    v = probit_series(z)[2]
    return 0.0, 2.0 * sigma * math.sqrt(v), 1.0, y


# R = sigma*/sigma_EP is analytic in v = z/sqrt(16 + z^2) on [-1, v(8)], z = y mu/sigma, its limit
# 0.9031972855686 for z -> -inf included, and 1 to 1e-15 for z >= 8. sigma*/length, length =
# sigma/sqrt(1 + p^2), p = (sqrt(16 + z^2) - z)/2, is of order one on the whole line.
_V_STOP = 8.0 / math.sqrt(80.0)


def _coordinates(mu: float, sigma: float, y: float, theta: Array) -> tuple[float, float, float]:
    z = y * mu / sigma
    if not abs(z) < _FAR:
        z = math.copysign(_FAR, z)
    return 0.0, 0.0, z / math.sqrt(16.0 + z * z)


def _scale(mu: float, sigma: float, y: float, theta: Array) -> tuple[float, float, float]:
    z = y * mu / sigma
    if not abs(z) < _FAR:
        z = math.copysign(_FAR, z)
    root = math.sqrt(16.0 + z * z)
    p = 0.5 * (root - z) if z < 0.0 else 8.0 / (root + z)
    return sigma / math.sqrt(1.0 + p * p), z / root, 0.0


def _cavity(row: float, u: float, v: float) -> tuple[float, float, float]:
    z = math.copysign(_FAR, v) if abs(v) >= 1.0 - 1e-13 else 4.0 * v / math.sqrt(1.0 - v * v)
    return z, 1.0, 1.0


def _score(mean: Array, variance: Array) -> Array:
    return mean / np.sqrt(variance)


likelihood = Likelihood(
    name="heaviside",
    outcomes="labels -1 and +1",
    split=Pointer(_split, SPLIT),
    validate=signs,
    mirror=True,
    powers=Powers.from_kernels(_moments, _frame),
    reduction=Reduction(
        coordinates=Pointer(_coordinates, COORDINATES),
        cavity=_cavity,
        v=Axis("z/sqrt(16 + z^2), z = y mu/sigma", -1.0, _V_STOP, 193),
        scale=Pointer(_scale, COORDINATES),
    ),
    score=_score,
)
