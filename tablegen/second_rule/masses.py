"""The mass of a tilted density in panels: intervals halved until 10-point Gauss-Legendre agrees."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.polynomial import legendre

from qpruntime._numba import kernel
from qpruntime._typing import Array, Floats
from tablegen.second_rule.edges import edges_of, log_density, rounding_of

__all__ = ["CLOSE", "HALVINGS", "LIMIT", "NODES", "WEIGHTS", "N", "log_evidence", "masses", "panel"]

#: Nodes of a panel.
N = 10
NODES, WEIGHTS = legendre.leggauss(N)
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
