"""A panel: the polynomial through 16 Gauss-Legendre nodes, and how well it is resolved by it."""

from __future__ import annotations

import math

import numpy as np
from numpy.polynomial import legendre

from qpruntime.jit import kernel
from qpruntime.quadrature.tilted import EPS, level, rounding

__all__ = [
    "BARYCENTRIC",
    "BELOW",
    "NODES",
    "WEIGHTS",
    "N",
    "grown",
    "highest",
    "last_coefficients",
    "sample",
    "too_short",
]

#: Nodes of a panel.
N = 16
NODES, WEIGHTS = legendre.leggauss(N)
_VANDER = legendre.legvander(NODES, N - 1)
#: Row k gives the Legendre coefficient k of the interpolant: (2k + 1)/2 sum of w P_k(x) q.
_COEFFICIENT = (_VANDER * WEIGHTS[:, None]).T * (np.arange(N)[:, None] + 0.5)
#: Rows of the last three, which say how well a panel is resolved.
_LAST = np.ascontiguousarray(_COEFFICIENT[-3:])
_integrals = [legendre.legval(NODES, legendre.legint(row, lbnd=-1.0)) for row in _COEFFICIENT.T]
#: Row j integrates the interpolant from -1 to node j; turned round, from node j to 1.
BELOW = np.ascontiguousarray(np.array(_integrals).T)
BARYCENTRIC = (-1.0) ** np.arange(N) * np.sqrt((1.0 - NODES**2) * WEIGHTS)

#: A panel is resolved if its last coefficients are below this part of its largest value.
RELATIVE = 1e-13
#: ... or what they stand for below this part of the whole.
ABSOLUTE = 1e-15
#: Panels evaluated at most, and those that wait to be.
PANELS, STACK = 4000, 128


@kernel
def last_coefficients(values):
    """Largest of the last three Legendre coefficients."""
    largest = 0.0
    for k in range(3):
        c = 0.0
        for j in range(N):
            c += _LAST[k, j] * values[j]
        largest = max(largest, abs(c))
    return largest


@kernel
def highest(values):
    """Largest of the values at the nodes."""
    largest = values[0]
    for j in range(1, N):
        largest = max(largest, values[j])
    return largest


@kernel
def sample(raised, anchor, a, b, q):
    """Fill the density at the nodes of [a, b], relative to that at the anchor.

    Returns (its integral, largest value, last coefficients less what rounding makes of them).
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
    # The likelihood sees a rounded f: what that does depends on how steep it is.
    noise = rounding(anchor, top, centre)
    noise += EPS * abs(anchor.f + centre) * max(top - lowest, 0.0) / (b - a)
    return mass * half, largest, max(last_coefficients(q) - 4.0 * noise * largest, 0.0)


@kernel
def too_short(anchor, a, b):
    """Whether a panel has hardly a double inside."""
    return b - a <= 4.0 * EPS * max(abs(0.5 * (a + b)), 1e-9 * abs(anchor.f))


@kernel
def grown(array, used):
    """Return a copy with twice as many rows."""
    bigger = np.empty((2 * array.shape[0], array.shape[1]))
    for i in range(used):
        for j in range(array.shape[1]):
            bigger[i, j] = array[i, j]
    return bigger
