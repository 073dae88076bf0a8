"""Expectations of log densities and of tilted densities, and their derivatives. Kernels only."""

from __future__ import annotations

import math

import numpy as np

from qpruntime._numba import kernel
from qpruntime._pointers import call_landmark, call_moments, call_split
from qpruntime._special import INV_SQRT_2PI
from qpruntime._typing import Array, Floats
from qpruntime.quadrature.adaptive_kernels import (
    Quantiles,
    log_mass_at,
    look_around,
    marks_from,
    quantile_nodes,
)
from qpruntime.quadrature.panel_kernels import BELOW, NODES, WEIGHTS, N, last_coefficients
from qpruntime.quadrature.sigma_star_kernels import (
    EXHAUSTED,
    NOT_A_NUMBER,
    OK,
    Anchor,
    PlainFunctions,
    Raised,
)

__all__ = [
    "BANDS",
    "closed_many",
    "derive",
    "derive_many",
    "expected_many",
    "integrate_expected",
]

# --- Expected log likelihood E log p(y|f) under f ~ N(mean, std^2) -------------------------------

#: Standard deviations beyond which a log density counts nothing: exp(-_REACH^2/2) = 2e-22.
_REACH = 10.0
#: Panels to begin with, those evaluated at most, and those that wait.
_FIRST, _MOST, _STACK = 8, 4000, 256
#: A panel is resolved if its last coefficients are below this part of its largest value, or below
#: this part of the whole.
_RELATIVE, _ABSOLUTE = 1e-13, 1e-15
_MARKS = 16


@kernel
def _fill(
    split: int,
    mean: float,
    std: float,
    y: float,
    theta: Array,
    base: float,
    a: float,
    b: float,
    q: Array,
) -> int:
    """Log p less `base`, times the normal, at the nodes of [a, b] in standard deviations."""
    for j in range(N):
        x = 0.5 * (a + b) + 0.5 * (b - a) * NODES[j]
        f = mean + std * x
        remainder, curvature = call_split(split, f, y, theta)
        e = remainder - 0.5 * curvature * f * f
        if math.isnan(e):
            return NOT_A_NUMBER
        q[j] = (e - base) * INV_SQRT_2PI * math.exp(-0.5 * x * x)
    return OK


@kernel
def integrate_expected(
    split: int, landmark: int, mean: float, std: float, y: float, theta: Array, out: Array
) -> int:
    """Fill `out` with (E log p, its derivatives by mean and by standard deviation)."""
    remainder, curvature = call_split(split, mean, y, theta)
    base = remainder - 0.5 * curvature * mean * mean
    if not abs(base) < math.inf:
        base = 0.0
    edges = np.empty(_FIRST + 1 + _MARKS)
    for k in range(_FIRST + 1):
        edges[k] = _REACH * (2.0 * k / _FIRST - 1.0)
    count = _FIRST + 1
    for k in range(_MARKS):
        x = (call_landmark(landmark, y, theta, k) - mean) / std
        if math.isnan(x):
            break
        if abs(x) < _REACH:
            edges[count] = x
            count += 1
    edges = np.sort(edges[:count])
    stack, q = np.empty((_STACK, 2)), np.empty(N)
    total, size = np.zeros(3), 0.0
    evaluated = 0
    for i in range(count - 1):
        stack[0, 0], stack[0, 1] = edges[i], edges[i + 1]
        pending = 1
        while pending:
            pending -= 1
            a, b = stack[pending, 0], stack[pending, 1]
            half, centre = 0.5 * (b - a), 0.5 * (a + b)
            status = _fill(split, mean, std, y, theta, base, a, b, q)
            if status != OK:
                return status
            evaluated += 1
            largest = 0.0
            for j in range(N):
                largest = max(largest, abs(q[j]))
            if largest == math.inf:
                out[0], out[1], out[2] = -math.inf, math.nan, math.nan
                return OK
            last = last_coefficients(q)
            rough = last > _RELATIVE * largest and last * half > _ABSOLUTE * max(size, largest)
            if rough and b - a > 1e-14 * max(1.0, abs(centre)) and pending + 2 <= _STACK:
                if evaluated > _MOST:
                    return EXHAUSTED
                stack[pending, 0], stack[pending, 1] = centre, b
                stack[pending + 1, 0], stack[pending + 1, 1] = a, centre
                pending += 2
                continue
            for j in range(N):
                x = centre + half * NODES[j]
                part = half * WEIGHTS[j] * q[j]
                total[0] += part
                total[1] += part * x
                total[2] += part * (x * x - 1.0)
                size += abs(part)
    out[0], out[1], out[2] = base + total[0], total[1] / std, total[2] / std
    return OK


# --- Derivatives of log Z, the moments and sigma*, from one tilted density -----------------------

