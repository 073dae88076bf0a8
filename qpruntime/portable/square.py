"""Poisson with the square link in plain operations; formulas of `qpruntime.likelihoods.poisson`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qpruntime import special
from qpruntime.portable.bent import log_peak
from qpruntime.portable.form import Form
from qpruntime.portable.nodes import Sums
from qpruntime.portable.operations import Operations
from qpruntime.portable.spline import Spline

__all__ = ["Poisson"]

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
#: Counts up to here by a recursion, beyond by a sum.
_RECURSION = 50
#: Terms of the sum on either side; nodes and ends of the rule for E log f^2, in log t.
_TERMS, _NODES, _START, _STOP = 15, 800, -42.0, 84.0
_W2_STOP = 6400.0
_TAILS = tuple(np.atleast_1d(getattr(special, f"_TAIL_{k}")) for k in range(6, 0, -1))


def _last(x: Any) -> Any:
    return x[..., None]


class Poisson(Form):
    """p(y|f) = f^(2y) exp(-f^2)/y!."""

    def sums(self, mu: Any, sigma: Any, y: Any) -> Sums:
        ops, few = self.ops, y <= _RECURSION
        some = ops.where(few, y, 0.0 * y)
        many = ops.where(few, 0.0 * y + _RECURSION, y)
        pairs = zip(by_recursion(ops, mu, sigma, some), by_sum(ops, mu, sigma, many), strict=True)
        return Sums(*(ops.where(few, a, b) for a, b in pairs))

    def expected(self, mu: Any, sigma: Any, y: Any) -> Any:
        # E log f^2 is the integral of e^-t - E exp(-t f^2) over log t, f in units of its size.
        ops = self.ops
        unit = mu * mu + sigma * sigma
        m2, s2 = _last(mu * mu / unit), _last(2.0 * sigma * sigma / unit)
        grid = np.linspace(_START, _STOP, _NODES)
        t = ops.constant(np.exp(grid), mu)
        a = 1.0 + t * s2
        difference = ops.exp(-t) - ops.exp(-t * m2 / a - 0.5 * ops.log(a))
        log_square = ops.log(unit) + ops.total(difference) * ((_STOP - _START) / (_NODES - 1))
        return y * log_square - unit - ops.lgamma(y + 1.0)

    def ratio(self, spline: Spline, mu: Any, sigma: Any, y: Any) -> Any:
        ops, s2 = self.ops, sigma * sigma
        b2 = mu * mu / (s2 * (1.0 + 2.0 * s2))
        w2 = b2 * (b2 + 8.0 * y)
        row = ops.minimum(ops.maximum(y - 1.0, 0.0), float(spline.rows - 1))
        two = spline(row, 0.0 * row, ops.log(1.0 + ops.minimum(w2, _W2_STOP) * 0.0625))
        two = ops.where(y > spline.rows, 0.0 * two + math.nan, two)
        single = w2 > _W2_STOP
        b2 = ops.where(single, b2, 1e4 + 0.0 * b2)
        one = one_peak(ops, 2.0 * ops.maximum(y, 1.0), ops.sqrt(b2))
        return ops.where(y == 0.0, 1.0 + 0.0 * two, ops.where(single, one, two))


def by_recursion(ops: Operations, mu: Any, sigma: Any, y: Any) -> Sums:
    """Few counts: nothing is subtracted."""
    a = 1.0 + 2.0 * sigma * sigma
    centre, s2, x = mu / a, sigma * sigma / a, (mu / sigma) ** 2 / a
    log_z = -0.5 * ops.log1p(2.0 * sigma * sigma) - mu * centre
    t, before, p = 1.0 + 0.0 * mu, 1.0 + 0.0 * mu, 1.0 + 0.0 * mu
    for j in range(_RECURSION):
        own = j < y
        factor = (centre * centre * t + (2 * j + 1) * s2) / (j + 1)
        log_z = log_z + ops.where(own, ops.log(ops.where(own, factor, 1.0 + 0.0 * mu)), 0.0 * mu)
        p = ops.where(own, x * t + (2 * j + 1), p)
        before, t = (
            ops.where(own, t, before),
            ops.where(own, 1.0 + (2 * j + 2) * t / p, t),
        )
    excess = 2.0 * y * ((2.0 * y - 1.0) * t - 2.0 * y * before) / p
    return Sums(log_z, centre * t, s2 * (1.0 + excess))


def by_sum(ops: Operations, mu: Any, sigma: Any, y: Any) -> Sums:
    """Many: the trapezoid rule about the right peak, onto which the left one is folded."""
    root = ops.sqrt(1.0 + 2.0 * sigma * sigma)
    sign = ops.where(mu < 0.0, -1.0 + 0.0 * mu, 1.0 + 0.0 * mu)
    s, b, n = sigma / root, sign * mu / sigma / root, 2.0 * y
    peak = ops.held(0.5 * (b + ops.sqrt(b * b + 4.0 * n)))
    h = 0.6 / ops.sqrt(1.0 + n / (peak * peak))
    d = _last(h) * ops.constant(np.arange(-_TERMS, _TERMS + 1.0), mu)
    g = _last(peak) + d
    x = _last(b) * g
    e = (
        _last(n) * ops.log(g / _last(peak))
        - 0.5 * (g - _last(b)) ** 2
        + ops.log1p(ops.exp(-2.0 * x))
    )
    best = ops.held(ops.largest(e))
    mass = ops.exp(e - _last(best))
    total = ops.total(mass)
    p = mass / _last(total)
    lean = ops.tanh(x)
    first = ops.total(p * g * lean)
    spread = ops.total(p * (g * lean - _last(first)) ** 2)
    folded = ops.total(p * g * g * 4.0 * ops.exp(-2.0 * x) / (1.0 + ops.exp(-2.0 * x)) ** 2)
    # The cavity's exponent is that of b, and log g^n that of f^2y.
    log_z = best + ops.log(h * total) - _HALF_LOG_2PI + n * ops.log(peak * s / ops.sqrt(y))
    log_z = log_z + y + log_peak(ops, y) - 0.5 * ops.log1p(2.0 * sigma * sigma)
    log_z = log_z - mu * mu / (root * root)
    return Sums(log_z, sign * s * first, s * s * (spread + folded))


def one_peak(ops: Operations, n: Any, b: Any) -> Any:
    """`qpruntime.special.power_peak_ratio`."""
    g = 0.5 * (b + ops.sqrt(b * b + 4.0 * n))
    a = n / (g * g)
    w = a / (1.0 + a)
    e, total = w / n, 0.0 * w
    for tail in _TAILS:
        p = 0.0 * w
        for c in tail.tolist():
            p = p * w + c
        total = e * (p + total)
    return 1.0 + w * w * total
