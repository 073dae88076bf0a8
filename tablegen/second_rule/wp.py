"""A second rule for L_p projections: one step of Newton's method from what a table holds.

The tables' own rule integrates over f; this one integrates over z, with quantiles Q from the masses
of `second_rule.masses`: eps(z) = Q(Phi(z)) - m - s z, its panels split at the roots of eps. The
gradient of E |eps|^p / p at a tabulated (m, s), solved with the second derivatives, is how far the
minimum is, to first order. If 1 < p < 1.2, the second derivatives, whose integrals are nearly
singular, are too small, and the errors too large. If p > 4 and the density has a sharp end, scores
past +-8.5 may count: errors are then large, and no table is certified.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qpruntime._numba import kernel
from qpruntime._special import ndtri_density
from qpruntime._typing import Array, Arrays, Floats
from qpruntime.likelihoods import Likelihood
from qpruntime.quadrature.support_kernels import sort
from tablegen.second_rule.masses import BASIS, N, log_evidence, masses, panel

__all__ = ["RULE", "errors"]

#: Name of the rule in certificates.
RULE = "Newton step of E |Q(Phi(z)) - m - s z|^p at the tabulated (m, s), panels in z"

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)
#: Scores beyond +-_END have a share of 1e-17; panels are no longer than _STEP.
_END, _STEP = 8.5, 0.25
_SQRT_2PI = math.sqrt(2.0 * math.pi)


@kernel
def _prepare(
    split: int, place: Floats, best: float, panels: Array, total: float, y: float, theta: Array
) -> Arrays:
    """Return Legendre coefficients of the density on every panel, and the shares on either side."""
    count = panels.shape[0]
    series, q = np.empty((count, N)), np.empty(N)
    below, above = np.zeros(count + 1), np.zeros(count + 1)
    for i in range(count):
        mass = panel(split, place, panels[i, 0], panels[i, 1], best, y, theta, q)
        half = 0.5 * (panels[i, 1] - panels[i, 0])
        for k in range(N):
            series[i, k] = 0.0
            for j in range(N):
                series[i, k] += BASIS[k, j] * q[j] * half / total
        below[i + 1] = below[i] + mass / total
    for i in range(count - 1, -1, -1):
        above[i] = above[i + 1] + panels[i, 2] / total
    return series, below, above


@kernel
def _share(series: Array, x: float) -> tuple[float, float]:
    """Integral of a Legendre series from -1 to x, and its value at x."""
    before, current, inner, value = 1.0, x, series[0] * (x + 1.0), series[0]
    for k in range(1, N):
        after = ((2 * k + 1) * x * current - k * before) / (k + 1)
        inner += series[k] * (after - before) / (2 * k + 1)
        value += series[k] * current
        before, current = current, after
    return inner, value


@kernel
def _quantile(panels: Array, series: Array, below: Array, above: Array, z: float) -> float:
    """Q(Phi(z)) as an offset from the anchor."""
    tail = 0.5 * math.erfc(abs(z) / math.sqrt(2.0))
    low, high = 0, panels.shape[0] - 1
    while low < high:
        middle = (low + high) // 2
        if (z < 0.0 and below[middle + 1] < tail) or (z >= 0.0 and above[middle + 1] > tail):
            low = middle + 1
        else:
            high = middle
    mass = 2.0 * series[low, 0]
    wanted = tail - below[low] if z < 0.0 else mass - (tail - above[low + 1])
    a, b, x = -1.0, 1.0, 2.0 * wanted / mass - 1.0
    for _ in range(60):
        if not a <= x <= b:
            x = 0.5 * (a + b)
        inner, value = _share(series[low], x)
        if inner > wanted:
            b = x
        else:
            a = x
        if value > 0.0 and abs(inner - wanted) <= 1e-15 * value:
            break
        x = x - (inner - wanted) / value if value > 0.0 else 0.5 * (a + b)
    return 0.5 * float(panels[low, 0] + panels[low, 1] + x * (panels[low, 1] - panels[low, 0]))


@kernel
def _breaks(
    panels: Array, series: Array, below: Array, above: Array, m: float, s: float
) -> tuple[Array, Array]:
    """Return ascending z where panels end, and whether eps is zero there."""
    count = panels.shape[0]
    steps = math.ceil(2.0 * _END / _STEP)
    points = np.empty(steps + count + 1)
    used = 0
    for i in range(steps + 1):
        points[used] = -_END + i * 2.0 * _END / steps
        used += 1
    for i in range(1, count):
        tail = min(below[i], above[i])
        z = ndtri_density(min(tail, 0.5))[1] if tail > 0.0 else -2.0 * _END
        if abs(z) < _END:
            points[used] = z if below[i] < above[i] else -z
            used += 1
    sort(points, used)
    ends, roots = np.empty(2 * used), np.zeros(2 * used)
    kept, last = 0, 0.0
    for i in range(used):
        e = _quantile(panels, series, below, above, points[i]) - m - s * points[i]
        if i > 0 and e * last < 0.0:
            a, b = points[i - 1], points[i]
            for _ in range(50):
                middle = 0.5 * (a + b)
                f = _quantile(panels, series, below, above, middle) - m - s * middle
                if f * last > 0.0:
                    a = middle
                else:
                    b = middle
            ends[kept], roots[kept] = 0.5 * (a + b), 1.0
            kept += 1
        ends[kept] = points[i]
        kept += 1
        last = e
    return ends[:kept], roots[:kept]


@kernel
def _add(
    sums: Array,
    a: float,
    b: float,
    turn: int,
    p: float,
    line: tuple[float, float],
    law: tuple[Array, Array, Array, Array],
) -> None:
    """Add the integrals from a to b; near a root at a, z = a + (b - a) t^turn.

    `line` = (m, s) is subtracted from the quantiles of `law`, the arguments of `_quantile`.
    """
    m, s = line
    panels, series, below, above = law
    for j in range(_NODES.size):
        t = 0.5 * (1.0 + _NODES[j])
        z = a + (b - a) * t**turn
        weight = 0.5 * _WEIGHTS[j] * abs(b - a) * turn * t ** (turn - 1)
        weight *= math.exp(-0.5 * z * z) / _SQRT_2PI
        u = (_quantile(panels, series, below, above, z) - m - s * z) / s
        size = abs(u)
        if size == 0.0:
            continue
        slope = weight * math.copysign(size ** (p - 1.0), u)
        bend = weight * (p - 1.0) * size ** (p - 2.0)
        sums[0] += weight * size**p
        sums[1] += slope
        sums[2] += slope * z
        sums[3] += bend
        sums[4] += bend * z
        sums[5] += bend * z * z


@kernel
def _error(
    functions: Any, p: float, mu: float, sigma: float, y: float, mean: float, s: float
) -> tuple[float, float, float]:
    """Return (log Z, error of the mean, error of the deviation), both in units of s."""
    theta, split, landmark = functions.theta, functions.split, functions.frame.landmark
    place, best, panels, total, _ = masses(split, landmark, mu, sigma, y, theta)
    if panels.shape[0] == 0 or not (s > 0.0 and abs(mean) < math.inf):
        return math.nan, math.nan, math.nan
    m = mean - place[0]
    series, below, above = _prepare(split, place, best, panels, total, y, theta)
    law = panels, series, below, above
    ends, roots = _breaks(panels, series, below, above, m, s)
    turn = 8 if p < 2.0 else 3 if p < 4.0 else 1
    sums = np.zeros(6)
    for i in range(ends.size - 1):
        a, b = ends[i], ends[i + 1]
        if roots[i] > 0.0 and roots[i + 1] > 0.0:
            middle = 0.5 * (a + b)
            _add(sums, a, middle, turn, p, (m, s), law)
            _add(sums, b, middle, turn, p, (m, s), law)
        elif roots[i] > 0.0:
            _add(sums, a, b, turn, p, (m, s), law)
        elif roots[i + 1] > 0.0:
            _add(sums, b, a, turn, p, (m, s), law)
        else:
            _add(sums, a, b, 1, p, (m, s), law)
        if p == 1.0 and roots[i] > 0.0:
            # d sgn(eps) is twice a point mass where eps is zero.
            up = _quantile(panels, series, below, above, a + 1e-5)
            down = _quantile(panels, series, below, above, a - 1e-5)
            steep = abs((up - down) / 2e-5 - s) / s
            mass = 2.0 * math.exp(-0.5 * a * a) / _SQRT_2PI / max(steep, 1e-300)
            sums[3] += mass
            sums[4] += mass * a
            sums[5] += mass * a * a
    # E |eps|^p is no larger at the minimum, so the triangle inequality bounds the distance of every
    # answer.
    d = sums[0] ** (1.0 / p)
    first, second = 2.0 * d, 2.0 * d * math.sqrt(math.pi / 2.0)
    det = sums[3] * sums[5] - sums[4] * sums[4]
    if det > 0.0:
        da = abs(sums[5] * sums[1] - sums[4] * sums[2]) / det
        db = abs(sums[3] * sums[2] - sums[4] * sums[1]) / det
        # Far out, |x|^p has its minimum p - 1 steps away.
        far = max(1.0, p - 1.0) if max(da, db) > 0.1 * d else 1.0
        first, second = min(first, far * da), min(second, far * db)
    return log_evidence(place, best, total, mu, sigma), first, second


@kernel
def _errors(
    functions: object, p: float, mu: Array, sigma: Array, y: Array, stored: Array, out: Array
) -> None:
    for i in range(mu.size):
        log_z, first, second = _error(
            functions, p, mu[i], sigma[i], y[i], stored[i, 1], stored[i, 2]
        )
        out[i, 0] = abs(stored[i, 0] - log_z) / max(1.0, abs(log_z))
        out[i, 1], out[i, 2] = first, second


def errors(
    likelihood: Likelihood, p: float, mu: Array, sigma: Array, y: Array, stored: Array
) -> Array:
    """Return errors of the rows (log Z, mean, standard deviation) in `stored`, shape (N, 3).

    The error of log Z is relative where it is large, else absolute; those of mean and standard
    deviation are in units of the standard deviation. NaN where the density cannot be integrated.
    """
    out = np.empty((mu.size, 3))
    _errors(likelihood.functions(), float(p), mu, sigma, y, np.ascontiguousarray(stored), out)
    return out
