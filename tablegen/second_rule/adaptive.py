"""The second quadrature rule where a likelihood says nothing of its shape.

The formula is that of `tablegen.second_rule`, sigma* = int (f - mean) Phi^-1(F(f)) q(f) df, before
the integration by parts. The rule shares neither nodes nor ways with
`qpruntime.quadrature.adaptive_kernels`: intervals of its own around the cavity, the landmarks and
every local maximum are halved until 10-point Gauss-Legendre of the whole and of both halves agree,
first for the mass, then for the score (f - mean) Phi^-1(F) q.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.polynomial import legendre

from qpruntime._numba import kernel
from qpruntime._special import ndtri_density
from qpruntime._typing import Array, Floats
from tablegen.second_rule.edges import rounding_of
from tablegen.second_rule.masses import (
    CLOSE,
    HALVINGS,
    LIMIT,
    NODES,
    WEIGHTS,
    N,
    log_evidence,
    masses,
    panel,
)

__all__ = ["adaptive_points"]

_BASIS = np.linalg.inv(legendre.legvander(NODES, N - 1))
#: Row j integrates the interpolant from -1 to node j.
_BELOW = np.array(
    [legendre.legval(NODES, legendre.legint(column, lbnd=-1.0)) for column in _BASIS.T]
).T.copy()


class Subinterval(NamedTuple):
    """Ends of an interval, the mass in it, below it and above it, and halvings that led here."""

    a: float
    b: float
    mass: float
    below: float
    above: float
    depth: int


@kernel
def _score(piece: Subinterval, total: float, mean: float, q: Array) -> float:
    """Return int (f - mean) Phi^-1(F) q over a panel with so much mass on either side."""
    a, b, mass, below, above, _ = piece
    half, centre, score = 0.5 * (b - a), 0.5 * (a + b), 0.0
    for j in range(N):
        inner = 0.0
        for k in range(N):
            inner += _BELOW[j, k] * q[k]
        inner = min(max(half * inner, 0.0), mass)
        lower, upper = (below + inner) / total, (above + mass - inner) / total
        tail = min(lower, upper)
        if tail > 0.0:
            x = ndtri_density(min(tail, 0.5))[1]
            if upper < lower:
                x = -x
            score += WEIGHTS[j] * (centre + half * NODES[j] - mean) * x * q[j]
    return half * score


@kernel
def _adaptive(split: int, landmark: int, mu: float, sigma: float, y: float, theta: Array) -> Floats:
    """Return (log Z, mean, variance, sigma*), NaN where the mass does not end."""
    place, best, panels, total, evaluated = masses(split, landmark, mu, sigma, y, theta)
    used = panels.shape[0]
    if used == 0:
        return math.nan, math.nan, math.nan, math.nan
    q, left_values, right_values = np.empty(N), np.empty(N), np.empty(N)
    first, second = 0.0, 0.0
    for moment in range(2):
        for i in range(used):
            a, b = panels[i, 0], panels[i, 1]
            panel(split, place, a, b, best, y, theta, q)
            for j in range(N):
                d = 0.5 * (a + b) + 0.5 * (b - a) * NODES[j]
                m = 0.5 * (b - a) * WEIGHTS[j] * q[j]
                if moment == 0:
                    first += m * d / total
                else:
                    second += m * (d - first) ** 2 / total
    std = math.sqrt(second)
    above = np.empty(used + 1)
    above[used] = 0.0
    for i in range(used - 1, -1, -1):
        above[i] = above[i + 1] + panels[i, 2]
    star, below = 0.0, 0.0
    for i in range(used):
        pieces = [Subinterval(panels[i, 0], panels[i, 1], panels[i, 2], below, above[i + 1], 0)]
        while len(pieces) > 0:
            piece = pieces.pop()
            a, b = piece.a, piece.b
            centre = 0.5 * (a + b)
            panel(split, place, a, b, best, y, theta, q)
            whole = _score(piece, total, first, q)
            m_left = panel(split, place, a, centre, best, y, theta, left_values)
            m_right = panel(split, place, centre, b, best, y, theta, right_values)
            depth = piece.depth + 1
            lower = Subinterval(a, centre, m_left, piece.below, piece.above + m_right, depth)
            upper = Subinterval(centre, b, m_right, piece.below + m_left, piece.above, depth)
            parts = _score(lower, total, first, left_values)
            parts += _score(upper, total, first, right_values)
            evaluated += 1
            noise = rounding_of(place, centre)
            close = abs(parts - whole) <= 10.0 * (CLOSE * total + noise * piece.mass) * std
            if close or piece.depth >= HALVINGS or evaluated > 2 * LIMIT:
                star += parts
            else:
                pieces.append(upper)
                pieces.append(lower)
        below += panels[i, 2]
    log_z = log_evidence(place, best, total, mu, sigma)
    return log_z, place[0] + first, second, star / total


@kernel
def adaptive_points(
    split: int, landmark: int, mu: Array, sigma: Array, y: Array, theta: Array, out: Array
) -> None:
    """Fill out[i] = (log Z, mean, variance, sigma*)."""
    for i in range(mu.size):
        out[i] = _adaptive(split, landmark, mu[i], sigma[i], y[i], theta)
