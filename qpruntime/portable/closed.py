"""Likelihoods whose log Z is closed, or one integral of a positive function: plain operations.

Formulas are those of `qpruntime.likelihoods`, where their sources stand.
"""

from __future__ import annotations

import math
from typing import Any

from qpruntime import likelihoods
from qpruntime.portable.form import Form
from qpruntime.portable.mixture import t_expected, t_sums
from qpruntime.portable.nodes import Sums, normal_expected
from qpruntime.portable.spline import Spline

__all__ = ["Heaviside", "Laplace", "Probit", "Step", "StudentT"]

_SQRT1_2, _SQRT_2_PI = math.sqrt(0.5), math.sqrt(2.0 / math.pi)


class Probit(Form):
    def sums(self, mu: Any, sigma: Any, y: Any) -> Sums:
        ops, s2 = self.ops, sigma * sigma
        root = ops.sqrt(1.0 + s2)
        z = y * mu / root
        r, s, v = self.normal.r(z), self.normal.s(z), self.normal.v(z)
        mean = ops.where(z < 0.0, y * (z + s2 * s) / root, mu + y * s2 * r / root)
        return Sums(self.normal.log_ndtr(z), mean, s2 / (1.0 + s2) * (1.0 + s2 * v))

    def expected(self, mu: Any, sigma: Any, y: Any) -> Any:
        return normal_expected(self.ops, self.normal.log_ndtr, y * mu, sigma, 0.0 * mu)

    def ratio(self, spline: Spline, mu: Any, sigma: Any, y: Any) -> Any:
        ops, s2 = self.ops, sigma * sigma
        k = ops.maximum(y * mu / ops.sqrt(1.0 + s2), -1e8)
        root = ops.sqrt(16.0 + k * k)
        p = ops.where(k > 0.0, 8.0 / (root + ops.abs(k)), 0.5 * (root - k))
        v = 0.5 / math.log(10.0) * ops.log(s2 / (1.0 + p * p))
        return spline(0.0 * k, k / root, v)


class Heaviside(Form):
    def sums(self, mu: Any, sigma: Any, y: Any) -> Sums:
        z = y * mu / sigma
        r, s, v = self.normal.r(z), self.normal.s(z), self.normal.v(z)
        mean = self.ops.where(z < 0.0, y * sigma * s, mu + y * sigma * r)
        return Sums(self.normal.log_ndtr(z), mean, sigma * sigma * v)

    def expected(self, mu: Any, sigma: Any, y: Any) -> Any:
        return 0.0 * mu - math.inf

    def ratio(self, spline: Spline, mu: Any, sigma: Any, y: Any) -> Any:
        ops = self.ops
        z = ops.minimum(ops.maximum(y * mu / sigma, -1e8), 1e8)
        return spline(0.0 * z, z, z / ops.sqrt(16.0 + z * z))


class Step(Form):
    def sums(self, mu: Any, sigma: Any, y: Any) -> Sums:
        ops = self.ops
        sign = ops.where(y < 0.0, -1.0 + 0.0 * y, 1.0 + 0.0 * y)
        alpha, size = sign * mu / sigma, ops.abs(y)
        right, left = self.normal.log_ndtr(alpha), self.normal.log_ndtr(-alpha) - size
        top = ops.maximum(right, left)
        log_z = top + ops.log(ops.exp(right - top) + ops.exp(left - top))
        # Where most of the mass is right, from 1 less what is lost: log Z may be tiny.
        lost = -ops.expm1(-size) * ops.exp(self.normal.log_ndtr(-alpha))
        log_z = ops.where(lost < 0.5, ops.log1p(-ops.minimum(lost, 0.5)), log_z)
        p, q = ops.exp(right - log_z), ops.exp(left - log_z)
        up, down = self.normal.s(alpha), self.normal.s(-alpha)
        rho = -ops.expm1(-size) * p * self.normal.r(alpha)
        mean = ops.where(rho < 0.5, mu + sign * sigma * rho, sign * sigma * (p * up - q * down))
        v = p * self.normal.v(alpha) + q * self.normal.v(-alpha) + p * q * (up + down) ** 2
        return Sums(log_z, mean, sigma * sigma * v)

    def expected(self, mu: Any, sigma: Any, y: Any) -> Any:
        ops = self.ops
        side = ops.where(y < 0.0, -1.0 + 0.0 * y, 1.0 + 0.0 * y)
        return -ops.abs(y) * 0.5 * ops.erfc(side * mu / sigma * _SQRT1_2)


class Laplace(Form):
    def sums(self, mu: Any, sigma: Any, y: Any) -> Sums:
        ops, normal, scale = self.ops, self.normal, self.parameters["scale"]
        a, d = sigma / scale, (mu - y) / sigma
        above, below = d - a, -d - a
        # Logs of both sides' masses without the factor of the normal that both have.
        left, right = normal.log_ndtr(below) + a * d, normal.log_ndtr(above) - a * d
        top = ops.maximum(left, right)
        total = ops.exp(right - top) + ops.exp(left - top)
        share, other = ops.exp(right - top) / total, ops.exp(left - top) / total
        log_z = 0.5 * a * a + top + ops.log(total) - math.log(2.0 * scale)
        up, down = normal.s(above), normal.s(below)
        v = share * normal.v(above) + other * normal.v(below) + share * other * (up + down) ** 2
        far_above, far_below = (other == 0.0) & (above > 0.0), (share == 0.0) & (below > 0.0)
        mean = y + sigma * (share * up - other * down)
        mean = ops.where(far_above, mu + sigma * (normal.r(above) - a), mean)
        mean = ops.where(far_below, mu - sigma * (normal.r(below) - a), mean)
        return Sums(log_z, mean, sigma * sigma * v)

    def expected(self, mu: Any, sigma: Any, y: Any) -> Any:
        ops, scale = self.ops, self.parameters["scale"]
        d = (mu - y) / sigma
        density = _SQRT_2_PI * ops.exp(-0.5 * d * d)
        lean = 1.0 - ops.erfc(d * _SQRT1_2)
        return -math.log(2.0 * scale) - sigma * (density + d * lean) / scale


class StudentT(Form):
    def _constants(self) -> tuple[float, float]:
        own = likelihoods.get("student-t", **self.parameters)
        return float(own.theta[2]), float(own.theta[3])

    def sums(self, mu: Any, sigma: Any, y: Any) -> Sums:
        nu, scale = (0.0 * mu + self.parameters[k] for k in ("nu", "scale"))
        found = t_sums(self.ops, mu, sigma, y, nu, scale)
        return found._replace(log_z=found.log_z + self._constants()[1])

    def expected(self, mu: Any, sigma: Any, y: Any) -> Any:
        nu, scale = (0.0 * mu + self.parameters[k] for k in ("nu", "scale"))
        tail = t_expected(self.ops, mu, sigma, y, nu, scale)
        return self._constants()[0] - 0.5 * (self.parameters["nu"] + 1.0) * tail
