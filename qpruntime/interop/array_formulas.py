"""Closed and summed moments as array formulas."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from qpruntime import _special, likelihoods
from qpruntime._special import HALF_LOG_2PI
from qpruntime.interop.array_operations import SQRT1_2, SQRT_2_PI, Normal, Operations, Tensor
from qpruntime.likelihoods import Likelihood
from qpruntime.projection.table import Table

__all__ = [
    "FORMS",
    "Bend",
    "Form",
    "Spline",
    "Sums",
    "bend_expected",
    "bend_log_prob",
    "bend_sums",
    "log_peak",
    "normal_expected",
    "t_expected",
    "t_sums",
]


#: Formulas by the name of their likelihood.
FORMS: dict[str, type[Form]] = {}


class Form:
    """Formulas of one likelihood for N(mu, sigma^2) and y, arrays of one shape and type.

    An observation of several numbers is a tuple of arrays. A subclass names its likelihood.

    Parameters
    ----------
    ops : Operations
    likelihood : Likelihood
    """

    def __init__(self, ops: Operations, likelihood: Likelihood) -> None:
        self.ops, self.normal = ops, Normal(ops)
        self.parameters = dict(likelihood.parameters)

    def __init_subclass__(cls, likelihood: str | None = None) -> None:
        super().__init_subclass__()
        if likelihood is not None:
            FORMS[likelihood] = cls

    def sums(self, mu: Tensor, sigma: Tensor, y: Tensor) -> Sums:
        """Log Z, mean and variance of the tilted density."""
        raise NotImplementedError

    def expected(self, mu: Tensor, sigma: Tensor, y: Tensor) -> Tensor:
        """E log p(y|f)."""
        raise NotImplementedError

    def ratio(self, spline: Spline, mu: Tensor, sigma: Tensor, y: Tensor) -> Tensor:
        """sigma*/sigma_EP by the likelihood's compact table; NaN where that has no row."""
        raise NotImplementedError


class Bend(NamedTuple):
    """Shape of a log density: sign, a, 1/n, offset, place of the maximum if a > 0, log p there."""

    sign: Tensor
    a: Tensor
    inverse: Tensor
    offset: Tensor
    top: Tensor
    peak: Tensor


class Sums(NamedTuple):
    """Log Z, tilted mean and variance."""

    log_z: Tensor
    mean: Tensor
    variance: Tensor


def _last(x: Tensor) -> Tensor:
    return x[..., None]


