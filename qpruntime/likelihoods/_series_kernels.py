"""Series and moments shared by softplus-like and exponential links. Kernels only."""

from __future__ import annotations

import math

from qpruntime._numba import kernel
from qpruntime._special import HALF_LOG_2PI, INV_SQRT_2PI, probit_series
from qpruntime._typing import Floats

__all__ = [
    "bend_slopes",
    "bend_value",
    "bent",
    "bent_expected",
    "bent_frame",
    "bent_moments",
    "even_moments",
    "exp_moments",
    "expm1_less",
    "log1p_less",
    "log_peak",
    "logistic",
    "softplus",
    "softplus_expected",
    "stirling_error",
]

# --- Logarithms and exponentials without cancellation


@kernel
def log1p_less(t: float) -> float:
    """log(1 + t) - t."""
    if abs(t) > 0.1:
        return math.log1p(t) - t
    u = t / (2.0 + t)
    w = u * u
    p = 1.0 / 13.0
    for k in (11.0, 9.0, 7.0, 5.0, 3.0):
        p = p * w + 1.0 / k
    return 2.0 * u * w * p - t * u


@kernel
def expm1_less(d: float) -> float:
    """e^d - 1 - d."""
    if abs(d) > 0.5:
        return math.expm1(min(d, 700.0)) - d
    p = 1.0
    for k in range(15, 2, -1):
        p = 1.0 + p * d / k
    return 0.5 * d * d * p


@kernel
def stirling_error(x: float) -> float:
    """Return log Gamma(x) less (x - 1/2) log x - x + log(2 pi)/2."""
    if x < 16.0:
        return math.lgamma(x) - (x - 0.5) * math.log(x) + x - HALF_LOG_2PI
    i = 1.0 / (x * x)
    return (
        1.0 / 12.0 - i * (1.0 / 360.0 - i * (1.0 / 1260.0 - i * (1.0 / 1680.0 - i / 1188.0)))
    ) / x


@kernel
def log_peak(x: float) -> float:
    """Return x log x - x - log x! for x >= 0, cancelled by hand."""
    if x < 16.0:
        return x * math.log(x) - x - math.lgamma(x + 1.0) if x > 0.0 else 0.0
    return -0.5 * math.log(x) - HALF_LOG_2PI - stirling_error(x)


# --- Log densities a h - n log(1 + e^h/n)
#
# Let u = f or -f and h = u + offset, a in [0, n/2]. Left of h = 0 the log density is a line of
# slope a, right of it, up to h = 2 log n, a double exponential, and then a line of slope a - n: one
# peak, one bend of width one, and a second bend too far out to matter. 1/n = 0 is the Poisson
# limit, with e^h for the logarithm. This file has kernels only; likelihoods define a, n and offset.

#: Settings of the trapezoid rule for expectations: exp(-_REACH^2/2) = 4e-17. Steps are in standard
#: deviations; the integrand is singular at pi i, so a step times std counts. If the normal is wide,
#: the nodes are in u of f = sinh u, in standard deviations at the mean. Beyond _LARGEST sinh
#: overflows.
_SOFTPLUS_REACH, _SOFTPLUS_STEP, _WIDE, _LARGEST = 8.7, 0.55, 3.0, 1e307
_STEP_U, _STEP_W = 0.11, 0.4


