"""Survival times: log-normal, Weibull and log-logistic, with right, left and interval censoring."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from qpruntime._numba import kernel
from qpruntime._pointers import LANDMARK, MOMENTS, RULE, SPLIT, LatePointer, Pointer
from qpruntime._special import HALF_LOG_2PI
from qpruntime._typing import Array, Floats
from qpruntime.likelihoods._series_kernels import (
    bent,
    bent_frame,
    bent_moments,
    logistic,
    softplus,
)
from qpruntime.likelihoods._unimodal_kernels import one_peak_frame, one_peak_moments
from qpruntime.likelihoods.base import Likelihood, Powers
from qpruntime.likelihoods.distributions import SciPyResponse
from qpruntime.likelihoods.gaussian import tilted
from qpruntime.likelihoods.ordinal import ends_top, log_between, noisy_between
from qpruntime.likelihoods.responses import spans
from qpruntime.quadrature.adaptive_kernels import Piece, adaptive_rule, normal_scores
from qpruntime.quadrature.panel_kernels import NODES, WEIGHTS, N

__all__ = [
    "LOGISTIC",
    "WEIBULL",
    "Span",
    "edge_of",
    "ends_of",
    "frame_of",
    "log_logistic_likelihood",
    "log_normal_likelihood",
    "log_span",
    "moments_of",
    "rule_of",
    "span_moments",
    "time_likelihood",
    "time_split",
    "weibull_likelihood",
]

# --- Likelihoods of times


def time_likelihood(name: str, family: int, distribution: str) -> Likelihood:
    """Return the likelihood of log T = f + scale e, e of a family.

    Parameters
    ----------
    name : str
    family : int
        `WEIBULL` or `LOGISTIC`.
    distribution : str
        SciPy's name of the distribution of T, with shape 1/scale and scale e^f.
    """

    def split(f: float, y: float, theta: Array) -> tuple[float, float]:
        return time_split(family, f, y, theta), 0.0

    @kernel
    def moments(
        mu: float, sigma: float, y: float, theta: Array, power: float
    ) -> tuple[float, float, float]:
        return moments_of(family, mu, sigma, y, theta, power)

    @kernel
    def frame(mu: float, sigma: float, y: float, theta: Array, power: float) -> Floats:
        return frame_of(family, mu, sigma, y, theta, power)

    def rule(
        split: int, landmark: int, power: float, mu: float, sigma: float, y: float, theta: Array
    ) -> Floats:
        return rule_of(family, mu, sigma, y, theta, power)

    def given(f: Array, theta: Array) -> SciPyResponse:
        scale = np.exp(np.clip(f, -700.0, 700.0))
        return SciPyResponse(distribution, 1.0 / theta[0], scale=scale)

    return Likelihood(
        name=name,
        outcomes="pairs (first, last) of times",
        split=Pointer(split, SPLIT),
        validate=spans,
        columns=2,
        powers=Powers.from_kernels(moments, frame),
        rule=LatePointer(rule, RULE),
        landmarks=Pointer(edge_of, LANDMARK),
        parameters={"scale": 0.5},
        limits={"scale": (1e-4, 1e4)},
        derive=lambda scale: (math.log(scale),),
        given=given,
        scale_family=True,
    )


# --- Accelerated failure times T = exp(f + scale e) in a span
#
# z = (log t - f)/scale. Kernels of the two families whose spans have no closed moments, by number:
# the smallest extreme value, which makes T Weibull, and the logistic. An event and a time censored
# on the right have the form of `qpruntime.likelihoods._series_kernels`; other spans are integrated.

#: Numbers of `theta` before its rows: the scale and its logarithm.
_BEFORE = 2


@kernel
def ends_of(y: float, theta: Array) -> tuple[float, float]:
    """Logarithms of the first and the last time of row y, which is one of those there are."""
    row = _BEFORE + 2 * max(0, min(int(y), (theta.size - _BEFORE) // 2 - 1))
    first, last = theta[row], theta[row + 1]
    low = math.log(first) if first > 0.0 else -math.inf
    return low, math.log(last) if last < math.inf else math.inf


@kernel
def edge_of(y: float, theta: Array, k: int) -> float:
    """Landmarks: the ends of the span that there are."""
    low, high = ends_of(y, theta)
    edge = math.nan
    if k == 0:
        edge = low if low > -math.inf else high
    elif k == 1 and low > -math.inf and low < high < math.inf:
        edge = high
    return edge


@kernel
def shape_of(family: int, low: float, high: float, theta: Array) -> tuple[bool, Floats]:
    """(known, shape) in u = f/scale of what has the form of `bend`; the shape of an event too."""
    scale, log_scale = theta[0], theta[1]
    c = low / scale if low > -math.inf else high / scale
    if low == high:
        if family == WEIBULL:
            return True, (-1.0, 1.0, 0.0, c, -c, -1.0 - log_scale - low)
        peak = -2.0 * math.log(2.0) - log_scale - low
        return True, (-1.0, 1.0, 0.5, math.log(2.0) + c, -c, peak)
    if high == math.inf:
        return True, (-1.0, 0.0, 0.0 if family == WEIBULL else 1.0, c, 0.0, 0.0)
    if family != WEIBULL and low == -math.inf:
        return True, (1.0, 0.0, 1.0, -c, 0.0, 0.0)
    return False, (0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


@kernel
def time_split(family: int, f: float, y: float, theta: Array) -> float:
    """Log density of an event, or log probability of a span."""
    low, high = ends_of(y, theta)
    known, shape = shape_of(family, low, high, theta)
    if known:
        return bent(f / theta[0], shape)
    return log_span(family, (low - f) / theta[0], (high - f) / theta[0])


@kernel
def moments_of(
    family: int, mu: float, sigma: float, y: float, theta: Array, power: float
) -> tuple[float, float, float]:
    """Log normaliser, mean and variance of the tilted density, to a power."""
    low, high = ends_of(y, theta)
    scale = theta[0]
    known, shape = shape_of(family, low, high, theta)
    if known:
        log_z, mean, variance = bent_moments(mu / scale, sigma / scale, shape, power)
        return log_z, scale * mean, scale * scale * variance
    log_z, mean, variance, _ = span_moments(Span(family, low, high, scale, power), mu, sigma, False)
    return log_z, mean, variance


@kernel
def frame_of(family: int, mu: float, sigma: float, y: float, theta: Array, power: float) -> Floats:
    """`Likelihood.frame`, to a power; width NaN for spans, which have a rule of their own."""
    low, high = ends_of(y, theta)
    scale = theta[0]
    known, shape = shape_of(family, low, high, theta)
    if not known:
        return mu, math.nan, 1.0, 0.0
    centre, width, refine, side = bent_frame(mu / scale, sigma / scale, shape, power)
    return scale * centre, scale * width, refine, side


@kernel
def rule_of(family: int, mu: float, sigma: float, y: float, theta: Array, power: float) -> Floats:
    """`Likelihood.rule` of spans: (status, log Z, mean, variance, sigma*)."""
    low, high = ends_of(y, theta)
    span = Span(family, low, high, theta[0], power)
    log_z, mean, variance, star = span_moments(span, mu, sigma, True)
    return 0.0, log_z, mean, variance, star


# --- Log P(low < log T < high), slopes and tilted densities
#
# z = (log t - f)/scale. The tilted density is log-concave. It is integrated outwards from its peak
# by panels whose length follows its slope and curvature, and the scale where an end of the span is
# near.

WEIBULL, LOGISTIC = 0, 1
#: Parts of the density below exp(-_DROP) of the peak are left out.
_DROP = 42.0
#: A panel is at most so many cavity widths long, scales where an end is within _NEAR of them, falls
#: of the log density by its slope, and widths by its curvature.
_WIDE, _FINE, _NEAR, _FALL, _BENT = 2.4, 2.0, 45.0, 6.0, 2.4
_STEPS, _PANELS = 200, 600


class Span(NamedTuple):
    """Interval of a time: log T lies between `low` and `high`; the density is raised to `power`."""

    family: int
    low: float
    high: float
    scale: float
    power: float


@kernel
def hazards(a: float, b: float) -> tuple[float, float]:
    """Return A = e^a and D = e^b - A, without overflow; D is right where both are tiny."""
    start = math.exp(min(a, 700.0)) if a > -math.inf else 0.0
    # Adding e^a to e^b changes nothing if the gap is larger.
    gap = start * math.expm1(b - a) if b - a < 40.0 else math.exp(min(b, 700.0))
    return start, gap


@kernel
def log_span(family: int, a: float, b: float) -> float:
    """Log of P(a < e < b), for a < b either of which may be infinite."""
    if family == WEIBULL:
        start, gap = hazards(a, b)
        if b == math.inf:
            return -start
        if gap < 1e-300:
            return b  # the gap itself is too small for a double
        return math.log(-math.expm1(-gap)) - start
    log_p = 0.0
    if b < math.inf:
        log_p -= softplus(-b)
    if a > -math.inf:
        log_p -= softplus(a)
        if b < math.inf:
            log_p += math.log(-math.expm1(a - b))
    return log_p


@kernel
def span_slopes(span: Span, f: float) -> tuple[float, float]:
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
            p = logistic(a)
            rate += p
            curvature += p * logistic(-a)
        if b < math.inf:
            p = logistic(-b)
            rate -= p
            curvature += p * logistic(b)
    unit = span.power / span.scale
    return unit * rate, unit * curvature / span.scale


@kernel
def span_peak(span: Span, mu: float, sigma: float) -> float:
    """Return the peak of the tilted density by Newton's method, within bounds."""
    inverse = 1.0 / (sigma * sigma)
    # The slope is the power over the scale at most, where it falls towards smaller times.
    lower, upper = mu - sigma * sigma * span.power / span.scale, mu
    if span.low > -math.inf:
        lower, upper = min(mu, lower), math.inf
        if span.high == math.inf:
            lower = mu
    f = max(lower, min(mu, span.low)) if span.low > -math.inf else max(lower, min(mu, span.high))
    if span.low > -math.inf and mu < span.low:
        f, upper = span.low, math.inf
    before = math.inf
    for _ in range(_STEPS):
        rate, curvature = span_slopes(span, f)
        slope = rate - (f - mu) * inverse
        if slope > 0.0:
            lower = f
        else:
            upper = f
        step = slope / (curvature + inverse)
        if step * step * (curvature + inverse) < 1e-8 or not lower < upper:
            break
        bad = not lower < f + step < upper or abs(step) > 0.5 * before
        if bad and lower > -math.inf and upper < math.inf:
            step = 0.5 * (lower + upper) - f
        before = abs(step)
        if f + step == f:
            break
        f += step
    return f