def _shares(ops: Operations, e: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the largest of exponents, the sum of exp(e - largest), and each node's share of it."""
    best = ops.stop_gradient(ops.largest(e))
    mass = ops.exp(e - _last(best))
    total = ops.total(mass)
    return best, total, mass / _last(total)


# --- Poisson with the square link ----------------------------------------------------------------

#: Counts up to here by a recursion, beyond by a sum.
_RECURSION = 50
#: Terms of the sum on either side; nodes and ends of the rule for E log f^2, in log t.
_SQUARE_TERMS, _SQUARE_NODES, _START, _STOP = 15, 800, -42.0, 84.0
_W2_STOP = 6400.0
_TAILS = tuple(np.atleast_1d(getattr(_special, f"_TAIL_{k}")) for k in range(6, 0, -1))


class Poisson(Form, likelihood="poisson"):
    """p(y|f) = f^(2y) exp(-f^2)/y!."""

    def sums(self, mu: Tensor, sigma: Tensor, y: Tensor) -> Sums:
        """Return log Z, mean and variance of the tilted density."""
        ops, few = self.ops, y <= _RECURSION
        small_count = ops.where(few, y, 0.0 * y)
        many = ops.where(few, 0.0 * y + _RECURSION, y)
        pairs = zip(
            by_recursion(ops, mu, sigma, small_count), by_sum(ops, mu, sigma, many), strict=True
        )
        return Sums(*(ops.where(few, a, b) for a, b in pairs))

    def expected(self, mu: Tensor, sigma: Tensor, y: Tensor) -> Tensor:
        """Return E log p(y|f) for f ~ N(mu, sigma^2)."""
        # E log f^2 is the integral of e^-t - E exp(-t f^2) over log t, f in units of its size.
        ops = self.ops
        unit = mu * mu + sigma * sigma
        m2, s2 = _last(mu * mu / unit), _last(2.0 * sigma * sigma / unit)
        grid = np.linspace(_START, _STOP, _SQUARE_NODES)
        t = ops.constant(np.exp(grid), mu)
        # Squares of 1/t, which derivatives have, stay within the type; where 1/t is so small it is
        # nothing beside s2, or all is over.
        inverse = np.maximum(np.exp(-grid), math.exp(-0.25 * ops.exponent(mu)))
        pull = m2 / (ops.constant(inverse, mu) + s2)
        difference = ops.exp(-t) - ops.exp(-pull - 0.5 * ops.log(1.0 + t * s2))
        log_square = ops.log(unit) + ops.total(difference) * (
            (_STOP - _START) / (_SQUARE_NODES - 1)
        )
        return y * log_square - unit - ops.lgamma(y + 1.0)

    def ratio(self, spline: Spline, mu: Tensor, sigma: Tensor, y: Tensor) -> Tensor:
        """Return sigma*/sigma_EP from the spline of two peaks or the series of a single peak."""
        ops, s2 = self.ops, sigma * sigma
        # The ratio is 1 to the bit from here on, and slopes beyond would overflow.
        far = 1e6 * ops.sqrt(1.0 + y)
        b = ops.minimum(ops.abs(mu) / (sigma * ops.sqrt(1.0 + 2.0 * s2)), far)
        b2 = b * b
        w2 = b2 * (b2 + 8.0 * y)
        row = ops.minimum(ops.maximum(y - 1.0, 0.0), float(spline.rows - 1))
        from_two_peaks = spline(row, 0.0 * row, ops.log(1.0 + ops.minimum(w2, _W2_STOP) * 0.0625))
        from_two_peaks = ops.where(y > spline.rows, 0.0 * from_two_peaks + math.nan, from_two_peaks)
        single = w2 > _W2_STOP
        b2 = ops.where(single, b2, 1e4 + 0.0 * b2)
        from_one_peak = one_peak(ops, 2.0 * ops.maximum(y, 1.0), ops.sqrt(b2))
        return ops.where(y == 0.0, 1.0 + 0.0 * mu, ops.where(single, from_one_peak, from_two_peaks))


def by_recursion(ops: Operations, mu: Tensor, sigma: Tensor, y: Tensor) -> Sums:
    """Few counts: nothing is subtracted."""
    a = 1.0 + 2.0 * sigma * sigma
    centre, s2, x = mu / a, sigma * sigma / a, (mu / sigma) ** 2 / a
    log_z = -0.5 * ops.log1p(2.0 * sigma * sigma) - mu * centre
    t, before, p = 1.0 + 0.0 * mu, 1.0 + 0.0 * mu, 1.0 + 0.0 * mu
    for j in range(_RECURSION):
        included = j < y
        factor = (centre * centre * t + (2 * j + 1) * s2) / (j + 1)
        log_z = log_z + ops.where(
            included, ops.log(ops.where(included, factor, 1.0 + 0.0 * mu)), 0.0 * mu
        )
        p = ops.where(included, x * t + (2 * j + 1), p)
        before, t = (
            ops.where(included, t, before),
            ops.where(included, 1.0 + (2 * j + 2) * t / p, t),
        )
    excess = 2.0 * y * ((2.0 * y - 1.0) * t - 2.0 * y * before) / p
    return Sums(log_z, centre * t, s2 * (1.0 + excess))


def by_sum(ops: Operations, mu: Tensor, sigma: Tensor, y: Tensor) -> Sums:
    """Many: the trapezoid rule about the right peak, onto which the left one is folded."""
    root = ops.sqrt(1.0 + 2.0 * sigma * sigma)
    sign = ops.where(mu < 0.0, -1.0 + 0.0 * mu, 1.0 + 0.0 * mu)
    s, b, n = sigma / root, sign * mu / sigma / root, 2.0 * y
    peak = ops.stop_gradient(0.5 * (b + ops.sqrt(b * b + 4.0 * n)))
    h = 0.6 / ops.sqrt(1.0 + n / (peak * peak))
    d = _last(h) * ops.constant(np.arange(-_SQUARE_TERMS, _SQUARE_TERMS + 1.0), mu)
    x = _last(b) * (_last(peak) + d)
    # peak - b = n/peak without cancelling, whose slope is that of -b. All that follows is relative
    # to the peak: b is 1e9 for narrow cavities.
    gap = n / peak + (ops.stop_gradient(b) - b)
    e = _last(n) * ops.log1p(d / _last(peak)) - d * (_last(gap) + 0.5 * d)
    e = e + ops.log1p(ops.exp(-2.0 * x))
    best, total, p = _shares(ops, e)
    g, small = _last(peak) + d, ops.exp(-2.0 * x)
    # g tanh(x) less the peak.
    shift = d - g * 2.0 * small / (1.0 + small)
    first = ops.total(p * shift)
    spread = ops.total(p * (shift - _last(first)) ** 2)
    folded = ops.total(p * g * g * 4.0 * small / (1.0 + small) ** 2)
    # The cavity's exponent is that of b, and log g^n that of f^2y.
    log_z = (
        best
        - 0.5 * gap * gap
        + ops.log(h * total)
        - HALF_LOG_2PI
        + n * ops.log(peak * s / ops.sqrt(y))
    )
    log_z = log_z + y + log_peak(ops, y) - 0.5 * ops.log1p(2.0 * sigma * sigma)
    log_z = log_z - mu * mu / (root * root)
    return Sums(log_z, sign * s * (peak + first), s * s * (spread + folded))


def one_peak(ops: Operations, n: Tensor, b: Tensor) -> Tensor:
    """`qpruntime._special.power_peak_ratio`."""
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


# --- Log-concave likelihoods, by quadrature with equally many nodes for every cavity -------------


def log_peak(ops: Operations, x: Tensor) -> Tensor:
    """Return x log x - x - log x! for x >= 0, cancelled by hand."""
    small, large = ops.minimum(ops.maximum(x, 1e-30), 16.0), ops.maximum(x, 16.0)
    i = 1.0 / (large * large)
    error = 1.0 / 360.0 - i * (1.0 / 1260.0 - i * (1.0 / 1680.0 - i / 1188.0))
    error = (1.0 / 12.0 - i * error) / large
    near = small * ops.log(small) - small - ops.lgamma(small + 1.0)
    far = -0.5 * ops.log(large) - HALF_LOG_2PI - error
    return ops.where(x > 0.0, ops.where(x < 16.0, near, far), 0.0 * x)


class _Bent(Form):
    """Likelihoods that say what their `Bend` is."""

    def shape(self, y: Tensor) -> Bend:
        """Return the bend of log p."""
        raise NotImplementedError

    def sums(self, mu: Tensor, sigma: Tensor, y: Tensor) -> Sums:
        """Return log Z, mean and variance of the tilted density."""
        return bend_sums(self.ops, self.normal, self.shape(y), mu, sigma)

    def expected(self, mu: Tensor, sigma: Tensor, y: Tensor) -> Tensor:
        """Return E log p(y|f) for f ~ N(mu, sigma^2)."""
        return bend_expected(self.ops, self.shape(y), mu, sigma)


class Logistic(_Bent, likelihood="logistic"):
    """p(y|f) = 1/(1 + e^(-y f))."""

    def shape(self, y: Tensor) -> Bend:
        """Return the bend of log p."""
        zero = 0.0 * y
        return Bend(-y, zero, zero + 1.0, zero, zero, zero)


class Binomial(_Bent, likelihood="binomial"):
    """p(y|f) of k successes in n, whose log odds are f."""

    def shape(self, y: Tensor) -> Bend:
        """Return the bend of y successes, turned so that a is the smaller count."""
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


class PoissonExp(_Bent, likelihood="poisson-exp"):
    """p(y|f) = e^(y f - e^f)/y!."""

    def shape(self, y: Tensor) -> Bend:
        """Return the bend of log p."""
        zero = 0.0 * y
        top = self.ops.log(self.ops.maximum(y, 1.0))
        return Bend(zero + 1.0, y, zero, zero, top, log_peak(self.ops, y))


class NegativeBinomial(_Bent, likelihood="negative-binomial"):
    """p(y|f) of counts with mean e^f and a dispersion."""

    def shape(self, y: Tensor) -> Bend:
        """Return the bend of a negative binomial count, turned so that a is the smaller shape."""
        ops, r = self.ops, self.parameters["dispersion"]
        n, few, log_r = y + r, y <= r, math.log(r)
        log_n, positive_y = ops.log(n), ops.maximum(y, 1.0)
        log_y = ops.log(positive_y)
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


# --- Likelihoods whose log Z is closed, or one integral of a positive function -------------------


class Probit(Form, likelihood="probit"):
    """p(y|f) = Phi(y f)."""

    def sums(self, mu: Tensor, sigma: Tensor, y: Tensor) -> Sums:
        """Return log Z, mean and variance of the tilted density."""
        ops, s2 = self.ops, sigma * sigma
        root = ops.sqrt(1.0 + s2)
        z = y * mu / root
        r, s, v = self.normal.r(z), self.normal.s(z), self.normal.v(z)
        mean = ops.where(z < 0.0, y * (z + s2 * s) / root, mu + y * s2 * r / root)
        return Sums(self.normal.log_ndtr(z), mean, s2 / (1.0 + s2) * (1.0 + s2 * v))

    def expected(self, mu: Tensor, sigma: Tensor, y: Tensor) -> Tensor:
        """Return E log p(y|f) for f ~ N(mu, sigma^2)."""
        return normal_expected(self.ops, self.normal.log_ndtr, y * mu, sigma, 0.0 * mu)

    def ratio(self, spline: Spline, mu: Tensor, sigma: Tensor, y: Tensor) -> Tensor:
        """Return sigma*/sigma_EP by the likelihood's compact table."""
        ops, s2 = self.ops, sigma * sigma
        k = ops.maximum(y * mu / ops.sqrt(1.0 + s2), -1e8)
        root = ops.sqrt(16.0 + k * k)
        p = ops.where(k > 0.0, 8.0 / (root + ops.abs(k)), 0.5 * (root - k))
        v = 0.5 / math.log(10.0) * ops.log(s2 / (1.0 + p * p))
        return spline(0.0 * k, k / root, v)


class Heaviside(Form, likelihood="heaviside"):
    """p(y|f) = 1 where y f > 0, else 0."""

    def sums(self, mu: Tensor, sigma: Tensor, y: Tensor) -> Sums:
        """Return log Z, mean and variance of the tilted density."""
        z = y * mu / sigma
        r, s, v = self.normal.r(z), self.normal.s(z), self.normal.v(z)
        mean = self.ops.where(z < 0.0, y * sigma * s, mu + y * sigma * r)
        return Sums(self.normal.log_ndtr(z), mean, sigma * sigma * v)

    def expected(self, mu: Tensor, sigma: Tensor, y: Tensor) -> Tensor:
        """Return E log p(y|f) for f ~ N(mu, sigma^2)."""
        # It has no derivatives: they are NaN.
        return self.ops.log(0.0 * mu) + self.ops.log(0.0 * sigma)

    def ratio(self, spline: Spline, mu: Tensor, sigma: Tensor, y: Tensor) -> Tensor:
        """Return sigma*/sigma_EP by the likelihood's compact table."""
        ops = self.ops
        z = ops.minimum(ops.maximum(y * mu / sigma, -1e8), 1e8)
        return spline(0.0 * z, z, z / ops.sqrt(16.0 + z * z))


class Step(Form, likelihood="step"):
    """p(y|f) with one value on either side of 0."""

    def sums(self, mu: Tensor, sigma: Tensor, y: Tensor) -> Sums:
        """Return log Z, mean and variance from the masses on both sides of the step."""
        ops = self.ops
        sign = ops.where(y < 0.0, -1.0 + 0.0 * y, 1.0 + 0.0 * y)
        alpha, size = sign * mu / sigma, ops.abs(y)
        log_right, log_left = self.normal.log_ndtr(alpha), self.normal.log_ndtr(-alpha) - size
        top = ops.maximum(log_right, log_left)
        log_z = top + ops.log(ops.exp(log_right - top) + ops.exp(log_left - top))
        # If most of the mass lies right of 0, log Z may be tiny: it is computed from 1 minus the
        # lost mass.
        lost = -ops.expm1(-size) * ops.exp(self.normal.log_ndtr(-alpha))
        log_z = ops.where(lost < 0.5, ops.log1p(-ops.minimum(lost, 0.5)), log_z)
        p, q = ops.exp(log_right - log_z), ops.exp(log_left - log_z)
        up, down = self.normal.s(alpha), self.normal.s(-alpha)
        rho = -ops.expm1(-size) * p * self.normal.r(alpha)
        mean = ops.where(rho < 0.5, mu + sign * sigma * rho, sign * sigma * (p * up - q * down))
        v = p * self.normal.v(alpha) + q * self.normal.v(-alpha) + p * q * (up + down) ** 2
        return Sums(log_z, mean, sigma * sigma * v)

    def expected(self, mu: Tensor, sigma: Tensor, y: Tensor) -> Tensor:
        """Return E log p(y|f) for f ~ N(mu, sigma^2)."""
        ops = self.ops
        side = ops.where(y < 0.0, -1.0 + 0.0 * y, 1.0 + 0.0 * y)
        return -ops.abs(y) * 0.5 * ops.erfc(side * mu / sigma * SQRT1_2)


class Laplace(Form, likelihood="laplace"):
    """p(y|f) = e^(-|y - f|/scale)/(2 scale)."""

    def _side(self, z: Tensor, a: Tensor, d: Tensor) -> Tensor:
        """Log of one side's mass, log Phi(z) + a d + a^2/2 with z = -d - a."""
        ops, normal = self.ops, self.normal
        out = normal.log_ndtr(ops.maximum(z, 0.0)) + a * (d + 0.5 * a)
        return ops.where(z < 0.0, normal.log_scaled(ops.minimum(z, 0.0)) - 0.5 * d * d, out)

    def sums(self, mu: Tensor, sigma: Tensor, y: Tensor) -> Sums:
        """Return log Z, mean and variance from the masses on both sides of the kink."""
        ops, normal, scale = self.ops, self.normal, self.parameters["scale"]
        a, d = sigma / scale, (mu - y) / sigma
        above, below = d - a, -d - a
        log_left, log_right = self._side(below, a, d), self._side(above, a, -d)
        top = ops.maximum(log_left, log_right)
        total = ops.exp(log_right - top) + ops.exp(log_left - top)
        share, other_share = ops.exp(log_right - top) / total, ops.exp(log_left - top) / total
        log_z = top + ops.log(total) - math.log(2.0 * scale)
        up, down = normal.s(above), normal.s(below)
        v = (
            share * normal.v(above)
            + other_share * normal.v(below)
            + share * other_share * (up + down) ** 2
        )
        far_above, far_below = (other_share == 0.0) & (above > 0.0), (share == 0.0) & (below > 0.0)
        mean = y + sigma * (share * up - other_share * down)
        mean = ops.where(far_above, mu + sigma * (normal.r(above) - a), mean)
        mean = ops.where(far_below, mu - sigma * (normal.r(below) - a), mean)
        return Sums(log_z, mean, sigma * sigma * v)

    def expected(self, mu: Tensor, sigma: Tensor, y: Tensor) -> Tensor:
        """Return E log p(y|f) for f ~ N(mu, sigma^2)."""
        ops, scale = self.ops, self.parameters["scale"]
        d = (mu - y) / sigma
        density = SQRT_2_PI * ops.exp(-0.5 * d * d)
        lean = ops.erf(d * SQRT1_2)
        return -math.log(2.0 * scale) - sigma * (density + d * lean) / scale


class StudentT(Form, likelihood="student-t"):
    """p(y|f) of Student's t around f."""

    def _constants(self) -> tuple[float, float]:
        registered = likelihoods.get("student-t", **self.parameters)
        return float(registered.theta[2]), float(registered.theta[3])

    def sums(self, mu: Tensor, sigma: Tensor, y: Tensor) -> Sums:
        """Return log Z, mean and variance of the tilted density."""
        nu, scale = (0.0 * mu + self.parameters[k] for k in ("nu", "scale"))
        t_moments = t_sums(self.ops, mu, sigma, y, nu, scale)
        return t_moments._replace(log_z=t_moments.log_z + self._constants()[1])

    def expected(self, mu: Tensor, sigma: Tensor, y: Tensor) -> Tensor:
        """Return E log p(y|f) for f ~ N(mu, sigma^2)."""
        nu, scale = (0.0 * mu + self.parameters[k] for k in ("nu", "scale"))
        tail = t_expected(self.ops, mu, sigma, y, nu, scale)
        return self._constants()[0] - 0.5 * (self.parameters["nu"] + 1.0) * tail


# --- Quintic splines of compact tables -----------------------------------------------------------


def _weights(t: Tensor) -> tuple[Tensor, ...]:
    """Values at 0 <= t <= 1 of the six uniform quintic B-splines that are not zero there."""
    s = 1.0 - t
    t2, s2 = t * t, s * s
    left_weight = 26.0 + t * (-50.0 + t * (20.0 + t * (20.0 + t * (-20.0 + 5.0 * t))))
    right = 26.0 + s * (-50.0 + s * (20.0 + s * (20.0 + s * (-20.0 + 5.0 * s))))
    middle = 66.0 + t2 * (-60.0 + t2 * (30.0 - 10.0 * t))
    centre_weight = 66.0 + s2 * (-60.0 + s2 * (30.0 - 10.0 * s))
    return tuple(
        w / 120.0 for w in (s2 * s2 * s, left_weight, middle, centre_weight, right, t2 * t2 * t)
    )


#: Sum of at least one term.
_sum: Callable[[Iterable[Tensor]], Tensor] = functools.partial(functools.reduce, operator.add)


class Spline:
    """R = sigma*/sigma_EP of a compact table, at a row and its coordinates.

    Parameters
    ----------
    ops : Operations
    table : Table
        Of kind "compact".
    """

    def __init__(self, ops: Operations, table: Table) -> None:
        self._ops, self._axes = ops, [float(v) for v in table.axes()]
        self._shape = table.values.shape
        self._flat = np.array(table.values, dtype=float).reshape(-1)
        self.rows = self._shape[0]

    def __call__(self, row: Tensor, u: Tensor, v: Tensor) -> Tensor:
        """Arguments beyond an axis count as its end; `u` is not used along one axis."""
        ops = self._ops
        flat = ops.constant(self._flat, v)
        j, w = self._cell(v, 3, self._shape[2])
        if self._shape[1] == 1:
            start = row * self._shape[2] + j
            return _sum(w[k] * ops.take(flat, start + k) for k in range(6))
        i, x = self._cell(u, 0, self._shape[1])
        lines = []
        for n in range(6):
            start = (row * self._shape[1] + i + n) * self._shape[2] + j
            lines.append(x[n] * _sum(w[k] * ops.take(flat, start + k) for k in range(6)))
        return _sum(lines)

    def _cell(self, v: Tensor, axis: int, nodes: int) -> tuple[Tensor, tuple[Tensor, ...]]:
        """First coefficient of the cell of v, and the weights there."""
        ops, (start, stop, density) = self._ops, self._axes[axis : axis + 3]
        at = (ops.minimum(ops.maximum(v, start), stop) - start) * density
        cell = ops.stop_gradient(ops.minimum(ops.floor(at), float(nodes - 6)))
        return cell, _weights(at - cell)


# --- Student's t, as a normal whose log precision is integrated over -----------------------------

_MIXTURE_NODES, _CUT = 400, 42.0


def t_sums(
    ops: Operations, mu: Tensor, sigma: Tensor, y: Tensor, nu: Tensor, scale: Tensor
) -> Sums:
    """Log Z, without the constant of the mixture, mean and variance."""
    s2, sigma2, d = scale * scale, sigma * sigma, y - mu
    scaled_gap = ops.stop_gradient(ops.abs(d) / scale)
    # Log weights rise with u below `low` and fall above `high`.
    low, high = -ops.log1p(scaled_gap / nu * scaled_gap), ops.log1p(1.0 / nu)
    low = low - _CUT * 2.0 / (nu + 1.0) - ops.stop_gradient(ops.log1p(sigma2 / s2)) / (nu + 1.0)
    high = high + ops.log1p(2.0 * _CUT / nu)
    unit = ops.constant(np.linspace(0.0, 1.0, _MIXTURE_NODES), mu)
    u = _last(low) + _last(high - low) * unit
    up = ops.exp(u)
    spread = _last(sigma2) + _last(s2) / up
    e = -0.5 * _last(nu) * (up - 1.0 - u)
    e = e - 0.5 * (ops.log(spread) + _last(d * d) / spread)
    best, total, p = _shares(ops, e)
    prior_share, data_share = _last(sigma2) / spread, _last(s2) / up / spread
    share, complement = ops.total(p * prior_share), ops.total(p * data_share)
    log_z = best + ops.log(total * (high - low) / (_MIXTURE_NODES - 1)) - HALF_LOG_2PI
    mean = ops.where(share < complement, mu + d * share, y - d * complement)
    small = ops.where(
        _last(share < complement), prior_share - _last(share), data_share - _last(complement)
    )
    return Sums(log_z, mean, sigma2 * complement + d * d * ops.total(p * small * small))


def t_expected(
    ops: Operations, mu: Tensor, sigma: Tensor, y: Tensor, nu: Tensor, scale: Tensor
) -> Tensor:
    """E log(1 + (f - y)^2/(nu scale^2))."""
    d2, s2 = (mu - y) ** 2 / (nu * scale * scale), 2.0 * sigma * sigma / (nu * scale * scale)
    start = ops.stop_gradient(-ops.log1p(s2 + d2)) - _CUT
    stop = math.log(_CUT)
    unit = ops.constant(np.linspace(0.0, 1.0, _MIXTURE_NODES), mu)
    t = ops.exp(_last(start) + _last(stop - start) * unit)
    a = 1.0 + t * _last(s2)
    e = -0.5 * ops.log1p(t * _last(s2)) - t * _last(d2) / a
    return -ops.total(ops.exp(-t) * ops.expm1(e)) * (stop - start) / (_MIXTURE_NODES - 1)


# --- Tilted densities of log-concave likelihoods: nodes are held while sums are differentiated.

#: Nodes, and standard deviations that they reach from the peak, or from the mean.
_NODES, _REACH, _REACH_MEAN = 400, 9.5, 8.7
#: Halvings of the bracket of a peak, and steps of Newton's method after them.
_HALVINGS, _STEPS = 60, 3
#: Limits of narrow cavities, curved bends and near bends, as in
#: `qpruntime.likelihoods._series_kernels`.
_NARROW, _CURVED, _NEAR = 1.5, 0.5, 9.5
#: Standard deviation beyond which a bend is narrow beside the normal.
_WIDE = 3.0


def bend_log_prob(ops: Operations, shape: Bend, u: Tensor) -> Tensor:
    """Log density at u = sign f, relative to its maximum if a > 0."""
    _, a, _, offset, top, _ = shape
    d = u - ops.where(a > 0.0, top, -offset)
    return a * d - _fall(ops, shape, d)


def _fall(ops: Operations, shape: Bend, d: Tensor) -> Tensor:
    """Return n log(1 + e^(u + offset)/n), or less its value at the maximum, d from there."""
    _, a, inverse, _, _, _ = shape
    large = ops.exponent(d)
    near = ops.minimum(d, large)
    grown = ops.where(a > 0.0, ops.expm1(near), ops.exp(near))
    k = ops.where(a > 0.0, a, 1.0 + 0.0 * a)
    # Branches that are not taken stay within their domains: what is derived there may be NaN, and
    # 0 times NaN is NaN. Without a bend k need not be below n.
    bends = inverse > 0.0
    part = ops.where(bends, k * ops.where(bends, inverse, 1.0 + 0.0 * inverse), 0.5 + 0.0 * a)
    safe_inverse = ops.where(bends, inverse, 1.0 + 0.0 * inverse)
    bent = ops.where(d > large, ops.log(part) + d, ops.log1p(part * grown)) / safe_inverse
    return ops.where(bends, bent, k * grown)


def _slopes(ops: Operations, shape: Bend, u: Tensor) -> tuple[Tensor, Tensor]:
    """Rate and curvature: the slope is a - rate."""
    large = ops.exponent(u)
    e = ops.exp(ops.minimum(ops.maximum(-u - shape.offset, -large), large))
    rate = 1.0 / (e + shape.inverse)
    return rate, rate * rate * e


def _fall_from(ops: Operations, shape: Bend, u: Tensor, d: Tensor) -> Tensor:
    """Return n log(1 + e^(u + offset)/n) at u + d less that at u: nothing cancels.

    It is n log(1 + q (e^d - 1)), q = rate/n, or that mirrored where q is near 1.
    """
    large = ops.exponent(d)
    rate, curvature = _slopes(ops, shape, u)
    share, complement = rate * shape.inverse, curvature / rate
    up, down = ops.expm1(ops.minimum(d, large)), ops.expm1(ops.minimum(-d, large))
    bends = shape.inverse > 0.0
    safe_inverse = ops.where(bends, shape.inverse, 1.0 + 0.0 * shape.inverse)
    log_odds = u + shape.offset + ops.log(safe_inverse)
    # The difference of two logarithms does not cancel above 1, where q may leave double precision.
    left, right = (
        _softplus(ops, odds + step) - _softplus(ops, odds)
        for odds, step in ((log_odds, d), (-log_odds, -d))
    )
    near_left = ops.log1p(ops.minimum(share, 0.5) * up)
    near_right = ops.log1p(ops.minimum(complement, 0.5) * down)
    log_left = ops.where(d > 1.0, left, near_left)
    log_right = d + ops.where(d < -1.0, right, near_right)
    bent = ops.where(share <= 0.5, log_left, log_right) / safe_inverse
    start = u + shape.offset
    grown = ops.exp(ops.minimum(start + d, large)) - ops.exp(ops.minimum(start, large))
    return ops.where(bends, bent, ops.where(d > 1.0, grown, rate * up))


def _softplus(ops: Operations, x: Tensor) -> Tensor:
    """Return log(1 + e^x)."""
    return ops.maximum(x, 0.0) + ops.log1p(ops.exp(-ops.abs(x)))


def _peak(ops: Operations, shape: Bend, m: Tensor, sigma: Tensor) -> tuple[Tensor, Tensor]:
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
    ops: Operations, normal: Normal, shape: Bend, m: Tensor, sigma: Tensor, bend: Tensor
) -> tuple[Tensor, Tensor]:
    """Mean, from the bend, and standard deviation for a density of two straight sides."""
    finite = shape.inverse > 0.0
    safe_inverse = ops.where(finite, shape.inverse, 1.0 + 0.0 * m)
    z = (bend - m) / sigma
    z_left, z_right = z - shape.a * sigma, (shape.a - 1.0 / safe_inverse) * sigma - z
    r_left, r_right = normal.r(z_left), normal.r(z_right)
    share = ops.where(finite, r_left / ops.maximum(r_left + r_right, 1e-30), 0.0 * r_left)
    gap = normal.s(z_left) + normal.s(z_right)
    v = normal.v(z_left)
    variance = v + share * (normal.v(z_right) - v) + share * (1.0 - share) * gap * gap
    return sigma * (share * gap - normal.s(z_left)), sigma * ops.sqrt(ops.maximum(variance, 1e-30))