@kernel
def softplus(x: float) -> float:
    """log(1 + e^x)."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


@kernel
def logistic(x: float) -> float:
    """1/(1 + e^-x), whichever sign x has."""
    t = math.exp(-abs(x))
    return 1.0 / (1.0 + t) if x >= 0.0 else t / (1.0 + t)


@kernel
def bend_value(u: float, a: float, inverse: float, offset: float, top: float) -> float:
    """Log density at u, relative to its maximum at `top` if a > 0; inverse is 1/n."""
    if a == 0.0:
        h = u + offset
        if inverse == 0.0:
            return -math.exp(min(h, 700.0))
        far = h + math.log(inverse)
        if far > 36.0:
            return -far / inverse
        return -math.log1p(inverse * math.exp(min(h, 700.0))) / inverse
    # a d - n log(1 + (a/n) (e^d - 1)), written so that nothing cancels at d = 0.
    d = u - top
    value = -a * expm1_less(d)
    if inverse > 0.0:
        share = a * inverse
        far = math.log(max(share, 1e-300))
        if d > 36.0 - far:
            return a * d - (d + far) / inverse
        if d < -30.0 and share > 0.99:
            # Relative to a tangent far right of the bend, 1 + t has no digits left.
            return a * d - math.log(max(1.0 - share, 0.0) + share * math.exp(d)) / inverse
        t = share * math.expm1(min(d, 700.0))
        if d > 1.0:
            return a * d - math.log1p(t) / inverse
        value -= log1p_less(t) / inverse
    return value


@kernel
def bend_slopes(u: float, inverse: float, offset: float) -> tuple[float, float]:
    """Rate and curvature at u: the slope of the log density is a - rate, its second -curvature."""
    e = math.exp(min(-u - offset, 700.0))
    rate = 1.0 / (e + inverse)
    return rate, rate * (rate * e)


@kernel
def softplus_expected(mean: float, std: float) -> tuple[float, float, float]:
    """E log(1 + e^f), E s(f) and E s'(f), s the logistic function: a trapezoid rule.

    The first is singular at pi i, and behaves like f on the right.
    """
    value, slope, curvature = 0.0, 0.0, 0.0
    far = abs(mean) > _SOFTPLUS_REACH * std
    wide = std > _WIDE and not far
    if wide:
        if not abs(mean) + _SOFTPLUS_REACH * std < _LARGEST:
            return math.nan, math.nan, math.nan
        h = min(_STEP_U, _STEP_W * std / math.hypot(1.0, mean))
        u, last = math.asinh(mean - _SOFTPLUS_REACH * std), math.asinh(mean + _SOFTPLUS_REACH * std)
    else:
        # A singularity beyond all nodes does not slow the rule down.
        h = 0.5 if far else min(0.5, _SOFTPLUS_STEP / std)
        u, last = -_SOFTPLUS_REACH, _SOFTPLUS_REACH
    while u <= last:
        x, w = mean + std * u, math.exp(-0.5 * u * u)
        if wide:
            up = math.exp(u)
            x = 0.5 * (up - 1.0 / up)
            t = (x - mean) / std
            w = 0.5 * (up + 1.0 / up) / std * math.exp(-0.5 * t * t)
        small = math.exp(-abs(x))
        value += w * (max(x, 0.0) + math.log1p(small))
        slope += w * (1.0 if x > 0.0 else small) / (1.0 + small)
        curvature += w * small / ((1.0 + small) * (1.0 + small))
        u += h
    h *= INV_SQRT_2PI
    return h * value, h * slope, h * curvature


# --- Tilted densities of that form
#
# A likelihood of that form says for an observation what its shape is, a tuple
# (sign, a, 1/n, offset, top, peak): u = sign f, and log p = peak at its maximum u = top, if a > 0.
# A power w of it has w a for a, w n for n, and u moved by log w.

#: A bend is left out if it changes the density by less than exp(-_NOTHING) of it.
_NOTHING = 45.0
#: Below this cavity width, or above this curvature at the peak, the bend is not narrow.
_NARROW, _CURVED = 1.5, 0.5
#: Shorter steps across a double exponential.
_DENSER = 0.7
#: Standard deviations between mean and bend beyond which the bend is not felt.
_REACH = 9.5
#: Peaks narrower than _SHORT, of squared skewness below _SKEWED, are as a series has them.
_SHORT, _SKEWED = 0.01, 1e-7
#: Slopes beyond which values of log p are not compared as they are.
_STEEP = 2.0
#: Step of the trapezoid rule for moments in the quadrature variable, and where terms are left out.
_STEP, _CUT = 0.11, 42.0
_MOST_TERMS = 2000


@kernel
def bend_peak(
    m: float, sigma: float, a: float, inverse: float, offset: float, top: float
) -> tuple[float, float]:
    """Peak of the tilted density with cavity N(m, sigma^2), and the likelihood's curvature there.

    Newton's method between two bounds, halving them where it leaves them or does not settle.
    """
    s2 = sigma * sigma
    if a > 0.0:
        low, high = min(m, top), max(m, top)
        if inverse == 0.0 and m > top:
            # There e^h = a + (m - u)/sigma^2, and u is not below top.
            high = min(high, math.log(a + (m - top) / s2) - offset)
    else:
        low, high = m, m
        if inverse > 0.0:
            low -= s2 / inverse
        else:
            low -= s2 * math.exp(min(m + offset, 300.0))
        low = min(low, m)
    u = high if high < 1.0 - offset else max(low, min(high, -offset))
    curvature, before = 0.0, math.inf
    for _ in range(200):
        rate, curvature = bend_slopes(u, inverse, offset)
        slope = a - rate - (u - m) / s2
        if slope > 0.0:
            low = u
        else:
            high = u
        total = curvature + 1.0 / s2
        step = slope / total
        if step * step * total < 1e-6 or not high > low:
            break
        # Steps that do not get shorter may run in a circle.
        if not low < u + step < high or abs(step) > 0.5 * before:
            step = 0.5 * (low + high) - u
        before = abs(step)
        u += step
    return u, curvature


@kernel
def bend_scale(
    m: float, sigma: float, a: float, inverse: float, bend: float
) -> tuple[float, float]:
    """Mean, measured from the bend, and standard deviation, for a density of two straight sides."""
    z = (bend - m) / sigma
    left_terms = probit_series(z - a * sigma)
    mean, variance = -left_terms[1], left_terms[2]
    if inverse > 0.0:
        right_terms = probit_series((a - 1.0 / inverse) * sigma - z)
        # The sides' masses are as 1/r, r = phi/Phi.
        share = (
            left_terms[0] / (left_terms[0] + right_terms[0])
            if left_terms[0] + right_terms[0] > 0.0
            else 0.5
        )
        gap = left_terms[1] + right_terms[1]
        mean += share * gap
        variance += share * (right_terms[2] - left_terms[2]) + share * (1.0 - share) * gap * gap
    return sigma * mean, sigma * math.sqrt(max(variance, 1e-300))


@kernel
def bend_beyond(gap: float, sigma: float) -> bool:
    """Return True if a bend of width one at distance `gap` from a normal's mean changes nothing."""
    s2 = sigma * sigma
    if s2 <= gap:
        return gap - 0.5 * s2 > _NOTHING
    return gap > 0.0 and gap * gap > 2.0 * _NOTHING * s2


