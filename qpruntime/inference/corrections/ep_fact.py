"""Shapes of marginals by conditioning every other site on one: EP-FACT (Cseke & Heskes, 2011).

The formula is log p(f_i = x) = log e_i(x) + log q_i(x) + the sum over j of log E[e_j(f_j) | f_i =
x] under q. The sum is smooth in x, so it is computed at a few nodes and splined. The factor e_i
itself is computed at every point.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qpruntime._numba import contracted, contracted_inlined, kernel
from qpruntime._typing import Array, IntArray
from qpruntime.inference.corrections.density_grid import between, marked, resolved
from qpruntime.inference.corrections.tilted import (
    REACH,
    Rule,
    Tilted,
    TiltedMoments,
    log_factor,
    log_mean,
)

__all__ = ["POINTS", "Targets", "log_densities"]

#: Number of nodes over REACH standard deviations on either side, of points that locate a density,
#: and of points of its grid.
_KNOTS, _SCOUTS, POINTS = 27, 101, 401
#: The grid covers the density where it is above exp(-_CUT) of its top.
_CUT = 22.0
#: Correlations below the first number are ignored. Below the second a series in them is accurate
#: enough: its first omitted term is 1e-7 at four standard deviations, and it costs a tenth.
_SKIPPED, _SERIES = 0.02, 0.3
#: If many sites have correlations between _SERIES and this number, each gets a polynomial in r at
#: every knot. It is 6e-5 off at most within six standard deviations for heavisides, and 1e-6 for
#: smooth factors.
_TABLED = 0.9
_DEGREES = 18
#: Above this correlation a sum across a cliff of e_j is no spline. A site whose term bends much
#: between knots where it is not negligible is computed at every point, for so many sites at most.
_CLOSE, _BENT, _NEGLIGIBLE, _MOST = 0.98, 4.0, -60.0, 16
#: Nodes of the polynomials from _SERIES to _TABLED, and the matrix from values there to
#: coefficients.
_ANGLES = math.pi * (np.arange(_DEGREES) + 0.5) / _DEGREES
_NODES = 0.5 * (_TABLED + _SERIES) + 0.5 * (_TABLED - _SERIES) * np.cos(_ANGLES)
_COEFFICIENTS = 2.0 / _DEGREES * np.cos(np.arange(_DEGREES)[:, None] * _ANGLES)
_COEFFICIENTS[0] *= 0.5


class Targets(NamedTuple):
    """Targets of the marginals.

    rows : (T, N), covariances with the sites under q
    mean, std : (T,), under q
    site : (T,), the site that a target is, -1 for a new point
    """

    rows: Array
    mean: Array
    std: Array
    site: NDArray[np.intp]


@contracted_inlined
def multiply(hermite: Array, r: float, t: Array, product: Array) -> None:
    """Multiply by the mean of e_j given z_i = t, for correlation r; by 0.01 at least.

    It is the sum of r^l h_jl He_l(t)/l!, l = 0 and 3 to 8, here in powers of t.
    """
    r3 = r * r * r
    r4, r5, r6 = r3 * r, r3 * r * r, r3 * r3
    a3, a4, a5 = r3 * hermite[3] / 6.0, r4 * hermite[4] / 24.0, r5 * hermite[5] / 120.0
    a6, a7 = r6 * hermite[6] / 720.0, r6 * r * hermite[7] / 5040.0
    a8 = r4 * r4 * hermite[8] / 40320.0
    c0 = 1.0 + 3.0 * a4 - 15.0 * a6 + 105.0 * a8
    c1 = -3.0 * a3 + 15.0 * a5 - 105.0 * a7
    c2 = -6.0 * a4 + 45.0 * a6 - 420.0 * a8
    c3 = a3 - 10.0 * a5 + 105.0 * a7
    c4 = a4 - 15.0 * a6 + 210.0 * a8
    c5, c6 = a5 - 21.0 * a7, a6 - 28.0 * a8
    for k in range(t.size):
        x = t[k]
        high = c4 + x * (c5 + x * (c6 + x * (a7 + x * a8)))
        value = c0 + x * (c1 + x * (c2 + x * (c3 + x * high)))
        product[k] *= value if value > 0.01 else 0.01


@contracted
def fill_given(
    rule: Rule, fixed: TiltedMoments, tilted: Tilted, j: int, r: float, t: Array, out: Array
) -> None:
    """Fill log E e_j given a target of correlation r at t standard deviations.

    This is the only compiled copy of `log_mean`; it takes many t at once.
    """
    std = fixed.std[j]
    variance = std * std * (1.0 - r * r)
    for k in range(t.size):
        out[k] = log_mean(rule, fixed, tilted, j, fixed.mean[j] + r * std * t[k], variance)


@contracted
def tabulate(
    rule: Rule, fixed: TiltedMoments, tilted: Tilted, j: int, t: Array, values: Array, table: Array
) -> None:
    """Fill Chebyshev coefficients in r (18, G) of `fill_given` at every knot."""
    table[:] = 0.0
    for m in range(_DEGREES):
        fill_given(rule, fixed, tilted, j, _NODES[m], t, values)
        for d in range(_DEGREES):
            for k in range(t.size):
                table[d, k] += _COEFFICIENTS[d, m] * values[k]


@contracted_inlined
def add_tabled(table: Array, r: float, sums: Array) -> None:
    """Add the tabulated terms of `tabulate`; a change of sign of r is one of t."""
    x = (abs(r) - 0.5 * (_TABLED + _SERIES)) / (0.5 * (_TABLED - _SERIES))
    before, now = x, 1.0
    for d in range(_DEGREES):
        if r > 0.0:
            for k in range(sums.size):
                sums[k] += now * table[d, k]
        else:
            for k in range(sums.size):
                sums[sums.size - 1 - k] += now * table[d, k]
        before, now = now, 2.0 * x * now - before


@contracted
def bends_much(values: Array) -> bool:
    """Decide whether there is a cliff between knots."""
    for k in range(1, values.size - 1):
        middle = max(values[k - 1], values[k], values[k + 1])
        if middle > _NEGLIGIBLE:
            bend = values[k - 1] - 2.0 * values[k] + values[k + 1]
            if not abs(bend) < _BENT:
                return True
    return False


@contracted
def conditional_sums(
    rule: Rule,
    fixed: TiltedMoments,
    tilted: Tilted,
    targets: Targets,
    t: Array,
    out: Array,
    close: IntArray,
) -> None:
    """Fill the sums over the other sites (T, G) at t standard deviations from the mean.

    The sums leave out the sites in `close` (T, 16), which is padded by -1.
    """
    count = out.shape[0]
    table, r, site_logs = np.empty((_DEGREES, t.size)), np.empty(count), np.empty(t.size)
    full = np.zeros(count, np.int64)
    close[:] = -1
    product = np.ones(out.shape)
    out[:] = 0.0
    for j in range(fixed.mean.size):
        middle = 0
        for i in range(count):
            r[i] = targets.rows[i, j] / (targets.std[i] * fixed.std[j])
            if j == targets.site[i] or abs(r[i]) < _SKIPPED:
                r[i] = 0.0
            middle += _SERIES <= abs(r[i]) <= _TABLED
        tabled = middle > _DEGREES
        if tabled:
            tabulate(rule, fixed, tilted, j, t, site_logs, table)
        for i in range(count):
            if r[i] == 0.0:
                continue
            if abs(r[i]) < _SERIES:
                multiply(tilted.hermite[j], r[i], t, product[i])
            elif tabled and abs(r[i]) <= _TABLED:
                add_tabled(table, r[i], out[i])
            else:
                fill_given(rule, fixed, tilted, j, r[i], t, site_logs)
                if abs(r[i]) > _CLOSE and full[i] < _MOST and bends_much(site_logs):
                    close[i, full[i]] = j
                    full[i] += 1
                else:
                    for k in range(t.size):
                        out[i, k] += site_logs[k]
        if j % 64 == 63 or j == fixed.mean.size - 1:  # 0.01^64 is no underflow
            for i in range(count):
                for k in range(t.size):
                    out[i, k] += math.log(product[i, k])
            product[:] = 1.0


@kernel
def evaluate(
    sums: Array, bends: Array, reach: float, mean: Array, std: Array, points: Array, out: Array
) -> None:
    """Fill the log of the normal plus the spline of the sums, at points (T, P).

    `bends` are second derivatives at the knots, over the square of their distance.
    """
    n = sums.shape[1]
    for i in range(points.shape[0]):
        for k in range(points.shape[1]):
            t = (points[i, k] - mean[i]) / std[i]
            u = min(max((t + reach) * (n - 1) / (2.0 * reach), 0.0), n - 1.0)
            j = min(int(u), n - 2)
            b = u - j
            a = 1.0 - b
            value = a * sums[i, j] + b * sums[i, j + 1]
            value += ((a * a - 1.0) * a * bends[i, j] + (b * b - 1.0) * b * bends[i, j + 1]) / 6.0
            out[i, k] = value - 0.5 * t * t


@kernel
def own_factors(
    rule: Rule,
    fixed: TiltedMoments,
    tilted: Tilted,
    targets: Targets,
    close: IntArray,
    points: Array,
    out: Array,
) -> None:
    """Fill log e_i at the points of targets that are sites, and add the terms of close sites."""
    t, added = np.empty(points.shape[1]), np.empty(points.shape[1])
    for i in range(points.shape[0]):
        j = targets.site[i]
        out[i, :] = 0.0
        if j >= 0:
            for k in range(points.shape[1]):
                out[i, k] = log_factor(rule, fixed, j, points[i, k])
        for a in range(close.shape[1]):
            j = close[i, a]
            if j < 0:
                break
            r = targets.rows[i, j] / (targets.std[i] * fixed.std[j])
            for k in range(t.size):
                t[k] = (points[i, k] - targets.mean[i]) / targets.std[i]
            fill_given(rule, fixed, tilted, j, r, t, added)
            for k in range(t.size):
                out[i, k] += added[k]


@kernel
def trim(
    rule: Rule,
    fixed: TiltedMoments,
    own: IntArray,
    low: Array,
    high: Array,
    logs: Array,
    points: Array,
) -> None:
    """Move `low` and `high` to the ends of the support of e_i.

    `logs` is log e_i at `points`.
    """
    for i in range(points.shape[0]):
        if own[i] < 0:
            continue
        n = points.shape[1]
        first, last = 0, n - 1
        while first < n and logs[i, first] == -math.inf:
            first += 1
        while last >= 0 and logs[i, last] == -math.inf:
            last -= 1
        if first > last:
            continue
        for side in range(2):
            inside = points[i, first] if side == 0 else points[i, last]
            if (first if side == 0 else n - 1 - last) == 0:
                continue
            outside = points[i, first - 1] if side == 0 else points[i, last + 1]
            for _ in range(60):
                middle = 0.5 * (inside + outside)
                if log_factor(rule, fixed, own[i], middle) == -math.inf:
                    outside = middle
                else:
                    inside = middle
            if side == 0:
                low[i] = inside
            else:
                high[i] = inside


@cache
def bending(knots: int) -> Array:
    """Return the matrix (knots, knots) from a row of values at even knots to second derivatives.

    They are those of the cubic spline whose outer two intervals share a polynomial at either end.
    """
    system, differences = np.zeros((knots, knots)), np.zeros((knots, knots))
    for k in range(1, knots - 1):
        system[k, k - 1 : k + 2] = 1.0, 4.0, 1.0
        differences[k, k - 1 : k + 2] = 6.0, -12.0, 6.0
    system[0, :3], system[-1, -3:] = (1.0, -2.0, 1.0), (1.0, -2.0, 1.0)
    matrix = np.ascontiguousarray(np.linalg.solve(system, differences).T)
    matrix.flags.writeable = False
    return matrix


def log_densities(
    rule: Rule, fixed: TiltedMoments, tilted: Tilted, targets: Targets
) -> tuple[Array, Array]:
    """Return points and log densities there, both (T, G), not normalised.

    G is the number of even points, POINTS, or more if a density has cliffs.
    """
    sums = np.empty((targets.mean.size, _KNOTS))
    knots = np.linspace(-REACH, REACH, _KNOTS)
    close = np.empty((targets.mean.size, _MOST), np.int64)
    conditional_sums(rule, fixed, tilted, targets, knots, sums, close)
    bends = sums @ bending(_KNOTS)

    def parts(rows: NDArray[np.intp], points: Array) -> tuple[Array, Array]:
        chosen = Targets(
            targets.rows[rows], targets.mean[rows], targets.std[rows], targets.site[rows]
        )
        close_logs, smooth_logs = np.empty(points.shape), np.empty(points.shape)
        own_factors(rule, fixed, tilted, chosen, close[rows], points, close_logs)
        evaluate(sums[rows], bends[rows], REACH, chosen.mean, chosen.std, points, smooth_logs)
        return close_logs, smooth_logs

    def levels(rows: NDArray[np.intp], points: Array) -> Array:
        close_logs, smooth_logs = parts(rows, points)
        return close_logs + smooth_logs

    every = np.arange(targets.mean.size)
    low, high = targets.mean - REACH * targets.std, targets.mean + REACH * targets.std
    points = between(low, high, _SCOUTS)
    close_logs, smooth_logs = parts(every, points)
    logs = close_logs + smooth_logs
    above = logs > logs.max(axis=1, keepdims=True) - _CUT
    first = np.maximum(np.argmax(above, axis=1) - 1, 0)
    last = np.minimum(_SCOUTS - np.argmax(above[:, ::-1], axis=1), _SCOUTS - 1)
    begun, ended = low.copy(), high.copy()
    trim(rule, fixed, targets.site, begun, ended, close_logs, points)
    # If a density begins or ends at an edge of its support, so does the grid.
    low = np.maximum(points[every, first], begun)
    high = np.minimum(points[every, last], ended)
    points = between(low, high, POINTS)
    peaks = np.full(every.size, math.nan)
    if rule.location:
        peaks[targets.site >= 0] = fixed.y[targets.site[targets.site >= 0]]
    points = marked(points, peaks)
    return resolved(points, levels(every, points), levels)
