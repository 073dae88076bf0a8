"""Where a tilted density has its mass: modes and ends of support are found, not assumed.

The log density is scanned on geometric grids around the cavity mean, around 0, around the
observation and around the likelihood's landmarks, every local maximum is climbed, and edges are
laid from each of them outwards, twice as far every time, until the mass has ended. What is
integrated between the edges is the subject of `qpruntime.quadrature.adaptive`.
"""

from __future__ import annotations

import math

import numpy as np

from qpruntime.jit import call_split, kernel

__all__ = ["DECAY", "EXHAUSTED", "NOT_A_NUMBER", "NO_MASS", "OK", "explore", "level", "powered"]

OK, DECAY, NO_MASS, NOT_A_NUMBER, EXHAUSTED = 0, 1, 2, 3, 4

#: Mass (times a power of the distance) below exp(-CUT) of the largest is left out.
CUT = 45.0
#: Geometric grids begin at this fraction of the smaller one of sigma and 1.
_FINEST = 2.0**-27
#: Doublings outwards before a density is said not to decay, and steps of a climb.
_DOUBLINGS, _CLIMB = 160, 200
_POINTS = 1600
_MODES = 24
_EPS = 2.0**-52


@kernel
def powered(split, power, f, y, theta):
    """`split` of the likelihood raised to a power."""
    rest, curvature = call_split(split, f, y, theta)
    return power * rest, power * curvature


@kernel
def relative_log(split, power, anchor, d, rest0, curvature0, inverse, y, theta):
    """log of the tilted density at anchor + d over that at the anchor, less its part linear in mu.

    The full value is this minus d (anchor - mu)/sigma^2; inverse = 1/sigma^2. Where both have the
    same Gaussian factor it is never formed and subtracted: only its difference over d is.
    """
    f = anchor + d
    rest, curvature = powered(split, power, f, y, theta)
    if curvature != curvature0:
        gauss = curvature * f * f - curvature0 * anchor * anchor
        return rest - rest0 - 0.5 * (d * d * inverse + gauss), 0.0
    return rest - rest0 - 0.5 * d * d * (curvature + inverse), curvature * anchor


@kernel
def level(split, power, place, d, y, theta):
    """Log of the tilted density at anchor + d over that at the anchor.

    `place` = (anchor, rest and curvature there, 1/sigma^2, (anchor - mu)/sigma^2).
    """
    anchor, rest0, curvature0, inverse, pull = place
    e, tilt = relative_log(split, power, anchor, d, rest0, curvature0, inverse, y, theta)
    return e - d * (tilt + pull)


@kernel
def rounding(place, e, d):
    """What rounding may have done to `level`, roughly."""
    anchor, rest0, curvature0, inverse, pull = place
    size = abs(d) * (abs(pull) + abs(curvature0 * anchor)) + d * d * (curvature0 + inverse)
    return _EPS * (4.0 + abs(rest0) + abs(e) + 2.0 * size)


@kernel
def settle_on(split, power, mu, sigma, anchor, y, theta):
    """Return `place` for this anchor."""
    rest0, curvature0 = powered(split, power, anchor, y, theta)
    if not abs(rest0) < math.inf:
        rest0 = 0.0
    return anchor, rest0, curvature0, 1.0 / (sigma * sigma), (anchor - mu) / sigma / sigma


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
    while step <= most and count + 2 <= _POINTS:
        points[count], points[count + 1] = centre - step, centre + step
        count += 2
        step *= 2.0
    return count


