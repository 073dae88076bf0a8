"""Search for the mass of a tilted density: scan, modes and ends of support. Kernels only."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from qpruntime._numba import kernel
from qpruntime._typing import Array, IntArray
from qpruntime.quadrature.sigma_star_kernels import (
    DECAY,
    EPS,
    NO_MASS,
    NOT_A_NUMBER,
    OK,
    Anchor,
    Raised,
    anchored,
    level,
    rounding,
)

__all__ = [
    "CLIMB",
    "DOUBLINGS",
    "MODES",
    "POINTS",
    "Scan",
    "explore",
    "extend",
    "fall_length",
    "find_modes",
    "find_top",
    "insert",
    "lay_grid",
    "or_wall",
    "sort",
]

# --- Scan

#: Geometric grids begin at this fraction of the smaller of sigma and 1.
_FINEST = 2.0**-27
#: Number of outward doublings after which a density counts as not decaying.
DOUBLINGS = 160
#: Largest number of points of the first scan; climbs and extensions may add as many.
POINTS = 1600


class Scan(NamedTuple):
    """Ascending offsets from the anchor, and the levels of the density there."""

    points: Array
    levels: Array


@kernel
def sort(values: Array, count: int) -> None:
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
def insert(points: Array, levels: Array, count: int, d: float, e: float) -> int:
    """Insert a point in order; return the new count."""
    j = count
    while j > 0 and points[j - 1] > d:
        points[j], levels[j] = points[j - 1], levels[j - 1]
        j -= 1
    points[j], levels[j] = d, e
    return count + 1


@kernel
def spread(points: Array, count: int, centre: float, least: float, most: float) -> int:
    """Append `centre` and points on both sides of it, each twice as far out as the previous one."""
    points[count] = centre
    count += 1
    step = least
    while step <= most and count + 2 <= POINTS:
        points[count], points[count + 1] = centre - step, centre + step
        count += 2
        step *= 2.0
    return count


@kernel
def lay_grid(
    points: Array, anchor: Anchor, mu: float, sigma: float, marks: Array, width: float
) -> int:
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
def or_wall(e: float) -> float:
    """Return the level, or that of a wall if it is not a number."""
    return -math.inf if math.isnan(e) else e


@kernel
def extend(
    raised: Raised,
    anchor: Anchor,
    scan: Scan,
    count: int,
    upwards: bool,
    moment: float,
    floor: float,
    width: float,
) -> int:
    """Append points, each twice as far out, until the level is below `floor`.

    The value compared with the floor includes `moment` times the log of the distance. Returns the
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


# --- Modes

#: Largest number of steps of a climb or of a bisection.
CLIMB = 200
#: Largest number of modes.
MODES = 24


@kernel
def climb(
    raised: Raised,
    anchor: Anchor,
    bracket: tuple[float, float, float],
    levels: tuple[float, float, float],
) -> tuple[float, float]:
    """Find a maximum by golden sections in `bracket`, low < top < high; return (top, its level).

    The search ends when the density varies by less than a tenth over the bracket, or when no
    doubles are left in between.
    """
    low, top, high = bracket
    e_low, e_top, e_high = levels
    for _ in range(CLIMB):
        if e_top - min(e_low, e_high) < 0.1:
            break
        if high - low <= 4.0 * EPS * max(abs(top), 1e-9 * abs(anchor.f)):
            break
        if high - top > top - low:
            d = top + 0.381966 * (high - top)
        else:
            d = top - 0.381966 * (top - low)
        e = or_wall(level(raised, anchor, d))
        if e > e_top:
            if d > top:
                low, e_low = top, e_top
            else:
                high, e_high = top, e_top
            top, e_top = d, e
        elif d > top:
            high, e_high = d, e
        else:
            low, e_low = d, e
    return top, e_top


@kernel
def fall_length(raised: Raised, anchor: Anchor, top: float, e_top: float, step: float) -> float:
    """Return the distance from a mode, in the direction of `step`, at which the density has fallen.

    It has fallen to between 0.7 and a quarter of the mode's. The distance is infinite if the
    density ends right there.
    """
    d = step
    if level(raised, anchor, top + d) == -math.inf:
        tiny = math.copysign(8.0 * EPS * max(abs(anchor.f + top), abs(top)), step)
        if not level(raised, anchor, top + tiny) > -math.inf:
            return math.inf
    for _ in range(DOUBLINGS):
        if not e_top - level(raised, anchor, top + d) < 0.35:
            break
        d *= 2.0
    for _ in range(DOUBLINGS):
        if e_top - level(raised, anchor, top + d) < 1.4:
            break
        d *= 0.5
    return abs(d)


