"""Laplace noise: p(y|f) = exp(-|y - f|/scale)/(2 scale). Closed moments; a kink at f = y.

The tilted density on either side of the kink is a normal, shifted by sigma^2/scale towards the
observation and cut off there.
"""

from __future__ import annotations

import math

from qpruntime._numba import kernel
from qpruntime._pointers import LANDMARK, MOMENTS, SPLIT, Pointer
from qpruntime._special import erfcx, log_ndtr, probit_series
from qpruntime._typing import Array, Floats
from qpruntime.likelihoods.base import Likelihood, Powers
from qpruntime.likelihoods.distributions import SciPyResponse
from qpruntime.likelihoods.responses import reals

__all__ = ["likelihood"]

_SQRT1_2 = math.sqrt(0.5)
_SQRT_2_PI = math.sqrt(2.0 / math.pi)


def _constants(scale: float) -> Floats:
    return (-math.log(2.0 * scale),)


def _split(f: float, y: float, theta: Array) -> tuple[float, float]:
    return theta[1] - abs(f - y) / theta[0], 0.0


@kernel
def side(z: float) -> float:
    """log(Phi(z) exp(z^2/2))."""
    return log_ndtr(z) + 0.5 * z * z if z > -1.0 else math.log(0.5 * erfcx(-z * _SQRT1_2))


# A power divides the scale.
@kernel
def _moments(
    mu: float, sigma: float, y: float, theta: Array, power: float
) -> tuple[float, float, float]:
    log_z, mean, variance = pointed(mu, sigma, y, theta[0] / power)
    return log_z + power * theta[1], mean, variance


@kernel
def pointed(mu: float, sigma: float, y: float, scale: float) -> tuple[float, float, float]:
    """Moments under exp(-|y - f|/scale)."""
    a, d = sigma / scale, (mu - y) / sigma
    # Above y a normal with its mean at y + sigma above, below y one at y - sigma below.
    above, below = d - a, -d - a
    r_above, up, v_above = probit_series(above)
    r_below, down, v_below = probit_series(below)
    # Logs of the sides' masses: exp(a^2/2 -+ a d) Phi. Both have the factor exp(-d^2/2), which is
    # left out of their ratio; Phi of the larger one is no small number.
    gap = side(above) - side(below)
    low = math.exp(-abs(gap))
    share, other_share = 1.0 / (1.0 + low), low / (1.0 + low)
    top, lean = above, a * (0.5 * a - d)
    if gap < 0.0:
        share, other_share = other_share, share
        top, lean = below, a * (0.5 * a + d)
    if top > -1.0:
        log_z = log_ndtr(top) + lean
    else:
        log_z = math.log(0.5 * erfcx(-top * _SQRT1_2)) - 0.5 * d * d
    log_z += math.log1p(low)
    variance = share * v_above + other_share * v_below + share * other_share * (up + down) ** 2
    # Means measured from y; far above or below the observation, from the cavity.
    if other_share == 0.0 and above > 0.0:
        mean = mu + sigma * (r_above - a)
    elif share == 0.0 and below > 0.0:
        mean = mu - sigma * (r_below - a)
    else:
        mean = y + sigma * (share * up - other_share * down)
    return log_z, mean, sigma * sigma * variance


def _expected(mean: float, std: float, y: float, theta: Array) -> tuple[float, float, float]:
    # Price's theorem gives the closed form; theta = (scale, -log 2 scale).
    d = (mean - y) / std
    density = _SQRT_2_PI * math.exp(-0.5 * d * d)
    lean = math.erf(d * _SQRT1_2)
    return (
        theta[1] - (std * density + (mean - y) * lean) / theta[0],
        -lean / theta[0],
        density / (std * theta[0]),
    )


def _kink(y: float, theta: Array, k: int) -> float:
    return y if k == 0 else math.nan


def _given(f: Array, theta: Array) -> SciPyResponse:
    return SciPyResponse("laplace", f, theta[0])


likelihood = Likelihood(
    name="laplace",
    outcomes="real numbers",
    split=Pointer(_split, SPLIT),
    validate=reals,
    location=True,
    powers=Powers.from_kernels(_moments, whole=False),
    parameters={"scale": 1.0},
    limits={"scale": (1e-50, 1e50)},
    derive=_constants,
    expected=Pointer(_expected, MOMENTS),
    landmarks=Pointer(_kink, LANDMARK),
    given=_given,
)
