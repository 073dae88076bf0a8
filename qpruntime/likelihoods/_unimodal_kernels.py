"""Moments of tilted densities with a single mode, by quadrature around it. Kernels only."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from qpruntime._numba import inlined, kernel
from qpruntime._special import HALF_LOG_2PI
from qpruntime._typing import Array, Floats

__all__ = [
    "log_sum",
    "mixed",
    "one_peak_frame",
    "one_peak_moments",
]

# --- Moments of densities with one peak
#
# The log density rises up to one place, at infinity perhaps, and falls behind it; its logarithm
# need not be concave, so that the tilted density may have a second peak. Even steps from the
# highest peak are tried first: halving them squares their error, which is how it is known. Where
# they would be many, as of a narrow likelihood under a wide cavity, Gauss's rule and Kronrod's
# share panels that are bisected.

_GOLDEN = 0.5 * (math.sqrt(5.0) - 1.0)
#: Parts of the density below exp(-_DROP) of the highest peak are left out.
_DROP = 42.0
#: Even steps at first, in widths; how often they are halved, what halving them may change (its
#: square is what is left), and how many there may be.
_STEP, _HALVINGS, _CLOSE, _MOST = 0.68, 3, 1e-7, 220
#: Cavities up to so many scales of the likelihood have frames, and of which steps.
_NARROW, _FINER = 2.0, 0.7
#: Largest difference of Gauss's and Kronrod's rule on a panel, as a share of the whole; largest
#: number of panels.
_APART, _PANELS = 1e-9, 4000
#: Points of Kronrod's rule of 15 right of the middle, its weights, and Gauss's of 7.
_X = np.array(
    [
        0.991455371120812639206854697526329,
        0.949107912342758524526189684047851,
        0.864864423359769072789712788640926,
        0.741531185599394439863864773280788,
        0.586087235467691130294144691693013,
        0.405845151377397166906606412076961,
        0.207784955007898467600689403773245,
        0.0,
    ]
)
_WK = np.array(
    [
        0.022935322010529224963732008058970,
        0.063092092629978553290700663189204,
        0.104790010322250183839876322541518,
        0.140653259715525918745189590510238,
        0.169004726639267902826583426598550,
        0.190350578064785409913256402421014,
        0.204432940075298892414161999234649,
        0.209482141084727828012999174891714,
    ]
)
_WG = np.array(
    [
        0.0,
        0.129484966168869693270611432679082,
        0.0,
        0.279705391489276667901467771423780,
        0.0,
        0.381830050505118944950369775488975,
        0.0,
        0.417959183673469387755102040816327,
    ]
)


@kernel
def over(
    at: float, f: float, level: float, mu: float, sigma: float, top: float, most: float, bar: float
) -> bool:
    """Decide whether beyond f, seen from `at`, nothing of the tilted density is higher than `bar`.

    `level` is log p at f, `most` at its peak `top`: towards the peak it is no higher than there,
    and the cavity no higher than at f; towards mu the other way round.
    """
    t = (f - mu) / sigma
    bound = most if (f > at) == (top > f) else level
    if (f > at) != (mu > f):
        bound -= 0.5 * t * t
    return bound < bar


@inlined
def highest(
    log_p: Callable[..., Any],
    mu: float,
    sigma: float,
    y: float,
    theta: Array,
    power: float,
    top: float,
) -> tuple[float, float, float]:
    """Return the highest peak of p(y|f)^power N(f; mu, sigma^2), about, its log and its width.

    Arguments as for `one_peak_moments`; the log is without the constant of the normal.
    """
    # The highest peak lies between mu and top; where that is far off, before log p stops rising
    # faster than the cavity falls.
    far = top
    at_mu = power * log_p(mu, y, theta)
    at_far = -math.inf
    if abs(top) < math.inf:
        at_far = power * log_p(top, y, theta) - 0.5 * ((top - mu) / sigma) ** 2
    else:
        reach, before = math.copysign(0.5 * sigma, top), at_mu
        for _ in range(300):
            far = mu + reach
            at_far = power * log_p(far, y, theta) - 0.5 * ((far - mu) / sigma) ** 2
            if not at_far > before:
                break
            before = at_far
            reach *= 2.0
    lower, upper, at_lower, at_upper = mu, far, at_mu, at_far
    if far < mu:
        lower, upper, at_lower, at_upper = far, mu, at_far, at_mu
    peak, best = lower, at_lower
    if at_upper > best:
        peak, best = upper, at_upper
    a, b = upper - _GOLDEN * (upper - lower), lower + _GOLDEN * (upper - lower)
    at_a = power * log_p(a, y, theta) - 0.5 * ((a - mu) / sigma) ** 2
    at_b = power * log_p(b, y, theta) - 0.5 * ((b - mu) / sigma) ** 2
    for _ in range(150):
        if max(at_a, at_b) - min(at_lower, at_upper) < 0.1 or not lower < a < b < upper:
            break
        if at_a > at_b:
            upper, at_upper, b, at_b = b, at_b, a, at_a
            a = upper - _GOLDEN * (upper - lower)
            at_a = power * log_p(a, y, theta) - 0.5 * ((a - mu) / sigma) ** 2
        else:
            lower, at_lower, a, at_a = a, at_a, b, at_b
            b = lower + _GOLDEN * (upper - lower)
            at_b = power * log_p(b, y, theta) - 0.5 * ((b - mu) / sigma) ** 2
    if at_a >= best:
        peak, best = a, at_a
    if at_b >= best:
        peak, best = b, at_b
    # Its width: where the density has fallen by about the root of e, on the nearer side.
    width = sigma
    for direction in (1.0, -1.0):
        for _ in range(200):
            f = peak + direction * width
            fall = best - power * log_p(f, y, theta) + 0.5 * ((f - mu) / sigma) ** 2
            if fall < 0.8:
                break
            width *= max(0.2, min(0.8, math.sqrt(0.5 / fall)))
    return peak, best, width


@inlined
def one_peak_frame(
    log_p: Callable[..., Any],
    mu: float,
    sigma: float,
    y: float,
    theta: Array,
    power: float,
    top: float,
    scale: float,
) -> Floats:
    """`Likelihood.frame` under cavities so narrow that the product has one smooth peak.

    Arguments as for `one_peak_moments`. For wider cavities the width is NaN, and the adaptive rule
    integrates.
    """
    if not sigma <= _NARROW * scale:
        return 0.0, math.nan, 1.0, 0.0
    peak, _, width = highest(log_p, mu, sigma, y, theta, power, top)
    return peak, width, _FINER, 0.0


@inlined
def one_peak_moments(
    log_p: Callable[..., Any],
    mu: float,
    sigma: float,
    y: float,
    theta: Array,
    power: float,
    top: float,
    most: float,
    scale: float,
) -> tuple[float, float, float]:
    """Log normaliser, mean and variance of p(y|f)^power N(f; mu, sigma^2).

    Parameters
    ----------
    log_p : kernel
        ``log_p(f, y, theta)``, copied into its caller with the rest.
    top, most : float
        Where log p is highest, which may be infinite, and what it is nowhere above.
    scale : float
        Over which log p changes its slope near `top`.
    """
    most *= power
    peak, best, width = highest(log_p, mu, sigma, y, theta, power, top)
    first, second, mass = 0.0, 0.0, 0.0
    bar = best - _DROP
    step, settled = _STEP * width, False
    for halving in range(_HALVINGS + 1):
        # The first pass takes all nodes, later ones the nodes between them.
        count = 0
        stride = step if halving == 0 else 2.0 * step
        added, own_first, own_second = 0.0, 0.0, 0.0
        done = True
        for direction in (1.0, -1.0):
            d = (0.0 if direction > 0.0 else -step) if halving == 0 else direction * step
            ended = False
            while count < _MOST:
                f = peak + d
                level = power * log_p(f, y, theta)
                e = level - 0.5 * ((f - mu) / sigma) ** 2
                if e < bar and over(peak, f, level, mu, sigma, top, most, bar):
                    ended = True
                    break
                k = math.exp(min(e - best, 600.0))
                added += k
                own_first += k * d
                own_second += k * d * d
                d += direction * stride
                count += 1
            done = done and ended
        if not done:
            break
        if halving == 0:
            mass, first, second = added, own_first, own_second
        else:
            unit = max(abs(own_second), 1e-300)
            change = abs(added - mass) / added + abs(own_second - second) / unit
            change += abs(own_first - first) / math.sqrt(added * unit)
            mass, first, second = mass + added, first + own_first, second + own_second
            settled = change < _CLOSE
        if settled:
            break
        step *= 0.5
    log_mass = math.log(mass * step) if settled else 0.0
    if not settled:
        # Panels that grow with their distance from the peaks of all three densities, bisected.
        mass, first, second = 0.0, 0.0, 0.0
        fine = min(width, scale)
        panels = 0
        for direction in (1.0, -1.0):
            start = peak
            while panels < _PANELS:
                level = power * log_p(start, y, theta)
                e = level - 0.5 * ((start - mu) / sigma) ** 2
                if e < bar and over(peak, start, level, mu, sigma, top, most, bar):
                    break
                near = min(abs(start - peak), abs(start - mu))
                if abs(top) < math.inf:
                    near = min(near, abs(start - top))
                # A landmark ahead is not leapt over.
                end = start + direction * max(0.5 * near, fine)
                begin, whole = start, end
                while panels < _PANELS:
                    panels += 1
                    half = 0.5 * (end - begin)
                    middle = begin + half
                    k0, k1, k2, g0, g1, g2 = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
                    for i in range(15):
                        x, wk, wg = _X[min(i, 14 - i)], _WK[min(i, 14 - i)], _WG[min(i, 14 - i)]
                        f = middle + (half * x if i < 8 else -half * x)
                        d = (f - peak) / width
                        e = power * log_p(f, y, theta) - 0.5 * ((f - mu) / sigma) ** 2
                        v = math.exp(min(e - best, 600.0))
                        k0 += wk * v
                        k1 += wk * v * d
                        k2 += wk * v * d * d
                        g0 += wg * v
                        g1 += wg * v * d
                        g2 += wg * v * d * d
                    share = abs(half) / width
                    apart = share * max(abs(k0 - g0), abs(k1 - g1), abs(k2 - g2))
                    if apart > _APART * max(1.0, second) and abs(half) > 1e-9 * width:
                        end = middle
                        continue
                    mass += share * k0
                    first += share * k1
                    second += share * k2
                    if end == whole:
                        break
                    begin, end = end, whole
                start = whole
        first, second = width * first, width * width * second
        log_mass = math.log(mass * width)
    first /= mass
    log_z = best + log_mass - math.log(sigma) - HALF_LOG_2PI
    return log_z, peak + first, second / mass - first * first


# --- Mixtures of an informative and a flat likelihood


@kernel
def log_sum(a: float, b: float) -> float:
    """log(e^a + e^b)."""
    top = max(a, b)
    return top + math.log1p(math.exp(min(a, b) - top)) if top > -math.inf else top


@kernel
def mixed(
    log_nothing: float, mu: float, sigma: float, log_z: float, mean: float, variance: float
) -> tuple[float, float, float]:
    """Moments of e^log_nothing N(mu, sigma^2) plus a density of these moments."""
    total = log_sum(log_nothing, log_z)
    share, other_share = math.exp(log_z - total), math.exp(log_nothing - total)
    gap = mean - mu
    spread = share * variance + other_share * sigma * sigma + share * other_share * gap * gap
    return total, mu + share * gap if share < 0.5 else mean - other_share * gap, spread