@kernel
def lay_grid(points, place, mu, sigma, y, marks, width):
    """Fill `points` with offsets from the anchor, in ascending order; return their number."""
    anchor = place[0]
    reach = 16.0 * max(sigma, 1.0)
    least = _FINEST * min(sigma, 1.0)
    count = spread(points, 0, mu - anchor, sigma / 32.0, 8.0 * max(reach, abs(mu)))
    for j in range(1, 17):
        points[count], points[count + 1] = (
            mu - anchor - 0.5 * j * sigma,
            mu - anchor + 0.5 * j * sigma,
        )
        count += 2
    for k in range(marks.size):
        c = marks[k]
        if math.isfinite(c):
            count = spread(points, count, c - anchor, least, 2.0 * max(reach, abs(c - mu)))
    if width > 0.0:
        count = spread(points, count, 0.0, width / 16.0, 2.0 * max(reach, abs(anchor - mu)))
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
def climb(split, power, place, low, top, high, levels, y, theta):
    """Golden sections in the bracket low < top < high; return (top, its level).

    Ends where the density varies by less than a tenth over the bracket, or where neighbouring
    numbers do.
    """
    e_low, e_top, e_high = levels
    for _ in range(_CLIMB):
        if e_top - min(e_low, e_high) < 0.1:
            break
        if high - low <= 4.0 * _EPS * max(abs(top), 1e-9 * abs(place[0])):
            break
        if high - top > top - low:
            d = top + 0.381966 * (high - top)
        else:
            d = top - 0.381966 * (top - low)
        e = or_wall(level(split, power, place, d, y, theta))
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
def fall_length(split, power, place, top, e_top, step, y, theta):
    """Distance from a mode, in the direction of `step`, at which the density has fallen.

    To between 0.7 and a quarter of the mode's; infinite if the density ends right there.
    """
    d = step
    if level(split, power, place, top + d, y, theta) == -math.inf:
        tiny = math.copysign(8.0 * _EPS * max(abs(place[0] + top), abs(top)), step)
        if not level(split, power, place, top + tiny, y, theta) > -math.inf:
            return math.inf
    for _ in range(_DOUBLINGS):
        if not e_top - level(split, power, place, top + d, y, theta) < 0.35:
            break
        d *= 2.0
    for _ in range(_DOUBLINGS):
        if e_top - level(split, power, place, top + d, y, theta) < 1.4:
            break
        d *= 0.5
    return abs(d)


@kernel
def extend(split, power, place, points, levels, count, upwards, moment, floor, width, y, theta):
    """Append points, each twice as far out, until the level is below `floor`.

    What is compared with the floor has `moment` times the log of the distance added. Returns the
    new count, or -1 if the density does not decay.
    """
    out = points[count - 1] if upwards else points[0]
    step = points[count - 1] - points[0]
    e = levels[count - 1] if upwards else levels[0]
    for _ in range(_DOUBLINGS):
        if not e + moment * math.log(abs(out) + width) > floor:
            return count
        if count >= points.size:
            return -1
        out = out + step if upwards else out - step
        step *= 2.0
        e = level(split, power, place, out, y, theta)
        if e == math.inf:
            return -1
        count = insert(points, levels, count, out, e)
    return -1


@kernel
def find_modes(points, levels, place, first, last, modes):
    """Fill indices of local maxima; return their number.

    Maxima that no valley separates, beyond what rounding makes of a level line, count as one.
    """
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
            noise = max(rounding(place, e, points[i]), rounding(place, e, points[before]))
            if depth < 1e-10 + 8.0 * noise or found == _MODES:
                if e > levels[before]:
                    modes[found - 1] = i
                    valley = i
                continue
        modes[found] = i
        found += 1
        valley = i
    return found


@kernel
def survey(split, power, place, points, levels, count, y, theta):
    """Evaluate the levels at the points and climb every local maximum.

    The peaks are added to the points. Returns (number of points, index of the highest), and -1
    for the first if the density grows without end, for the second if it is 0 everywhere.
    """
    for i in range(count):
        levels[i] = level(split, power, place, points[i], y, theta)
    for upwards in (False, True):
        # Uphill until it goes down again.
        floor = or_wall(levels[count - 1] if upwards else levels[0]) - 0.1
        if floor > -math.inf:
            inner = or_wall(levels[count - 2] if upwards else levels[1])
            if floor + 0.1 >= inner:
                count = extend(
                    split, power, place, points, levels, count, upwards, 0.0, floor, 1.0, y, theta
                )
                if count < 0:
                    return -1, 0
    modes = np.empty(_MODES, np.int64)
    found = find_modes(points, levels, place, 1, count - 2, modes)
    # From the right, so that what is inserted moves no index still to come.
    for k in range(found - 1, -1, -1):
        i = modes[k]
        bracket = or_wall(levels[i - 1]), levels[i], or_wall(levels[i + 1])
        top, e_top = climb(
            split, power, place, points[i - 1], points[i], points[i + 1], bracket, y, theta
        )
        if e_top > levels[i]:
            count = insert(points, levels, count, top, e_top)
    best = -1
    for i in range(count):
        if levels[i] > -math.inf and (best < 0 or levels[i] > levels[best]):
            best = i
    return count, best


