# mypy: disable-error-code=no-untyped-def
"""Lookups of whole projections for a location and scale family: one table for every y and scale.

In units of the scale let d = y - mu, s the cavity's standard deviation, and r = d/sqrt(1 + s^2).
The table is over

    x = |r|/sqrt(r^2 + R^2)  in [0, 1],        e = log(1 + K s^2)/2,

so that it holds every distance, and every narrow cavity: both ends of x and e = 0 are limits in
closed form. With u = s^2/(1 + s^2) and t = 1 - x^2 it stores, for tails like those of |f|^-(nu+1),

    log Z + (nu+1)/2 log(1 + r^2/nu),        (mean - mu)/(u t d),
    log(sigma_EP/sigma)/(u t),               log(sigma*/sigma_EP)/(u t),

even functions of r that neither grow nor vanish: what a site takes of a cavity has relative errors
however narrow the cavity, and however far out the observation.
"""

from __future__ import annotations

import math

import numpy as np

from qpruntime.arrays import Array
from qpruntime.artifact.metadata import Axis
from qpruntime.jit import SURFACES, Pointer, contracted
from qpruntime.projection.splines import quintic_weights
from qpruntime.projection.surfaces import slab

__all__ = ["NARROW", "REACH", "cavities", "encode", "lookup", "pack"]

#: R: where a cavity much wider than the scale gives an observation up, in its standard deviations.
REACH = 5.0
#: K: the widths that matter begin below the scale, where log p is no parabola.
NARROW = 9.0
# Places in the array of axes, after those of the two axes.
_SCALE, _NU, _CONSTANT = 6, 7, 8


def pack(x: Axis, e: Axis, scale: float, nu: float, constant: float) -> Array:
    """Return the array of axes that `lookup` takes; `constant` is added to log Z."""
    ends = [v for axis in (x, e) for v in (axis.start, axis.stop, 1.0 / axis.step)]
    return np.array([*ends, scale, nu, constant])


def cavities(x: Array, e: Array) -> tuple[Array, Array]:
    """Return distances d and standard deviations s, in units of the scale, of x < 1 and e."""
    r = REACH * x / np.sqrt((1.0 - x) * (1.0 + x))
    s2 = np.expm1(2.0 * e) / NARROW
    return r * np.sqrt(1.0 + s2), np.sqrt(s2)


def encode(d: Array, s: Array, nu: float, moments: Array) -> Array:
    """Return what is stored, in a last axis of 4, for cavities with d > 0 and s > 0 at unit scale.

    `moments` has in its last axis log Z, mean - mu, and the standard deviations of EP and QP.
    """
    total = 1.0 + s * s
    r2 = d * d / total
    unit = s * s / total * REACH**2 / (r2 + REACH**2)
    log_z, shift, std, star = np.moveaxis(moments, -1, 0)
    return np.stack(
        [
            log_z + 0.5 * (nu + 1.0) * np.log1p(r2 / nu),
            shift / (unit * d),
            np.log(std / s) / unit,
            np.log(np.minimum(star / std, 1.0)) / unit,
        ],
        axis=-1,
    )


def _lookup(mu, sigma, y, values, axes):
    """Return (log Z, mean, sigma_EP, sigma*), NaN outside; both last are standard deviations."""
    scale, nu = axes[_SCALE], axes[_NU]
    d, s = (y - mu) / scale, sigma / scale
    s2 = s * s
    e = 0.5 * math.log1p(NARROW * s2)
    total = 1.0 + s2
    r2 = d * d / total
    far = r2 + REACH * REACH
    # NaN and what overflows are outside too.
    if not (e <= axes[4] and far < 1e300):
        return math.nan, math.nan, math.nan, math.nan
    a = math.sqrt(r2 / far) * axes[2]
    b = e * axes[5]
    i = min(int(a), values.shape[1] - 6)
    j = min(int(b), values.shape[2] // 4 - 6)
    s0, s1, s2nd, s3 = slab(values, 0, i, j, quintic_weights(a - i), quintic_weights(b - j))
    unit = s2 / total * (REACH * REACH / far)
    log_z = axes[_CONSTANT] + s0 - 0.5 * (nu + 1.0) * math.log1p(r2 / nu)
    std = sigma * math.exp(unit * s2nd)
    return log_z, mu + (y - mu) * unit * s1, std, std * math.exp(min(unit * s3, 0.0))


#: What kernels call.
lookup = Pointer(_lookup, SURFACES, contracted)
