"""Tilted densities of one bend, on nodes that are held while sums over them are derived.

A sum over fixed nodes is as smooth in mu and sigma as the integrand; its derivatives, of any
order, are the sums of the integrand's. The likelihoods are those of
`qpruntime.likelihoods.softplus`: a u - n log(1 + e^(u + offset)/n), u = sign f.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from qpruntime.portable.normal import Normal
from qpruntime.portable.operations import Operations

__all__ = ["Bend", "Sums", "bend_expected", "bend_log_prob", "bend_sums", "normal_expected"]

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
#: Nodes, and standard deviations that they reach from the peak, or from the mean.
_NODES, _REACH, _REACH_MEAN = 400, 9.5, 8.7
#: Halvings of the bracket of a peak, and steps of Newton's method after them.
_HALVINGS, _STEPS = 60, 3
#: As in `qpruntime.likelihoods.bend`: which cavities are narrow, which bends curved, which near.
_NARROW, _CURVED, _NEAR = 1.5, 0.5, 9.5
#: Standard deviation beyond which a bend is narrow beside the normal.
_WIDE = 3.0
#: Exponents are held below this; what is beyond has no mass.
_LARGE = 80.0


class Bend(NamedTuple):
    """Shape of a log density: sign, a, 1/n, offset, place of the maximum if a > 0, log p there."""

    sign: Any
    a: Any
    inverse: Any
    offset: Any
    top: Any
    peak: Any


class Sums(NamedTuple):
    """Log Z, tilted mean and variance."""

    log_z: Any
    mean: Any
    variance: Any


def _last(x: Any) -> Any:
    return x[..., None]


def bend_log_prob(ops: Operations, shape: Bend, u: Any) -> Any:
    """Log density at u = sign f, relative to its maximum if a > 0."""
    _, a, _, offset, top, _ = shape
    d = u - ops.where(a > 0.0, top, -offset)
    return a * d - _fall(ops, shape, d)


def _fall(ops: Operations, shape: Bend, d: Any) -> Any:
    """n log(1 + e^(u + offset)/n), or less its value at the maximum, d from there."""
    _, a, inverse, _, _, _ = shape
    near = ops.minimum(d, _LARGE)
    grown = ops.where(a > 0.0, ops.expm1(near), ops.exp(near))
    k = ops.where(a > 0.0, a, 1.0 + 0.0 * a)
    some = ops.where(inverse > 0.0, inverse, 1.0 + 0.0 * inverse)
    far = ops.log(k * some) + d
    bent = ops.where(d > _LARGE, far, ops.log1p(k * some * grown)) / some
    return ops.where(inverse > 0.0, bent, k * grown)


def _slopes(ops: Operations, shape: Bend, u: Any) -> tuple[Any, Any]:
    """Rate and curvature: the slope is a - rate."""
    e = ops.exp(ops.minimum(ops.maximum(-u - shape.offset, -_LARGE), _LARGE))
    rate = 1.0 / (e + shape.inverse)
    return rate, rate * rate * e


def _peak(ops: Operations, shape: Bend, m: Any, sigma: Any) -> tuple[Any, Any]:
    """Peak of the tilted density and the curvature of log p there; nothing is derived."""
    s2 = sigma * sigma
    level = shape.a > 0.0
    low = ops.where(level, ops.minimum(m, shape.top), ops.minimum(m, -shape.offset) - s2)
    high = ops.where(level, ops.maximum(m, shape.top), m)
    for _ in range(_HALVINGS):
        u = 0.5 * (low + high)
        up = shape.a - _slopes(ops, shape, u)[0] > (u - m) / s2
        low, high = ops.where(up, u, low), ops.where(up, high, u)
    u = 0.5 * (low + high)
    for _ in range(_STEPS):
        rate, curvature = _slopes(ops, shape, u)
        u = u + (shape.a - rate - (u - m) / s2) / (curvature + 1.0 / s2)
    return u, _slopes(ops, shape, u)[1]


def _two_sides(
    ops: Operations, normal: Normal, shape: Bend, m: Any, sigma: Any, bend: Any
) -> tuple[Any, Any]:
    """Mean, from the bend, and standard deviation for a density of two straight sides."""
    finite = shape.inverse > 0.0
    some = ops.where(finite, shape.inverse, 1.0 + 0.0 * m)
    z = (bend - m) / sigma
    left, right = z - shape.a * sigma, (shape.a - 1.0 / some) * sigma - z
    r, other = normal.r(left), normal.r(right)
    share = ops.where(finite, r / ops.maximum(r + other, 1e-30), 0.0 * r)
    gap = normal.s(left) + normal.s(right)
    v = normal.v(left)
    variance = v + share * (normal.v(right) - v) + share * (1.0 - share) * gap * gap
    return sigma * (share * gap - normal.s(left)), sigma * ops.sqrt(ops.maximum(variance, 1e-30))


def _window(
    ops: Operations, normal: Normal, shape: Bend, m: Any, sigma: Any
) -> tuple[Any, Any, Any]:
    """Centre and width of the nodes, and how far they reach in v, f = centre + width sinh v."""
    peak, curvature = _peak(ops, shape, m, sigma)
    width = 1.0 / ops.sqrt(curvature + 1.0 / (sigma * sigma))
    bend = -shape.offset - ops.log(ops.maximum(shape.inverse, 1.0))
    mean, std = _two_sides(ops, normal, shape, m, sigma, bend)
    at_peak = (sigma <= _NARROW) | (curvature >= _CURVED) | (ops.abs(mean) > _NEAR * std)
    centre = ops.where(at_peak, peak, bend)
    width = ops.where(at_peak, width, ops.minimum(std, 1.0))
    far = (_REACH * sigma + ops.abs(peak - centre)) / width
    return centre, width, ops.log(far + ops.sqrt(far * far + 1.0))


def bend_sums(ops: Operations, normal: Normal, shape: Bend, mu: Any, sigma: Any) -> Sums:
    """Log Z, mean and variance of density times N(mu, sigma^2)."""
    m = shape.sign * mu
    centre, width, reach = (
        ops.held(x) for x in _window(ops, normal, shape, ops.held(m), ops.held(sigma))
    )
    unit = ops.constant(np.linspace(-1.0, 1.0, _NODES), mu)
    v = _last(reach) * unit
    up = ops.exp(v)
    d = 0.5 * _last(width) * (up - 1.0 / up)
    gap = _last(centre - m) + d
    e = bend_log_prob(ops, Bend(*(_last(x) for x in shape)), _last(centre) + d)
    e = e - 0.5 * (gap / _last(sigma)) ** 2 + ops.log(0.5 * (up + 1.0 / up))
    best = ops.held(ops.largest(e))
    mass = ops.exp(e - _last(best))
    total = ops.total(mass)
    p = mass / _last(total)
    shift = ops.total(p * d)
    step = 2.0 * reach / (_NODES - 1)
    log_z = shape.peak + best + ops.log(total * step * width / sigma) - _HALF_LOG_2PI
    variance = ops.total(p * (d - _last(shift)) ** 2)
    return Sums(log_z, shape.sign * (centre + shift), variance)


def bend_expected(ops: Operations, shape: Bend, mu: Any, sigma: Any) -> Any:
    """E log p under N(mu, sigma^2)."""
    one, zero = 1.0 + 0.0 * mu, 0.0 * mu
    peaked, finite = shape.a > 0.0, shape.inverse > 0.0
    mean = shape.sign * mu - ops.where(peaked, shape.top, -shape.offset)
    # e^d grows without a bend: closed.
    factor = ops.where(peaked, shape.a, one)
    grown = ops.exp(ops.minimum(mean + 0.5 * sigma * sigma, 700.0))
    closed = factor * (grown - ops.where(peaked, one, zero))
    some = ops.where(finite, shape.inverse, one)
    own = Bend(*(_last(x) for x in shape))._replace(inverse=_last(some))
    bend = -ops.log(factor * some)
    bent = normal_expected(ops, lambda d: _fall(ops, own, d), mean, sigma, bend)
    return shape.peak + shape.a * mean - ops.where(finite, bent, closed)


def normal_expected(
    ops: Operations, function: Callable[[Any], Any], mean: Any, sigma: Any, bend: Any
) -> Any:
    """E function(x), x ~ N(mean, sigma^2), for what is smooth but for a bend of width one.

    Where the normal is wide nodes lie densely at the bend and are held; elsewhere they move with
    mean and sigma.
    """
    wide = sigma > _WIDE
    unit = ops.constant(np.linspace(-1.0, 1.0, _NODES), mean)
    t = _REACH_MEAN * unit
    near = _last(mean) + _last(sigma) * t
    low, high = (
        ops.held(_asinh(ops, mean - bend + side * _REACH_MEAN * sigma)) for side in (-1.0, 1.0)
    )
    v = 0.5 * _last(low + high) + 0.5 * _last(high - low) * unit
    v = ops.where(_last(wide), v, 0.0 * v)
    up = ops.exp(v)
    places = ops.held(_last(bend)) + 0.5 * (up - 1.0 / up)
    z = (places - _last(mean)) / _last(sigma)
    far = ops.exp(-0.5 * z * z) * 0.5 * (up + 1.0 / up) * _last(0.5 * (high - low) / sigma)
    weight = ops.where(_last(wide), far, _REACH_MEAN * ops.exp(-0.5 * t * t) + 0.0 * z)
    step = 2.0 / (_NODES - 1) / math.sqrt(2.0 * math.pi)
    return step * ops.total(weight * function(ops.where(_last(wide), places, near)))


def _asinh(ops: Operations, x: Any) -> Any:
    size = ops.abs(x)
    value = ops.log(size + ops.sqrt(size * size + 1.0))
    return ops.where(x < 0.0, -value, value)