@kernel
def find_top(split, power, mu, sigma, y, theta, marks, points, levels):
    """Scan relative to an anchor, and again from the highest point, until that is the anchor.

    Far from the mode the level is the difference of large numbers; relative to an anchor near
    the mode it is not. Returns (status, place, width of the mode, number of points).
    """
    anchor, width = mu, 0.0
    place = settle_on(split, power, mu, sigma, anchor, y, theta)
    count = 0
    for _ in range(8):
        place = settle_on(split, power, mu, sigma, anchor, y, theta)
        count = lay_grid(points, place, mu, sigma, y, marks, width)
        count, best = survey(split, power, place, points, levels, count, y, theta)
        if count < 0:
            return DECAY, place, width, 0
        if best < 0:
            return NO_MASS, place, width, 0
        top, e_top = points[best], levels[best]
        if e_top == math.inf:
            return DECAY, place, width, 0
        width = math.inf
        for step in (points[best + 1] - top, points[best - 1] - top):
            length = fall_length(split, power, place, top, e_top, step, y, theta)
            width = min(width, length)
        if not width < math.inf:
            width = 8.0 * _EPS * max(abs(anchor), abs(top))
        if abs(e_top - level(split, power, place, 0.0, y, theta)) < 0.5:
            break
        anchor += top
    return OK, place, width, count


@kernel
def end_of_support(split, power, place, inside, outside, y, theta):
    """Bisect between an offset where the density is positive and one where it is 0."""
    for _ in range(_CLIMB):
        d = 0.5 * (inside + outside)
        if abs(outside - inside) <= _EPS * max(abs(place[0] + inside), abs(inside)):
            break
        if level(split, power, place, d, y, theta) == -math.inf:
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
def ends(split, power, place, points, levels, count, width, order, y, theta):
    """Return (status, number of points, first, last): where mass and moments lie.

    Between the points `first` and `last`, and not beyond. Mass is what counts, and mass times
    distance^order; either is negligible outside.
    """
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
            count = extend(
                split, power, place, points, levels, count, upwards, moment, floor, width, y, theta
            )
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
def explore(split, power, mu, sigma, y, theta, marks, order, edges):
    """Find the mass of a tilted density; return (status, place, number of edges, points, levels).

    `edges` is filled with offsets from the anchor `place[0]`, ascending, between which the mass
    lies: |f|^order times the density beyond the outermost ones is negligible. `points` are the
    offsets scanned in between, and `levels` the log density there. `marks` are points to look
    around, NaN for none.
    """
    points, levels = np.empty(2 * _POINTS), np.empty(2 * _POINTS)
    status, place, width, count = find_top(split, power, mu, sigma, y, theta, marks, points, levels)
    if status != OK:
        return status, place, 0, points, levels
    status, count, first, last = ends(
        split, power, place, points, levels, count, width, order, y, theta
    )
    if status != OK:
        return status, place, 0, points, levels
    lowest, highest = points[first], points[last]
    edges[0], edges[1] = lowest, highest
    count = 2
    for k in range(marks.size):
        if math.isfinite(marks[k]) and lowest < marks[k] - place[0] < highest:
            edges[count] = marks[k] - place[0]
            count += 1
    modes = np.empty(_MODES, np.int64)
    found = find_modes(points, levels, place, first + 1, last - 1, modes)
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
            length = fall_length(
                split, power, place, top, levels[i], points[i + side] - top, y, theta
            )
            if length < math.inf:
                count = grade(edges, count, top, length, stop)
    for i in range(first, last):
        dark, next_dark = levels[i] == -math.inf, levels[i + 1] == -math.inf
        if dark != next_dark and count < edges.size:
            inside, outside = (points[i + 1], points[i]) if dark else (points[i], points[i + 1])
            edges[count] = end_of_support(split, power, place, inside, outside, y, theta)
            count += 1
    sort(edges, count)
    kept = 1
    for i in range(1, count):
        gap = edges[i] - edges[kept - 1]
        if (
            gap > 4.0 * _EPS * max(abs(edges[i]), 1e-9 * abs(place[0]))
            and lowest <= edges[i] <= highest
        ):
            edges[kept] = edges[i]
            kept += 1
    return OK, place, kept, points[first : last + 1], levels[first : last + 1]
