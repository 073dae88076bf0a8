"""Densities on even grids, one row each: moments, distribution functions, quantiles, integrals."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from qpruntime.arrays import Array
from qpruntime.jit import kernel

__all__ = [
    "Densities",
    "cdf_many",
    "log_density_many",
    "moments",
    "normalised",
    "quantile_many",
    "simpson",
]


class Densities(NamedTuple):
    """T densities: on even points from `low` to `high`, each (T,), their logs (T, G), and masses.

    `below` (T, G) is the mass left of every point; `logs` are normalised.
    """

    low: Array
    high: Array
    logs: Array
    below: Array


def normalised(low: Array, high: Array, logs: Array) -> Densities:
    """Scale densities to mass one and accumulate it."""
    density = np.exp(logs - logs.max(axis=1, keepdims=True))
    step = (high - low) / (logs.shape[1] - 1)
    below = np.empty(logs.shape)
    accumulate(density, step, below)
    total = below[:, -1:].copy()
    below /= total
    logs = logs - logs.max(axis=1, keepdims=True) - np.log(total)
    return Densities(low, high, logs, below)


@kernel
def accumulate(density, step, below):
    """Integrate up to every point, the cubic through the four points around each interval."""
    n = density.shape[1]
    for i in range(density.shape[0]):
        p, total = density[i], 0.0
        below[i, 0] = 0.0
        for k in range(n - 1):
            if k == 0:
                part = (9.0 * p[0] + 19.0 * p[1] - 5.0 * p[2] + p[3]) / 24.0
            elif k == n - 2:
                part = (9.0 * p[n - 1] + 19.0 * p[n - 2] - 5.0 * p[n - 3] + p[n - 4]) / 24.0
            else:
                part = (13.0 * (p[k] + p[k + 1]) - p[k - 1] - p[k + 2]) / 24.0
            if not part > 0.0:
                part = 0.5 * (p[k] + p[k + 1])
            total += part * step[i]
            below[i, k + 1] = total


def simpson(points: int) -> Array:
    """Weights of Simpson's rule on [0, 1], for an odd number of points."""
    rule = np.full(points, 2.0)
    rule[1::2] = 4.0
    rule[[0, -1]] = 1.0
    rule /= 3.0 * (points - 1)
    return rule


def moments(found: Densities) -> tuple[Array, Array, Array]:
    """Mean, variance and skewness of every density, by parts of its distribution function."""
    points = found.logs.shape[1]
    unit = np.linspace(0.0, 1.0, points)
    density = np.exp(found.logs) * (found.high - found.low)[:, None]
    rule = simpson(points)
    mass = density @ rule
    mean = density @ (rule * unit) / mass
    gap = unit - mean[:, None]
    weighed = density * rule
    second = np.einsum("ij,ij->i", weighed, gap * gap) / mass
    third = np.einsum("ij,ij->i", weighed, gap * gap * gap) / mass
    width = found.high - found.low
    return found.low + width * mean, width**2 * second, third / second**1.5


@kernel
def log_density_many(low, high, logs, at, out):
    """Fill log densities at points (T, Q): cubic in the logs between four points; -inf outside."""
    n = logs.shape[1]
    for i in range(at.shape[0]):
        step = (high[i] - low[i]) / (n - 1)
        for q in range(at.shape[1]):
            u = (at[i, q] - low[i]) / step
            if not 0.0 <= u <= n - 1:
                out[i, q] = -math.inf if u == u else math.nan
                continue
            k = min(max(int(u) - 1, 0), n - 4)
            d = u - k
            a, b, c = d - 1.0, d - 2.0, d - 3.0
            value = -logs[i, k] * a * b * c / 6.0 + logs[i, k + 1] * d * b * c / 2.0
            value += -logs[i, k + 2] * d * a * c / 2.0 + logs[i, k + 3] * d * a * b / 6.0
            if not math.isfinite(value):
                value = logs[i, min(int(u + 0.5), n - 1)]
            out[i, q] = value


@kernel
def inside_mass(p0, p1, m0, m1, step, u):
    """Mass up to a part u of an interval: the cubic with masses and densities at both ends."""
    v = 1.0 - u
    left = m0 * v * v * (1.0 + 2.0 * u) + m1 * u * u * (3.0 - 2.0 * u)
    return left + step * (p0 * u * v * v - p1 * u * u * v)


@kernel
def cdf_many(low, high, logs, below, at, out):
    """Fill distribution functions at points (T, Q)."""
    n = logs.shape[1]
    for i in range(at.shape[0]):
        step = (high[i] - low[i]) / (n - 1)
        for q in range(at.shape[1]):
            u = (at[i, q] - low[i]) / step
            if not 0.0 < u < n - 1:
                out[i, q] = math.nan if u != u else (0.0 if u <= 0.0 else 1.0)
                continue
            k = min(int(u), n - 2)
            p0, p1 = math.exp(logs[i, k]), math.exp(logs[i, k + 1])
            value = inside_mass(p0, p1, below[i, k], below[i, k + 1], step, u - k)
            out[i, q] = min(max(value, below[i, k]), below[i, k + 1])


@kernel
def quantile_many(low, high, logs, below, levels, out):
    """Fill quantiles (T, Q) of levels (Q,): bisection in the interval that has the level."""
    n = logs.shape[1]
    for i in range(out.shape[0]):
        step = (high[i] - low[i]) / (n - 1)
        for q in range(levels.size):
            first, last = 0, n - 1
            while last - first > 1:
                middle = (first + last) // 2
                if below[i, middle] <= levels[q]:
                    first = middle
                else:
                    last = middle
            p0, p1 = math.exp(logs[i, first]), math.exp(logs[i, last])
            a, b = 0.0, 1.0
            for _ in range(45):
                u = 0.5 * (a + b)
                value = inside_mass(p0, p1, below[i, first], below[i, last], step, u)
                if value <= levels[q]:
                    a = u
                else:
                    b = u
            out[i, q] = low[i] + step * (first + 0.5 * (a + b))
