"""One site, and messages of states with one or two components. Kernels only."""

from __future__ import annotations

import math

import numpy as np

from qpruntime._numba import inlined, kernel
from qpruntime._pointers import call_moments
from qpruntime._typing import Array, Floats
from qpruntime.kernels.base import MATERN_3
from qpruntime.kernels.stationary import matern_3_step as matern_3
from qpruntime.projection.site_kernel import INSIDE, OUTSIDE_GRID, Source, project_site
from qpruntime.quadrature.sigma_star_kernels import OK, PlainFunctions

__all__ = [
    "NEGLIGIBLE",
    "absorbed",
    "pair_pass",
    "pair_slope",
    "pair_sweep",
    "revise",
]

#: Noise, scales, observations, prior means and weights of the rows of a series.
SeriesRows = tuple[float, Array, Array, Array, Array]
#: Functions, source, power, damping, whether precisions are held at zero, and whether moments are
#: closed.
SeriesRules = tuple[PlainFunctions, Source, float, float, bool, bool]

# --- One site
#
# A site (tau, nu) is one of g = scale f + noise, about the prior mean of g.


@kernel
def absorbed(tau: float, nu: float, noise: float, scale: float) -> tuple[float, float]:
    """Return precision and precision-weighted mean of a site of g as a site of the state's f."""
    if noise == 0.0 and scale == 1.0:
        return tau, nu
    share = 1.0 + tau * (noise * scale * scale)
    return scale * scale * tau / share, scale * nu / share


@inlined
def revise(
    rules: SeriesRules,
    row: Floats,
    site: tuple[float, float],
    cavity: tuple[float, float],
    scratch: Array,
    tally: Array,
    i: int,
) -> tuple[int, tuple[float, float], tuple[float, float]]:
    """Return (status, (tau, nu)) of the updated site i, and its site of the state's f.

    `rules` = (functions, source, power, damping, hold precisions at zero, whether moments are
    closed), the first two as for `project_site`; `row` = (noise, scale, y, prior mean, weight).
    `cavity` has mean and variance of f without the site, about the prior mean. `tally` has sums of
    squared changes and counts. Its entries from 8 on are the site that changed most and by how
    much, and the cavity of a failure. The caller unpacks the arrays, because taking them out of a
    tuple for every site costs 3 to 5 % of a sweep.
    """
    functions, source, power, damping, nonnegative, closed = rules
    noise, h, y, prior, weight = row
    tau, nu = site
    mean, variance = h * cavity[0], h * h * (cavity[1] + noise)
    status, new_tau, new_nu = OK, tau, nu
    remaining, centre, square = 1.0, mean, variance
    if power != 1.0:
        remaining = 1.0 + (1.0 - power) * tau * variance
        centre = (mean + (1.0 - power) * nu * variance) / remaining
        square = variance / remaining
    if weight == 0.0:
        new_tau, new_nu = 0.0, 0.0
    elif variance > 0.0 and 0.0 < square < math.inf and abs(centre) < math.inf:
        sigma, where = math.sqrt(square), 0
        if closed:
            # Closed moments take a fifth of the time of the general projection below.
            _, tilted, tilted_square = call_moments(
                functions[4], prior + centre, sigma, y, functions[0]
            )
        else:
            status, _, tilted, std, where = project_site(
                functions, source, power * weight, prior + centre, sigma, y, scratch
            )
            tilted_square = std * std
        if status != OK:
            tally[9], tally[10] = prior + centre, sigma
        else:
            tally[4] += where == INSIDE
            tally[5] += where == OUTSIDE_GRID
            inverse = 1.0 / square
            proposed = 1.0 / tilted_square - inverse
            if nonnegative:
                proposed = max(proposed, 0.0)
            pull = (tilted - (prior + centre)) * inverse + (tilted - prior) * proposed
            if power != 1.0:
                proposed, pull = proposed / power, pull / power
            if math.isfinite(proposed) and math.isfinite(pull):
                new_tau = tau + damping * (proposed - tau)
                new_nu = nu + damping * (pull - nu)
            else:
                tally[6] += 1.0
    else:
        tally[6] += 1.0
    # Changes are measured in units of the site's previous marginal.
    width = variance / (1.0 + tau * variance)
    d_tau, d_nu = new_tau - tau, new_nu - nu
    in_units, moved = d_tau * width, d_nu * math.sqrt(abs(width))
    # tau is the difference of two precisions, so changes below its rounding count as zero.
    if not abs(in_units) < 1e-14:
        tally[0] += d_tau * d_tau
    tally[1] += d_nu * d_nu
    tally[2] += in_units * in_units
    tally[3] += moved * moved
    if abs(in_units) + abs(moved) > tally[8]:
        tally[7], tally[8] = i, abs(in_units) + abs(moved)
    return status, (new_tau, new_nu), absorbed(new_tau, new_nu, noise, h)