@kernel
def find_modes(scan: Scan, anchor: Anchor, first: int, last: int, modes: IntArray) -> int:
    """Fill indices of local maxima; return their number.

    Maxima count as one if no valley deeper than rounding separates them.
    """
    points, levels = scan
    count, valley = 0, first
    for i in range(first, last + 1):
        e = levels[i]
        if e < levels[valley]:
            valley = i
        if not e > -math.inf or levels[i - 1] > e or levels[i + 1] >= e:
            continue
        if count:
            before = modes[count - 1]
            depth = min(e, levels[before]) - levels[valley]
            noise = max(rounding(anchor, e, points[i]), rounding(anchor, e, points[before]))
            if depth < 1e-10 + 8.0 * noise or count == MODES:
                if e > levels[before]:
                    modes[count - 1] = i
                    valley = i
                continue
        modes[count] = i
        count += 1
        valley = i
    return count


@kernel
def survey(raised: Raised, anchor: Anchor, scan: Scan, count: int) -> tuple[int, int]:
    """Evaluate the levels at the points and climb every local maximum.

    The peaks are added to the points. Returns (number of points, index of the highest). The first
    is -1 if the density grows without end, the second if it is 0 everywhere.
    """
    points, levels = scan
    for i in range(count):
        levels[i] = level(raised, anchor, points[i])
    for upwards in (False, True):
        # This extends the scan uphill until the density decreases again.
        floor = or_wall(levels[count - 1] if upwards else levels[0]) - 0.1
        if floor > -math.inf:
            inner = or_wall(levels[count - 2] if upwards else levels[1])
            if floor + 0.1 >= inner:
                count = extend(raised, anchor, scan, count, upwards, 0.0, floor, 1.0)
                if count < 0:
                    return -1, 0
    modes = np.empty(MODES, np.int64)
    n_modes = find_modes(scan, anchor, 1, count - 2, modes)
    # Peaks are inserted from the right, so that no remaining index moves.
    for k in range(n_modes - 1, -1, -1):
        i = modes[k]
        bracket = points[i - 1], points[i], points[i + 1]
        known = or_wall(levels[i - 1]), levels[i], or_wall(levels[i + 1])
        top, e_top = climb(raised, anchor, bracket, known)
        if e_top > levels[i]:
            count = insert(points, levels, count, top, e_top)
    best = -1
    for i in range(count):
        if levels[i] > -math.inf and (best < 0 or levels[i] > levels[best]):
            best = i
    return count, best


@kernel
def find_top(
    raised: Raised, mu: float, sigma: float, marks: Array, scan: Scan
) -> tuple[int, Anchor, float, int]:
    """Scan relative to an anchor, and repeat from the highest point until it is the anchor.

    Far from the mode the level is a difference of large numbers; relative to an anchor near the
    mode it is not. Returns (status, anchor, width of the mode, number of points).
    """
    points, levels = scan
    f, width = mu, 0.0
    anchor = anchored(raised, mu, sigma, f)
    count = 0
    for _ in range(8):
        anchor = anchored(raised, mu, sigma, f)
        count = lay_grid(points, anchor, mu, sigma, marks, width)
        count, best = survey(raised, anchor, scan, count)
        if count < 0:
            return DECAY, anchor, width, 0
        if best < 0:
            return NO_MASS, anchor, width, 0
        top, e_top = points[best], levels[best]
        if e_top == math.inf:
            return DECAY, anchor, width, 0
        width = math.inf
        for step in (points[best + 1] - top, points[best - 1] - top):
            length = fall_length(raised, anchor, top, e_top, step)
            width = min(width, length)
        if not width < math.inf:
            width = 8.0 * EPS * max(abs(f), abs(top))
        if abs(e_top - level(raised, anchor, 0.0)) < 0.5:
            break
        f += top
    return OK, anchor, width, count


# --- Support
#
# The log density is scanned on geometric grids around the cavity mean, around 0, around the
# observation and around the likelihood's landmarks. Every local maximum is climbed, and edges are
# laid from each outwards, with doubling distances, until the mass has ended.
# `qpruntime.quadrature.panel_kernels` integrates between the edges.

#: Mass (times a power of the distance) below exp(-CUT) of the largest is left out.
CUT = 45.0


@kernel
def end_of_support(raised: Raised, anchor: Anchor, inside: float, outside: float) -> float:
    """Bisect between an offset where the density is positive and one where it is 0."""
    for _ in range(CLIMB):
        d = 0.5 * (inside + outside)
        if abs(outside - inside) <= EPS * max(abs(anchor.f + inside), abs(inside)):
            break
        if level(raised, anchor, d) == -math.inf:
            outside = d
        else:
            inside = d
    return inside


