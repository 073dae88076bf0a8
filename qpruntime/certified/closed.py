"""Derivatives of log Z in closed form, of likelihoods whose log Z is a function of one number."""

from __future__ import annotations

import math

import numpy as np

from qpruntime.arrays import Array
from qpruntime.jit import MOMENTS, Pointer
from qpruntime.likelihoods.step import two_sided
from qpruntime.special import log_ndtr, probit_series

__all__ = ["CLOSED_SLOPES", "to_power"]

# Each returns (log Z, d log Z/d mu, d log Z/d sigma).


def _probit(mu, sigma, y, theta):
    # log Phi(z), z = y mu/sqrt(1 + sigma^2).
    root = math.hypot(1.0, sigma)
    z = y * mu / root
    r = probit_series(z)[0]
    return log_ndtr(z), y * r / root, -r * z * (sigma / root) / root


def _heaviside(mu, sigma, y, theta):
    z = y * mu / sigma
    if z > 40.0:
        return 0.0, 0.0, 0.0
    r = probit_series(z)[0]
    return log_ndtr(z), y * r / sigma, -r * z / sigma


def _step(mu, sigma, y, theta):
    # Z = Phi(a) + e^-y Phi(-a), a = mu/sigma, for y >= 0; phi(a)/Z = r(a) Phi(a)/Z.
    log_z, _, _, a, right, _ = two_sided(mu, sigma, y)
    slope = math.copysign(1.0, y) * -math.expm1(-abs(y)) * right * probit_series(a)[0] / sigma
    return log_z, slope, -slope * (mu / sigma)


#: By the name of the likelihood; for the first power.
CLOSED_SLOPES = {
    "heaviside": Pointer(_heaviside, MOMENTS),
    "probit": Pointer(_probit, MOMENTS),
    "step": Pointer(_step, MOMENTS),
}


def to_power(name: str, y: Array, power: Array) -> tuple[Array, Array]:
    """Return the observations and powers of the same likelihood, with fewer powers than before.

    A heaviside is what it is to every power; of a step the logarithm of heights is multiplied.
    """
    if name == "step":
        return y * power, np.ones_like(power)
    return y, np.ones_like(power) if name == "heaviside" else power
