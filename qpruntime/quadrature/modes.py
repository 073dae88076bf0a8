"""Modes of a tilted density, found by climbing every local maximum of a scan."""

from __future__ import annotations

import math

import numpy as np

from qpruntime.jit import kernel
from qpruntime.quadrature.scan import DOUBLINGS, extend, insert, lay_grid, or_wall
from qpruntime.quadrature.tilted import DECAY, EPS, NO_MASS, OK, anchored, level, rounding

__all__ = ["CLIMB", "MODES", "fall_length", "find_modes", "find_top"]

#: Steps of a climb or of a bisection at most.
CLIMB = 200
#: Modes at most.
MODES = 24


@kernel
def climb(raised, anchor, bracket, levels):
    """Golden sections in `bracket`, which is low < top < high; return (top, its level).

    Ends where the density varies by less than a tenth over the bracket, or where neighbouring
    numbers do.
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
def fall_length(raised, anchor, top, e_top, step):
    """Distance from a mode, in the direction of `step`, at which the density has fallen.

    To between 0.7 and a quarter of the mode's; infinite if the density ends right there.
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
def find_modes(scan, anchor, first, last, modes):
    """Fill indices of local maxima; return their number.

    Maxima that no valley separates, beyond what rounding makes of a level line, count as one.
    """
    points, levels = scan
    found, valley = 0, first
    for i in range(first, last + 1):
        e = levels[i]
        if e < levels[valley]:
            valley = i
        if not e > -math.inf or levels[i - 1] > e or levels[i + 1] >= e:
            continue
        if found:
            before = modes[found - 1]
            depth = min(e, levels[before]) - levels[valley]
            noise = max(rounding(anchor, e, points[i]), rounding(anchor, e, points[before]))
            if depth < 1e-10 + 8.0 * noise or found == MODES:
                if e > levels[before]:
                    modes[found - 1] = i
                    valley = i
                continue
        modes[found] = i
        found += 1
        valley = i
    return found


@kernel
def survey(raised, anchor, scan, count):
    """Evaluate the levels at the points and climb every local maximum.

    The peaks are added to the points. Returns (number of points, index of the highest), and -1
    for the first if the density grows without end, for the second if it is 0 everywhere.
    """
    points, levels = scan
    for i in range(count):
        levels[i] = level(raised, anchor, points[i])
    for upwards in (False, True):
        # Uphill until it goes down again.
        floor = or_wall(levels[count - 1] if upwards else levels[0]) - 0.1
        if floor > -math.inf:
            inner = or_wall(levels[count - 2] if upwards else levels[1])
            if floor + 0.1 >= inner:
                count = extend(raised, anchor, scan, count, upwards, 0.0, floor, 1.0)
                if count < 0:
                    return -1, 0
    modes = np.empty(MODES, np.int64)
    found = find_modes(scan, anchor, 1, count - 2, modes)
    # From the right, so that what is inserted moves no index still to come.
    for k in range(found - 1, -1, -1):
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
def find_top(raised, mu, sigma, marks, scan):
    """Scan relative to an anchor, and again from the highest point, until that is the anchor.

    Far from the mode the level is the difference of large numbers; relative to an anchor near
    the mode it is not. Returns (status, anchor, width of the mode, number of points).
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