#: Number of results of `derive`: log Z, mean, standard deviation and sigma*, each with both
#: derivatives.
BANDS = 12
#: Up to this change of the variance a cavity counts as hardly moved, and slopes are averaged.
_MOVED = 0.5
#: Up to this size of log p its rounding leaves third cumulants three digits where a cavity moves.
_ROUNDED = 1e8
#: Scores that moments and A are resolved for: `degree` of `quantile_nodes`.
_DEGREE = 2


@kernel
def score_integrals(d: Array, w: Array, p: Array, z: Array) -> Array:
    """A(f) at the nodes: the integral of Phi^-1(F) from the panel in the middle of the mass.

    Outwards from there, so that far tails, where scores mean nothing, add to themselves alone.
    """
    count = d.shape[0]
    total = 0.0
    for i in range(count):
        for j in range(N):
            total += p[i, j]
    middle, below = 0, 0.0
    for i in range(count):
        for j in range(N):
            below += p[i, j]
        if below > 0.5 * total:
            middle = i
            break
    area = np.empty(d.shape)
    ends = np.empty((count, 2))
    for i in range(count):
        half = w[i, 0] / WEIGHTS[0]
        centre = 0.5 * (d[i, 0] + d[i, N - 1])
        ends[i, 0], ends[i, 1] = centre - half, centre + half
    start = 0.0
    for i in range(middle, count):
        half = w[i, 0] / WEIGHTS[0]
        if i > middle:
            start += (ends[i, 0] - ends[i - 1, 1]) * 0.5 * (z[i - 1, N - 1] + z[i, 0])
        whole = 0.0
        for j in range(N):
            part = 0.0
            for k in range(N):
                part += BELOW[j, k] * z[i, k]
            area[i, j] = start + half * part
            whole += WEIGHTS[j] * z[i, j]
        start += half * whole
    start = 0.0
    for i in range(middle - 1, -1, -1):
        half = w[i, 0] / WEIGHTS[0]
        start -= (ends[i + 1, 0] - ends[i, 1]) * 0.5 * (z[i, N - 1] + z[i + 1, 0])
        whole = 0.0
        for j in range(N):
            part = 0.0
            for k in range(N):
                part += BELOW[N - 1 - j, N - 1 - k] * z[i, k]
            area[i, j] = start - half * part
            whole += WEIGHTS[j] * z[i, j]
        start -= half * whole
    return area


@kernel
def slope_sums(
    raised: Raised, slope: int, anchor: Anchor, found: Quantiles, shift: float
) -> Floats:
    """Mean of the slope g under the tilted density, and E c (g - E g), E c^2 (..), E c^3 (..)."""
    d, p = found.d, found.p
    g = np.empty(d.shape)
    whole, mean = 0.0, 0.0
    for i in range(d.shape[0]):
        for j in range(N):
            f = anchor.f + d[i, j]
            first, curvature = call_split(slope, f, raised.y, raised.theta)
            g[i, j] = raised.power * (first - curvature * f)
            if p[i, j] > 0.0:
                whole += p[i, j]
                mean += p[i, j] * g[i, j]
    mean /= whole
    first_sum, second_sum, third_sum = 0.0, 0.0, 0.0
    for i in range(d.shape[0]):
        for j in range(N):
            if p[i, j] > 0.0:
                c = d[i, j] - shift
                part = p[i, j] * (g[i, j] - mean) * c
                first_sum += part
                second_sum += part * c
                third_sum += part * c * c
    return mean, first_sum / whole, second_sum / whole, third_sum / whole