@kernel
def panel_length(span: Span, mu: float, sigma: float, f: float, direction: float) -> float:
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
def span_moments(span: Span, mu: float, sigma: float, with_star: bool) -> Floats:
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
    log_z = span.power * top - half * (peak - mu) ** 2 + math.log(total / sigma) - HALF_LOG_2PI
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


# --- Log-normal times: e is standard normal
#
# An observation is a row of the first and the last time that T can be: `spans`.


def _constants(scale: float) -> Floats:
    return (-math.log(scale) - HALF_LOG_2PI,)


def _split(f: float, y: float, theta: Array) -> tuple[float, float]:
    low, high = ends_of(y, theta)
    z = (low - f) / theta[0]
    if low == high:
        return theta[1] - low - 0.5 * z * z, 0.0
    return log_between(z, (high - f) / theta[0]), 0.0


@kernel
def _frame(mu: float, sigma: float, y: float, theta: Array, power: float) -> Floats:
    low, high = ends_of(y, theta)
    if low == high:
        _, mean, variance = tilted(mu, sigma, low, theta[0] / math.sqrt(power))
        return mean, math.sqrt(variance), 0.0, 0.0
    top = ends_top(low, high)
    return one_peak_frame(log_within, mu, sigma, y, theta, power, top, theta[0])


