"""Where a tilted density has its mass: modes and ends of support are found, not assumed.

The log density is scanned on geometric grids around the cavity mean, around 0, around the
observation and around the likelihood's landmarks, every local maximum is climbed, and edges are
laid from each of them outwards, twice as far every time, until the mass has ended. What is
integrated between the edges is the subject of `qpruntime.quadrature.panels`.
"""

from __future__ import annotations

import math

import numpy as np

from qpruntime.jit import kernel
from qpruntime.quadrature.modes import CLIMB, MODES, fall_length, find_modes, find_top
from qpruntime.quadrature.scan import POINTS, Scan, extend, sort
from qpruntime.quadrature.tilted import DECAY, EPS, NO_MASS, NOT_A_NUMBER, OK, level

__all__ = ["explore"]

#: Mass (times a power of the distance) below exp(-CUT) of the largest is left out.
CUT = 45.0


@kernel
def end_of_support(raised, anchor, inside, outside):
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
def grade(edges, count, top, length, stop):
    """Append edges from a mode on towards `stop`, each twice as far as the one before."""
    step = math.copysign(length, stop - top)
    while abs(step) < abs(stop - top) and count < edges.size:
        edges[count] = top + step
        count += 1
        step *= 2.0
    return count


@kernel
def ends(raised, anchor, scan, count, width, order):
    """Return (status, number of points, first, last): where mass and moments lie.

    Between the points `first` and `last`, and not beyond. Mass is what counts, and mass times
    distance^order; either is negligible outside.
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
def explore(raised, mu, sigma, marks, order, edges):
    """Find the mass of a tilted density; return (status, anchor, number of edges, scan).

    `edges` is filled with offsets from the anchor, ascending, between which the mass lies:
    |f|^order times the density beyond the outermost ones is negligible. The scan is of what lies
    in between. `marks` are points to look around, NaN for none.
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
    found = find_modes(scan, anchor, first + 1, last - 1, modes)
    for k in range(found):
        i = modes[k]
        top = points[i]
        edges[count] = top
        count += 1
        for side in (-1, 1):
            # As far as the next mode, for where the valley is says little about what is narrow.
            if side < 0:
                stop = points[modes[k - 1]] if k else lowest
            else:
                stop = points[modes[k + 1]] if k + 1 < found else highest
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