# --- One or two state components: Matérn 1/2 and 3/2
#
# Forward messages are N(m, P), P = L diag(D, s) L' with L = [1 0; c 1]. Backward messages are
# exp(eta' x - x' J x / 2), J = sigma e0 e0' + E (g, 1)(g, 1)'. An observation changes D or sigma
# alone, and every step is a sum of terms of one sign if sites are positive. Relative errors
# therefore stay near 1e-15 at steps of 1e-12 length-scales and at variances of 1e10
# (tests/inference/markov/test_infer.py). One buffer (N, 5) has the messages from the other
# direction ahead of the pass, and those of the pass behind it. `edges` (4, 5) are the messages that
# the forward and backward passes begin with, and those they end with.

#: Inverses of smaller numbers overflow or carry no information.
NEGLIGIBLE = 1e-290


@kernel
def transition_two(kind: int, variance: float, x: float) -> Floats:
    """Return (A00, A01, A10, A11, Q00, c_q, s_q, x), x = rate * time; Q = L diag(Q00, s_q) L'."""
    near = min(x, 700.0)
    if near < 1e-60:
        return 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, x
    if kind == MATERN_3:
        a, b, c, d, q00, q01, q11 = matern_3(near)
        slope = q01 / q00
        return a, b, c, d, variance * q00, slope, variance * (q11 - slope * q01), x
    return math.exp(-near), 0.0, 0.0, 0.0, -variance * math.expm1(-2.0 * near), 0.0, 0.0, x


@kernel
def begin(chain: tuple[int, float, float], edges: Array, ahead: bool) -> tuple[Floats, Floats]:
    """Return the message that a pass begins with, and an empty step.

    A forward message is (m0, m1, D, c, s), a backward one is (eta, sigma, E, g).
    """
    k = 0 if ahead else 1
    message = edges[k, 0], edges[k, 1], edges[k, 2], edges[k, 3], edges[k, 4]
    return message, transition_two(chain[0], chain[2], 0.0)


@kernel
def end(edges: Array, ahead: bool, message: Floats) -> None:
    """Store the last message of a pass."""
    k = 2 if ahead else 3
    edges[k, 0], edges[k, 1], edges[k, 2], edges[k, 3], edges[k, 4] = message


@kernel
def forward_two(message: Floats, move: Floats) -> Floats:
    """Return the forward message after a step."""
    m0, m1, D, c, s = message
    a00, a01, a10, a11, q00, cq, sq, _ = move
    a, b = a00 + a01 * c, a10 + a11 * c
    new = a * a * D + a01 * a01 * s + q00
    inverse = 1.0 / new if new != 0.0 else 0.0
    slope = (a * b * D + a01 * a11 * s + cq * q00) * inverse
    slope_gap = b - slope * a
    carried = a11 - slope * a01
    noise_gap = cq - slope
    return (
        a00 * m0 + a01 * m1,
        a10 * m0 + a11 * m1,
        new,
        slope,
        D * slope_gap * slope_gap + s * carried * carried + q00 * noise_gap * noise_gap + sq,
    )


@kernel
def backward_two(message: Floats, move: Floats) -> Floats:
    """Return the backward message before a step."""
    n0, n1, sigma, E, g = message
    a00, a01, a10, a11, q00, cq, sq, _ = move
    k = 1.0 + sigma * q00
    slope = cq + g
    det = k + E * (sq + q00 * slope * slope) + sigma * E * q00 * sq
    # Here eta' = A' (I + J Q)^-1 eta, with the inverse as the adjugate over the determinant.
    j00, j01 = sigma + E * g * g, E * g
    q01 = cq * q00
    q11 = sq + cq * q01
    inverse, inverse_k = 1.0 / det, 1.0 / k
    r0 = ((1.0 + j01 * q01 + E * q11) * n0 - (j00 * q01 + j01 * q11) * n1) * inverse
    r1 = ((1.0 + j00 * q00 + j01 * q01) * n1 - (j01 * q00 + E * q01) * n0) * inverse
    spread = E * k * inverse
    ratio = (g - sigma * q01) * inverse_k
    scale = sigma * inverse_k
    p0, p1 = ratio * a00 + a10, ratio * a01 + a11
    new = scale * a01 * a01 + spread * p1 * p1
    n0, n1 = a00 * r0 + a10 * r1, a01 * r0 + a11 * r1
    # The reciprocal of a smaller number overflows; such a message says nothing about the slope.
    if abs(new) < NEGLIGIBLE:
        return n0, n1, scale * a00 * a00, 0.0, 0.0
    area = a00 * a11 - a01 * a10
    inverse = 1.0 / new
    return (
        n0,
        n1,
        scale * spread * area * area * inverse,
        new,
        (scale * a00 * a01 + spread * p0 * p1) * inverse,
    )


