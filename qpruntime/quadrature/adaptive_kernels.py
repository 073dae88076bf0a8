"""Adaptive quadrature of tilted densities and their quantiles. Kernels only."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from qpruntime._numba import kernel
from qpruntime._pointers import RULE, LatePointer, call_landmark
from qpruntime._special import HALF_LOG_2PI, ndtri_density
from qpruntime._typing import Array, Floats
from qpruntime.quadrature.panel_kernels import (
    ABSOLUTE,
    BELOW,
    NODES,
    PANELS,
    RELATIVE,
    STACK,
    WEIGHTS,
    N,
    grown,
    highest,
    last_coefficients,
    resolve_density,
    sample,
    too_short,
)
from qpruntime.quadrature.sigma_star_kernels import EPS, EXHAUSTED, NO_MASS, OK, Anchor, Raised
from qpruntime.quadrature.support_kernels import explore

__all__ = [
    "FARTHEST",
    "FLOOR",
    "GIVEN_UP",
    "Quantiles",
    "adaptive_rule",
    "back_from",
    "location_rule",
    "log_mass_at",
    "look_around",
    "marks_from",
    "quantile_nodes",
]

# --- Quantile nodes
#
# The panels of `qpruntime.quadrature.panel_kernels` are bisected until the polynomial through their
# nodes represents I(F) = phi(Phi^-1(F)) too, where F is the CDF. The mass at the nodes is
# accumulated from the left and from the right; 1 - F is never formed.

#: Limits of scores Phi^-1(F): error of their powers, relative error of F, and where they are left
#: out: F = FLOOR at -FARTHEST.
_SCORES, _DIGITS = 1e-13, 1e-12
FLOOR, FARTHEST = 1e-24, 10.15
#: Largest error that unresolved panels may leave.
GIVEN_UP = 1e-6


class Quantiles(NamedTuple):
    """Nodes, a row for each panel: offsets from the anchor, weights and scores.

    `d` are the offsets, `w` weights of integrals over f, `p` of integrals over the tilted
    probability, and `z` = Phi^-1(F).
    """

    d: Array
    w: Array
    p: Array
    z: Array


class Piece(NamedTuple):
    """One panel: half its length, the mass to its left and right, its own mass and the total."""

    half: float
    lower: float
    upper: float
    mass: float
    total: float


# Columns of a row of pending panels: its ends, its mass, the mass to its left and right, and the
# relative error of its parent panel.
_START, _STOP, _MASS, _LOWER, _UPPER, _BEFORE = range(6)


class Room(NamedTuple):
    """Room for values at the nodes of one panel: density, scores, I(F), and products of these."""

    q: Array
    score: Array
    hat: Array
    products: Array


@kernel
def normal_scores(q: Array, piece: Piece, score: Array, hat: Array) -> None:
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
def scores_resolved(room: Room, piece: Piece, degree: int) -> bool:
    """Decide whether powers of Phi^-1(F) up to `degree`, which is even, are resolved in a panel.

    The powers are singular at an end of the support, where I(F) is not. If F runs over many powers
    of ten, the outermost node must have F to a few digits, or its score is meaningless.
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


@kernel
def no_nodes() -> Quantiles:
    """Return `Quantiles` without nodes."""
    none = np.empty((0, N))
    return Quantiles(none, none, none, none)


@kernel
def with_room(found: Quantiles, used: int) -> Quantiles:
    """Return the nodes, in arrays that have room for one more row."""
    if used < found.d.shape[0]:
        return found
    d, w = grown(found.d, used), grown(found.w, used)
    return Quantiles(d, w, grown(found.p, used), grown(found.z, used))


@kernel
def emit(found: Quantiles, row: int, centre: float, room: Room, piece: Piece, degree: int) -> None:
    """Fill a row of nodes from a resolved panel."""
    half = piece.half
    for j in range(N):
        found.d[row, j] = centre + half * NODES[j]
        found.w[row, j] = half * WEIGHTS[j]
        found.p[row, j] = half * WEIGHTS[j] * room.q[j] / piece.total
        found.z[row, j] = room.score[j]
        if degree > 0 and abs(room.score[j]) > FARTHEST:
            found.p[row, j] = 0.0


@kernel
def halve_scores(
    raised: Raised, anchor: Anchor, waiting: Array, row: int, before: float, q: Array
) -> None:
    """Replace a panel by its halves, in this row and the next; `q` is room for a density."""
    a, b = waiting[row, _START], waiting[row, _STOP]
    below, above = waiting[row, _LOWER], waiting[row, _UPPER]
    centre = 0.5 * (a + b)
    lower_mass, _, _ = sample(raised, anchor, a, centre, q)
    upper_mass, _, _ = sample(raised, anchor, centre, b, q)
    _fill(waiting, row, centre, b, upper_mass, below + lower_mass, above, before)
    _fill(waiting, row + 1, a, centre, lower_mass, below, upper_mass + above, before)


