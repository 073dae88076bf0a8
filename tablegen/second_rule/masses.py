"""The mass of a tilted density that is known by its values and landmarks only, in panels.

Intervals around the cavity, the landmarks and every local maximum are halved until 10-point
Gauss-Legendre agrees. The density is taken relative to an anchor near its peak: `place` holds the
anchor, what its log density is made of, and the precision and slope of the cavity there.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.polynomial import legendre

from qpruntime._numba import kernel
from qpruntime._pointers import call_landmark, call_split
from qpruntime._typing import Array, Floats
from qpruntime.quadrature.support_kernels import sort

__all__ = [
    *("BASIS", "CLOSE", "HALVINGS", "LIMIT", "NODES", "WEIGHTS", "N"),
    *("log_evidence", "masses", "panel", "rounding_of"),
]

_EPS = 2.0**-52
#: Mass below exp(-_CUT) of the largest is left out.
_CUT = 46.0
_POINTS, _MODES = 6000, 16


@kernel
def log_density(split: int, place: Floats, d: float, y: float, theta: Array) -> float:
    """Log of the tilted density at anchor + d over that at the anchor."""
    anchor, rest0, curvature0, inverse, slope = place
    f = anchor + d
    remainder, curvature = call_split(split, f, y, theta)
    e = remainder - rest0 - d * slope - 0.5 * d * d * inverse
    return e - 0.5 * (curvature * f * f - curvature0 * anchor * anchor)


@kernel
def rounding_of(place: Floats, d: float) -> float:
    """Return the relative rounding error of the density, whose terms have this size."""
    anchor, rest0, curvature0, inverse, slope = place
    size = abs(rest0) + abs(d * slope) + d * d * inverse + curvature0 * anchor * anchor
    return 4.0 * _EPS * size


@kernel
def _place(split: int, mu: float, sigma: float, anchor: float, y: float, theta: Array) -> Floats:
    rest0, curvature0 = call_split(split, anchor, y, theta)
    if not abs(rest0) < math.inf:
        rest0 = 0.0
    inverse = 1.0 / (sigma * sigma)
    return anchor, rest0, curvature0, inverse, (anchor - mu) * inverse


@kernel
def _around(
    points: Array, count: int, centre: float, least: float, most: float, factor: float
) -> int:
    points[count] = centre
    count += 1
    step = least
    while step <= most:
        points[count], points[count + 1] = centre - step, centre + step
        count += 2
        step *= factor
    return count


@kernel
def _lay(
    points: Array, landmark: int, mu: float, sigma: float, y: float, theta: Array, anchor: float
) -> int:
    """Fill offsets of places to look at, ascending; return their number."""
    count = 0
    for j in range(-66, 67):
        points[count] = mu - anchor + sigma * (j + 0.37) / 6.0
        count += 1
    count = _around(points, count, mu - anchor, 11.3 * sigma, 1e9 * sigma, 1.6)
    least, most = 3e-8 * min(sigma, 1.0), 24.0 * max(sigma, 1.0)
    for k in range(-2, 24):
        mark = 0.0 if k == -2 else y
        if k >= 0:
            mark = call_landmark(landmark, y, theta, k)
        if math.isnan(mark):
            break
        count = _around(points, count, mark - anchor, least, most, 3.1)
    sort(points, count)
    kept = 1
    for i in range(1, count):
        # Two of the same would hide the maximum beside them.
        if points[i] - points[kept - 1] > 1e-12 * min(sigma, 1.0):
            points[kept] = points[i]
            kept += 1
    return kept


@kernel
def _top(split: int, place: Floats, low: float, high: float, y: float, theta: Array) -> float:
    """Golden sections for a local maximum between two offsets."""
    a, b = low, high
    c, d = b - 0.618034 * (b - a), a + 0.618034 * (b - a)
    e_c = log_density(split, place, c, y, theta)
    e_d = log_density(split, place, d, y, theta)
    for _ in range(60):
        if e_c >= e_d:
            b, d, e_d = d, c, e_c
            c = b - 0.618034 * (b - a)
            e_c = log_density(split, place, c, y, theta)
        else:
            a, c, e_c = c, d, e_d
            d = a + 0.618034 * (b - a)
            e_d = log_density(split, place, d, y, theta)
    return 0.5 * (a + b)


@kernel
def edges_of(
    split: int, landmark: int, mu: float, sigma: float, y: float, theta: Array
) -> tuple[Floats, Array, float]:
    """Return (place, edges, highest level): where the mass lies; no edges if it has no end."""
    points = np.empty(_POINTS)
    levels = np.empty(_POINTS)
    none = np.empty(0)
    place = _place(split, mu, sigma, mu, y, theta)
    count = 0
    for _ in range(4):
        count = _lay(points, landmark, mu, sigma, y, theta, place[0])
        best = 0
        for i in range(count):
            levels[i] = log_density(split, place, points[i], y, theta)
            if levels[i] > levels[best] or math.isnan(levels[best]):
                best = i
        if abs(points[best]) <= 1e-9 * sigma:
            break
        place = _place(split, mu, sigma, place[0] + points[best], y, theta)
    known, modes = count, 0
    for i in range(1, known - 1):
        # A level stretch of the density has no single maximum.
        if modes < _MODES and levels[i] > levels[i - 1] and levels[i] >= levels[i + 1]:
            modes += 1
            top = _top(split, place, points[i - 1], points[i + 1], y, theta)
            reach = points[i + 1] - points[i - 1]
            count = _around(points, count, top, 1e-9 * reach, reach, 4.0)
    if modes:
        sort(points, count)
    highest = -math.inf
    for i in range(count):
        levels[i] = log_density(split, place, points[i], y, theta)
        highest = max(highest, levels[i])
    first, last = count, -1
    floor = -math.inf
    for i in range(count):
        # Mass, and mass times the square of the distance.
        floor = max(floor, levels[i] + 3.0 * math.log(abs(points[i]) + 1e-9 * sigma))
    for i in range(count):
        if levels[i] + 3.0 * math.log(abs(points[i]) + 1e-9 * sigma) > floor - _CUT or (
            levels[i] > highest - _CUT
        ):
            first, last = min(first, i), i
    if first > last or first == 0 or last == count - 1:
        return place, none, highest
    return place, points[first - 1 : last + 2], highest


#: Nodes of a panel.
N = 10
NODES, WEIGHTS = legendre.leggauss(N)
#: From values at the nodes to coefficients of a Legendre series.
BASIS = np.linalg.inv(legendre.legvander(NODES, N - 1))
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
#: Halves agree to this part of the whole.
CLOSE = 1e-14
#: A panel of less than this part of the mass is not looked at again.
_NOTHING = 1e-19
#: Panels looked at, and halvings of one, after which things are left as they are.
LIMIT, HALVINGS = 20_000, 48


class Interval(NamedTuple):
    """Offsets from the anchor, and how many halvings led here."""

    a: float
    b: float
    depth: int


@kernel
def panel(
    split: int, place: Floats, a: float, b: float, best: float, y: float, theta: Array, q: Array
) -> float:
    """Fill the density at the nodes of [a, b]; return its integral."""
    half, mass = 0.5 * (b - a), 0.0
    for j in range(N):
        e = log_density(split, place, 0.5 * (a + b) + half * NODES[j], y, theta)
        q[j] = math.exp(min(e - best, 700.0))
        mass += WEIGHTS[j] * q[j]
    return half * mass


@kernel
def with_row(panels: Array, used: int, a: float, b: float, mass: float) -> Array:
    """Put a row behind those used; return the array, twice as long if it was full."""
    if used == panels.shape[0]:
        bigger = np.empty((2 * used, 3))
        bigger[:used] = panels
        panels = bigger
    panels[used, 0], panels[used, 1], panels[used, 2] = a, b, mass
    return panels


@kernel
def masses(
    split: int, landmark: int, mu: float, sigma: float, y: float, theta: Array
) -> tuple[Any, ...]:
    """Return (place, highest level, panels, total, evaluated); no panels if the mass has no end.

    Rows of `panels` are both ends, as offsets from ``place[0]``, and the mass between.
    """
    place, edges, best = edges_of(split, landmark, mu, sigma, y, theta)
    if edges.size < 2:
        return place, best, np.empty((0, 3)), 0.0, 0
    q, left_values, right_values = np.empty(N), np.empty(N), np.empty(N)
    rough = 0.0
    for i in range(edges.size - 1):
        rough += panel(split, place, edges[i], edges[i + 1], best, y, theta, q)
    panels = np.empty((2 * edges.size + 2000, 3))
    used, total, evaluated = 0, 0.0, 0
    for i in range(edges.size - 1):
        stack = [Interval(edges[i], edges[i + 1], 0)]
        while len(stack) > 0:
            a, b, depth = stack.pop()
            if not b > a:
                continue
            centre = 0.5 * (a + b)
            mass = panel(split, place, a, b, best, y, theta, q)
            evaluated += 1
            if mass <= _NOTHING * rough:
                continue
            m = panel(split, place, a, centre, best, y, theta, left_values)
            m += panel(split, place, centre, b, best, y, theta, right_values)
            noise = rounding_of(place, centre)
            close = abs(m - mass) <= CLOSE * max(rough, m) + noise * mass
            if close or depth >= HALVINGS or evaluated > LIMIT:
                panels = with_row(panels, used, a, b, mass)
                used += 1
                total += mass
            else:
                stack.append(Interval(centre, b, depth + 1))
                stack.append(Interval(a, centre, depth + 1))
    return place, best, panels[:used], total, evaluated


@kernel
def log_evidence(place: Floats, best: float, total: float, mu: float, sigma: float) -> float:
    """Return log Z of a density with the mass `total` relative to exp(best)."""
    anchor, rest0, curvature0, _, _ = place
    log_z = best + math.log(total) + rest0 - 0.5 * curvature0 * anchor * anchor
    return log_z - (0.5 * ((anchor - mu) / sigma) ** 2 + math.log(sigma) + _HALF_LOG_2PI)