@kernel
def derive(
    raised: Raised,
    slope: int,
    has_slope: bool,
    mu: float,
    sigma: float,
    origin: float,
    marks: Array,
    out: Array,
) -> int:
    """Fill `out` with `BANDS` numbers of one cavity; return a status.

    Let L' and L'' be the derivatives of log Z in mu, k3 and k4 the cumulants of the tilted density
    and v its variance:

        d log Z/d sigma = sigma (L'' + L'^2),
        mean = mu + sigma^2 L',         v = sigma^2 (1 + sigma^2 L''),
        d mean/d mu = v/sigma^2,        d mean/d sigma = k3/sigma^3 + 2 v L'/sigma,
        d v/d mu = k3/sigma^2,          d v/d sigma = (k4 + 2 v^2 + 2 k3 (mean - mu))/sigma^3.

    If the cavity hardly moves, L' = E g and L'' = cov(c, g)/sigma^2, g being the slope of log p,
    and partial integration gives k3 = sigma^2 E c^2 (g - E g), likewise k4, without cancellation.
    Observations are measured from `origin`, and `mu` is the mean minus `origin`.
    """
    status, anchor, log_mass, nodes, _ = quantile_nodes(raised, mu, sigma, marks, 4.0, _DEGREE)
    if status != OK:
        return status
    d, w, p, z = nodes
    whole, shift, star = 0.0, 0.0, 0.0
    for i in range(d.shape[0]):
        for j in range(N):
            whole += p[i, j]
            shift += p[i, j] * d[i, j]
            star += w[i, j] * math.exp(-0.5 * z[i, j] * z[i, j])
    shift /= whole
    star /= math.sqrt(2.0 * math.pi)
    area = score_integrals(d, w, p, z)
    level = 0.0
    for i in range(d.shape[0]):
        for j in range(N):
            level += p[i, j] * area[i, j]
    level /= whole
    v, k3, k4, with_area, with_square = 0.0, 0.0, 0.0, 0.0, 0.0
    for i in range(d.shape[0]):
        for j in range(N):
            c = d[i, j] - shift
            square = p[i, j] * c * c
            v += square
            k3 += square * c
            k4 += square * c * c
            a = area[i, j] - level
            with_area += p[i, j] * c * a
            with_square += square * a
    v, k3, k4 = v / whole, k3 / whole, k4 / whole
    with_area, with_square = with_area / whole, with_square / whole
    k4 -= 3.0 * v * v
    s2 = sigma * sigma
    gap = (anchor.f - mu) + shift
    first, second = gap / s2, (v / s2 - 1.0) / s2
    moved = not has_slope or abs(v / s2 - 1.0) >= _MOVED
    if moved and abs(anchor.rest) > _ROUNDED:
        return EXHAUSTED
    if not moved:
        first, second, k3, k4 = slope_sums(raised, slope, anchor, nodes, shift)
        second /= s2
        k3 *= s2
        k4 = s2 * (k4 - 3.0 * v * s2 * second)
        gap = s2 * first
    std = math.sqrt(v)
    out[0] = log_mass_at(anchor, mu, sigma) + log_mass + math.log(whole)
    out[1], out[2] = first, sigma * (second + first * first)
    out[3] = origin + (mu + gap) if abs(gap) < abs(anchor.f + shift) else origin + anchor.f + shift
    out[4], out[5] = v / s2, k3 / (s2 * sigma) + 2.0 * v * first / sigma
    out[6], out[7] = std, k3 / (2.0 * std * s2)
    out[8] = (k4 + 2.0 * v * v + 2.0 * k3 * gap) / (2.0 * std * s2 * sigma)
    out[9] = min(star, std)
    out[10], out[11] = with_area / s2, (with_square + 2.0 * gap * with_area) / (s2 * sigma)
    return OK


# --- Loops over cavities -------------------------------------------------------------------------


@kernel
def derive_site(
    functions: PlainFunctions,
    slope: int,
    has_slope: bool,
    moves: bool,
    power: float,
    mu: float,
    sigma: float,
    y: float,
    out: Array,
) -> int:
    """`derive` of one cavity, measured from y where log p depends on f - y alone."""
    theta, _, _, split, _, frame = functions
    landmark = frame[2]
    if moves:
        marks = marks_from(landmark, y, theta)
        raised = Raised(split, power, 0.0, theta)
        return derive(raised, slope, has_slope, mu - y, sigma, y, marks, out)
    marks = look_around(landmark, y, theta)
    raised = Raised(split, power, y, theta)
    return derive(raised, slope, has_slope, mu, sigma, 0.0, marks, out)


@kernel
def derive_many(
    functions: PlainFunctions,
    slope: int,
    has_slope: bool,
    moves: bool,
    powers: Array,
    cavities: tuple[Array, Array],
    y: Array,
    found: Array,
) -> tuple[int, int]:
    """Fill rows of `BANDS` numbers; return (status, index of the first that failed)."""
    mu, sigma = cavities
    for i in range(mu.size):
        status = derive_site(
            functions, slope, has_slope, moves, powers[i], mu[i], sigma[i], y[i], found[i]
        )
        if status != OK:
            return status, i
    return OK, 0


@kernel
def closed_many(
    closed: int, theta: Array, cavities: tuple[Array, Array], y: Array, found: Array
) -> None:
    """Fill rows (log Z, d/d mu, d/d sigma) in closed form."""
    mu, sigma = cavities
    for i in range(mu.size):
        found[i, 0], found[i, 1], found[i, 2] = call_moments(closed, mu[i], sigma[i], y[i], theta)


@kernel
def expected_many(
    split: int,
    landmark: int,
    theta: Array,
    expected: int,
    has_expected: bool,
    cavities: tuple[Array, Array],
    y: Array,
    found: Array,
) -> tuple[int, int]:
    """Fill rows (E log p, d/d mean, d/d standard deviation) under normal distributions."""
    mean, std = cavities
    for i in range(mean.size):
        if not has_expected:
            status = integrate_expected(split, landmark, mean[i], std[i], y[i], theta, found[i])
            if status != OK:
                return status, i
            continue
        value, slope, curvature = call_moments(expected, mean[i], std[i], y[i], theta)
        found[i, 0], found[i, 1], found[i, 2] = value, slope, -std[i] * curvature
        if value == -math.inf:
            found[i, 1], found[i, 2] = math.nan, math.nan
    return OK, 0