@kernel
def meet_two(ahead: Floats, behind: Floats) -> tuple[float, float]:
    """Return mean and variance of the first state under both messages, without a site."""
    m0, m1, D, c, s = ahead
    n0, n1, sigma, E, g = behind
    det = 1.0 + D * sigma + E * (D * (g + c) * (g + c) + s) + D * s * sigma * E
    r0 = n0 - (sigma + E * g * g) * m0 - E * g * m1
    r1 = n1 - E * (g * m0 + m1)
    more, share = 1.0 + E * s, D / det
    return m0 + share * (more * r0 + (c - g * E * s) * r1), share * more


@inlined
def reach_two(
    chain: tuple[int, float, float],
    steps: Array,
    count: int,
    ahead: bool,
    message: Floats,
    move: Floats,
) -> tuple[int, Floats, Floats]:
    """Move the message of a pass by a step; return (row, message there, transition)."""
    kind, rate, variance = chain
    i = count if ahead else steps.size - 2 - count
    step = rate * (steps[i] if ahead else steps[i + 1])
    if step != move[7]:
        move = transition_two(kind, variance, step)
    if step > 1e-60:
        message = forward_two(message, move) if ahead else backward_two(message, move)
    return i, message, move


@kernel
def swap(buffer: Array, i: int, message: Floats) -> Floats:
    """Store a message and return the one it replaces."""
    previous = buffer[i, 0], buffer[i, 1], buffer[i, 2], buffer[i, 3], buffer[i, 4]
    buffer[i, 0], buffer[i, 1], buffer[i, 2], buffer[i, 3], buffer[i, 4] = message
    return previous


@kernel
def take_in_two(T: float, N: float, message: Floats, ahead: bool) -> Floats:
    """Return the message of a pass times a site of f."""
    a0, a1, a2, a3, a4 = message
    if ahead:
        share = a2 / (1.0 + T * a2)
        gain = (N - T * a0) * share
        return a0 + gain, a1 + a3 * gain, share, a3, a4
    return a0 + N, a1, a2 + T, a3, a4


@kernel
def pair_pass(
    chain: tuple[int, float, float],
    steps: Array,
    observed: tuple[float, Array],
    sites: tuple[Array, Array],
    messages: tuple[Array, Array],
    ahead: bool,
    report: Array,
) -> None:
    """Run one pass with the sites fixed; fill the rows of `report` if it has any.

    `chain` = (kind, rate, variance), `observed` = (noise, scale), `sites` = (tau, nu), `messages` =
    (buffer, edges). `steps` (N + 1) lead to the rows and beyond the last one. A row of the report
    has mean and variance of f in the cavity, and of the forward message there. In a forward pass
    the buffer holds backward messages and receives forward ones; in a backward pass it is the other
    way round.
    """
    noise, scale = observed
    tau, nu = sites
    buffer, edges = messages
    a, move = begin(chain, edges, ahead)
    for count in range(tau.size):
        i, a, move = reach_two(chain, steps, count, ahead, a, move)
        b = swap(buffer, i, a)
        if report.shape[0]:
            forward, backward = (a, b) if ahead else (b, a)
            report[i, 0], report[i, 1] = meet_two(forward, backward)
            report[i, 2], report[i, 3] = forward[0], forward[2]
        T, N = absorbed(tau[i], nu[i], noise, scale[i])
        a = take_in_two(T, N, a, ahead)
    end(edges, ahead, a)