@kernel
def _fill(
    waiting: Array,
    row: int,
    start: float,
    stop: float,
    mass: float,
    lower: float,
    upper: float,
    before: float,
) -> None:
    """Fill a row of pending panels."""
    waiting[row, _START], waiting[row, _STOP], waiting[row, _MASS] = start, stop, mass
    waiting[row, _LOWER], waiting[row, _UPPER], waiting[row, _BEFORE] = lower, upper, before


@kernel
def mass_above(panels: Array, used: int) -> Array:
    """Return the mass above the start of every panel; 0 above the last."""
    upper = np.empty(used + 1)
    upper[used] = 0.0
    for i in range(used - 1, -1, -1):
        upper[i] = upper[i + 1] + panels[i, 2]
    return upper


@kernel
def mean_distance(panels: Array, used: int, total: float) -> float:
    """Return the mean distance of the panels from their mean, about the integral of I(F)."""
    mean, distance = 0.0, 0.0
    for i in range(used):
        mean += panels[i, 2] * 0.5 * (panels[i, 0] + panels[i, 1]) / total
    for i in range(used):
        a, b = panels[i, 0], panels[i, 1]
        distance += panels[i, 2] * (abs(0.5 * (a + b) - mean) + 0.25 * (b - a)) / total
    return distance


@kernel
def quantile_nodes(
    raised: Raised, mu: float, sigma: float, marks: Array, order: float, degree: int
) -> tuple[int, Anchor, float, Quantiles, float]:
    """Return (status, anchor, log of the mass, `Quantiles`, error): nodes for integrals over F.

    Integrals of I(F) = phi(z) and of moments up to `order` are resolved. If `degree`, which is
    even, is not 0, those of powers of z up to it are resolved too, and p is 0 where F is too small
    for z. `error` is the relative error of unresolved panels.
    """
    edges = np.empty(2048)
    status, anchor, count, scan = explore(raised, mu, sigma, marks, order, edges)
    if status != OK:
        return status, anchor, 0.0, no_nodes(), 0.0
    status, panels, density, used, error = resolve_density(
        raised, anchor, edges[:count], scan, order
    )
    if status != OK:
        return status, anchor, 0.0, no_nodes(), error
    upper = mass_above(panels, used)
    total = upper[0]
    if not (total > 0.0 and math.isfinite(total)):
        return NO_MASS, anchor, 0.0, no_nodes(), error
    room = Room(np.empty(N), np.empty(N), np.empty(N), np.empty(N))
    waiting = np.empty((STACK, 6))
    size, whole, lost = mean_distance(panels, used, total), 0.0, 0.0
    d, w = np.empty((used + 32, N)), np.empty((used + 32, N))
    quantiles = Quantiles(d, w, np.empty((used + 32, N)), np.empty((used + 32, N)))
    out, evaluated, lower = 0, used, 0.0
    for i in range(used):
        _fill(waiting, 0, panels[i, 0], panels[i, 1], panels[i, 2], lower, upper[i + 1], math.inf)
        pending, first = 1, True
        while pending:
            pending -= 1
            a, b, mass = waiting[pending, _START], waiting[pending, _STOP], waiting[pending, _MASS]
            half, centre = 0.5 * (b - a), 0.5 * (a + b)
            piece = Piece(half, waiting[pending, _LOWER], waiting[pending, _UPPER], mass, total)
            if first:
                for j in range(N):
                    room.q[j] = density[i, j]
            else:
                sample(raised, anchor, a, b, room.q)
            normal_scores(room.q, piece, room.score, room.hat)
            last, largest = last_coefficients(room.hat), highest(room.hat)
            done = last * half <= ABSOLUTE * size or last <= RELATIVE * largest
            rough = done and degree > 0
            if rough:
                rough = not scores_resolved(room, piece, degree)
                done = not rough
            if not done:
                stop = too_short(anchor, a, b)
                if not rough:
                    before = waiting[pending, _BEFORE]
                    stop = stop or (last < 1e-10 * largest and last > 0.25 * largest * before)
                if stop or evaluated > PANELS or pending + 2 > STACK:
                    done = True
                    if not rough:
                        lost += last * half
            if done:
                quantiles = with_room(quantiles, out)
                emit(quantiles, out, centre, room, piece, degree)
                for j in range(N):
                    whole += half * WEIGHTS[j] * room.hat[j]
                out += 1
            else:
                before = math.inf if rough else last / largest
                halve_scores(raised, anchor, waiting, pending, before, room.q)
                evaluated += 2
                pending += 2
            first = False
        lower += panels[i, 2]
    error += lost / whole
    if error > GIVEN_UP:
        return EXHAUSTED, anchor, 0.0, no_nodes(), error
    quantiles = Quantiles(
        quantiles.d[:out], quantiles.w[:out], quantiles.p[:out], quantiles.z[:out]
    )
    return OK, anchor, math.log(total), quantiles, error


