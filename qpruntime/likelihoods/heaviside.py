"""Heaviside: p(y|f) = 1 if y f > 0 else 0, y in {-1, +1}. The probit without its noise.

Every tilted density is a normal cut off at 0, so sigma*/sigma depends on y mu/sigma alone.
"""

from __future__ import annotations

import math

from qpruntime.jit import FRAME, MOMENTS, SPLIT, Pointer
from qpruntime.likelihoods.base import Likelihood, signs
from qpruntime.special import log_ndtr, probit_series

__all__ = ["likelihood"]


def _split(f, y, theta):
    return (0.0 if y * f > 0.0 else -math.inf), 0.0


def _moments(mu, sigma, y, theta):
    # z = y mu/sigma, r = phi(z)/Phi(z): mean mu + y sigma r, variance sigma^2 (1 - r (r + z)).
    z = y * mu / sigma
    r, r_plus_z, v = probit_series(z)
    mean = y * sigma * r_plus_z if z < 0.0 else mu + y * sigma * r
    return log_ndtr(z), mean, sigma * sigma * v


def _frame(mu, sigma, y, theta):
    z = y * mu / sigma
    if z > 8.5:
        # The mass beyond the edge is below 1e-17: a normal, whole.
        return mu, sigma, 1.0, 0.0
    v = probit_series(z)[2]
    return 0.0, 2.0 * sigma * math.sqrt(v), 1.0, y


likelihood = Likelihood(
    name="heaviside",
    outcomes="labels -1 and +1",
    split=Pointer(_split, SPLIT),
    validate=signs,
    moments=Pointer(_moments, MOMENTS),
    frame=Pointer(_frame, FRAME),
    mirror=True,
)
