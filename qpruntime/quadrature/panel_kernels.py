"""Panels of a tilted density, bisected until each resolves it. Kernels only."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.polynomial import legendre

from qpruntime._numba import kernel
from qpruntime._typing import Array
from qpruntime.quadrature.sigma_star_kernels import (
    EPS,
    NO_MASS,
    NOT_A_NUMBER,
    OK,
    Anchor,
    Raised,
    level,
    rounding,
)
from qpruntime.quadrature.support_kernels import Scan

__all__ = [
    "BARYCENTRIC",
    "BELOW",
    "NODES",
    "WEIGHTS",
    "N",
    "grown",
    "highest",
    "last_coefficients",
    "resolve_density",
    "sample",
    "too_short",
]

# --- Panel of 16 Gauss-Legendre nodes

#: Number of nodes of a panel.
N = 16
NODES, WEIGHTS = legendre.leggauss(N)
_VANDER = legendre.legvander(NODES, N - 1)
#: Row k gives the Legendre coefficient k of the interpolant: (2k + 1)/2 sum of w P_k(x) q.
_COEFFICIENT = (_VANDER * WEIGHTS[:, None]).T * (np.arange(N)[:, None] + 0.5)
#: Rows of the last three coefficients, which measure how well a panel is resolved.
_LAST = np.ascontiguousarray(_COEFFICIENT[-3:])
_integrals = [legendre.legval(NODES, legendre.legint(row, lbnd=-1.0)) for row in _COEFFICIENT.T]
#: Row j integrates the interpolant from -1 to node j; reversed, from node j to 1.
BELOW = np.ascontiguousarray(np.array(_integrals).T)
BARYCENTRIC = (-1.0) ** np.arange(N) * np.sqrt((1.0 - NODES**2) * WEIGHTS)

#: A panel is resolved if its last coefficients are below this share of its largest value,
RELATIVE = 1e-13
#: or if their effect on the moments is below this share of the whole.
ABSOLUTE = 1e-15
#: Largest number of evaluated panels, and of pending ones.
PANELS, STACK = 4000, 128


@kernel
def last_coefficients(values: Array) -> float:
    """Return the largest of the last three Legendre coefficients."""
    largest = 0.0
    for k in range(3):
        c = 0.0
        for j in range(N):
            c += _LAST[k, j] * values[j]
        largest = max(largest, abs(c))
    return largest


@kernel
def highest(values: Array) -> float:
    """Return the largest of the values at the nodes."""
    largest: float = values[0]
    for j in range(1, N):
        largest = max(largest, values[j])
    return largest


@kernel
def sample(
    raised: Raised, anchor: Anchor, a: float, b: float, q: Array
) -> tuple[float, float, float]:
    """Fill the density at the nodes of [a, b], relative to that at the anchor.

    The result is (its integral, largest value, last coefficients minus their rounding).
    """
    half, centre = 0.5 * (b - a), 0.5 * (a + b)
    mass, largest, top, lowest = 0.0, 0.0, -math.inf, math.inf
    for j in range(N):
        e = level(raised, anchor, centre + half * NODES[j])
        if math.isnan(e):
            return math.nan, 0.0, 0.0
        top = max(top, e)
        if e > -600.0:
            lowest = min(lowest, e)
        q[j] = math.exp(min(e, 700.0))
        largest = max(largest, q[j])
        mass += WEIGHTS[j] * q[j]
    if largest == 0.0:
        return 0.0, 0.0, 0.0
    # The likelihood gets a rounded f, whose effect depends on the slope of log p.
    noise = rounding(anchor, top, centre)
    noise += EPS * abs(anchor.f + centre) * max(top - lowest, 0.0) / (b - a)
    return mass * half, largest, max(last_coefficients(q) - 4.0 * noise * largest, 0.0)


@kernel
def too_short(anchor: Anchor, a: float, b: float) -> bool:
    """Decide whether a panel is nearly as short as the spacing of doubles."""
    return b - a <= 4.0 * EPS * max(abs(0.5 * (a + b)), 1e-9 * abs(anchor.f))


@kernel
def grown(array: Array, used: int) -> Array:
    """Return a copy with twice as many rows."""
    bigger = np.empty((2 * array.shape[0], array.shape[1]))
    for i in range(used):
        for j in range(array.shape[1]):
            bigger[i, j] = array[i, j]
    return bigger


# --- Bisection of panels
#
# Bisection closes in on kinks and jumps. `qpruntime.quadrature.adaptive_kernels` uses the panels.

#: If both halves keep a relative error below this one, in this many generations, it is noise of log
#: p.
_NOISE, _NOISY = 1e-4, 3.0


class Halves(NamedTuple):
    """Pending panels: rows of `facts`, and rows of `density` at their nodes.

    Columns of `facts` are the ends, the results of `sample` (mass, largest, last), and the number
    of ancestors in which both halves kept the error.
    """

    facts: Array
    density: Array


# Columns of `facts`. One array compiles and runs a tenth faster than a tuple of columns.
_START, _STOP, _MASS, _LARGEST, _ERROR, _NOISY_ANCESTORS = range(6)


class Rough(NamedTuple):
    """Moments of the density by its first panels, which weigh errors by their position.

    They are mass, mean, mean distance from it and mean distance^order, each times the mass.
    """

    total: float
    mean: float
    near: float
    far: float
    order: float


@kernel
def rough_moments(edges: Array, mass: Array, order: float) -> Rough:
    """Return `Rough` of masses between edges."""
    total, mean, near, far = 0.0, 0.0, 0.0, 0.0
    for i in range(mass.size):
        total += mass[i]
        mean += mass[i] * 0.5 * (edges[i] + edges[i + 1])
    mean /= total
    for i in range(mass.size):
        r = abs(0.5 * (edges[i] + edges[i + 1]) - mean) + 0.25 * (edges[i + 1] - edges[i])
        near += mass[i] * r
        far += mass[i] * r**order
    return Rough(total, mean, near, far, order)


@kernel
def cost_of(rough: Rough, a: float, b: float) -> float:
    """Return the relative effect on the moments of an error of mass in [a, b]."""
    r = max(abs(a - rough.mean), abs(b - rough.mean))
    return 1.0 / rough.total + r / rough.near + float(r**rough.order) / rough.far


@kernel
def overlooked(anchor: Anchor, halves: Halves, row: int, scan: Scan, start: int) -> float:
    """Return the largest gap between a panel's polynomial and the density at scanned points.

    It is multiplied by the distance to the next point, which bounds the width of an overlooked
    peak.
    """
    points, levels = scan
    facts, q = halves.facts, halves.density[row]
    a, b, largest = facts[row, _START], facts[row, _STOP], facts[row, _LARGEST]
    half, centre, worst = 0.5 * (b - a), 0.5 * (a + b), 0.0
    for i in range(start, points.size - 1):
        if points[i] >= b:
            break
        x = (points[i] - centre) / half
        above, below = 0.0, 0.0
        for j in range(N):
            gap = x - NODES[j]
            if gap == 0.0:
                above, below = q[j], 1.0
                break
            share = BARYCENTRIC[j] / gap
            above += share * q[j]
            below += share
        wrong = abs(above / below - math.exp(min(levels[i], 600.0)))
        share = 1e-12 + 4.0 * rounding(anchor, levels[i], points[i])
        # If the density is unknown at a point, no gap is counted there.
        if share < math.inf and wrong > share * largest:
            worst = max(worst, wrong * min(points[i + 1] - points[i - 1], b - a))
    return worst


@kernel
def halve(raised: Raised, anchor: Anchor, halves: Halves, row: int) -> bool:
    """Replace a panel by its halves, in this row and the next; return False on NaN."""
    facts = halves.facts
    a, b, noisy, worse = facts[row, _START], facts[row, _STOP], facts[row, _NOISY_ANCESTORS], 0
    middle, before = 0.5 * (a + b), facts[row, _ERROR] / facts[row, _LARGEST]
    for k in range(2):
        low, high = (middle, b) if k == 0 else (a, middle)
        into = row + k
        mass, largest, last = sample(raised, anchor, low, high, halves.density[into])
        if math.isnan(mass):
            return False
        facts[into, _START], facts[into, _STOP], facts[into, _MASS] = low, high, mass
        facts[into, _LARGEST], facts[into, _ERROR] = largest, last
        worse += last > 0.25 * before * largest
    # A kink or a jump affects at most one half, while noise affects both.
    noisy = noisy + 1.0 if worse == 2 and before < _NOISE else 0.0
    facts[row, _NOISY_ANCESTORS], facts[row + 1, _NOISY_ANCESTORS] = noisy, noisy
    return True


@kernel
def resolve_density(
    raised: Raised, anchor: Anchor, edges: Array, scan: Scan, order: float
) -> tuple[int, Array, Array, int, float]:
    """Bisect the intervals between the edges until the density is resolved in each.

    The result is (status, panels, density, number, error): rows (start, stop, mass) of `panels`,
    ascending, rows of the density at their nodes, and the sum of remaining errors.
    """
    count = edges.size - 1
    panels, density = np.empty((2 * count, 3)), np.empty((2 * count, N))
    first, masses, errors = np.empty((count, N)), np.empty(count), np.empty((count, 2))
    for i in range(count):
        masses[i], errors[i, 0], errors[i, 1] = sample(
            raised, anchor, edges[i], edges[i + 1], first[i]
        )
    rough = rough_moments(edges, masses, order)
    if math.isnan(rough.total):
        return NOT_A_NUMBER, panels, density, 0, 0.0
    if not (rough.total > 0.0 and math.isfinite(rough.total)):
        return NO_MASS, panels, density, 0, 0.0
    facts = np.empty((STACK, 6))
    halves = Halves(facts, np.empty((STACK, N)))
    used, evaluated, unresolved, start = 0, count, 0.0, 1
    for i in range(count):
        facts[0, _START], facts[0, _STOP], facts[0, _MASS] = edges[i], edges[i + 1], masses[i]
        facts[0, _LARGEST], facts[0, _ERROR], facts[0, _NOISY_ANCESTORS] = (
            errors[i, 0],
            errors[i, 1],
            0.0,
        )
        for j in range(N):
            halves.density[0, j] = first[i, j]
        pending = 1
        while pending:
            pending -= 1
            a, b, largest = facts[pending, _START], facts[pending, _STOP], facts[pending, _LARGEST]
            last, cost = facts[pending, _ERROR], cost_of(rough, a, b)
            error = last * (b - a) * cost
            done = last <= RELATIVE * largest or error <= ABSOLUTE
            done = done or facts[pending, _NOISY_ANCESTORS] >= _NOISY
            if done:
                while start < scan.points.size and scan.points[start] <= a:
                    start += 1
                missed = overlooked(anchor, halves, pending, scan, start) * cost
                if missed > ABSOLUTE:
                    done = False
                    error += missed
            if not done:
                done = too_short(anchor, a, b) or evaluated > PANELS or pending + 2 > STACK
            if done:
                if last > RELATIVE * largest and error > ABSOLUTE:
                    unresolved += error
                if used == panels.shape[0]:
                    panels, density = grown(panels, used), grown(density, used)
                panels[used, 0], panels[used, 1], panels[used, 2] = a, b, facts[pending, _MASS]
                for j in range(N):
                    density[used, j] = halves.density[pending, j]
                used += 1
                continue
            evaluated += 2
            if not halve(raised, anchor, halves, pending):
                return NOT_A_NUMBER, panels, density, 0, 0.0
            pending += 2
    return OK, panels, density, used, unresolved
