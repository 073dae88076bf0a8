"""Shapes of marginals by conditioning every other site on one: EP-FACT (Cseke & Heskes, 2011).

log p(f_i = x) = log e_i(x) + log q_i(x) + the sum over j of log E[e_j(f_j) | f_i = x] under q. The
sum is smooth in x: it is computed at a few nodes and splined, and e_i itself at every point.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qpruntime.arrays import Array
from qpruntime.inference.corrections.sites import REACH, Fixed, Rule, Tilted, log_factor, log_mean
from qpruntime.jit import kernel

__all__ = ["POINTS", "Targets", "log_densities"]

#: Nodes of the first look and of the second, and points of the grid that densities end on.
_COARSE, _FINE, POINTS = 13, 23, 401
#: The second look is where the density is above exp(-_CUT) of its top.
_CUT = 22.0
#: Correlations below this count for nothing; below the next a series in them is exact enough.
_SKIPPED, _SERIES = 0.02, 0.1


class Targets(NamedTuple):
    """Points whose marginals are asked for.

    rows : (T, N), covariances with the sites under q
    mean, std : (T,), under q
    own : (T,), the site that a target is, -1 for a new point
    """

    rows: Array
    mean: Array
    std: Array
    own: NDArray[np.intp]


@kernel
def conditional_sums(rule, fixed, tilted, targets, points, out):
    """Fill the sums over the other sites, for every target at its own points, both (T, G)."""
    for i in range(points.shape[0]):
        variance = targets.std[i] ** 2
        out[i, :] = 0.0
        for j in range(fixed.mean.size):
            if j == targets.own[i]:
                continue
            row = targets.rows[i, j]
            r = row / (targets.std[i] * fixed.std[j])
            if abs(r) < _SKIPPED:
                continue
            gain = row / variance
            if abs(r) < _SERIES:
                # The mean of He_l(z_j) given z_i = t is r^l He_l(t).
                h3, h4 = tilted.hermite[j, 3], tilted.hermite[j, 4]
                h5, h6 = tilted.hermite[j, 5], tilted.hermite[j, 6]
                r3 = r * r * r
                c3, c4 = r3 * h3 / 6.0, r3 * r * h4 / 24.0
                c5, c6 = r3 * r * r * h5 / 120.0, r3 * r3 * h6 / 720.0
                for k in range(points.shape[1]):
                    t = (points[i, k] - targets.mean[i]) / targets.std[i]
                    t2 = t * t
                    value = c3 * t * (t2 - 3.0) + c4 * (t2 * (t2 - 6.0) + 3.0)
                    value += c5 * t * (t2 * (t2 - 10.0) + 15.0)
                    value += c6 * (t2 * (t2 * (t2 - 15.0) + 45.0) - 15.0)
                    out[i, k] += math.log1p(max(value, -0.99))
                continue
            left = fixed.std[j] ** 2 - row * gain
            for k in range(points.shape[1]):
                d = points[i, k] - targets.mean[i]
                out[i, k] += log_mean(rule, fixed, tilted, j, fixed.mean[j] + gain * d, left)


@kernel
def own_factors(rule, fixed, tilted, own, points, out):
    """Fill log e_i at the points of targets that are sites, 0 at those of others."""
    for i in range(points.shape[0]):
        j = own[i]
        out[i, :] = 0.0
        if j >= 0:
            for k in range(points.shape[1]):
                out[i, k] = log_factor(rule, fixed, j, points[i, k])


@kernel
def trim(rule, fixed, own, low, high, logs, points):
    """Move `low` and `high` to where e_i begins and ends, if it is zero somewhere outside.

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
def spline(nodes: int, points: int) -> Array:
    """Matrix (nodes, points) of the cubic spline through even nodes, evaluated at even points.

    Not-a-knot: the outer two intervals of either end share a polynomial.
    """
    x, eye = np.arange(nodes, dtype=float), np.eye(nodes)
    # Second derivatives M: M_(k-1) + 4 M_k + M_(k+1) = 6 times the second difference.
    left, right = np.zeros((nodes, nodes)), np.zeros((nodes, nodes))
    for k in range(1, nodes - 1):
        left[k, k - 1 : k + 2] = 1.0, 4.0, 1.0
        right[k, k - 1 : k + 2] = 6.0, -12.0, 6.0
    left[0, :3], left[-1, -3:] = (1.0, -2.0, 1.0), (1.0, -2.0, 1.0)
    M = np.linalg.solve(left, right)
    at = np.linspace(0.0, nodes - 1.0, points)
    k = np.minimum(at.astype(int), nodes - 2)
    b = at - x[k]
    a = 1.0 - b
    out = a[:, None] * eye[k] + b[:, None] * eye[k + 1]
    out += ((a**3 - a) / 6.0)[:, None] * M[k] + ((b**3 - b) / 6.0)[:, None] * M[k + 1]
    out.flags.writeable = False
    return np.ascontiguousarray(out.T)


def between(low: Array, high: Array, count: int) -> Array:
    """Even points (T, count) from `low` to `high`."""
    points = low[:, None] + (high - low)[:, None] * np.linspace(0.0, 1.0, count)
    points[:, -1] = high
    return points


def log_densities(
    rule: Rule, fixed: Fixed, tilted: Tilted, targets: Targets
) -> tuple[Array, Array, Array]:
    """Return ends of ranges, each (T,), and log densities at even points between, (T, POINTS).

    They are not normalised.
    """
    problem = (rule, fixed, tilted)
    low, high = targets.mean - REACH * targets.std, targets.mean + REACH * targets.std
    points, own, rest = _on_grid(problem, targets, low, high, _COARSE)
    logs = own + rest
    above = logs > logs.max(axis=1, keepdims=True) - _CUT
    first = np.maximum(np.argmax(above, axis=1) - 1, 0)
    last = np.minimum(POINTS - np.argmax(above[:, ::-1], axis=1), POINTS - 1)
    every = np.arange(len(points))
    low, high = points[every, first], points[every, last]
    begun, ended = low.copy(), high.copy()
    trim(rule, fixed, targets.own, begun, ended, own, points)
    # Where a density begins at an edge the grid begins there.
    low, high = np.maximum(low, begun), np.minimum(high, ended)
    _, own, rest = _on_grid(problem, targets, low, high, _FINE)
    return low, high, own + rest


def _on_grid(
    problem: tuple[Rule, Fixed, Tilted], targets: Targets, low: Array, high: Array, nodes: int
) -> tuple[Array, Array, Array]:
    """Points (T, POINTS), log e_i there, and the smooth rest, splined through so many nodes."""
    at = between(low, high, nodes)
    sums = np.empty(at.shape)
    conditional_sums(*problem, targets, at, sums)
    points = between(low, high, POINTS)
    own = np.empty(points.shape)
    own_factors(*problem, targets.own, points, own)
    t = (points - targets.mean[:, None]) / targets.std[:, None]
    return points, own, sums @ spline(nodes, POINTS) - 0.5 * t * t
