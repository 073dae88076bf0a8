"""Points at which a tilted density is scanned: geometric grids, and ways outwards."""

from __future__ import annotations

import math
from typing import NamedTuple

from qpruntime.arrays import Array
from qpruntime.jit import kernel
from qpruntime.quadrature.tilted import level

__all__ = ["DOUBLINGS", "POINTS", "Scan", "extend", "insert", "lay_grid", "or_wall", "sort"]

#: Geometric grids begin at this fraction of the smaller one of sigma and 1.
_FINEST = 2.0**-27
#: Doublings outwards before a density is said not to decay.
DOUBLINGS = 160
#: Points of the first scan at most; climbs and ways outwards may add as many.
POINTS = 1600


class Scan(NamedTuple):
    """Offsets from the anchor, ascending, and the levels of the density there."""

    points: Array
    levels: Array


@kernel
def sort(values, count):
    """Sort the first `count` values (Shell's sort: numpy's costs seconds of compilation)."""
    gap = 1
    while gap < count // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, count):
            v, j = values[i], i
            while j >= gap and values[j - gap] > v:
                values[j] = values[j - gap]
                j -= gap
            values[j] = v
        gap //= 3


@kernel
def insert(points, levels, count, d, e):
    """Insert a point where it belongs; return the new count."""
    j = count
    while j > 0 and points[j - 1] > d:
        points[j], levels[j] = points[j - 1], levels[j - 1]
        j -= 1
    points[j], levels[j] = d, e
    return count + 1


@kernel
def spread(points, count, centre, least, most):
    """Append `centre` and points on both sides of it, each twice as far as the one before."""
    points[count] = centre
    count += 1
    step = least
    while step <= most and count + 2 <= POINTS:
        points[count], points[count + 1] = centre - step, centre + step
        count += 2
        step *= 2.0
    return count


@kernel
def lay_grid(points, anchor, mu, sigma, marks, width):
    """Fill `points` with offsets from the anchor, in ascending order; return their number."""
    start = anchor.f
    reach = 16.0 * max(sigma, 1.0)
    least = _FINEST * min(sigma, 1.0)
    count = spread(points, 0, mu - start, sigma / 32.0, 8.0 * max(reach, abs(mu)))
    for j in range(1, 17):
        points[count], points[count + 1] = (
            mu - start - 0.5 * j * sigma,
            mu - start + 0.5 * j * sigma,
        )
        count += 2
    for k in range(marks.size):
        c = marks[k]
        if math.isfinite(c):
            count = spread(points, count, c - start, least, 2.0 * max(reach, abs(c - mu)))
    if width > 0.0:
        count = spread(points, count, 0.0, width / 16.0, 2.0 * max(reach, abs(start - mu)))
    sort(points, count)
    kept = 1
    for i in range(1, count):
        if points[i] - points[kept - 1] > 1e-15 * abs(points[i]):
            points[kept] = points[i]
            kept += 1
    return kept


@kernel
def or_wall(e):
    """The level, or that of a wall where it is not a number."""
    return -math.inf if math.isnan(e) else e


@kernel
def extend(raised, anchor, scan, count, upwards, moment, floor, width):
    """Append points, each twice as far out, until the level is below `floor`.

    What is compared with the floor has `moment` times the log of the distance added. Returns the
    new count, or -1 if the density does not decay.
    """
    points, levels = scan
    out = points[count - 1] if upwards else points[0]
    step = points[count - 1] - points[0]
    e = levels[count - 1] if upwards else levels[0]
    for _ in range(DOUBLINGS):
        if not e + moment * math.log(abs(out) + width) > floor:
            return count
        if count >= points.size:
            return -1
        out = out + step if upwards else out - step
        step *= 2.0
        e = level(raised, anchor, out)
        if e == math.inf:
            return -1
        count = insert(points, levels, count, out, e)
    return -1