@kernel
def bend_position(inverse: float, offset: float) -> float:
    """Return where the bend of width one is."""
    return -offset - math.log(inverse) if inverse > 1.0 else -offset


@kernel
def bend_unfelt(m: float, sigma: float, a: float, inverse: float, offset: float) -> float:
    """Return the mean of a tilted density that is normal, far from the bend; otherwise NaN."""
    s2 = sigma * sigma
    bend = bend_position(inverse, offset)
    line = m + a * s2
    if bend_beyond(bend - line, sigma):
        return line
    if inverse > 0.0:
        line = m + (a - 1.0 / inverse) * s2
        if bend_beyond(line - (2.0 * max(-math.log(inverse), 0.0) + bend), sigma):
            return line
    return math.nan


@kernel
def bend_window(
    m: float, sigma: float, a: float, inverse: float, offset: float, top: float
) -> Floats:
    """`bend_frame` for moments, which are asked for exactly of peaks however narrow."""
    line = bend_unfelt(m, sigma, a, inverse, offset)
    if not math.isnan(line):
        return line, sigma, 0.0, 0.0
    peak, curvature = bend_peak(m, sigma, a, inverse, offset, top)
    width = 1.0 / math.sqrt(curvature + 1.0 / (sigma * sigma))
    # A double exponential grows without bound already at pi/2 i, a softplus is singular at pi i.
    step = 1.0 if inverse > 0.5 or width < 0.25 else _DENSER
    if sigma <= _NARROW or curvature >= _CURVED:
        return peak, width, step, 0.0
    bend = bend_position(inverse, offset)
    mean, std = bend_scale(m, sigma, a, inverse, bend)
    reach = abs(mean)
    if reach > _REACH * std:
        return peak, width, step, 0.0
    return bend, min(std, 1.0), step if reach <= 2.0 * std else 2.0 * step * std / reach, 0.0