@kernel
def pair_sweep(
    chain: tuple[int, float, float],
    steps: Array,
    rows: SeriesRows,
    sites: tuple[Array, Array],
    messages: tuple[Array, Array],
    ahead: bool,
    rules: SeriesRules,
    tally: Array,
) -> tuple[int, int]:
    """Run `pair_pass` and update every site on the way; return (status, site).

    `rows` = (noise, scale, y, prior, weights); `rules` and `tally` are those of `revise`.
    """
    noise, scale, y, prior, weights = rows
    tau, nu = sites
    buffer, edges = messages
    scratch = np.empty((1, 4))
    a, move = begin(chain, edges, ahead)
    for count in range(tau.size):
        i, a, move = reach_two(chain, steps, count, ahead, a, move)
        b = swap(buffer, i, a)
        cavity = meet_two(a, b) if ahead else meet_two(b, a)
        row = noise, scale[i], y[i], prior[i], weights[i]
        status, site, (T, N) = revise(rules, row, (tau[i], nu[i]), cavity, scratch, tally, i)
        if status != OK:
            return status, i
        tau[i], nu[i] = site
        a = take_in_two(T, N, a, ahead)
    end(edges, ahead, a)
    return OK, 0


@kernel
def pair_slope(
    chain: tuple[int, float, float],
    steps: Array,
    observed: tuple[float, Array],
    sites: tuple[Array, Array],
    messages: tuple[Array, Array],
    limits: tuple[float, bool],
    sums: Array,
) -> None:
    """Run a backward pass over forward messages, and sum the terms of the gradient.

    With l l' - W as in `wide_slope`: sums[0] += dt (l m' + W P), sums[1] += dt W, and sums[2, 0, 0]
    += tr(W Q)/2, or tr(W P)/2 at the first row of a series. `limits` are the step beyond which
    nothing is left, and whether the series begins here.
    """
    kind, rate, variance = chain
    noise, scale = observed
    tau, nu = sites
    buffer, edges = messages
    far, first = limits
    message, move = begin(chain, edges, False)
    for count in range(tau.size):
        i, message, move = reach_two(chain, steps, count, False, message, move)
        T, N = absorbed(tau[i], nu[i], noise, scale[i])
        message = take_in_two(T, N, message, False)
        n0, n1, sigma, E, g = message
        m0, m1, D, c, s = buffer[i, 0], buffer[i, 1], buffer[i, 2], buffer[i, 3], buffer[i, 4]
        det = 1.0 + D * sigma + E * (D * (g + c) * (g + c) + s) + D * s * sigma * E
        # The identity is (I + J P)^-1 J = (J + det(J) adj(P)) / det(I + J P).
        p00, p01, p11 = D, c * D, s + c * c * D
        j00, j01, j11, area = sigma + E * g * g, E * g, E, sigma * E
        r0 = n0 - j00 * m0 - j01 * m1
        r1 = n1 - j01 * m0 - j11 * m1
        l0 = ((1.0 + j01 * p01 + j11 * p11) * r0 - (j00 * p01 + j01 * p11) * r1) / det
        l1 = (-(j01 * p00 + j11 * p01) * r0 + (1.0 + j00 * p00 + j01 * p01) * r1) / det
        w00 = l0 * l0 - (j00 + area * p11) / det
        w01 = l0 * l1 - (j01 - area * p01) / det
        w11 = l1 * l1 - (j11 + area * p00) / det
        if i == 0 and first:
            derivative_weight = 1.0 if kind == MATERN_3 else 0.0
            sums[2, 0, 0] += 0.5 * variance * (w00 + derivative_weight * w11)
        x = rate * steps[i]
        if x != move[7]:
            move = transition_two(kind, variance, x)
        q00, cq, sq = move[4], move[5], move[6]
        q01 = cq * q00
        sums[2, 0, 0] += 0.5 * (w00 * q00 + 2.0 * w01 * q01 + w11 * (sq + cq * q01))
        if x < far:
            dt = steps[i]
            sums[0, 0, 0] += dt * (l0 * m0 + w00 * p00 + w01 * p01)
            sums[0, 0, 1] += dt * (l0 * m1 + w00 * p01 + w01 * p11)
            sums[0, 1, 0] += dt * (l1 * m0 + w01 * p00 + w11 * p01)
            sums[0, 1, 1] += dt * (l1 * m1 + w01 * p01 + w11 * p11)
            sums[1, 0, 0] += dt * w00
            sums[1, 0, 1] += dt * w01
            sums[1, 1, 0] += dt * w01
            sums[1, 1, 1] += dt * w11
