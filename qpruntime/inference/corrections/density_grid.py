"""Densities on grids."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.polynomial.legendre import leggauss
from numpy.typing import NDArray

from qpruntime._numba import inlined, kernel
from qpruntime._typing import Array, Floats

__all__ = [
    "Densities",
    "between",
    "cdf_many",
    "log_density_many",
    "marked",
    "moments",
    "normalised",
    "quantile_many",
    "resolved",
]

# --- Refined points at cliffs and narrow peaks
#
# If the prior is wide, a label cuts a density off within a unit of f, while its grid has steps of
# thousands.

#: Likelihoods bend within about one unit of f around 0. If steps are longer, points are added
#: around 0, at distances that double from this one on.
_UNIT = 0.5
#: An interval is divided if the log density changes by more than the first number and is less than
#: the second below its top: what is farther below weighs 1e-6 times an interval.
_CHANGE, _DEPTH = 0.7, 14.0
#: Number of parts of a divided interval, and of rounds of division: 4^26 is 2^52.
_PARTS, _ROUNDS = 4, 26
_ROUNDING = 1e-13


def inserted(points: Array, more: Array) -> Array:
    """Return the points with inserted ones in order; points outside repeat the last one."""
    low, high = points[:, :1], points[:, -1:]
    return np.sort(np.hstack([points, np.where((more > low) & (more < high), more, high)]), axis=1)


def marked(points: Array, peaks: Array) -> Array:
    """Insert points around 0 into even points (T, G) with long steps there, and at peaks.

    `peaks` is (T,), NaN if there is no peak.
    """
    step = points[:, 1] - points[:, 0]
    wide = (step > _UNIT) & (points[:, 0] < 0.0) & (points[:, -1] > 0.0)
    if not wide.any():
        return points
    count = math.ceil(math.log2(step[wide].max() / _UNIT)) + 1
    out = _UNIT * 2.0 ** np.arange(count)
    marks = np.concatenate([-out, [0.0], out])
    near = wide[:, None] & (np.abs(marks) < 2.0 * step[:, None])
    peak_marks = np.where(wide, peaks, math.nan)
    return inserted(points, np.column_stack([np.where(near, marks, math.nan), peak_marks]))


def resolved(
    points: Array, logs: Array, levels: Callable[[NDArray[np.intp], Array], Array]
) -> tuple[Array, Array]:
    """Divide intervals in which a density changes much; return points and log densities.

    Parameters
    ----------
    levels : callable
        Function ``levels(rows, points)`` of the log densities of these rows (R,) at points (R, P).
    """
    for _ in range(_ROUNDS):
        with np.errstate(invalid="ignore"):  # -inf less itself
            change = np.abs(np.diff(logs))
        steep = ~(change <= _CHANGE)
        if not steep.any():
            break
        high = np.maximum(logs[:, 1:], logs[:, :-1]) > logs.max(axis=1, keepdims=True) - _DEPTH
        wide = np.diff(points) > _ROUNDING * (np.abs(points[:, 1:]) + np.abs(points[:, :-1]))
        wrong = high & wide & steep
        rows = np.flatnonzero(wrong.any(axis=1))
        if not rows.size:
            break
        wrong = wrong[rows]
        most = int(wrong.sum(axis=1).max())
        first = np.argsort(~wrong, axis=1, kind="stable")[:, :most]
        used = np.take_along_axis(wrong, first, axis=1)
        lower = np.take_along_axis(points[rows], first, axis=1)
        upper = np.take_along_axis(points[rows], first + 1, axis=1)
        parts = np.arange(1, _PARTS) / _PARTS
        last = points[:, -1:]
        more = np.where(used[..., None], lower[..., None] + (upper - lower)[..., None] * parts, 0.0)
        more = more.reshape(rows.size, -1)
        used = np.repeat(used, _PARTS - 1, axis=1)
        more = np.where(used, more, last[rows])
        new_levels = np.where(used, levels(rows, more), logs[rows, -1:])
        new, new_logs = (np.repeat(a, more.shape[1], axis=1) for a in (last, logs[:, -1:]))
        new[rows], new_logs[rows] = more, new_levels
        points, logs = np.hstack([points, new]), np.hstack([logs, new_logs])
        order = np.argsort(points, axis=1, kind="stable")
        points, logs = (np.take_along_axis(a, order, axis=1) for a in (points, logs))
    return points, logs


# --- Densities on grids
#
# Between two points the log of a density is the cubic through the four points around. It is a
# straight line if the cubic would bend much, because beside a cliff a cubic rises far above both
# ends. Masses, distribution functions and quantiles are those of this interpolant.

#: A cubic leaves the straight line by at most a quarter of the first number. A log density that
#: falls by more than the second within an interval is straight. Gauss-Legendre rules give masses to
#: 1e-12.
_BEND, _STEEP = 0.4, 8.0
#: Gauss-Legendre rules on [0, 1]: one for falls up to this, where three nodes err by 4e-10, and one
#: up to _STEEP.
_GENTLE = 0.3
_X3, _W3 = (0.5 * (leggauss(3)[0] + 1.0), 0.5 * leggauss(3)[1])
_X10, _W10 = (0.5 * (leggauss(10)[0] + 1.0), 0.5 * leggauss(10)[1])
#: Up to this fall and this bend, a density at even points is itself a cubic. This takes a tenth of
#: the work, and the distribution function of a normal on 401 points is 1e-8 off. It is not used
#: without any bend, which may occur beside a cliff.
_LEVEL, _SLIGHT = 0.1, 1.5e-3
#: The interpolant is cubic between points whose distances differ by at most this factor, else
#: straight.
_EVEN = 2.5
_NEWTON = 60
#: Distances are equal up to this relative gap; this saves divisions, which were half of the time.
_SAME = 1e-9


class Densities(NamedTuple):
    """T densities: their logs (T, G) at ascending points (T, G), and masses.

    `below` (T, G) is the mass left of every point; `logs` are normalised. The mean of a function is
    the sum of its values at the points times `weights` (T, G), which sum to 1.
    """

    points: Array
    logs: Array
    below: Array
    weights: Array


def between(low: Array, high: Array, count: int) -> Array:
    """Return even points (T, count) from `low` to `high`."""
    points = low[:, None] + (high - low)[:, None] * np.linspace(0.0, 1.0, count)
    points[:, -1] = high
    return points


def normalised(points: Array, logs: Array) -> Densities:
    """Scale densities to mass one and accumulate it."""
    logs = logs - logs.max(axis=1, keepdims=True)
    below, weights = np.empty(logs.shape), np.empty(logs.shape)
    accumulate(np.ascontiguousarray(points), logs, np.exp(logs), below, weights)
    total = below[:, -1:].copy()
    return Densities(points, logs - np.log(total), below / total, weights / total)


@inlined
def same_steps(x: Array, k: int) -> bool:
    """Decide whether interval k has neighbours, and both are as long as it."""
    same = False
    if 0 < k < x.size - 2:
        h = x[k + 1] - x[k]
        off = max(abs(x[k] - x[k - 1] - h), abs(x[k + 2] - x[k + 1] - h))
        same = off <= _SAME * h and h > 0.0
    return same


@inlined
def bend_of(x: Array, logs: Array, k: int) -> tuple[float, float]:
    """Return (a, b): in interval k the log density is a line plus u(1 - u)(a + b u), u its part."""
    n = x.size
    h, fall = x[k + 1] - x[k], logs[k + 1] - logs[k]
    first = min(max(k - 1, 0), n - 4)
    p = first if first < k else k + 2
    q = first + 3 if first + 3 > k + 1 else k - 1
    a, b = 0.0, 0.0
    if abs(fall) <= _STEEP and same_steps(x, k):
        c = -0.5 * (logs[p] - logs[k] + fall)
        b = (-0.5 * (logs[q] - logs[k] - 2.0 * fall) - c) * (1.0 / 3.0)
        a = c + b
    elif abs(fall) <= _STEEP and h > 0.0:
        at_p, at_q = (x[p] - x[k]) / h, (x[q] - x[k]) / h
        bend_p, bend_q = at_p * (1.0 - at_p), at_q * (1.0 - at_q)
        if bend_p != 0.0 and bend_q != 0.0 and at_p != at_q:
            c = (logs[p] - logs[k] - at_p * fall) / bend_p
            b = ((logs[q] - logs[k] - at_q * fall) / bend_q - c) / (at_q - at_p)
            a = c - b * at_p
    if not abs(a) + abs(b) <= _BEND:
        a, b = 0.0, 0.0
    return a, b


@inlined
def part_mass(start: float, fall: float, a: float, b: float, h: float, u: float) -> float:
    """Return the mass of the part from 0 to u of an interval of length h."""
    total = 0.0
    if a == 0.0 and b == 0.0:
        drop = fall * u
        if not abs(fall) < math.inf:
            total = 0.0
        elif abs(drop) < 1e-6:
            total = math.exp(start) * u * (1.0 + 0.5 * drop)
        elif drop < 0.0:
            total = math.exp(start) * math.expm1(drop) / fall
        else:
            total = -math.exp(start + drop) * math.expm1(-drop) / fall
    elif abs(fall) <= _GENTLE:
        for m in range(_X3.size):
            v = u * _X3[m]
            total += _W3[m] * math.exp(start + v * (fall + (1.0 - v) * (a + b * v)))
        total *= u
    else:
        for m in range(_X10.size):
            v = u * _X10[m]
            total += _W10[m] * math.exp(start + v * (fall + (1.0 - v) * (a + b * v)))
        total *= u
    return h * total


@inlined
def cubic_shares(x: Array, k: int, v: float) -> Floats:
    """Return the weights of the four points from k - 1 on for a value at part v of interval k."""
    h = x[k + 1] - x[k]
    p, q = (x[k - 1] - x[k]) / h, (x[k + 2] - x[k]) / h
    from_p, from_q = v - p, v - q
    s0 = v * (v - 1.0) * from_q / (p * (p - 1.0) * (p - q))
    s1 = from_p * (v - 1.0) * from_q / (p * -q)  # (0 - p)(0 - 1)(0 - q) = -p q
    s2 = from_p * v * from_q / ((1.0 - p) * (1.0 - q))
    s3 = from_p * v * (v - 1.0) / ((q - p) * q * (q - 1.0))
    return s0, s1, s2, s3


def shares_of(nodes: Array) -> Array:
    """Return `cubic_shares` at nodes between points at -1, 0, 1 and 2, shape (nodes, 4)."""
    v = nodes[:, None]
    at = np.arange(-1.0, 3.0)
    other_points = [at[at != point] for point in at]
    columns = [(v - r).prod(axis=1) / (p - r).prod() for p, r in zip(at, other_points, strict=True)]
    return np.column_stack(columns)


_S3, _S10 = shares_of(_X3), shares_of(_X10)


@kernel
def accumulate(points: Array, logs: Array, density: Array, below: Array, weights: Array) -> None:
    """Fill the mass left of every point, and the weights of the points in means."""
    n = points.shape[1]
    weights[:] = 0.0
    for i in range(points.shape[0]):
        x, level, p, weight = points[i], logs[i], density[i], weights[i]
        below[i, 0] = 0.0
        for k in range(n - 1):
            h, fall = x[k + 1] - x[k], level[k + 1] - level[k]
            if not (h > 0.0 and abs(fall) <= _STEEP):
                mass = part_mass(level[k], fall, 0.0, 0.0, h, 1.0)
                below[i, k + 1] = below[i, k] + mass
                if mass > 0.0:
                    # The value lies within 1/fall of the upper end.
                    share = 1.0 - 1.0 / abs(fall)
                    weight[k] += mass * (share if fall < 0.0 else 1.0 - share)
                    weight[k + 1] += mass * (share if fall > 0.0 else 1.0 - share)
                continue
            a, b = bend_of(x, level, k)
            same = same_steps(x, k)
            if same and abs(fall) <= _LEVEL and 0.0 < abs(a) + abs(b) <= _SLIGHT:
                part = h * (1.0 / 24.0)
                s0, s3 = -part * p[k - 1], -part * p[k + 2]
                s1, s2 = 13.0 * part * p[k], 13.0 * part * p[k + 1]
                below[i, k + 1] = below[i, k] + (s0 + s1 + s2 + s3)
                weight[k - 1] += s0
                weight[k] += s1
                weight[k + 1] += s2
                weight[k + 2] += s3
                continue
            even = same
            if not same and 0 < k < n - 2:
                before, after = x[k] - x[k - 1], x[k + 2] - x[k + 1]
                even = h < _EVEN * min(before, after) and max(before, after) < _EVEN * h
            gentle = abs(fall) <= _GENTLE
            s0, s1, s2, s3, whole = 0.0, 0.0, 0.0, 0.0, 0.0
            for m in range(_X3.size if gentle else _X10.size):
                v = _X3[m] if gentle else _X10[m]
                w = h * (_W3[m] if gentle else _W10[m])
                w *= math.exp(level[k] + v * (fall + (1.0 - v) * (a + b * v)))
                whole += w
                if same:
                    shares = _S3 if gentle else _S10
                    s0 += w * shares[m, 0]
                    s1 += w * shares[m, 1]
                    s2 += w * shares[m, 2]
                    s3 += w * shares[m, 3]
                elif even:
                    c0, c1, c2, c3 = cubic_shares(x, k, v)
                    s0 += w * c0
                    s1 += w * c1
                    s2 += w * c2
                    s3 += w * c3
                else:
                    s1 += w * (1.0 - v)
                    s2 += w * v
            mass = whole
            if a == 0.0 and b == 0.0 and whole > 0.0:
                mass = part_mass(level[k], fall, a, b, h, 1.0)
                scale = mass / whole
                s0, s1, s2, s3 = s0 * scale, s1 * scale, s2 * scale, s3 * scale
            below[i, k + 1] = below[i, k] + mass
            if even:
                weight[k - 1] += s0
                weight[k + 2] += s3
            weight[k] += s1
            weight[k + 1] += s2


def moments(densities: Densities) -> tuple[Array, Array, Array]:
    """Return mean, variance and skewness of every density."""
    low = densities.points[:, :1]
    width = densities.points[:, -1:] - low
    unit = (densities.points - low) / width
    mean = np.einsum("ij,ij->i", densities.weights, unit)
    gap = unit - mean[:, None]
    square = densities.weights * (gap * gap)
    second, third = square.sum(axis=1), np.einsum("ij,ij->i", square, gap)
    long = width[:, 0]
    return low[:, 0] + long * mean, long**2 * second, third / second**1.5


@inlined
def interval_of(x: Array, value: float) -> int:
    """Return the index of the interval of ascending points that contains a value."""
    first, last = 0, x.size - 1
    while last - first > 1:
        middle = (first + last) // 2
        if x[middle] <= value:
            first = middle
        else:
            last = middle
    return first


@kernel
def log_density_many(points: Array, logs: Array, at: Array, out: Array) -> None:
    """Fill log densities at points (T, Q), -inf outside the grid."""
    n = logs.shape[1]
    for i in range(at.shape[0]):
        x, level = points[i], logs[i]
        for q in range(at.shape[1]):
            if not x[0] <= at[i, q] <= x[n - 1]:
                out[i, q] = -math.inf if at[i, q] == at[i, q] else math.nan
                continue
            k = interval_of(x, at[i, q])
            h, fall = x[k + 1] - x[k], level[k + 1] - level[k]
            u = (at[i, q] - x[k]) / h if h > 0.0 else 1.0
            if u == 0.0 or u == 1.0:
                out[i, q] = level[k] if u == 0.0 else level[k + 1]
            elif abs(fall) < math.inf:
                a, b = bend_of(x, level, k)
                out[i, q] = level[k] + u * (fall + (1.0 - u) * (a + b * u))
            else:
                out[i, q] = -math.inf


@kernel
def cdf_many(points: Array, logs: Array, below: Array, at: Array, out: Array) -> None:
    """Fill distribution functions at points (T, Q)."""
    n = logs.shape[1]
    for i in range(at.shape[0]):
        x, level = points[i], logs[i]
        for q in range(at.shape[1]):
            if not x[0] < at[i, q] < x[n - 1]:
                out[i, q] = math.nan if at[i, q] != at[i, q] else (0.0 if at[i, q] <= x[0] else 1.0)
                continue
            k = interval_of(x, at[i, q])
            h, fall = x[k + 1] - x[k], level[k + 1] - level[k]
            a, b = bend_of(x, level, k)
            u = (at[i, q] - x[k]) / h
            value = below[i, k] + part_mass(level[k], fall, a, b, h, u)
            out[i, q] = min(value, below[i, k + 1])


@kernel
def quantile_many(points: Array, logs: Array, below: Array, levels: Array, out: Array) -> None:
    """Fill quantiles (T, Q) of levels (Q,) by Newton's method in the interval of the level."""
    for i in range(out.shape[0]):
        x, level = points[i], logs[i]
        for q in range(levels.size):
            k = interval_of(below[i], levels[q])
            h, fall = x[k + 1] - x[k], level[k + 1] - level[k]
            a, b = bend_of(x, level, k)
            wanted, mass = levels[q] - below[i, k], below[i, k + 1] - below[i, k]
            first, last = 0.0, 1.0
            u = min(max(wanted / mass, 0.0), 1.0) if mass > 0.0 else 0.5
            for _ in range(_NEWTON):
                gap = part_mass(level[k], fall, a, b, h, u) - wanted
                if gap <= 0.0:
                    first = u
                if gap >= 0.0:
                    last = u
                slope = h * math.exp(level[k] + u * (fall + (1.0 - u) * (a + b * u)))
                next_u = u - gap / slope if slope > 0.0 else -1.0
                if not first <= next_u <= last:
                    next_u = 0.5 * (first + last)
                small = abs(next_u - u) <= 1e-15
                u = next_u
                if small:
                    break
            out[i, q] = x[k] + h * u
