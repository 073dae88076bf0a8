"""Likelihoods of one bend, by quadrature with as many nodes for every cavity: plain operations."""

from __future__ import annotations

import math
from typing import Any

from qpruntime.portable.form import Form
from qpruntime.portable.nodes import Bend, Sums, bend_expected, bend_sums
from qpruntime.portable.operations import Operations

__all__ = ["Binomial", "Logistic", "NegativeBinomial", "PoissonExp", "log_peak"]

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


def log_peak(ops: Operations, x: Any) -> Any:
    """x log x - x - log x! for x >= 0, cancelled by hand."""
    small, large = ops.minimum(ops.maximum(x, 1e-30), 16.0), ops.maximum(x, 16.0)
    i = 1.0 / (large * large)
    error = 1.0 / 360.0 - i * (1.0 / 1260.0 - i * (1.0 / 1680.0 - i / 1188.0))
    error = (1.0 / 12.0 - i * error) / large
    near = small * ops.log(small) - small - ops.lgamma(small + 1.0)
    far = -0.5 * ops.log(large) - _HALF_LOG_2PI - error
    return ops.where(x > 0.0, ops.where(x < 16.0, near, far), 0.0 * x)


class _Bent(Form):
    """Likelihoods that say what their `Bend` is."""

    def shape(self, y: Any) -> Bend:
        raise NotImplementedError

    def sums(self, mu: Any, sigma: Any, y: Any) -> Sums:
        return bend_sums(self.ops, self.normal, self.shape(y), mu, sigma)

    def expected(self, mu: Any, sigma: Any, y: Any) -> Any:
        return bend_expected(self.ops, self.shape(y), mu, sigma)


class Logistic(_Bent):
    def shape(self, y: Any) -> Bend:
        zero = 0.0 * y
        return Bend(-y, zero, zero + 1.0, zero, zero, zero)


class Binomial(_Bent):
    def shape(self, y: Any) -> Bend:
        ops, (k, n) = self.ops, y
        fail = n - k
        few = k <= fail
        a = ops.where(few, k, fail)
        peak = log_peak(self.ops, k) + log_peak(self.ops, fail) - log_peak(self.ops, n)
        return Bend(
            ops.where(few, 1.0 + 0.0 * k, -1.0 + 0.0 * k),
            a,
            1.0 / n,
            ops.log(n),
            ops.log(ops.maximum(a, 1.0) / ops.maximum(n - a, 1.0)),
            ops.where(a > 0.0, peak, 0.0 * k),
        )


class PoissonExp(_Bent):
    def shape(self, y: Any) -> Bend:
        zero = 0.0 * y
        top = self.ops.log(self.ops.maximum(y, 1.0))
        return Bend(zero + 1.0, y, zero, zero, top, log_peak(self.ops, y))


class NegativeBinomial(_Bent):
    def shape(self, y: Any) -> Bend:
        ops, r = self.ops, self.parameters["dispersion"]
        n, few, log_r = y + r, y <= r, math.log(r)
        log_n, some = ops.log(n), ops.maximum(y, 1.0)
        log_y = ops.log(some)
        peak = (
            log_peak(self.ops, y)
            + log_peak(self.ops, 0.0 * y + r)
            - log_peak(self.ops, n)
            + log_r
            - log_n
        )
        return Bend(
            ops.where(few, 1.0 + 0.0 * y, -1.0 + 0.0 * y),
            ops.where(few, y, 0.0 * y + r),
            1.0 / n,
            ops.where(few, log_n - log_r, log_n + log_r),
            ops.where(few, log_y, -log_y),
            ops.where(y > 0.0, peak, 0.0 * y),
        )
