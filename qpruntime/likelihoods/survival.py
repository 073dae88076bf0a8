"""Times in a span: log P(low < log T < high), its slopes, and its tilted density integrated.

z = (log t - f)/scale. The tilted density is log-concave. It is integrated outwards from its peak by
panels whose length follows its slope and curvature, and the scale where an end of the span is near.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from qpruntime.jit import kernel
from qpruntime.likelihoods.softplus import softplus
from qpruntime.quadrature.panel import NODES, WEIGHTS, N
from qpruntime.quadrature.quantiles import Piece, normal_scores

__all__ = ["LOGISTIC", "WEIBULL", "Span", "log_span", "span_moments"]

WEIBULL, LOGISTIC = 0, 1
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
#: What is left out is below exp(-_DROP) of the peak.
_DROP = 42.0
#: A panel is at most so many cavity widths long, scales where an end is within _NEAR of them, falls
#: of the log density by its slope, and widths by its curvature.
_WIDE, _FINE, _NEAR, _FALL, _BENT = 2.4, 2.0, 45.0, 6.0, 2.4
_STEPS, _PANELS = 200, 600


class Span(NamedTuple):
    """What is known of a time: log T lies between `low` and `high`, to the power."""

    family: int
    low: float
    high: float
    scale: float
    power: float


@kernel
def hazards(a, b):
    """A = e^a and D = e^b - A; neither overflows, and D is right where both are next to nothing."""
    start = math.exp(min(a, 700.0)) if a > -math.inf else 0.0
    # Beyond that e^a adds nothing to e^b.
    gap = start * math.expm1(b - a) if b - a < 40.0 else math.exp(min(b, 700.0))
    return start, gap


@kernel
def log_span(family, a, b):
    """Log of P(a < e < b), for a < b either of which may be infinite."""
    if family == WEIBULL:
        start, gap = hazards(a, b)
        if b == math.inf:
            return -start
        if gap < 1e-300:
            return b  # the gap itself is too small for a double
        return math.log(-math.expm1(-gap)) - start
    found = 0.0
    if b < math.inf:
        found -= softplus(-b)
    if a > -math.inf:
        found -= softplus(a)
        if b < math.inf:
            found += math.log(-math.expm1(a - b))
    return found


@kernel
def logistic_of(x):
    """1/(1 + e^-x), whichever sign x has."""
    t = math.exp(-abs(x))
    return 1.0 / (1.0 + t) if x >= 0.0 else t / (1.0 + t)


@kernel
def span_slopes(span, f):
    """d/df of log P, to the power, and its -d^2/df^2.

    Weibull: A = e^a, D = e^b - A, log P = -A + log(1 - e^-D), of which the slopes are by da/df =
    db/df = -1/scale.
    """
    a, b = (span.low - f) / span.scale, (span.high - f) / span.scale
    rate, curvature = 0.0, 0.0
    if span.family == WEIBULL:
        start, gap = hazards(a, b)
        rate, curvature = start, start
        if gap < 1e-5:
            # D/(e^D - 1) and -D times its slope, by their series.
            rate -= 1.0 - 0.5 * gap
            curvature += 0.5 * gap * (1.0 - gap / 3.0)
        elif gap < 700.0:
            grown = math.expm1(gap)
            share = gap / grown
            rate -= share
            curvature += share * (share * (grown + 1.0) - 1.0)
    else:
        if a > -math.inf:
            p = logistic_of(a)
            rate += p
            curvature += p * logistic_of(-a)
        if b < math.inf:
            p = logistic_of(-b)
            rate -= p
            curvature += p * logistic_of(b)
    unit = span.power / span.scale
    return unit * rate, unit * curvature / span.scale


@kernel
def span_peak(span, mu, sigma):
    """Where the tilted density is highest: Newton's method between bounds that steps may halve."""
    inverse = 1.0 / (sigma * sigma)
    # The slope is the power over the scale at most, where it falls towards smaller times.
    left, right = mu - sigma * sigma * span.power / span.scale, mu
    if span.low > -math.inf:
        left, right = min(mu, left), math.inf
        if span.high == math.inf:
            left = mu
    f = max(left, min(mu, span.low)) if span.low > -math.inf else max(left, min(mu, span.high))
    if span.low > -math.inf and mu < span.low:
        f, right = span.low, math.inf
    before = math.inf
    for _ in range(_STEPS):
        rate, curvature = span_slopes(span, f)
        slope = rate - (f - mu) * inverse
        if slope > 0.0:
            left = f
        else:
            right = f
        step = slope / (curvature + inverse)
        if step * step * (curvature + inverse) < 1e-8 or not left < right:
            break
        bad = not left < f + step < right or abs(step) > 0.5 * before
        if bad and left > -math.inf and right < math.inf:
            step = 0.5 * (left + right) - f
        before = abs(step)
        if f + step == f:
            break
        f += step
    return f


