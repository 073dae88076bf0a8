"""Times that are known to lie in a span, T = exp(f + scale e): accelerated failure, any censoring.

z = (log t - f)/scale. Kernels of the two families whose spans have no closed moments, by number:
the smallest extreme value, which makes T Weibull, and the logistic. An event and a time censored on
the right have the form of `qpruntime.likelihoods.bend`; other spans are integrated here, from the
peak of the tilted density, which is log-concave.
"""

from __future__ import annotations

import math

import numpy as np

from qpruntime.jit import kernel
from qpruntime.likelihoods.bend import bent, bent_frame, bent_moments
from qpruntime.likelihoods.kinds.one_peak import one_peak_frame, one_peak_moments
from qpruntime.likelihoods.softplus import softplus

__all__ = [
    "LOGISTIC",
    "WEIBULL",
    "edge_of",
    "ends_of",
    "log_span",
    "moments_of",
    "raised_frame_of",
    "raised_moments_of",
    "time_split",
]

WEIBULL, LOGISTIC = 0, 1
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
#: Numbers of `theta` before its rows: the scale and its logarithm.
_BEFORE = 2
#: What is left out is below exp(-_DROP) of the peak; panels are so many scales or deviations wide,
#: and fine so far from an edge.
_DROP, _PANEL, _NEAR = 42.0, 1.5, 45.0
_GOLDEN = 0.5 * (math.sqrt(5.0) - 1.0)
_X, _W = (np.ascontiguousarray(a) for a in np.polynomial.legendre.leggauss(12))


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
def log_span(family, a, b):
    """Log of P(a < e < b), for a < b either of which may be infinite."""
    if family == WEIBULL:
        start = math.exp(min(a, 700.0)) if a > -math.inf else 0.0
        if b == math.inf:
            return -start
        stop = math.exp(min(b, 700.0))
        gap = start * math.expm1(min(b - a, 700.0)) if start > 0.0 else stop
        if gap < 1e-300:
            return b  # stop itself is too small for a double
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
    if family == LOGISTIC and low == -math.inf:
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
def tilted_at(family, f, mu, sigma, low, high, scale):
    """Log of the tilted density but for a constant."""
    t = (f - mu) / sigma
    return log_span(family, (low - f) / scale, (high - f) / scale) - 0.5 * t * t


@kernel
def peak_of(family, mu, sigma, low, high, scale):
    """Where the tilted density of a span is highest, about: between the cavity and the span.

    The log probability falls by one a scale at most, where it falls towards smaller times.
    """
    left, right = mu - sigma * (sigma / scale), mu
    if low > -math.inf:
        left, right = min(mu, low), max(mu, high)
        if family == LOGISTIC:
            left, right = min(mu, 0.5 * (low + high)), max(mu, 0.5 * (low + high))
    if low == -math.inf:
        left = max(left, min(mu, high - 60.0 * scale))
    close = 0.02 * min(scale, sigma)
    x, y = right - _GOLDEN * (right - left), left + _GOLDEN * (right - left)
    fx = tilted_at(family, x, mu, sigma, low, high, scale)
    fy = tilted_at(family, y, mu, sigma, low, high, scale)
    for _ in range(200):
        if right - left <= close:
            break
        if fx > fy:
            right, y, fy = y, x, fx
            x = right - _GOLDEN * (right - left)
            fx = tilted_at(family, x, mu, sigma, low, high, scale)
        else:
            left, x, fx = x, y, fy
            y = left + _GOLDEN * (right - left)
            fy = tilted_at(family, y, mu, sigma, low, high, scale)
    return 0.5 * (left + right)


