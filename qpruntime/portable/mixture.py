"""Student's t in plain operations: a normal whose log precision is integrated over.

The rules are those of `qpruntime.likelihoods.student_t` and `qpruntime.certified.expectation`,
with as many nodes for every cavity.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qpruntime.portable.nodes import Sums
from qpruntime.portable.operations import Operations

__all__ = ["t_expected", "t_sums"]

_NODES, _CUT = 400, 42.0
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


def _last(x: Any) -> Any:
    return x[..., None]


def t_sums(ops: Operations, mu: Any, sigma: Any, y: Any, nu: Any, scale: Any) -> Sums:
    """Log Z, without the constant of the mixture, mean and variance."""
    s2, sigma2, d = scale * scale, sigma * sigma, y - mu
    held = ops.held(ops.abs(d) / scale)
    # Log weights rise with u below `low` and fall above `high`.
    low, high = -ops.log1p(held / nu * held), ops.log1p(1.0 / nu)
    low = low - _CUT * 2.0 / (nu + 1.0) - ops.held(ops.log1p(sigma2 / s2)) / (nu + 1.0)
    high = high + ops.log1p(2.0 * _CUT / nu)
    unit = ops.constant(np.linspace(0.0, 1.0, _NODES), mu)
    u = _last(low) + _last(high - low) * unit
    up = ops.exp(u)
    spread = _last(sigma2) + _last(s2) / up
    e = -0.5 * _last(nu) * (up - 1.0 - u)
    e = e - 0.5 * (ops.log(spread) + _last(d * d) / spread)
    best = ops.held(ops.largest(e))
    mass = ops.exp(e - _last(best))
    total = ops.total(mass)
    p = mass / _last(total)
    own, other = _last(sigma2) / spread, _last(s2) / up / spread
    share, rest = ops.total(p * own), ops.total(p * other)
    log_z = best + ops.log(total * (high - low) / (_NODES - 1)) - _HALF_LOG_2PI
    mean = ops.where(share < rest, mu + d * share, y - d * rest)
    small = ops.where(_last(share < rest), own - _last(share), other - _last(rest))
    return Sums(log_z, mean, sigma2 * rest + d * d * ops.total(p * small * small))


def t_expected(ops: Operations, mu: Any, sigma: Any, y: Any, nu: Any, scale: Any) -> Any:
    """E log(1 + (f - y)^2/(nu scale^2))."""
    d2, s2 = (mu - y) ** 2 / (nu * scale * scale), 2.0 * sigma * sigma / (nu * scale * scale)
    start = ops.held(-ops.log1p(s2 + d2)) - _CUT
    stop = math.log(_CUT)
    unit = ops.constant(np.linspace(0.0, 1.0, _NODES), mu)
    t = ops.exp(_last(start) + _last(stop - start) * unit)
    a = 1.0 + t * _last(s2)
    e = -0.5 * ops.log1p(t * _last(s2)) - t * _last(d2) / a
    return -ops.total(ops.exp(-t) * ops.expm1(e)) * (stop - start) / (_NODES - 1)