@kernel
def grade(edges: Array, count: int, top: float, length: float, stop: float) -> int:
    """Append edges from a mode towards `stop`, each twice as far out as the previous one."""
    step = math.copysign(length, stop - top)
    while abs(step) < abs(stop - top) and count < edges.size:
        edges[count] = top + step
        count += 1
        step *= 2.0
    return count


@kernel
def ends(
    raised: Raised, anchor: Anchor, scan: Scan, count: int, width: float, order: float
) -> tuple[int, ...]:
    """Return (status, number of points, first, last): the range of mass and moments.

    It is the range between the points `first` and `last`. Mass, and mass times distance^order, are
    negligible outside.
    """
    points, levels = scan
    floors = (0.0, 0.0)
    for moment in (1.0, order + 1.0):
        for upwards in (False, True):
            highest = -math.inf
            for i in range(count):
                weight = levels[i] + moment * math.log(abs(points[i]) + width)
                if weight > highest:
                    highest = weight
            floors = (floors[0], highest - CUT) if moment > 1.0 else (highest - CUT, 0.0)
            floor = highest - CUT
            count = extend(raised, anchor, scan, count, upwards, moment, floor, width)
            if count < 0:
                return DECAY, 0, 0, 0
    first, last = count, -1
    for i in range(count):
        far = math.log(abs(points[i]) + width)
        if levels[i] + far > floors[0] or levels[i] + (order + 1.0) * far > floors[1]:
            first = min(first, i)
            last = i
    first, last = first - 1, last + 1
    if not 0 <= first < last < count:
        return NO_MASS, count, 0, 0
    for i in range(first, last + 1):
        if math.isnan(levels[i]):
            return NOT_A_NUMBER, count, 0, 0
    return OK, count, first, last


@kernel
def explore(
    raised: Raised, mu: float, sigma: float, marks: Array, order: float, edges: Array
) -> tuple[int, Anchor, int, Scan]:
    """Find the mass of a tilted density; return (status, anchor, number of edges, scan).

    `edges` is filled with ascending offsets from the anchor, between which the mass lies: |f|^order
    times the density beyond the outermost ones is negligible. The scan covers the range in between.
    `marks` are points to look around, padded by NaN.
    """
    points, levels = np.empty(2 * POINTS), np.empty(2 * POINTS)
    scan = Scan(points, levels)
    status, anchor, width, count = find_top(raised, mu, sigma, marks, scan)
    if status != OK:
        return status, anchor, 0, scan
    status, count, first, last = ends(raised, anchor, scan, count, width, order)
    if status != OK:
        return status, anchor, 0, scan
    lowest, highest = points[first], points[last]
    edges[0], edges[1] = lowest, highest
    count = 2
    for k in range(marks.size):
        if math.isfinite(marks[k]) and lowest < marks[k] - anchor.f < highest:
            edges[count] = marks[k] - anchor.f
            count += 1
    modes = np.empty(MODES, np.int64)
    n_modes = find_modes(scan, anchor, first + 1, last - 1, modes)
    for k in range(n_modes):
        i = modes[k]
        top = points[i]
        edges[count] = top
        count += 1
        for side in (-1, 1):
            # The range goes as far as the next mode, because the position of the valley says little
            # about narrow modes.
            if side < 0:
                stop = points[modes[k - 1]] if k else lowest
            else:
                stop = points[modes[k + 1]] if k + 1 < n_modes else highest
            length = fall_length(raised, anchor, top, levels[i], points[i + side] - top)
            if length < math.inf:
                count = grade(edges, count, top, length, stop)
    for i in range(first, last):
        dark, next_dark = levels[i] == -math.inf, levels[i + 1] == -math.inf
        if dark != next_dark and count < edges.size:
            inside, outside = (points[i + 1], points[i]) if dark else (points[i], points[i + 1])
            edges[count] = end_of_support(raised, anchor, inside, outside)
            count += 1
    sort(edges, count)
    kept = 1
    for i in range(1, count):
        gap = edges[i] - edges[kept - 1]
        if (
            gap > 4.0 * EPS * max(abs(edges[i]), 1e-9 * abs(anchor.f))
            and lowest <= edges[i] <= highest
        ):
            edges[kept] = edges[i]
            kept += 1
    return OK, anchor, kept, Scan(points[first : last + 1], levels[first : last + 1])