@kernel
def span_moments(family, mu, sigma, low, high, scale):
    """Log normaliser, mean and variance of a span, by Gauss's rule on panels."""
    peak = peak_of(family, mu, sigma, low, high, scale)
    top = tilted_at(family, peak, mu, sigma, low, high, scale)
    ends = np.empty(2)
    for side in range(2):
        sign = 2.0 * side - 1.0
        far = 0.25 * min(scale, sigma)
        for _ in range(200):
            if tilted_at(family, peak + sign * far, mu, sigma, low, high, scale) < top - _DROP:
                break
            far *= 1.4
        ends[side] = peak + sign * far
    mass, first, second = 0.0, 0.0, 0.0
    f, near = ends[0], _NEAR * scale
    while f < ends[1]:
        step = _PANEL * sigma
        close = False
        for edge in (low, high):
            if abs(edge) < math.inf:
                close = close or abs(f - edge) <= near
                if f < edge - near:
                    step = min(step, edge - near - f)
        if close:
            step = min(step, _PANEL * scale)
        step = max(min(step, ends[1] - f), 1e-12 * (1.0 + abs(f)))
        for i in range(_X.size):
            at = f + 0.5 * step * (1.0 + _X[i])
            w = tilted_at(family, at, mu, sigma, low, high, scale) - top
            w = 0.5 * step * _W[i] * math.exp(w)
            mass += w
            first += w * (at - peak)
            second += w * (at - peak) ** 2
        f += step
    first /= mass
    log_z = top + math.log(mass / sigma) - _HALF_LOG_2PI
    return log_z, peak + first, second / mass - first * first


@kernel
def moments_of(family, mu, sigma, y, theta):
    """Moments of the tilted density, of whatever is known of the time."""
    low, high = ends_of(y, theta)
    scale = theta[0]
    known, shape = shape_of(family, low, high, theta)
    if known:
        log_z, mean, variance = bent_moments(mu / scale, sigma / scale, shape, 1.0)
        return log_z, scale * mean, scale * scale * variance
    return span_moments(family, mu, sigma, low, high, scale)


@kernel
def log_within(f, y, theta):
    """Log probability of a span of Weibull times."""
    low, high = ends_of(y, theta)
    return log_span(WEIBULL, (low - f) / theta[0], (high - f) / theta[0])


@kernel
def log_within_logistic(f, y, theta):
    """Log probability of a span of log-logistic times."""
    low, high = ends_of(y, theta)
    return log_span(LOGISTIC, (low - f) / theta[0], (high - f) / theta[0])


@kernel
def span_top(family, low, high, scale):
    """Where a span is likeliest, of those that have no shape."""
    if family == LOGISTIC:
        return low + 0.5 * (high - low)
    if low == -math.inf:
        return -math.inf
    # Between survivals exp(-A/u) and exp(-B/u), u = (B - A)/log(B/A) is the likeliest.
    gap = (high - low) / scale
    return low + scale * (math.log(math.expm1(gap) / gap) if gap < 700.0 else gap - math.log(gap))


@kernel
def raised_moments_of(family, mu, sigma, y, theta, power):
    """`moments_of` a power of the likelihood."""
    low, high = ends_of(y, theta)
    scale = theta[0]
    known, shape = shape_of(family, low, high, theta)
    if known:
        log_z, mean, variance = bent_moments(mu / scale, sigma / scale, shape, power)
        return log_z, scale * mean, scale * scale * variance
    top = span_top(family, low, high, scale)
    if family == LOGISTIC:
        return one_peak_moments(log_within_logistic, mu, sigma, y, theta, power, top, 0.0, scale)
    return one_peak_moments(log_within, mu, sigma, y, theta, power, top, 0.0, scale)


@kernel
def raised_frame_of(family, mu, sigma, y, theta, power):
    """Where a power of the likelihood is integrated."""
    low, high = ends_of(y, theta)
    scale = theta[0]
    known, shape = shape_of(family, low, high, theta)
    if known:
        centre, width, refine, side = bent_frame(mu / scale, sigma / scale, shape, power)
        return scale * centre, scale * width, refine, side
    top = span_top(family, low, high, scale)
    if family == LOGISTIC:
        return one_peak_frame(log_within_logistic, mu, sigma, y, theta, power, top, scale)
    return one_peak_frame(log_within, mu, sigma, y, theta, power, top, scale)
