"""One cavity under a likelihood raised to a power: moments of its own, sums, or the whole rule."""

from __future__ import annotations

import math

from qpruntime.jit import (
    call_raised_frame,
    call_raised_moments,
    kernel,
)
from qpruntime.quadrature.sigma_star import CUT, place, powered_point
from qpruntime.quadrature.tilted import DECAY, NO_MASS, OK, Anchor, powered, relative_log

__all__ = ["raised_point"]

#: Step in v for moments alone, and nodes on one side at most.
_SUM_STEP, _SUM_LIMIT = 0.11, 2000
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


@kernel
def sum_moments(raised, window, mu, sigma, out):
    """Log Z, mean and variance over the nodes of a frame around one peak; return a status."""
    centre, width, refine = window
    rest, curvature = powered(raised, centre)
    pull = (centre - mu) / sigma / sigma
    anchor = Anchor(centre, rest, curvature, 1.0 / (sigma * sigma), pull)
    h = _SUM_STEP * refine
    best, mass, first, second = -math.inf, 0.0, 0.0, 0.0
    for direction in (1.0, -1.0):
        v = 0.0 if direction > 0.0 else -h
        found = False
        for _ in range(_SUM_LIMIT):
            d, jacobian = place(0.0, width, v)
            e, tilt = relative_log(raised, anchor, d)
            e += math.log(jacobian) - d * (tilt + pull)
            if e > best + 30.0:
                # Raise what the sums are relative to.
                scale = math.exp(best - e)
                mass, first, second = scale * mass, scale * first, scale * second
                best = e
            elif e < best - CUT:
                found = True
                break
            k = math.exp(e - best)
            mass += k
            first += k * d
            second += k * d * d
            v += direction * h
        if not found:
            return DECAY
    if not (mass > 0.0 and math.isfinite(mass)):
        return NO_MASS
    first /= mass
    log_centre = rest - 0.5 * curvature * centre * centre - 0.5 * ((centre - mu) / sigma) ** 2
    out[0, 0] = log_centre + best + math.log(mass * h / sigma) - _HALF_LOG_2PI
    out[0, 1] = centre + first
    out[0, 2] = second / mass - first * first
    return OK


@kernel
def raised_point(raised, frame, ep, mu, sigma, out):
    """`powered_run` for one cavity and a power other than 1, with `ep` of moments alone.

    Moments come from the likelihood's own for powers if it has them, a microsecond.
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