@kernel
def panel_length(span, mu, sigma, f, direction):
    """Length of the panel that begins at f and goes outwards."""
    rate, curvature = span_slopes(span, f)
    slope = abs(rate - (f - mu) / sigma / sigma)
    curvature += 1.0 / (sigma * sigma)
    length = min(_WIDE * sigma, _BENT / math.sqrt(curvature))
    if slope * length > _FALL:
        length = _FALL / slope
    near = _NEAR * span.scale
    for edge in (span.low, span.high):
        gap = direction * (edge - f)
        if abs(gap) <= near:
            length = min(length, _FINE * span.scale)
        elif near < gap < math.inf:
            length = min(length, gap - near)
    return max(length, 4e-16 * abs(f))


@kernel
def span_moments(span, mu, sigma, with_star):
    """Log normaliser, mean, variance and sigma* of the tilted density, sigma* if asked for."""
    peak = span_peak(span, mu, sigma)
    pull = (peak - mu) / sigma / sigma
    half = 0.5 / (sigma * sigma)
    a, b = (span.low - peak) / span.scale, (span.high - peak) / span.scale
    top = log_span(span.family, a, b)
    starts, halves = np.empty(2 * _PANELS), np.empty(2 * _PANELS)
    density = np.empty((2 * _PANELS, N))
    # Panels left of the peak stand before _PANELS, from the peak outwards.
    first, last = _PANELS, _PANELS
    for direction in (1.0, -1.0):
        d = 0.0
        for _ in range(_PANELS):
            length = panel_length(span, mu, sigma, peak + d, direction)
            row = last
            if direction > 0.0:
                last += 1
            else:
                first -= 1
                row = first
            begin = d if direction > 0.0 else d - length
            starts[row], halves[row] = begin + 0.5 * length, 0.5 * length
            highest = -math.inf
            for j in range(N):
                x = starts[row] + 0.5 * length * NODES[j]
                f = peak + x
                e = log_span(span.family, (span.low - f) / span.scale, (span.high - f) / span.scale)
                e = span.power * (e - top) - x * (pull + half * x)
                highest = max(highest, e)
                density[row, j] = math.exp(e)
            d += direction * length
            if highest < -_DROP:
                break
    masses = np.zeros(2 * _PANELS)
    total, shift, second = 0.0, 0.0, 0.0
    for row in range(first, last):
        for j in range(N):
            m = halves[row] * WEIGHTS[j] * density[row, j]
            x = starts[row] + halves[row] * NODES[j]
            masses[row] += m
            shift += m * x
            second += m * x * x
        total += masses[row]
    shift /= total
    log_z = span.power * top - half * (peak - mu) ** 2 + math.log(total / sigma) - _HALF_LOG_2PI
    variance = second / total - shift * shift
    star = 0.0
    if with_star:
        scores, hat = np.empty(N), np.empty(N)
        lower = 0.0
        for row in range(first, last):
            upper = 0.0
            for k in range(last - 1, row, -1):
                upper += masses[k]
            piece = Piece(halves[row], lower, upper, masses[row], total)
            normal_scores(density[row], piece, scores, hat)
            for j in range(N):
                star += halves[row] * WEIGHTS[j] * hat[j]
            lower += masses[row]
    return log_z, peak + shift, variance, star
