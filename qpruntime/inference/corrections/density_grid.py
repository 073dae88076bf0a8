"""Densities at points, one row each: moments, distribution functions, quantiles, integrals.

Between two points the log of a density is the cubic through the four points around, or a straight
line where that would bend much: beside a cliff a cubic rises far above both ends. Masses,
distribution functions and quantiles are those of that very function.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.polynomial.legendre import leggauss

from qpruntime.arrays import Array
from qpruntime.jit import inlined, kernel

__all__ = [
    "Densities",
    "between",
    "cdf_many",
    "log_density_many",
    "moments",
    "normalised",
    "quantile_many",
]

#: A cubic leaves the straight line by a quarter of this at most, and a log density that falls by
#: more than the next within an interval is straight: Gauss-Legendre rules have masses to 1e-12.
_BEND, _STEEP = 0.4, 8.0
#: Gauss-Legendre rules on [0, 1]: up to this fall, where three nodes have 4e-10, and up to _STEEP.
_GENTLE = 0.3
_X3, _W3 = (0.5 * (leggauss(3)[0] + 1.0), 0.5 * leggauss(3)[1])
_X10, _W10 = (0.5 * (leggauss(10)[0] + 1.0), 0.5 * leggauss(10)[1])
#: Up to this fall, and bend, a density at even points is itself a cubic: a tenth of the work, and
#: of a normal on 401 points its distribution function is 1e-8 off. Not where there is no bend:
#: that may be beside a cliff.
_LEVEL, _SLIGHT = 0.1, 1.5e-3
#: A function is cubic between points whose distances differ by this factor at most, else straight.
_EVEN = 2.5
_NEWTON = 60
#: Distances are the same to this; then divisions are saved, which were half of the time.
_SAME = 1e-9


class Densities(NamedTuple):
    """T densities: at ascending points (T, G) their logs (T, G), and masses.

    `below` (T, G) is the mass left of every point; `logs` are normalised. The mean of a function is
    the sum of its values at the points times `weights` (T, G), which sum to 1.
    """

    points: Array
    logs: Array
    below: Array
    weights: Array


def between(low: Array, high: Array, count: int) -> Array:
    """Even points (T, count) from `low` to `high`."""
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
def same_steps(x, k):
    """Whether interval k has neighbours, and both are as long as it."""
    same = False
    if 0 < k < x.size - 2:
        h = x[k + 1] - x[k]
        off = max(abs(x[k] - x[k - 1] - h), abs(x[k + 2] - x[k + 1] - h))
        same = off <= _SAME * h and h > 0.0
    return same


@inlined
def bend_of(x, logs, k):
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
        at, other = (x[p] - x[k]) / h, (x[q] - x[k]) / h
        one, two = at * (1.0 - at), other * (1.0 - other)
        if one != 0.0 and two != 0.0 and at != other:
            c = (logs[p] - logs[k] - at * fall) / one
            b = ((logs[q] - logs[k] - other * fall) / two - c) / (other - at)
            a = c - b * at
    if not abs(a) + abs(b) <= _BEND:
        a, b = 0.0, 0.0
    return a, b


@inlined
def part_mass(start, fall, a, b, h, u):
    """Mass of the part from 0 to u of an interval of length h."""
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
def cubic_shares(x, k, v):
    """Shares in the four points from k - 1 on of a value at part v of interval k."""
    h = x[k + 1] - x[k]
    p, q = (x[k - 1] - x[k]) / h, (x[k + 2] - x[k]) / h
    left, right = v - p, v - q
    s0 = v * (v - 1.0) * right / (p * (p - 1.0) * (p - q))
    s1 = left * (v - 1.0) * right / (p * -q)  # (0 - p)(0 - 1)(0 - q) = -p q
    s2 = left * v * right / ((1.0 - p) * (1.0 - q))
    s3 = left * v * (v - 1.0) / ((q - p) * q * (q - 1.0))
    return s0, s1, s2, s3


def shares_of(nodes: Array) -> Array:
    """`cubic_shares` at nodes between points at -1, 0, 1 and 2, shape (nodes, 4)."""
    v = nodes[:, None]
    at = np.arange(-1.0, 3.0)
    rest = [at[at != point] for point in at]
    columns = [(v - r).prod(axis=1) / (p - r).prod() for p, r in zip(at, rest, strict=True)]
    return np.column_stack(columns)


_S3, _S10 = shares_of(_X3), shares_of(_X10)


@kernel
def accumulate(points, logs, density, below, weights):
    """Fill masses left of every point, and weights of the points in means."""
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
                    # It lies within 1/fall of the upper end.
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


def moments(found: Densities) -> tuple[Array, Array, Array]:
    """Mean, variance and skewness of every density."""
    low = found.points[:, :1]
    width = found.points[:, -1:] - low
    unit = (found.points - low) / width
    mean = np.einsum("ij,ij->i", found.weights, unit)
    gap = unit - mean[:, None]
    square = found.weights * (gap * gap)
    second, third = square.sum(axis=1), np.einsum("ij,ij->i", square, gap)
    long = width[:, 0]
    return low[:, 0] + long * mean, long**2 * second, third / second**1.5


@inlined
def interval_of(x, value):
    """Index of the interval that has a value, of ascending points with the value inside."""
    first, last = 0, x.size - 1
    while last - first > 1:
        middle = (first + last) // 2
        if x[middle] <= value:
            first = middle
        else:
            last = middle
    return first


@kernel
def log_density_many(points, logs, at, out):
    """Fill log densities at points (T, Q); -inf outside."""
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
def cdf_many(points, logs, below, at, out):
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
def quantile_many(points, logs, below, levels, out):
    """Fill quantiles (T, Q) of levels (Q,): Newton's method in the interval that has the level."""
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
                other = u - gap / slope if slope > 0.0 else -1.0
                if not first <= other <= last:
                    other = 0.5 * (first + last)
                small = abs(other - u) <= 1e-15
                u = other
                if small:
                    break
            out[i, q] = x[k] + h * u