@kernel
def bend_frame(
    m: float, sigma: float, a: float, inverse: float, offset: float, top: float
) -> Floats:
    """`Likelihood.frame` in the coordinate u; refine 0 says that the density is a normal.

    The same holds for a peak so narrow that rounding would merge nodes in f: there the series of
    Cornish and Fisher has sigma* = sigma_EP (1 - skewness^2/36) and a mean and a sigma_EP of its
    own. The error is of order skewness^4, and 1e-13.
    """
    centre, width, refine, side = bend_window(m, sigma, a, inverse, offset, top)
    if refine == 0.0 or width > _SHORT:
        return centre, width, refine, side
    inverse2 = 1.0 / (sigma * sigma)
    rate, curvature = bend_slopes(centre, inverse, offset)
    width = 1.0 / math.sqrt(curvature + inverse2)
    skew = curvature * width**3
    if skew * skew > _SKEWED:
        return centre, width, refine, side
    for _ in range(2):
        centre += (a - rate - (centre - m) * inverse2) * width * width
        rate, curvature = bend_slopes(centre, inverse, offset)
        width = 1.0 / math.sqrt(curvature + inverse2)
    share = rate * inverse
    third = -curvature * (1.0 - 2.0 * share) * width**3
    fourth = -curvature * (1.0 - 6.0 * share * (1.0 - share)) * width**4
    std = width * math.sqrt(1.0 + third * third + 0.5 * fourth)
    return centre + 0.5 * third * width, std * (1.0 - third * third / 36.0), 0.0, 0.0


@kernel
def bend_moments(
    m: float, sigma: float, a: float, inverse: float, offset: float, top: float
) -> tuple[float, float, float]:
    """Log normaliser, mean and variance by the trapezoid rule in the frame's variable."""
    centre, width, refine, _ = bend_window(m, sigma, a, inverse, offset, top)
    gap = centre - m
    base = bend_value(centre, a, inverse, offset, top)
    if refine == 0.0:
        return base - 0.5 * (gap / sigma) ** 2, centre, sigma * sigma
    pull = gap / (sigma * sigma)
    # If log p is steep, its values at centre + d differ by less than their rounding. They are then
    # taken relative to the tangent at the centre, which gives a density of the same form.
    rate, _ = bend_slopes(centre, inverse, offset)
    level, a_near, offset_near, start, top_near = base, a, offset, centre, top
    slope = a - rate
    if a > 0.0:
        t = math.expm1(min(centre - top, 700.0))
        slope = -a * (1.0 - a * inverse) * t / (1.0 + a * inverse * t)
    if a > 0.0 or rate > _STEEP:
        pull -= slope
        level, a_near, offset_near, start, top_near = 0.0, a - slope, offset + centre, 0.0, 0.0
    half = 0.5 / (sigma * sigma)
    h = _STEP * refine
    best = -math.inf
    mass, first, second = 0.0, 0.0, 0.0
    for direction in (1.0, -1.0):
        v = 0.0 if direction > 0.0 else -h
        for _ in range(_MOST_TERMS):
            up = math.exp(v)
            d = 0.5 * width * (up - 1.0 / up)
            e = bend_value(start + d, a_near, inverse, offset_near, top_near)
            e -= level + d * (pull + half * d)
            e += math.log(0.5 * (up + 1.0 / up))
            if e > best:
                if e > best + 30.0:
                    # Raise what the sums are relative to.
                    scale = math.exp(best - e)
                    mass, first, second = scale * mass, scale * first, scale * second
                    best = e
            elif e < best - _CUT:
                break
            k = math.exp(e - best)
            mass += k
            first += k * d
            second += k * d * d
            v += direction * h
    first /= mass
    log_z = base - 0.5 * (gap / sigma) ** 2 + best + math.log(mass * h * width / sigma)
    return log_z - HALF_LOG_2PI, centre + first, second / mass - first * first


