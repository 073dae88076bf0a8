"""A second quadrature rule, which shares nothing with the first that could be wrong in both.

Shared are the likelihood, the map of `place` from a frame to f, which only affects precision, and
the normal scores of `ndtri_density`, which have tests of their own against mpmath. The tables' own
rule integrates phi(Phi^-1(F)); this one goes back to the formula before the integration by parts,
sigma* = int (f - mean) Phi^-1(F(f)) q(f) df, on other nodes: the centre is shifted by a fraction of
the width, steps are shorter, panels have eight points.

The adaptive part halves intervals around the cavity, the landmarks and every local maximum, if a
likelihood says nothing of its shape. It halves until 10-point Gauss-Legendre of the whole and of
both halves agree, first for the mass, then for the score (f - mean) Phi^-1(F) q. It shares neither
nodes nor ways with `qpruntime.quadrature.adaptive_kernels`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.polynomial import legendre

from qpruntime._numba import kernel
from qpruntime._pointers import call_frame, call_split
from qpruntime._special import ndtri_density
from qpruntime._typing import Array, Floats
from qpruntime.likelihoods import Likelihood
from qpruntime.quadrature.sigma_star_kernels import place
from tablegen.second_rule.masses import (
    BASIS,
    CLOSE,
    HALVINGS,
    LIMIT,
    NODES,
    WEIGHTS,
    N,
    log_evidence,
    masses,
    panel,
    rounding_of,
)

__all__ = ["RULE", "SEED", "independent", "independent_all"]

#: Row j integrates the interpolant from -1 to node j.
_BELOW = np.array(
    [legendre.legval(NODES, legendre.legint(column, lbnd=-1.0)) for column in BASIS.T]
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


#: Seed of the random points of a certificate.
SEED = 20200612
#: Name of the rule in certificates.
RULE = "sigma* = int (f - mean) Phi^-1(F) q df, 8-point panels"

_CUT = 46.0
_STEP = 0.085
_MARCH_LIMIT = 2000
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
_NODES, _WEIGHTS = (tuple(a.tolist()) for a in np.polynomial.legendre.leggauss(8))


@kernel
def _log_density(split: int, anchored: Floats, d: float, y: float, theta: Array) -> float:
    """Return log q(anchor + d) - log q(anchor).

    `anchored` is the anchor, the split there, (anchor - mu)/sigma^2 and 1/sigma^2.
    """
    anchor, rest0, curvature0, slope, inverse = anchored
    remainder, curvature = call_split(split, anchor + d, y, theta)
    e = remainder - rest0 - d * (curvature * anchor + slope) - 0.5 * d * d * (curvature + inverse)
    return e - 0.5 * (curvature - curvature0) * anchor * anchor


@kernel
def _independent(theta: Array, split: int, frame: int, mu: float, sigma: float, y: float) -> Floats:
    """Return (log Z, mean, variance, sigma*) by the second rule, NaN if it does not converge."""
    centre, width, refine, side = call_frame(frame, mu, sigma, y, theta)
    if refine == 0.0:
        refine = 1.0  # said to be a normal: see whether it is
    width *= 0.81
    if side == 0.0:
        centre += 0.17 * width
    anchor = centre + side * width if abs(side) <= 1.0 else centre
    inverse = 1.0 / (sigma * sigma)
    slope = (anchor - mu) * inverse
    rest0, curvature0 = call_split(split, anchor, y, theta)
    if rest0 == -math.inf:
        rest0 = 0.0
    anchored = anchor, rest0, curvature0, slope, inverse
    best = -math.inf
    ends = np.zeros(2)
    for end in range(2):
        v = 0.0
        top = best if abs(side) <= 1.0 else -math.inf
        for turn in range(_MARCH_LIMIT + 1):
            d, jacobian = place(side, width, v)
            e = _log_density(split, anchored, d, y, theta)
            e += math.log(jacobian)
            top = max(top, e)
            best = max(best, e)
            if e < top - _CUT:
                break
            if turn == _MARCH_LIMIT or math.isnan(e):
                return math.nan, math.nan, math.nan, math.nan
            v += 0.2 if end == 1 else -0.2
        ends[end] = v
    panels = math.ceil((ends[1] - ends[0]) / (_STEP * refine))
    h = (ends[1] - ends[0]) / panels
    mass = np.empty(panels)
    total, first, second = 0.0, 0.0, 0.0
    for p in range(panels):
        mass[p] = 0.0
        for k in range(8):
            d, jacobian = place(side, width, ends[0] + h * (p + 0.5 + 0.5 * _NODES[k]))
            e = _log_density(split, anchored, d, y, theta)
            m = math.exp(e - best) * jacobian * _WEIGHTS[k] * 0.5 * h
            mass[p] += m
            first += m * d
            second += m * d * d
        total += mass[p]
    mean = first / total
    upper = np.empty(panels)
    upper[panels - 1] = mass[panels - 1]
    for p in range(panels - 2, -1, -1):
        upper[p] = upper[p + 1] + mass[p]
    lower, star = 0.0, 0.0
    for p in range(1, panels):
        lower += mass[p - 1]
        tail = min(lower, upper[p]) / total
        if tail > 0.0:
            x = ndtri_density(tail)[1]
            if upper[p] < lower:
                x = -x
            d, jacobian = place(side, width, ends[0] + h * p)
            e = _log_density(split, anchored, d, y, theta)
            star += (d - mean) * x * math.exp(e - best) * jacobian
    # If f falls with v (side -1), lower and upper tail have changed places.
    log_z = best + math.log(total) + rest0 - 0.5 * curvature0 * anchor * anchor
    log_z -= 0.5 * ((anchor - mu) / sigma) ** 2 + math.log(sigma) + _HALF_LOG_2PI
    return log_z, anchor + mean, second / total - mean * mean, abs(star) * h / total


@kernel
def _independent_points(
    theta: Array, split: int, frame: int, mu: Array, sigma: Array, y: Array, out: Array
) -> None:
    for i in range(mu.size):
        out[i] = _independent(theta, split, frame, mu[i], sigma[i], y[i])


def independent_all(likelihood: Likelihood, mu: Array, sigma: Array, y: Array) -> Array:
    """Return rows (log Z, mean, variance, sigma*) by the second rule; arguments of shape (N,)."""
    theta, _, has_frame, split, _, frame = likelihood.functions()
    out = np.empty((mu.size, 4))
    if has_frame:
        _independent_points(theta, split, frame.frame, mu, sigma, y, out)
    else:
        adaptive_points(split, frame.landmark, mu, sigma, y, theta, out)
    return out


def independent(likelihood: Likelihood, mu: Array, sigma: Array, y: Array) -> Array:
    """Integrate sigma* (a standard deviation) by the second rule; all arrays of shape (N,)."""
    return independent_all(likelihood, mu, sigma, y)[:, 3].copy()
