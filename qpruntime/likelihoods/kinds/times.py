"""Times that are known to lie in a span, T = exp(f + scale e): accelerated failure, any censoring.

z = (log t - f)/scale. Kernels of the two families whose spans have no closed moments, by number:
the smallest extreme value, which makes T Weibull, and the logistic. An event and a time censored on
the right have the form of `qpruntime.likelihoods.bend`; other spans are integrated by
`qpruntime.likelihoods.kinds.spans`.
"""

from __future__ import annotations

import math

from qpruntime.jit import kernel
from qpruntime.likelihoods.bend import bent, bent_frame, bent_moments
from qpruntime.likelihoods.kinds.spans import WEIBULL, Span, log_span, span_moments

__all__ = ["edge_of", "ends_of", "frame_of", "moments_of", "rule_of", "time_split"]

#: Numbers of `theta` before its rows: the scale and its logarithm.
_BEFORE = 2


@kernel
def ends_of(y, theta):
    """Logarithms of the first and the last time of row y, which is one of those there are."""
    row = _BEFORE + 2 * max(0, min(int(y), (theta.size - _BEFORE) // 2 - 1))
    first, last = theta[row], theta[row + 1]
    low = math.log(first) if first > 0.0 else -math.inf
    return low, math.log(last) if last < math.inf else math.inf


@kernel
def edge_of(y, theta, k):
    """Landmarks: the ends of the span that there are."""
    low, high = ends_of(y, theta)
    edge = math.nan
    if k == 0:
        edge = low if low > -math.inf else high
    elif k == 1 and low > -math.inf and low < high < math.inf:
        edge = high
    return edge


@kernel
def shape_of(family, low, high, theta):
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
def time_split(family, f, y, theta):
    """Log density of an event, or log probability of a span."""
    low, high = ends_of(y, theta)
    known, shape = shape_of(family, low, high, theta)
    if known:
        return bent(f / theta[0], shape)
    return log_span(family, (low - f) / theta[0], (high - f) / theta[0])


@kernel
def moments_of(family, mu, sigma, y, theta, power):
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
def frame_of(family, mu, sigma, y, theta, power):
    """`Likelihood.frame`, to a power; width NaN for spans, which have a rule of their own."""
    low, high = ends_of(y, theta)
    scale = theta[0]
    known, shape = shape_of(family, low, high, theta)
    if not known:
        return mu, math.nan, 1.0, 0.0
    centre, width, refine, side = bent_frame(mu / scale, sigma / scale, shape, power)
    return scale * centre, scale * width, refine, side


@kernel
def rule_of(family, mu, sigma, y, theta, power):
    """`Likelihood.rule` of spans: (status, log Z, mean, variance, sigma*)."""
    low, high = ends_of(y, theta)
    span = Span(family, low, high, theta[0], power)
    log_z, mean, variance, star = span_moments(span, mu, sigma, True)
    return 0.0, log_z, mean, variance, star
