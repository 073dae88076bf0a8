"""Student's t noise: y = f + scale t, t with nu degrees of freedom. Not log-concave.

The t is a normal whose precision is gamma distributed, so that the tilted density is a mixture of
normals over u = log(precision scale^2). All its moments are integrals over u of positive, smooth
functions: one trapezoid rule holds also where the density in f has two peaks far apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from qpruntime._numba import kernel
from qpruntime._pointers import FRAME, MOMENTS, SPLIT, LatePointer, Pointer
from qpruntime._special import HALF_LOG_2PI
from qpruntime._typing import Array, Floats
from qpruntime.likelihoods._series_kernels import expm1_less
from qpruntime.likelihoods.base import Likelihood, Powers
from qpruntime.likelihoods.distributions import SciPyResponse
from qpruntime.likelihoods.responses import reals
from qpruntime.quadrature.adaptive_kernels import location_rule

__all__ = ["likelihood"]

#: Step of the rule in u, for few degrees of freedom, and for many in units of 1/sqrt(nu).
_STEP, _STEP_MANY = 0.26, 0.7
#: Mixture components below exp(-_CUT) of the largest are left out.
_CUT, _MOST = 40.0, 20_000
#: Degrees of freedom at least, also of a power.
_LEAST = 0.1
#: Frames around y are at most `_WIDEST` scales wide. Cavities are at most `_WIDER` times as wide,
#: or tails would be cut off, and at most `_FARTHEST` deviations away.
_WIDEST, _WIDER, _FARTHEST = 5.0, 1e4, 40.0
#: A peak is left out if its log is so far below the other's; valleys may be `_DEEPEST` deep.
_LOST, _DEEPEST = 40.0, 36.0
#: Digits of f - y and of log p limit f over the distance on which the density varies, and the fall
#: of log p from y to mu. At this limit sigma* has an error of 2e-12.
_DIGITS, _STEEPEST = 2.0**15, 500.0
#: exp(_LOW) and exp(_HIGH) leave no distance out; 70 bisections between reach its last digit.
_LOW, _HIGH, _HALVINGS = -1000.0, 300.0, 70


def gamma_step(nu: float) -> float:
    """Return log Gamma((nu + 1)/2) - log Gamma(nu/2) - log(nu/2)/2, which falls as 1/(4 nu)."""
    if nu < 100.0:
        return math.lgamma(0.5 * nu + 0.5) - math.lgamma(0.5 * nu) - 0.5 * math.log(0.5 * nu)
    i = 1.0 / nu
    j = i * i
    return -i * (1.0 / 4.0 - j * (1.0 / 24.0 - j * (1.0 / 20.0 - j * (17.0 / 112.0))))


def _constants(nu: float, scale: float) -> Floats:
    """Not a kernel: it is called when the registry is made, where the first kernel costs 0.4 s."""
    return constants(nu, scale, gamma_step(nu))


def constants(nu: float, scale: float, step: float) -> tuple[float, float]:
    """Return the log density at f = y and the log weight of u = 0 in the mixture."""
    half = 0.5 * nu
    # log of the density at f = y; and log of (nu/2)^(nu/2) e^(-nu/2)/Gamma(nu/2), the weight of
    # u = 0 in the mixture.
    top = step - HALF_LOG_2PI - math.log(scale)
    if half < 16.0:
        weight = half * math.log(half) - half - math.lgamma(half)
    else:
        i = 1.0 / (half * half)
        weight = (
            0.5 * math.log(half)
            - HALF_LOG_2PI
            - (
                1.0 / 12.0
                - i * (1.0 / 360.0 - i * (1.0 / 1260.0 - i * (1.0 / 1680.0 - i / 1188.0)))
            )
            / half
        )
    return top, weight


def _split(f: float, y: float, theta: Array) -> tuple[float, float]:
    z = abs((f - y) / theta[1])
    nu = theta[0]
    tail = math.log1p(z * z / nu) if z < 1e100 else 2.0 * math.log(z) - math.log(nu)
    return theta[2] - 0.5 * (nu + 1.0) * tail, 0.0


def _moments(mu: float, sigma: float, y: float, theta: Array) -> tuple[float, float, float]:
    log_z, mean, variance = mixture(mu, sigma, y, theta[0], theta[1])
    return log_z + theta[3], mean, variance


_step_kernel, _constants_kernel = kernel(gamma_step), kernel(constants)


@kernel
def _raised_moments(
    mu: float, sigma: float, y: float, theta: Array, power: float
) -> tuple[float, float, float]:
    # A power of it is a t of other degrees of freedom and scale, up to a constant. If almost no
    # degrees of freedom remain, the adaptive rule integrates.
    nu = power * (theta[0] + 1.0) - 1.0
    if nu < _LEAST:
        return math.nan, math.nan, math.nan
    scale = theta[1] * math.sqrt(theta[0] / nu)
    top, weight = _constants_kernel(nu, scale, _step_kernel(nu))
    log_z, mean, variance = mixture(mu, sigma, y, nu, scale)
    return log_z + weight + (power * theta[2] - top), mean, variance


def _member(parameters: Mapping[str, float], power: float) -> tuple[float, float, float] | None:
    """Degrees of freedom and scale of the t that p^power is, but for a constant."""
    nu, scale = parameters["nu"], parameters["scale"]
    freedom = power * (nu + 1.0) - 1.0
    if freedom < _LEAST:
        return None
    constant = power * _constants(nu, scale)[0] - _constants(freedom, 1.0)[0]
    return freedom, scale * math.sqrt(nu / freedom), constant


@kernel
def mixture(
    mu: float, sigma: float, y: float, nu: float, scale: float
) -> tuple[float, float, float]:
    """Moments under a t, log Z without the constant weight of its mixture."""
    s2, sigma2 = scale * scale, sigma * sigma
    d = y - mu
    d2 = d * d
    # The log weight of a component rises with u below `low` and falls above `high`.
    low = -math.log1p(d2 / s2 / nu)
    high = math.log1p(1.0 / nu)
    h = max(min(_STEP, _STEP_MANY / math.sqrt(nu)), (high - low) / _MOST)
    # Components of tiny weight may be so wide that the variance comes from them.
    cut = _CUT + math.log1p((sigma2 + d2) / s2)
    best = -math.inf
    # A component has mean mu + d own = y - d other and variance sigma^2 other, own + other = 1.
    # Running means and the sum of squares about them, of whichever shares are small.
    mass, share_mean, complement_mean, share_square, complement_square = 0.0, 0.0, 0.0, 0.0, 0.0
    for direction in (-1.0, 1.0):
        u = high if direction < 0.0 else high + h
        for _ in range(2 * _MOST):
            up = math.exp(u)
            spread = sigma2 + s2 / up
            e = -0.5 * nu * expm1_less(u) - 0.5 * (math.log(spread) + d2 / spread)
            if e > best + 30.0:
                scaled = math.exp(best - e)
                mass *= scaled
                share_square *= scaled
                complement_square *= scaled
                best = e
            elif e < best - cut and (direction > 0.0 or u < low):
                break
            weight = math.exp(e - best)
            mass += weight
            part = weight / mass
            share = sigma2 / spread
            step = share - share_mean
            share_mean += step * part
            share_square += weight * step * (share - share_mean)
            share = s2 / up / spread
            step = share - complement_mean
            complement_mean += step * part
            complement_square += weight * step * (share - complement_mean)
            u += direction * h
    log_z = best + math.log(mass * h) - HALF_LOG_2PI
    if complement_mean < share_mean:
        return (
            log_z,
            y - d * complement_mean,
            sigma2 * complement_mean + d2 * (complement_square / mass),
        )
    return log_z, mu + d * share_mean, sigma2 * complement_mean + d2 * (share_square / mass)


@kernel
def frame_at(mu: float, sigma: float, y: float, nu: float, scale: float) -> Floats:
    """`Likelihood.frame` for f = centre + width sinh(v), which resolves two peaks as well as one.

    The centre is the mean if there is no peak at y, else y. There the density grows by
    exp(D^2 sin^2 b/(2 cos 2b)) at a distance b from the real axis of v, D being the deviations from
    mu to y, and steps of h leave an error of exp(-2 pi b/h) times that, so that they have to be
    finer. The width is NaN if the adaptive rule has to integrate.
    """
    z, away = (y - mu) / scale, abs(y - mu) / sigma
    fall = 0.5 * (nu + 1.0) * math.log1p(z * z / nu) if abs(z) < 1e100 else math.inf
    # Log of the density at y over that at mu.
    ahead = fall - 0.5 * away * away
    if ahead < -_LOST and fall < _STEEPEST:
        _, mean, variance = mixture(mu, sigma, y, nu, scale)
        apart, std = abs(y - mean), math.sqrt(variance)
        if apart > 10.0 * std and max(abs(y), abs(mu)) < _DIGITS * apart:
            return mean, std, 1.0, 0.0
    width = min(sigma, scale * min(math.sqrt(nu), _WIDEST))
    # The second peak adds its mass times the length of the valley to sigma*.
    behind = math.log1p(sigma / width) + math.log1p(abs(y - mu) / width)
    joined = fall < _DEEPEST or _LOST + behind < ahead < _STEEPEST
    if not joined or away > _FARTHEST or sigma > _WIDER * width or abs(y) > _DIGITS * width:
        return 0.0, math.nan, 1.0, 0.0
    return y, width, 1.0 / (1.0 + away / 6.0), 0.0


def _frame(mu: float, sigma: float, y: float, theta: Array) -> Floats:
    return frame_at(mu, sigma, y, theta[0], theta[1])


@kernel
def _raised_frame(mu: float, sigma: float, y: float, theta: Array, power: float) -> Floats:
    nu = power * (theta[0] + 1.0) - 1.0
    if nu < _LEAST:
        return 0.0, math.nan, 1.0, 0.0
    return frame_at(mu, sigma, y, nu, theta[1] * math.sqrt(theta[0] / nu))


def _reach(variance: Array, tail: Array, theta: Array) -> Array:
    # Bisect under the trapezoid rule above: the t is a normal whose log precision has these
    # weights.
    from scipy.special import gammaln, ndtr  # take longer to import than all likelihoods

    nu, scale = theta[0], theta[1]
    h = min(_STEP, _STEP_MANY / np.sqrt(nu))
    u = np.arange(-90.0 / nu - 12.0 / np.sqrt(nu), 5.0 + 12.0 / np.sqrt(nu), h)
    weight = np.exp(0.5 * nu * (u - np.expm1(u)) + 0.5 * nu * np.log(0.5 * nu) - 0.5 * nu)
    weight *= h * np.exp(-gammaln(0.5 * nu))
    keep = weight > 1e-18 * weight.max()
    u, weight = u[keep], weight[keep] / weight[keep].sum()
    spread = np.sqrt(np.maximum(variance, 0.0)[:, None] + scale**2 * np.exp(-u))
    out = np.zeros((variance.size, tail.size))
    for k in np.flatnonzero(tail < 0.5):
        low, high = np.full(variance.size, _LOW), np.full(variance.size, _HIGH)
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            beyond = ndtr(-np.exp(middle)[:, None] / spread) @ weight > tail[k]
            low, high = np.where(beyond, middle, low), np.where(beyond, high, middle)
        out[:, k] = np.exp(low)
    return out


def _given(f: Array, theta: Array) -> SciPyResponse:
    return SciPyResponse("t", theta[0], f, theta[1])


likelihood = Likelihood(
    name="student-t",
    outcomes="real numbers",
    split=Pointer(_split, SPLIT),
    validate=reals,
    moments=Pointer(_moments, MOMENTS),
    log_concave=False,
    location=True,
    frame=LatePointer(_frame, FRAME),
    rule=location_rule,
    powers=Powers.from_kernels(_raised_moments, _raised_frame, whole=False, member=_member),
    parameters={"nu": 4.0, "scale": 1.0},
    limits={"nu": (_LEAST, 1e6), "scale": (1e-50, 1e50)},
    derive=_constants,
    reach=_reach,
    given=_given,
)
