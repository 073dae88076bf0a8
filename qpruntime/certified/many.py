"""Loops over cavities; what they fill in has both derivatives."""

from __future__ import annotations

import math

from qpruntime.certified.expectation import integrate_expected
from qpruntime.certified.tilted_sums import derive
from qpruntime.jit import call_moments, kernel
from qpruntime.quadrature.adaptive import look_around, marks_from
from qpruntime.quadrature.functions import Frame
from qpruntime.quadrature.tilted import OK, Raised

__all__ = ["closed_many", "derive_many", "expected_many"]


@kernel
def derive_site(functions, slope, has_slope, moves, power, mu, sigma, y, out):
    """`derive` of one cavity, measured from y where log p depends on f - y alone."""
    theta, _, _, split, _, frame = functions
    frame = Frame(frame[0], frame[1], frame[2], frame[3], frame[4])
    if moves:
        marks = marks_from(frame.landmark, y, theta)
        raised = Raised(split, power, 0.0, theta)
        return derive(raised, slope, has_slope, mu - y, sigma, y, marks, out)
    marks = look_around(frame.landmark, y, theta)
    raised = Raised(split, power, y, theta)
    return derive(raised, slope, has_slope, mu, sigma, 0.0, marks, out)


@kernel
def derive_many(functions, slope, has_slope, moves, powers, cavities, y, found):
    """Fill rows of `BANDS` numbers; return (status, index of the first that failed)."""
    mu, sigma = cavities
    for i in range(mu.size):
        status = derive_site(
            functions, slope, has_slope, moves, powers[i], mu[i], sigma[i], y[i], found[i]
        )
        if status != OK:
            return status, i
    return OK, 0


@kernel
def closed_many(closed, theta, cavities, y, found):
    """Fill rows (log Z, d/d mu, d/d sigma) in closed form."""
    mu, sigma = cavities
    for i in range(mu.size):
        found[i, 0], found[i, 1], found[i, 2] = call_moments(closed, mu[i], sigma[i], y[i], theta)


@kernel
def expected_many(split, landmark, theta, expected, has_expected, cavities, y, found):
    """Fill rows (E log p, d/d mean, d/d standard deviation) under normal distributions."""
    mean, std = cavities
    for i in range(mean.size):
        if not has_expected:
            status = integrate_expected(split, landmark, mean[i], std[i], y[i], theta, found[i])
            if status != OK:
                return status, i
            continue
        value, slope, curvature = call_moments(expected, mean[i], std[i], y[i], theta)
        found[i, 0], found[i, 1], found[i, 2] = value, slope, -std[i] * curvature
        if value == -math.inf or math.isnan(value):
            # A density that is 0 somewhere: steps of height 0.
            found[i, 0], found[i, 1], found[i, 2] = -math.inf, math.nan, math.nan
    return OK, 0