def _window(
    ops: Operations, normal: Normal, shape: Bend, m: Tensor, sigma: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
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


def bend_sums(ops: Operations, normal: Normal, shape: Bend, mu: Tensor, sigma: Tensor) -> Sums:
    """Log Z, mean and variance of density times N(mu, sigma^2)."""
    m = shape.sign * mu
    centre, width, reach = (
        ops.stop_gradient(x)
        for x in _window(ops, normal, shape, ops.stop_gradient(m), ops.stop_gradient(sigma))
    )
    unit = ops.constant(np.linspace(-1.0, 1.0, _NODES), mu)
    v = _last(reach) * unit
    up = ops.exp(v)
    d = 0.5 * _last(width) * (up - 1.0 / up)
    # Relative to the centre: f is rounded too coarsely for narrow densities of steep log p.
    gap = (centre - m) / sigma
    part = d / _last(sigma)
    fall = _fall_from(ops, Bend(*(_last(x) for x in shape)), _last(centre), d)
    e = _last(shape.a) * d - fall - part * (_last(gap) + 0.5 * part)
    e = e + ops.log(0.5 * (up + 1.0 / up))
    best, total, p = _shares(ops, e)
    shift = ops.total(p * d)
    step = 2.0 * reach / (_NODES - 1)
    log_z = shape.peak + bend_log_prob(ops, shape, centre) - 0.5 * gap * gap
    log_z = log_z + best + ops.log(total * step * width / sigma) - HALF_LOG_2PI
    variance = ops.total(p * (d - _last(shift)) ** 2)
    return Sums(log_z, shape.sign * (centre + shift), variance)


def bend_expected(ops: Operations, shape: Bend, mu: Tensor, sigma: Tensor) -> Tensor:
    """E log p under N(mu, sigma^2)."""
    unit, zero = 1.0 + 0.0 * mu, 0.0 * mu
    peaked, finite = shape.a > 0.0, shape.inverse > 0.0
    mean = shape.sign * mu - ops.where(peaked, shape.top, -shape.offset)
    # e^d grows without a bend: closed.
    factor = ops.where(peaked, shape.a, unit)
    grown = ops.exp(ops.where(finite, zero, mean + 0.5 * sigma * sigma))
    closed = factor * (grown - ops.where(peaked, unit, zero))
    safe_inverse = ops.where(finite, shape.inverse, 0.5 / factor)
    row_shape = Bend(*(_last(x) for x in shape))._replace(inverse=_last(safe_inverse))
    bend = -ops.log(factor * safe_inverse)
    bent = normal_expected(ops, lambda d: _fall(ops, row_shape, d), mean, sigma, bend)
    return shape.peak + shape.a * mean - ops.where(finite, bent, closed)


def normal_expected(
    ops: Operations, function: Callable[[Tensor], Tensor], mean: Tensor, sigma: Tensor, bend: Tensor
) -> Tensor:
    """E function(x), x ~ N(mean, sigma^2), for what is smooth but for a bend of width one.

    The nodes lie densely at the bend and are fixed if the normal is wide; otherwise they move with
    mean and sigma.
    """
    wide = sigma > _WIDE
    unit = ops.constant(np.linspace(-1.0, 1.0, _NODES), mean)
    t = _REACH_MEAN * unit
    near = _last(mean) + _last(sigma) * t
    low, high = (
        ops.stop_gradient(_asinh(ops, mean - bend + side * _REACH_MEAN * sigma))
        for side in (-1.0, 1.0)
    )
    v = 0.5 * _last(low + high) + 0.5 * _last(high - low) * unit
    v = ops.where(_last(wide), v, 0.0 * v)
    up = ops.exp(v)
    places = ops.stop_gradient(_last(bend)) + 0.5 * (up - 1.0 / up)
    z = (places - _last(mean)) / _last(sigma)
    far = ops.exp(-0.5 * z * z) * 0.5 * (up + 1.0 / up) * _last(0.5 * (high - low) / sigma)
    weight = ops.where(_last(wide), far, _REACH_MEAN * ops.exp(-0.5 * t * t) + 0.0 * z)
    step = 2.0 / (_NODES - 1) / math.sqrt(2.0 * math.pi)
    return step * ops.total(weight * function(ops.where(_last(wide), places, near)))


def _asinh(ops: Operations, x: Tensor) -> Tensor:
    size = ops.abs(x)
    value = ops.log(size + ops.sqrt(size * size + 1.0))
    return ops.where(x < 0.0, -value, value)
