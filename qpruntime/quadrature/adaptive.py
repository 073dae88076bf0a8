"""Quadrature of any tilted density, from its log density alone: moments and sigma*."""

from __future__ import annotations

import math

import numpy as np

from qpruntime.jit import RULE, Pointer, call_landmark, kernel
from qpruntime.quadrature.panel import N
from qpruntime.quadrature.quantiles import quantile_nodes
from qpruntime.quadrature.tilted import OK, Raised

__all__ = [
    "adaptive_rule",
    "back_from",
    "location_rule",
    "log_mass_at",
    "look_around",
    "marks_from",
]

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
_MARKS = 16


@kernel
def look_around(landmark, y, theta):
    """Return the points around which modes are looked for: 0, y and the likelihood's own."""
    marks = np.empty(_MARKS + 2)
    marks[0], marks[1] = 0.0, y
    for k in range(_MARKS):
        marks[k + 2] = call_landmark(landmark, y, theta, k)
        if math.isnan(marks[k + 2]):
            return marks[: k + 2]
    return marks


@kernel
def log_mass_at(anchor, mu, sigma):
    """log of the tilted density at the anchor, likelihood times N(mu, sigma^2)."""
    f, rest, curvature, _, _ = anchor
    log_anchor = rest - 0.5 * curvature * f * f - math.log(sigma) - _HALF_LOG_2PI
    return log_anchor - 0.5 * ((f - mu) / sigma) ** 2


@kernel
def integrate(raised, mu, sigma, marks):
    """Return (status, log Z, anchor, mean less the anchor, variance, sigma*) of one cavity."""
    status, anchor, log_mass, found, _ = quantile_nodes(raised, mu, sigma, marks, 2.0, 0)
    if status != OK:
        return status, 0.0, 0.0, 0.0, 0.0, 0.0
    d, w, p, z = found
    whole, shift, star = 0.0, 0.0, 0.0
    for i in range(d.shape[0]):
        for j in range(N):
            whole += p[i, j]
            shift += p[i, j] * d[i, j]
            star += w[i, j] * math.exp(-0.5 * z[i, j] * z[i, j])
    shift /= whole
    variance = 0.0
    for i in range(d.shape[0]):
        for j in range(N):
            variance += p[i, j] * (d[i, j] - shift) ** 2
    log_z = log_mass_at(anchor, mu, sigma) + log_mass + math.log(whole)
    return OK, log_z, anchor.f, shift, variance / whole, star / math.sqrt(2.0 * math.pi)


def _adaptive_rule(split, landmark, power, mu, sigma, y, theta):
    """Return (status, log Z, mean, variance, sigma*) of one cavity."""
    marks = look_around(landmark, y, theta)
    status, log_z, anchor, shift, variance, star = integrate(
        Raised(split, power, y, theta), mu, sigma, marks
    )
    return float(status), log_z, anchor + shift, variance, star


@kernel
def marks_from(landmark, y, theta):
    """`look_around`, as distances from y."""
    marks = look_around(landmark, y, theta)
    for k in range(marks.size):
        marks[k] -= y
    return marks


@kernel
def back_from(mu, y, anchor, shift):
    """Mean of a density integrated in f - y, measured from whichever of mu and y is nearer."""
    gap = (anchor - (mu - y)) + shift
    return mu + gap if abs(gap) < abs(anchor + shift) else y + (anchor + shift)


def _location_rule(split, landmark, power, mu, sigma, y, theta):
    """`_adaptive_rule` where log p depends on f - y alone, which is integrated over.

    A peak at y may be narrower than the distance between the doubles next to y.
    """
    status, log_z, anchor, shift, variance, star = integrate(
        Raised(split, power, 0.0, theta), mu - y, sigma, marks_from(landmark, y, theta)
    )
    return float(status), log_z, back_from(mu, y, anchor, shift), variance, star


#: `RULE` of `qpruntime.jit`: moments and sigma* of any tilted density. Kernels get its address,
#: so that it compiles only where it is needed.
adaptive_rule = Pointer(_adaptive_rule, RULE)
location_rule = Pointer(_location_rule, RULE)