def _moments(mu: float, sigma: float, y: float, theta: Array) -> tuple[float, float, float]:
    low, high = ends_of(y, theta)
    if low == high:
        log_z, mean, variance = tilted(mu, sigma, low, theta[0])
        return log_z + theta[1] - low, mean, variance
    return noisy_between(mu, sigma, low, high, theta[0])


@kernel
def log_within(f: float, y: float, theta: Array) -> float:
    """Log probability of a span."""
    low, high = ends_of(y, theta)
    return log_between((low - f) / theta[0], (high - f) / theta[0])


@kernel
def _raised_moments(
    mu: float, sigma: float, y: float, theta: Array, power: float
) -> tuple[float, float, float]:
    low, high = ends_of(y, theta)
    if low == high:
        log_z, mean, variance = tilted(mu, sigma, low, theta[0] / math.sqrt(power))
        return log_z + power * (theta[1] - low), mean, variance
    top = ends_top(low, high)
    return one_peak_moments(log_within, mu, sigma, y, theta, power, top, 0.0, theta[0])


def _given(f: Array, theta: Array) -> SciPyResponse:
    return SciPyResponse("lognorm", theta[0], scale=np.exp(np.clip(f, -700.0, 700.0)))


log_normal_likelihood = Likelihood(
    name="log-normal",
    outcomes="pairs (first, last) of times",
    split=Pointer(_split, SPLIT),
    validate=spans,
    columns=2,
    moments=Pointer(_moments, MOMENTS),
    powers=Powers.from_kernels(_raised_moments, _frame, whole=False),
    rule=adaptive_rule,
    landmarks=Pointer(edge_of, LANDMARK),
    parameters={"scale": 0.5},
    limits={"scale": (1e-4, 1e4)},
    derive=_constants,
    given=_given,
    scale_family=True,
)


# --- Weibull times: e^e is exponential; log-logistic times: e is logistic

weibull_likelihood = time_likelihood("weibull", WEIBULL, "weibull_min")
log_logistic_likelihood = time_likelihood("log-logistic", LOGISTIC, "fisk")
