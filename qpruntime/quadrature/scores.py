"""Normal scores Phi^-1(F) at the nodes of one panel, F the CDF of a tilted distribution.

The mass at the nodes is accumulated from the left and from the right; 1 - F is never formed.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from qpruntime.arrays import Array
from qpruntime.jit import kernel
from qpruntime.quadrature.panel import BELOW, RELATIVE, N, highest, last_coefficients
from qpruntime.quadrature.tilted import EPS
from qpruntime.special import ndtri_density

__all__ = ["FARTHEST", "FLOOR", "Piece", "Room", "normal_scores", "scores_resolved"]

#: Scores Phi^-1(F): what powers of them may be wrong by, digits of F, and where they are left out:
#: F = FLOOR at -FARTHEST.
_SCORES, _DIGITS = 1e-13, 1e-12
FLOOR, FARTHEST = 1e-24, 10.15


class Piece(NamedTuple):
    """One panel among all: half its length, the mass to its left and right, its own and all."""

    half: float
    lower: float
    upper: float
    mass: float
    total: float


class Room(NamedTuple):
    """Room for values at the nodes of one panel: density, scores, I(F), and products of these."""

    q: Array
    score: Array
    hat: Array
    products: Array


@kernel
def normal_scores(q, piece, score, hat):
    """Fill Phi^-1(F) and I = phi(Phi^-1(F)) at the nodes of a panel with density `q`."""
    half, lower, upper, _, total = piece
    for j in range(N):
        below, above = math.inf, math.inf
        if lower <= 0.5 * total:
            below = 0.0
            for k in range(N):
                below += BELOW[j, k] * q[k]
            below = lower + half * below
        if upper <= 0.5 * total:
            above = 0.0
            for k in range(N):
                above += BELOW[N - 1 - j, N - 1 - k] * q[k]
            above = upper + half * above
        tail = min(below, above) / total
        if tail > 1e-300:
            hat[j], x = ndtri_density(min(tail, 0.5))
        else:
            hat[j], x = 0.0, -38.0
        score[j] = x if below <= above else -x


@kernel
def scores_resolved(room, piece, degree):
    """Whether powers of Phi^-1(F) up to `degree`, which is even, are resolved in a panel.

    At an end of the support they are singular where I(F) is not. And where F runs over many
    powers of ten, the node farthest out must know it to a few digits, or its score is nonsense.
    """
    q, score, _, products = room
    half, lower, upper, mass, total = piece
    for j in range(N):
        products[j] = q[j] * score[j] ** degree
    last = last_coefficients(products)
    if last * half > _SCORES * total and last > RELATIVE * highest(products):
        return False
    outer = min(lower, upper)
    if lower < upper:
        for k in range(N):
            outer += half * BELOW[0, k] * q[k]
    else:
        for k in range(N):
            outer += half * BELOW[0, N - 1 - k] * q[k]
    error = half * (0.1 * last_coefficients(q) + EPS * highest(q))
    return error <= _DIGITS * outer or mass <= FLOOR * total