#: Steps are _EVEN widths of narrow peaks. They shrink with the width by _SKEWING for large n and by
#: _SINGULAR if 1/n is at least _FEW. Moments are right to 1e-13 up to the widths _WIDEST and
#: _WIDEST_FEW (tests/likelihoods/test_logistic.py). The sums of wider peaks take longer.
_EVEN, _SKEWING, _SINGULAR = 0.68, 1.5, 1.2
_WIDEST, _WIDEST_FEW, _FEW = 1.0, 3.0, 0.5
#: Beyond this slope, products in the place of exponentials lose digits.
_STEEPEST = 100.0
#: Terms below this share of the largest are left out.
_LEAST = 3e-17


@kernel
def even_moments(
    m: float, sigma: float, a: float, inverse: float, offset: float, top: float
) -> tuple[float, float, float]:
    """`bend_moments` by equal steps in u, a seventh of the time; NaN where the peak is too wide.

    At distance d from the peak, log p differs by a d - n log(1 - p + p e^d), where p is the share
    of the limit n that the rate has at the peak. e^d is a product, and n = 1 takes no logarithm.
    """
    centre, curvature = bend_peak(m, sigma, a, inverse, offset, top)
    inverse2 = 1.0 / (sigma * sigma)
    width = 1.0 / math.sqrt(curvature + inverse2)
    rate, _ = bend_slopes(centre, inverse, offset)
    few = inverse >= _FEW
    if not (width <= (_WIDEST_FEW if few else _WIDEST) and a + rate <= _STEEPEST):
        return math.nan, 0.0, 0.0
    if few:
        step = _EVEN * width / math.sqrt(1.0 + (_SINGULAR * width) ** 2)
    else:
        step = _EVEN * width / (1.0 + _SKEWING * width)
    share = rate * inverse
    kept = rate * math.exp(min(-centre - offset, 700.0))
    gap = (centre - m) / sigma
    pull, half = a - gap / sigma, 0.5 * inverse2
    mass, first, second = 1.0, 0.0, 0.0
    for direction in (1.0, -1.0):
        h = direction * step
        ratio, power, d = math.exp(h), 1.0, 0.0
        for _ in range(_MOST_TERMS):
            d += h
            power *= ratio
            e = d * (pull - half * d)
            if inverse == 1.0:
                k = math.exp(e) / (kept + share * power)
            elif share < 0.5:
                k = math.exp(e - math.log1p(share * (power - 1.0)) / inverse)
            else:
                k = math.exp(e - math.log(kept + share * power) / inverse)
            if not k > _LEAST:
                break
            mass += k
            first += k * d
            second += k * d * d
    first /= mass
    log_z = bend_value(centre, a, inverse, offset, top) - 0.5 * gap * gap
    log_z += math.log(mass * step / sigma) - HALF_LOG_2PI
    return log_z, centre + first, second / mass - first * first


@kernel
def bent(f: float, shape: Floats) -> float:
    """Log density of a likelihood of this shape."""
    sign, a, inverse, offset, top, peak = shape
    return bend_value(sign * f, a, inverse, offset, top) + peak


