"""One tilted density integrated for the derivatives of its log Z, moments and sigma*.

The nodes are those of `qpruntime.quadrature.quantiles`. Derivatives in the cavity's mean mu and
standard deviation sigma are covariances under the tilted density, c = f - mean:

    d sigma*/d mu    = cov(c, A)/sigma^2,        A(f) the integral of Phi^-1(F) up to f,
    d sigma*/d sigma = cov((f - mu)^2, A)/sigma^3,

because sigma* = int F^-1(u) Phi^-1(u) du. What follows for log Z and the moments is in `derive`.
"""

from __future__ import annotations

import math

import numpy as np

from qpruntime.jit import call_split, kernel
from qpruntime.quadrature.adaptive import log_mass_at
from qpruntime.quadrature.panel import BELOW, WEIGHTS, N
from qpruntime.quadrature.quantiles import quantile_nodes
from qpruntime.quadrature.tilted import OK

__all__ = ["BANDS", "derive"]

#: What `derive` finds: log Z, mean, standard deviation and sigma*, each with both derivatives.
BANDS = 12
#: Up to this change of the variance a cavity counts as hardly moved, and slopes are averaged.
_MOVED = 0.5
#: Scores that moments and A are resolved for: `degree` of `quantile_nodes`.
_DEGREE = 2


@kernel
def score_integrals(d, w, p, z):
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
def slope_sums(raised, slope, anchor, found, shift):
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
    one, two, three = 0.0, 0.0, 0.0
    for i in range(d.shape[0]):
        for j in range(N):
            if p[i, j] > 0.0:
                c = d[i, j] - shift
                part = p[i, j] * (g[i, j] - mean) * c
                one += part
                two += part * c
                three += part * c * c
    return mean, one / whole, two / whole, three / whole


@kernel
def derive(raised, slope, has_slope, mu, sigma, origin, marks, out):
    """Fill `out` with `BANDS` numbers of one cavity; return a status.

    With L' and L'' the derivatives of log Z in mu, k3 and k4 the cumulants of the tilted density
    and v its variance:

        d log Z/d sigma = sigma (L'' + L'^2),
        mean = mu + sigma^2 L',         v = sigma^2 (1 + sigma^2 L''),
        d mean/d mu = v/sigma^2,        d mean/d sigma = k3/sigma^3 + 2 v L'/sigma,
        d v/d mu = k3/sigma^2,          d v/d sigma = (k4 + 2 v^2 + 2 k3 (mean - mu))/sigma^3.

    Where the cavity hardly moves, L' = E g and L'' = cov(c, g)/sigma^2, g the slope of log p, and
    partial integration gives k3 = sigma^2 E c^2 (g - E g), likewise k4: nothing cancels then.
    `origin` is what observations are measured from, `mu` the mean less that.
    """
    status, anchor, log_mass, found, _ = quantile_nodes(raised, mu, sigma, marks, 4.0, _DEGREE)
    if status != OK:
        return status
    d, w, p, z = found
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
    if has_slope and abs(v / s2 - 1.0) < _MOVED:
        first, second, k3, k4 = slope_sums(raised, slope, anchor, found, shift)
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
