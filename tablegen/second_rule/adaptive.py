# mypy: disable-error-code=no-untyped-def
"""The second quadrature rule where a likelihood says nothing of its shape.

As in `tablegen.second_rule`, sigma* = int (f - mean) Phi^-1(F(f)) q(f) df, before the integration
by parts. The rule shares neither nodes nor ways with `qpruntime.quadrature.adaptive`: intervals
of its own around the cavity, the landmarks and every local maximum are halved until 10-point
Gauss-Legendre of the whole and of both halves agree, first for the mass, then for the score
(f - mean) Phi^-1(F) q.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.polynomial import legendre

from qpruntime.jit import call_landmark, call_split, kernel
from qpruntime.quadrature.tilted import sort
from qpruntime.special import ndtri_density

__all__ = ["adaptive_points", "log_evidence", "masses", "panel"]

_N = 10
_NODES, _WEIGHTS = legendre.leggauss(_N)
_BASIS = np.linalg.inv(legendre.legvander(_NODES, _N - 1))
#: Row j integrates the interpolant from -1 to node j.
_BELOW = np.array(
    [legendre.legval(_NODES, legendre.legint(column, lbnd=-1.0)) for column in _BASIS.T]
).T.copy()
_EPS = 2.0**-52
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
#: Mass below exp(-_CUT) of the largest is left out; halves agree to _CLOSE of the whole.
_CUT, _CLOSE = 46.0, 1e-14
#: A panel of less than this part of the mass is not looked at again.
_NOTHING = 1e-19
#: Panels looked at, after which things are left as they are.
_LIMIT = 20_000
_POINTS, _MODES, _HALVINGS, _STACK = 6000, 16, 48, 128


@kernel
def _log_density(split, place, d, y, theta):
    """Log of the tilted density at anchor + d over that at the anchor."""
    anchor, rest0, curvature0, inverse, slope = place
    f = anchor + d
    rest, curvature = call_split(split, f, y, theta)
    e = rest - rest0 - d * slope - 0.5 * d * d * inverse
    return e - 0.5 * (curvature * f * f - curvature0 * anchor * anchor)


@kernel
def _noise(place, d):
    """What rounding may do to the density, relative to it: terms of this size are added up."""
    anchor, rest0, curvature0, inverse, slope = place
    size = abs(rest0) + abs(d * slope) + d * d * inverse + curvature0 * anchor * anchor
    return 4.0 * _EPS * size


@kernel
def _place(split, mu, sigma, anchor, y, theta):
    rest0, curvature0 = call_split(split, anchor, y, theta)
    if not abs(rest0) < math.inf:
        rest0 = 0.0
    inverse = 1.0 / (sigma * sigma)
    return anchor, rest0, curvature0, inverse, (anchor - mu) * inverse


@kernel
def _around(points, count, centre, least, most, factor):
    points[count] = centre
    count += 1
    step = least
    while step <= most:
        points[count], points[count + 1] = centre - step, centre + step
        count += 2
        step *= factor
    return count


@kernel
def _lay(points, landmark, mu, sigma, y, theta, anchor):
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
def _top(split, place, low, high, y, theta):
    """Golden sections for a local maximum between two offsets."""
    a, b = low, high
    c, d = b - 0.618034 * (b - a), a + 0.618034 * (b - a)
    e_c = _log_density(split, place, c, y, theta)
    e_d = _log_density(split, place, d, y, theta)
    for _ in range(60):
        if e_c >= e_d:
            b, d, e_d = d, c, e_c
            c = b - 0.618034 * (b - a)
            e_c = _log_density(split, place, c, y, theta)
        else:
            a, c, e_c = c, d, e_d
            d = a + 0.618034 * (b - a)
            e_d = _log_density(split, place, d, y, theta)
    return 0.5 * (a + b)


@kernel
def panel(split, place, a, b, best, y, theta, q):
    """Fill the density at the nodes of [a, b]; return its integral."""
    half, mass = 0.5 * (b - a), 0.0
    for j in range(_N):
        e = _log_density(split, place, 0.5 * (a + b) + half * _NODES[j], y, theta)
        q[j] = math.exp(min(e - best, 700.0))
        mass += _WEIGHTS[j] * q[j]
    return half * mass


@kernel
def _score(a, b, below, above, mass, total, mean, q):
    """Return int (f - mean) Phi^-1(F) q over a panel with so much mass on either side."""
    half, centre, found = 0.5 * (b - a), 0.5 * (a + b), 0.0
    for j in range(_N):
        inner = 0.0
        for k in range(_N):
            inner += _BELOW[j, k] * q[k]
        inner = min(max(half * inner, 0.0), mass)
        lower, upper = (below + inner) / total, (above + mass - inner) / total
        tail = min(lower, upper)
        if tail > 0.0:
            x = ndtri_density(min(tail, 0.5))[1]
            if upper < lower:
                x = -x
            found += _WEIGHTS[j] * (centre + half * _NODES[j] - mean) * x * q[j]
    return half * found


@kernel
def _edges(split, landmark, mu, sigma, y, theta):
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
            levels[i] = _log_density(split, place, points[i], y, theta)
            if levels[i] > levels[best] or math.isnan(levels[best]):
                best = i
        if abs(points[best]) <= 1e-9 * sigma:
            break
        place = _place(split, mu, sigma, place[0] + points[best], y, theta)
    known, modes = count, 0
    for i in range(1, known - 1):
        # Where the density is level, its maximum is anywhere.
        if modes < _MODES and levels[i] > levels[i - 1] and levels[i] >= levels[i + 1]:
            modes += 1
            top = _top(split, place, points[i - 1], points[i + 1], y, theta)
            reach = points[i + 1] - points[i - 1]
            count = _around(points, count, top, 1e-9 * reach, reach, 4.0)
    if modes:
        sort(points, count)
    highest = -math.inf
    for i in range(count):
        levels[i] = _log_density(split, place, points[i], y, theta)
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


@kernel
def masses(split, landmark, mu, sigma, y, theta):
    """Return (place, highest level, panels, total, evaluated); no panels if the mass has no end.

    Rows of `panels` are both ends, as offsets from ``place[0]``, and the mass between.
    """
    place, edges, best = _edges(split, landmark, mu, sigma, y, theta)
    if edges.size < 2:
        return place, best, np.empty((0, 3)), 0.0, 0
    q, left, right = np.empty(_N), np.empty(_N), np.empty(_N)
    rough = 0.0
    for i in range(edges.size - 1):
        rough += panel(split, place, edges[i], edges[i + 1], best, y, theta, q)
    panels = np.empty((2 * edges.size + 2000, 3))
    stack = np.empty((_STACK, 3))
    used, total, evaluated = 0, 0.0, 0
    for i in range(edges.size - 1):
        stack[0, 0], stack[0, 1], stack[0, 2] = edges[i], edges[i + 1], 0.0
        pending = 1
        while pending:
            pending -= 1
            a, b, depth = stack[pending, 0], stack[pending, 1], stack[pending, 2]
            if not b > a:
                continue
            centre = 0.5 * (a + b)
            mass = panel(split, place, a, b, best, y, theta, q)
            evaluated += 1
            if mass <= _NOTHING * rough:
                continue
            m = panel(split, place, a, centre, best, y, theta, left)
            m += panel(split, place, centre, b, best, y, theta, right)
            noise = _noise(place, centre)
            close = abs(m - mass) <= _CLOSE * max(rough, m) + noise * mass
            if close or depth >= _HALVINGS or evaluated > _LIMIT:
                if used == panels.shape[0]:
                    bigger = np.empty((2 * used, 3))
                    bigger[:used] = panels
                    panels = bigger
                panels[used, 0], panels[used, 1], panels[used, 2] = a, b, mass
                used += 1
                total += mass
            else:
                stack[pending, 0], stack[pending, 1], stack[pending, 2] = centre, b, depth + 1.0
                pending += 1
                stack[pending, 0], stack[pending, 1], stack[pending, 2] = a, centre, depth + 1.0
                pending += 1
    return place, best, panels[:used], total, evaluated


@kernel
def log_evidence(place, best, total, mu, sigma):
    """Return log Z of a density with the mass `total` relative to exp(best)."""
    anchor, rest0, curvature0, _, _ = place
    log_z = best + math.log(total) + rest0 - 0.5 * curvature0 * anchor * anchor
    return log_z - (0.5 * ((anchor - mu) / sigma) ** 2 + math.log(sigma) + _HALF_LOG_2PI)


@kernel
def _adaptive(split, landmark, mu, sigma, y, theta):
    """Return (log Z, mean, variance, sigma*), NaN where the mass does not end."""
    place, best, panels, total, evaluated = masses(split, landmark, mu, sigma, y, theta)
    used = panels.shape[0]
    if used == 0:
        return math.nan, math.nan, math.nan, math.nan
    q, left, right = np.empty(_N), np.empty(_N), np.empty(_N)
    first, second = 0.0, 0.0
    for moment in range(2):
        for i in range(used):
            a, b = panels[i, 0], panels[i, 1]
            panel(split, place, a, b, best, y, theta, q)
            for j in range(_N):
                d = 0.5 * (a + b) + 0.5 * (b - a) * _NODES[j]
                m = 0.5 * (b - a) * _WEIGHTS[j] * q[j]
                if moment == 0:
                    first += m * d / total
                else:
                    second += m * (d - first) ** 2 / total
    std = math.sqrt(second)
    above = np.empty(used + 1)
    above[used] = 0.0
    for i in range(used - 1, -1, -1):
        above[i] = above[i + 1] + panels[i, 2]
    scores = np.empty((_STACK, 6))
    star, below = 0.0, 0.0
    for i in range(used):
        scores[0, 0], scores[0, 1], scores[0, 2] = panels[i, 0], panels[i, 1], panels[i, 2]
        scores[0, 3], scores[0, 4], scores[0, 5] = below, above[i + 1], 0.0
        pending = 1
        while pending:
            pending -= 1
            a, b, mass = scores[pending, 0], scores[pending, 1], scores[pending, 2]
            low, up, depth = scores[pending, 3], scores[pending, 4], scores[pending, 5]
            centre = 0.5 * (a + b)
            panel(split, place, a, b, best, y, theta, q)
            whole = _score(a, b, low, up, mass, total, first, q)
            m_left = panel(split, place, a, centre, best, y, theta, left)
            m_right = panel(split, place, centre, b, best, y, theta, right)
            parts = _score(a, centre, low, up + m_right, m_left, total, first, left)
            parts += _score(centre, b, low + m_left, up, m_right, total, first, right)
            evaluated += 1
            noise = _noise(place, centre)
            close = abs(parts - whole) <= 10.0 * (_CLOSE * total + noise * mass) * std
            if close or depth >= _HALVINGS or evaluated > 2 * _LIMIT:
                star += parts
            elif pending + 2 <= _STACK:
                scores[pending, 0], scores[pending, 1], scores[pending, 2] = centre, b, m_right
                scores[pending, 3], scores[pending, 4], scores[pending, 5] = (
                    low + m_left,
                    up,
                    depth + 1,
                )
                pending += 1
                scores[pending, 0], scores[pending, 1], scores[pending, 2] = a, centre, m_left
                scores[pending, 3], scores[pending, 4] = low, up + m_right
                scores[pending, 5] = depth + 1
                pending += 1
        below += panels[i, 2]
    log_z = log_evidence(place, best, total, mu, sigma)
    return log_z, place[0] + first, second, star / total


@kernel
def adaptive_points(split, landmark, mu, sigma, y, theta, out):
    """Fill out[i] = (log Z, mean, variance, sigma*)."""
    for i in range(mu.size):
        out[i] = _adaptive(split, landmark, mu[i], sigma[i], y[i], theta)
