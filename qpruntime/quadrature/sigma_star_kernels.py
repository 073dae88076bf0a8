"""Moments of tilted densities and the QP standard deviation sigma*. Kernels only."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from qpruntime._numba import kernel
from qpruntime._pointers import (
    EXACT,
    POWERED,
    LatePointer,
    call_frame,
    call_raised_frame,
    call_raised_moments,
    call_rule,
    call_split,
)
from qpruntime._special import HALF_LOG_2PI, ndtri_density
from qpruntime._typing import Array

__all__ = [
    "DECAY",
    "EXACT_POINT",
    "EXHAUSTED",
    "NOT_A_NUMBER",
    "NO_MASS",
    "OK",
    "RAISED_POINT",
    "RULED_POINT",
    "Anchor",
    "Frame",
    "Functions",
    "Raised",
    "anchored",
    "exact_run",
    "level",
    "place",
    "powered",
    "powered_point",
    "raised_point",
    "relative_log",
    "rounding",
]

# --- Tilted density relative to an anchor
#
# Far from the mode the log density is a difference of large numbers; relative to an anchor near the
# mode it is not. `qpruntime.quadrature.support_kernels` locates the mass.

OK, DECAY, NO_MASS, NOT_A_NUMBER, EXHAUSTED = 0, 1, 2, 3, 4

#: Distance from 1 to the next double.
EPS = 2.0**-52


class Raised(NamedTuple):
    """Likelihood of one observation, raised to a power; `split` is its handle."""

    split: int
    power: float
    y: float
    theta: Array


class Anchor(NamedTuple):
    """Point from which a tilted density is measured.

    `f` is the point itself, `rest` and `curvature` are the split of log p there, `inverse` is
    1/sigma^2 and `pull` is (f - mu)/sigma^2.
    """

    f: float
    rest: float
    curvature: float
    inverse: float
    pull: float


@kernel
def powered(raised: Raised, f: float) -> tuple[float, float]:
    """Return the `split` of the likelihood raised to a power."""
    log_rest, curvature = call_split(raised.split, f, raised.y, raised.theta)
    return raised.power * log_rest, raised.power * curvature


@kernel
def anchored(raised: Raised, mu: float, sigma: float, f: float) -> Anchor:
    """Return the `Anchor` at f, with level 0 if there is no mass."""
    log_rest, curvature = powered(raised, f)
    if not abs(log_rest) < math.inf:
        log_rest = 0.0
    return Anchor(f, log_rest, curvature, 1.0 / (sigma * sigma), (f - mu) / sigma / sigma)


@kernel
def relative_log(raised: Raised, anchor: Anchor, d: float) -> tuple[float, float]:
    """Return log of the tilted density at anchor + d over that at the anchor, without the mu term.

    The full value is this minus d (anchor - mu)/sigma^2. If both points have the same Gaussian
    factor, only its difference over d is formed, not the factor itself.
    """
    f = anchor.f + d
    log_rest, curvature = powered(raised, f)
    if curvature != anchor.curvature:
        gauss = curvature * f * f - anchor.curvature * anchor.f * anchor.f
        return log_rest - anchor.rest - 0.5 * (d * d * anchor.inverse + gauss), 0.0
    return log_rest - anchor.rest - 0.5 * d * d * (curvature + anchor.inverse), curvature * anchor.f


@kernel
def level(raised: Raised, anchor: Anchor, d: float) -> float:
    """Return log of the tilted density at a distance d over that at the anchor."""
    e, tilt = relative_log(raised, anchor, d)
    return e - d * (tilt + anchor.pull)


@kernel
def rounding(anchor: Anchor, e: float, d: float) -> float:
    """Return an estimate of the rounding error of `level`."""
    size = abs(d) * (abs(anchor.pull) + abs(anchor.curvature * anchor.f))
    size += d * d * (anchor.curvature + anchor.inverse)
    return EPS * (4.0 + abs(anchor.rest) + abs(e) + 2.0 * size)


# --- Exact QP projection
#
# The integral is sigma* = int phi(Phi^-1(F(f))) df (paper, Eqs. 5 and 8), where F is the CDF of the
# tilted density. The integrand is analytic and decays like a Gaussian at both ends, so the
# trapezoid rule in a good variable v converges geometrically. `place` has a variable for densities
# with one peak, with a hard edge, and with two peaks. F is accumulated over the same panels by
# 5-point Gauss-Legendre, the lower tail from the left and the upper one from the right; 1 - F is
# never formed.

#: Trapezoid step in v. Halving it changes no result by more than 2e-14
#: (test_sigma_star_kernels.py).
STEP = 0.12
#: Mass below exp(-CUT) of the peak is left out.
CUT = 42.0
_MARCH = 0.25
_MARCH_LIMIT = 800
_NODES, _WEIGHTS = (tuple(a.tolist()) for a in np.polynomial.legendre.leggauss(5))


@kernel
def place(side: float, width: float, v: float) -> tuple[float, float]:
    """Return (f - anchor, df/dv) of the quadrature variable v.

    For one peak, side 0: f = centre + width sinh(v). For a hard edge at ``centre``, side +1 or -1:
    f = centre + side width log(1 + e^u), u = v - e^-v, doubly exponential towards the edge and even
    far from it. The anchor is centre + side width.

    For two peaks, v = 0 and the anchor lie between them at ``centre``. side >= 2: f = centre +
    width (v + side tanh(2 v)), even steps except for a leap over 2 side width. side <= -2: f =
    centre + width asinh(e^(2 + side) sinh(v)), even steps that are dense at ``centre``.
    """
    if side >= 2.0:
        leap = math.tanh(2.0 * v)
        return width * (v + side * leap), width * (1.0 + 2.0 * side * (1.0 - leap * leap))
    up = math.exp(v)
    down = 1.0 / up
    if side == 0.0:
        return 0.5 * width * (up - down), 0.5 * width * (up + down)
    if side <= -2.0:
        scale = 0.5 * math.exp(2.0 + side)
        x = scale * (up - down)
        return width * math.asinh(x), width * scale * (up + down) / math.sqrt(1.0 + x * x)
    part = up * math.exp(-down)
    return side * width * (math.log1p(part) - 1.0), width * part / (1.0 + part) * (1.0 + down)


@kernel
def extent(raised: Raised, anchor: Anchor, width: float, side: float) -> tuple[int, float, float]:
    """March outwards in v until the tilted mass has decayed; return (status, v_low, v_high)."""
    best = -math.inf
    low, high = 0.0, 0.0
    for direction in (1.0, -1.0):
        if abs(side) >= 2.0:
            # Here v = 0 lies between two peaks, of which the lower one must not be cut off.
            best = -math.inf
        v = 0.0
        decayed = False
        for _ in range(_MARCH_LIMIT):
            d, jacobian = place(side, width, direction * v)
            e, tilt = relative_log(raised, anchor, d)
            e += math.log(jacobian) - d * (tilt + anchor.pull)
            if math.isnan(e):
                return NO_MASS, 0.0, 0.0
            best = max(best, e)
            if e < best - CUT:
                decayed = True
                break
            v += _MARCH
        if not decayed:
            return DECAY, 0.0, 0.0
        if direction > 0.0:
            high = v
        else:
            low = -v
    return OK, low, high


class Nodes(NamedTuple):
    """Quadrature nodes of a run: panels of width `h`, and values at their nodes and ends.

    d : distances from the anchor; `weight` is their weight, `base` and `tilt` as `relative_log`
    has them, and `exponent` room for the log density of a cavity.
    jacobian : df/dv at the left end of every panel; `mass` and `lower` are room for its mass and
    that below it.
    """

    h: float
    d: Array
    weight: Array
    base: Array
    tilt: Array
    exponent: Array
    jacobian: Array
    mass: Array
    lower: Array


@kernel
def project_nodes(pull: float, nodes: Nodes, out: Array) -> int:
    """Integrate one cavity on given nodes: out = (log mass, mean shift, variance, sigma*)."""
    d, weight, base, tilt = nodes.d, nodes.weight, nodes.base, nodes.tilt
    jacobian, exponent, mass, lower = nodes.jacobian, nodes.exponent, nodes.mass, nodes.lower
    panels = jacobian.size
    best = -math.inf
    for j in range(d.size):
        e = base[j] - d[j] * (tilt[j] + pull)
        exponent[j] = e
        best = max(best, e)
    total, first, second = 0.0, 0.0, 0.0
    for p in range(panels):
        lower[p] = total
        part = 0.0
        for j in range(5 * p, 5 * p + 5):
            m = math.exp(exponent[j] - best) * weight[j]
            part += m
            first += m * d[j]
            second += m * d[j] * d[j]
        mass[p] = part
        total += part
    if not (total > 0.0 and math.isfinite(total)):
        return NO_MASS
    upper, star = 0.0, 0.0
    for p in range(panels - 1, 0, -1):
        upper += mass[p]
        tail = min(upper, lower[p]) / total
        if tail > 0.0:
            star += ndtri_density(tail)[0] * jacobian[p]
    shift = first / total
    out[0] = best + math.log(total)
    out[1] = shift
    out[2] = second / total - shift * shift
    out[3] = star * nodes.h
    return OK


@kernel
def normal_run(
    raised: Raised, centre: float, width: float, mu: Array, sigma: float, out: Array
) -> int:
    """Run `powered_run` where every tilted density is normal: a cavity times an exponential.

    `centre` and `width` belong to the middle of the run.
    """
    pace = (width / sigma) ** 2
    for i in range(mu.size):
        f = centre + (mu[i] - mu[mu.size // 2]) * pace
        log_rest, curvature = powered(raised, f)
        out[i, 0] = log_rest - 0.5 * curvature * f * f - 0.5 * ((f - mu[i]) / sigma) ** 2
        out[i, 0] += math.log(width / sigma)
        out[i, 1], out[i, 2], out[i, 3] = f, width * width, width
    return OK


@kernel
def powered_run(
    raised: Raised, frame: Frame, has_frame: bool, mu: Array, sigma: float, out: Array
) -> int:
    """Project a run of cavities N(mu[i], sigma^2) that are close enough to share their nodes.

    Fills out[i] = (log Z, mean, variance, sigma*) and returns a status. `mu` ascends and should
    span no more than 0.3 sigma, so that the frame of its middle serves both ends. Sharing saves
    evaluations of the likelihood: 3 to 9 us a point in a run of 25 against 9 to 47 us alone.
    Cavities without a frame, or without one for a power other than 1, use the adaptive rule of
    `frame`, which takes 0.1 ms a point.
    """
    n = mu.size
    split, power, y, theta = raised
    centre, width, refine, side = 0.0, math.nan, 1.0, 0.0
    if power == 1.0:
        if has_frame:
            centre, width, refine, side = call_frame(frame.frame, mu[n // 2], sigma, y, theta)
            has_frame = frame.rule == 0 or not math.isnan(width)
    elif frame.raised_frame != 0:
        centre, width, refine, side = call_raised_frame(
            frame.raised_frame, mu[n // 2], sigma, y, theta, power
        )
        has_frame = not math.isnan(width)
    else:
        has_frame = False
    if not has_frame:
        for i in range(n):
            status, log_z, mean, variance, star = call_rule(
                frame.rule, split, frame.landmark, power, mu[i], sigma, y, theta
            )
            if status != OK:
                return int(status)
            out[i, 0], out[i, 1], out[i, 2], out[i, 3] = log_z, mean, variance, star
        return OK
    if not (width > 0.0 and math.isfinite(centre)):
        return NO_MASS
    if refine == 0.0:
        return normal_run(raised, centre, width, mu, sigma, out)
    f = centre + side * width if abs(side) <= 1.0 else centre
    inverse = 1.0 / (sigma * sigma)
    log_rest, curvature = powered(raised, f)
    if log_rest == -math.inf:
        log_rest = 0.0
    anchor = Anchor(f, log_rest, curvature, inverse, 0.0)
    low, high = 0.0, 0.0
    # Only both ends of a run matter; a single cavity is one end.
    for i in range(0, n, max(n - 1, 1)):
        pull = (f - mu[i]) * inverse
        status, a, b = extent(raised, Anchor(f, log_rest, curvature, inverse, pull), width, side)
        if status != OK:
            return status
        low, high = min(low, a), max(high, b)
    panels = math.ceil((high - low) / (STEP * refine))
    h = (high - low) / panels
    # Two arrays provide all rows, because eight arrays would take 3 % of the time.
    rows, ends = np.empty((5, 5 * panels)), np.empty((3, panels))
    nodes = Nodes(h, rows[0], rows[1], rows[2], rows[3], rows[4], ends[0], ends[1], ends[2])
    d, weight, base, tilt, jacobian = nodes.d, nodes.weight, nodes.base, nodes.tilt, nodes.jacobian
    for p in range(panels):
        jacobian[p] = place(side, width, low + h * p)[1]
        for k in range(5):
            j = 5 * p + k
            d[j], dx = place(side, width, low + h * (p + 0.5 + 0.5 * _NODES[k]))
            weight[j] = dx * _WEIGHTS[k] * 0.5 * h
    # These calls have a loop of their own, because calls through an address between other
    # statements cost a quarter more.
    for j in range(5 * panels):
        base[j], tilt[j] = relative_log(raised, anchor, d[j])
    log_anchor = log_rest - 0.5 * curvature * f * f - math.log(sigma) - HALF_LOG_2PI
    for i in range(n):
        status = project_nodes((f - mu[i]) * inverse, nodes, out[i])
        if status != OK:
            return status
        out[i, 0] += log_anchor - 0.5 * ((f - mu[i]) / sigma) ** 2
        out[i, 1] += f
    return OK


@kernel
def exact_run(
    split: int,
    frame: Frame,
    has_frame: bool,
    mu: Array,
    sigma: float,
    y: float,
    theta: Array,
    out: Array,
) -> int:
    """Run `powered_run` for the likelihood with power 1."""
    return powered_run(Raised(split, 1.0, y, theta), frame, has_frame, mu, sigma, out)


@kernel
def powered_point(
    raised: Raised, frame: Frame, has_frame: bool, mu: float, sigma: float, out: Array
) -> int:
    """Run `powered_run` for one cavity; `out` has shape (1, 4)."""
    means = np.empty(1)
    means[0] = mu
    return powered_run(raised, frame, has_frame, means, sigma, out)


# --- Likelihood to a power

#: Step in v for moments alone, and largest number of nodes on one side.
_SUM_STEP, _SUM_LIMIT = 0.11, 2000


@kernel
def sum_moments(
    raised: Raised, window: tuple[float, float, float], mu: float, sigma: float, out: Array
) -> int:
    """Fill log Z, mean and variance over the nodes of a frame around one peak; return a status."""
    centre, width, refine = window
    log_rest, curvature = powered(raised, centre)
    pull = (centre - mu) / sigma / sigma
    anchor = Anchor(centre, log_rest, curvature, 1.0 / (sigma * sigma), pull)
    h = _SUM_STEP * refine
    best, mass, first, second = -math.inf, 0.0, 0.0, 0.0
    for direction in (1.0, -1.0):
        v = 0.0 if direction > 0.0 else -h
        decayed = False
        for _ in range(_SUM_LIMIT):
            d, jacobian = place(0.0, width, v)
            e, tilt = relative_log(raised, anchor, d)
            e += math.log(jacobian) - d * (tilt + pull)
            if e > best + 30.0:
                # This raises the level that the sums are relative to.
                scale = math.exp(best - e)
                mass, first, second = scale * mass, scale * first, scale * second
                best = e
            elif e < best - CUT:
                decayed = True
                break
            k = math.exp(e - best)
            mass += k
            first += k * d
            second += k * d * d
            v += direction * h
        if not decayed:
            return DECAY
    if not (mass > 0.0 and math.isfinite(mass)):
        return NO_MASS
    first /= mass
    log_centre = log_rest - 0.5 * curvature * centre * centre - 0.5 * ((centre - mu) / sigma) ** 2
    out[0, 0] = log_centre + best + math.log(mass * h / sigma) - HALF_LOG_2PI
    out[0, 1] = centre + first
    out[0, 2] = second / mass - first * first
    return OK


@kernel
def raised_point(
    raised: Raised, frame: Frame, ep: bool, mu: float, sigma: float, out: Array
) -> int:
    """Run `powered_run` for one cavity and a power other than 1; with `ep` for moments alone.

    Moments come from the likelihood's own function for powers if it has one, in a microsecond.
    """
    _, power, y, theta = raised
    log_z, mean, variance = math.nan, 0.0, 0.0
    if frame.raised_moments != 0:
        log_z, mean, variance = call_raised_moments(
            frame.raised_moments, mu, sigma, y, theta, power
        )
    known = not math.isnan(log_z)
    if ep and not known and frame.raised_frame != 0:
        centre, width, refine, side = call_raised_frame(
            frame.raised_frame, mu, sigma, y, theta, power
        )
        if side == 0.0 and width > 0.0 and refine > 0.0:
            window = (centre, width, refine)
            return sum_moments(raised, window, mu, sigma, out)
    if not (ep and known):
        status = powered_point(raised, frame, False, mu, sigma, out)
        if status != OK:
            return status
    if known:
        out[0, 0], out[0, 1], out[0, 2] = log_z, mean, variance
    return OK


# --- Functions of a likelihood


class Frame(NamedTuple):
    """Addresses for quadrature, 0 for absent functions.

    `frame` lays the nodes. If it cannot, `rule` integrates around the points of `landmark`.
    `raised_moments` and `raised_frame` are for the likelihood to a power. `exact` and `powered` are
    the late handles of quadrature itself, for powers of 1 and others.
    """

    frame: int
    rule: int
    landmark: int
    raised_moments: int
    raised_frame: int
    exact: int
    powered: int


class Functions(NamedTuple):
    """Parameters of a likelihood and addresses of its functions."""

    theta: Array
    has_moments: bool
    has_frame: bool
    split: int
    moments: int
    frame: Frame


#: `Functions` as a plain tuple, which kernels take from Python.
PlainFunctions = tuple[Array, bool, bool, int, int, tuple[int, int, int, int, int, int, int]]


def _exact(
    split: int,
    frame: tuple[int, ...],
    has_frame: bool,
    mu: float,
    sigma: float,
    y: float,
    theta: Array,
    out: Array,
) -> int:
    means = np.empty(1)
    means[0] = mu
    return powered_run(Raised(split, 1.0, y, theta), Frame(*frame), has_frame, means, sigma, out)


def _ruled(
    split: int,
    frame: tuple[int, ...],
    has_frame: bool,
    mu: float,
    sigma: float,
    y: float,
    theta: Array,
    out: Array,
) -> int:
    addresses = Frame(*frame)
    status, log_z, mean, variance, star = call_rule(
        addresses.rule, split, addresses.landmark, 1.0, mu, sigma, y, theta
    )
    out[0, 0], out[0, 1], out[0, 2], out[0, 3] = log_z, mean, variance, star
    return int(status)


def _powered(
    split: int,
    frame: tuple[int, ...],
    ep: bool,
    power: float,
    mu: float,
    sigma: float,
    y: float,
    theta: Array,
    out: Array,
) -> int:
    return raised_point(Raised(split, power, y, theta), Frame(*frame), ep, mu, sigma, out)


#: `exact_run` for one cavity, the same for a likelihood without a frame, which only calls its
#: rule, and `raised_point`. They compile when a kernel first needs them.
EXACT_POINT = LatePointer(_exact, EXACT)
RULED_POINT = LatePointer(_ruled, EXACT)
RAISED_POINT = LatePointer(_powered, POWERED)