@kernel
def bent_moments(
    mu: float, sigma: float, shape: Floats, power: float
) -> tuple[float, float, float]:
    """`Likelihood.moments` of a likelihood of this shape, to a power."""
    sign, a, inverse, offset, top, peak = shape
    m, a, inverse, offset = sign * mu, power * a, inverse / power, offset + math.log(power)
    log_z = math.nan
    if inverse > 0.0 and math.isnan(bend_unfelt(m, sigma, a, inverse, offset)):
        log_z, mean, variance = even_moments(m, sigma, a, inverse, offset, top)
    if math.isnan(log_z):
        log_z, mean, variance = bend_moments(m, sigma, a, inverse, offset, top)
    return log_z + power * peak, sign * mean, variance


@kernel
def bent_frame(mu: float, sigma: float, shape: Floats, power: float) -> Floats:
    """`Likelihood.frame` of a likelihood of this shape, to a power."""
    sign, a, inverse, offset, top, _ = shape
    centre, width, refine, side = bend_frame(
        sign * mu, sigma, power * a, inverse / power, offset + math.log(power), top
    )
    return sign * centre, width, refine, side


@kernel
def bent_expected(
    g: float, std: float, sign: float, a: float, n: float, peak: float
) -> tuple[float, float, float]:
    """`Likelihood.expected` where log p = a g - n log(1 + e^g) plus a constant, g = sign f + c.

    g is the mean of that; `peak` is log p at its maximum, or 0 if a = 0.
    """
    value, slope, curvature = softplus_expected(g, std)
    if a > 0.0:
        # Measured from the peak, which is left of zero.
        top = math.log(a / (n - a))
        value -= math.log1p(math.exp(top))
        g -= top
    return peak + a * g - n * value, sign * (a - n * slope), n * curvature


# --- Moments of exp(a u - e^u) under a normal

#: Below this width e^x - 1 - x would cancel, and is summed; terms below exp(-_LOW) are left out.
_FINE, _LOW = 0.025, 38.0


@kernel
def exp_moments(m: float, sigma: float, a: float, top: float) -> tuple[float, float, float]:
    """`bend_moments` of exp(a u - e^u), a tenth of the time; NaN where the peak is too wide.

    About the peak, in units u of its width s: -b u^2/2 - r (e^(s u) - 1 - s u) and a small slope,
    r = e^peak and b = s^2/sigma^2. One exponential a node: e^(s u) is a product.
    """
    centre, _ = bend_peak(m, sigma, a, 0.0, 0.0, top)
    inverse2 = 1.0 / (sigma * sigma)
    rate = math.exp(min(centre, 700.0))
    width = 1.0 / math.sqrt(rate + inverse2)
    if not width <= _WIDEST or rate > 1e12:
        return math.nan, 0.0, 0.0
    slope = (a - rate - (centre - m) * inverse2) * width
    flat = 0.5 * inverse2 * width * width
    step = _EVEN / (1.0 + _SKEWING * width)
    mass, first, second = 1.0, 0.0, 0.0
    for direction in (1.0, -1.0):
        h = direction * step
        ratio, power, u = math.exp(h * width), 1.0, 0.0
        for _ in range(_MOST_TERMS):
            u += h
            x = u * width
            if width < _FINE:
                excess = 1.0 + x * 0.1
                excess = 1.0 + x * (1.0 / 9.0) * excess
                excess = 1.0 + x * 0.125 * excess
                excess = 1.0 + x * (1.0 / 7.0) * excess
                excess = 1.0 + x * (1.0 / 6.0) * excess
                excess = 1.0 + x * 0.2 * excess
                excess = 1.0 + x * 0.25 * excess
                excess = 0.5 * x * x * (1.0 + x * (1.0 / 3.0) * excess)
            else:
                power *= ratio
                excess = power - 1.0 - x
            e = u * (slope - flat * u) - rate * excess
            if e < -_LOW:
                break
            k = math.exp(e)
            mass += k
            first += k * u
            second += k * u * u
    first /= mass
    gap = (centre - m) / sigma
    log_z = bend_value(centre, a, 0.0, 0.0, top) - 0.5 * gap * gap
    log_z += math.log(mass * step * width / sigma) - HALF_LOG_2PI
    return log_z, centre + width * first, width * width * (second / mass - first * first)