# --- Moments and sigma* of any tilted density

_MARKS = 16


@kernel
def look_around(landmark: int, y: float, theta: Array) -> Array:
    """Return the points around which modes are searched: 0, y and the likelihood's landmarks."""
    marks = np.empty(_MARKS + 2)
    marks[0], marks[1] = 0.0, y
    for k in range(_MARKS):
        marks[k + 2] = call_landmark(landmark, y, theta, k)
        if math.isnan(marks[k + 2]):
            return marks[: k + 2]
    return marks


@kernel
def log_mass_at(anchor: Anchor, mu: float, sigma: float) -> float:
    """Return log of the tilted density at the anchor, likelihood times N(mu, sigma^2)."""
    f, log_rest, curvature, _, _ = anchor
    log_anchor = log_rest - 0.5 * curvature * f * f - math.log(sigma) - HALF_LOG_2PI
    return log_anchor - 0.5 * ((f - mu) / sigma) ** 2


@kernel
def integrate(
    raised: Raised, mu: float, sigma: float, marks: Array
) -> tuple[int, float, float, float, float, float]:
    """Return (status, log Z, anchor, mean less the anchor, variance, sigma*) of one cavity."""
    status, anchor, log_mass, quantiles, _ = quantile_nodes(raised, mu, sigma, marks, 2.0, 0)
    if status != OK:
        return status, 0.0, 0.0, 0.0, 0.0, 0.0
    d, w, p, z = quantiles
    whole, shift, star = 0.0, 0.0, 0.0
    for i in range(d.shape[0]):
        for j in range(N):
            whole += p[i, j]
            shift += p[i, j] * d[i, j]
            star += w[i, j] * math.exp(-0.5 * z[i, j] * z[i, j])
    shift /= whole
    variance = 0.0
    for i in range(d.shape[0]):
        for j in range(N):
            variance += p[i, j] * (d[i, j] - shift) ** 2
    log_z = log_mass_at(anchor, mu, sigma) + log_mass + math.log(whole)
    return OK, log_z, anchor.f, shift, variance / whole, star / math.sqrt(2.0 * math.pi)


def _adaptive_rule(
    split: int, landmark: int, power: float, mu: float, sigma: float, y: float, theta: Array
) -> Floats:
    """Return (status, log Z, mean, variance, sigma*) of one cavity."""
    marks = look_around(landmark, y, theta)
    status, log_z, anchor, shift, variance, star = integrate(
        Raised(split, power, y, theta), mu, sigma, marks
    )
    return float(status), log_z, anchor + shift, variance, star


@kernel
def marks_from(landmark: int, y: float, theta: Array) -> Array:
    """Return the points of `look_around` as distances from y."""
    marks = look_around(landmark, y, theta)
    for k in range(marks.size):
        marks[k] -= y
    return marks


@kernel
def back_from(mu: float, y: float, anchor: float, shift: float) -> float:
    """Return the mean of a density over f - y, measured from the nearer one of mu and y."""
    gap = (anchor - (mu - y)) + shift
    return mu + gap if abs(gap) < abs(anchor + shift) else y + (anchor + shift)


def _location_rule(
    split: int, landmark: int, power: float, mu: float, sigma: float, y: float, theta: Array
) -> Floats:
    """Run `_adaptive_rule` over f - y, for a log p that depends on f - y alone.

    A peak at y may be narrower than the distance between neighbouring doubles there.
    """
    status, log_z, anchor, shift, variance, star = integrate(
        Raised(split, power, 0.0, theta), mu - y, sigma, marks_from(landmark, y, theta)
    )
    return float(status), log_z, back_from(mu, y, anchor, shift), variance, star


#: `RULE` of `qpruntime._pointers`: moments and sigma* of any tilted density. Kernels get its
#: address, so that it compiles only if it is used.
adaptive_rule = LatePointer(_adaptive_rule, RULE)
location_rule = LatePointer(_location_rule, RULE)
