"""Arguments of certified functions, checked and broadcast, and what kernels say of them."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qpruntime import likelihoods
from qpruntime._pointers import MOMENTS, Pointer
from qpruntime._special import log_ndtr, probit_series
from qpruntime._typing import Array
from qpruntime._validation import broadcast, real
from qpruntime.errors import InputError, NumericalError
from qpruntime.likelihoods import Likelihood
from qpruntime.likelihoods.step import two_sided
from qpruntime.projection.site_kernel import raise_status

__all__ = [
    "CLOSED_SLOPES",
    "KernelArguments",
    "checked",
    "is_own",
    "refuse",
    "refuse_overflow",
    "to_power",
]


class KernelArguments(NamedTuple):
    """Arguments as kernels take them, of shape (N,), and the shape of the answer.

    `likelihood` holds the rows of observations that have several numbers; `y` are their numbers.
    """

    likelihood: Likelihood
    mu: Array
    sigma: Array
    y: Array
    power: Array
    shape: tuple[int, ...]

    @property
    def powers(self) -> Array | None:
        """The powers, or None if all are 1."""
        return None if (self.power == 1.0).all() else self.power

    def where(self, mask: NDArray[np.bool_]) -> KernelArguments:
        """Return the cavities where `mask` is true."""
        mu, sigma, y, power = (a[mask] for a in (self.mu, self.sigma, self.y, self.power))
        return KernelArguments(self.likelihood, mu, sigma, y, power, mu.shape)


def checked(
    likelihood: Likelihood,
    mu: ArrayLike,
    sigma: ArrayLike,
    y: ArrayLike,
    power: ArrayLike,
    absorbed: bool = True,
) -> KernelArguments:
    """Check and broadcast; powers that only change the observation are taken into it.

    Raises
    ------
    InputError
        Unless all are finite numbers that broadcast, widths and powers positive, and y are
        observations of the likelihood.
    """
    observed_likelihood, numbers = likelihood.observing(y)
    arrays = broadcast(
        mu=real(mu, "mu"), sigma=real(sigma, "sigma"), y=numbers, power=real(power, "power")
    )
    m, s, labels, w = (np.array(a, dtype=float).reshape(-1) for a in arrays)
    if not np.isfinite(m).all():
        raise InputError("mu must be finite")
    if not (np.isfinite(s).all() and (s > 0.0).all()):
        raise InputError("sigma is a standard deviation: it must be positive and finite")
    wrong = ~(np.isfinite(w) & (w > 0.0))
    if wrong.any():
        raise InputError(
            f"power must be positive and finite, got {w[wrong][0]:g}; to the power 0 nothing is "
            "observed: leave the observation out"
        )
    if absorbed and is_own(likelihood):
        labels, w = to_power(likelihood.name, labels, w)
    return KernelArguments(observed_likelihood, m, s, labels, w, arrays[0].shape)


def refuse_overflow(
    given: KernelArguments, values: Array, derivatives: Array | None = None
) -> None:
    """Raise `NumericalError` where a value is not a number, or a derivative of it not finite.

    A value may be -inf: a log density beyond double precision, which has no derivatives.
    """
    wrong = np.isnan(values)
    if derivatives is not None:
        wrong |= np.isfinite(values) & ~np.isfinite(derivatives).all(axis=1)
    if wrong.any():
        m, s = given.mu[wrong][0], given.sigma[wrong][0]
        raise NumericalError(
            f"a value or a derivative under N({m:g}, {s:g}^2) leaves double precision, whose "
            "numbers reach from 1e-308 to 1e308: rescale the latent function"
        )


def is_own(likelihood: Likelihood) -> bool:
    """Decide whether it comes with the package."""
    known = likelihood.name in likelihoods.names() and likelihood.recipe is None
    return known and likelihoods.get(likelihood.name).split is likelihood.split


def refuse(given: KernelArguments, status: int, i: int) -> None:
    """Raise what a kernel's status says of cavity i, if it says anything."""
    if status:
        raise_status(status, given.likelihood, given.mu[i], given.sigma[i], given.y[i])


# --- Derivatives of log Z in closed form ---------------------------------------------------------

# Each returns (log Z, d log Z/d mu, d log Z/d sigma).


def _probit(mu: float, sigma: float, y: float, theta: Array) -> tuple[float, float, float]:
    # log Phi(z), z = y mu/sqrt(1 + sigma^2).
    root = math.hypot(1.0, sigma)
    z = y * mu / root
    r = probit_series(z)[0]
    return log_ndtr(z), y * r / root, -r * z * (sigma / root) / root


def _heaviside(mu: float, sigma: float, y: float, theta: Array) -> tuple[float, float, float]:
    z = y * mu / sigma
    if z > 40.0:
        return 0.0, 0.0, 0.0
    r = probit_series(z)[0]
    return log_ndtr(z), y * r / sigma, -r * z / sigma


def _step(mu: float, sigma: float, y: float, theta: Array) -> tuple[float, float, float]:
    # Z = Phi(a) + e^-y Phi(-a), a = mu/sigma, for y >= 0; phi(a)/Z = r(a) Phi(a)/Z.
    log_z, _, _, a, right, _ = two_sided(mu, sigma, y)
    slope = -math.expm1(-abs(y)) * right * probit_series(a)[0] / sigma
    return log_z, math.copysign(1.0, y) * slope, -slope * a


#: Slopes in closed form by the name of the likelihood, for the first power.
CLOSED_SLOPES = {
    "heaviside": Pointer(_heaviside, MOMENTS),
    "probit": Pointer(_probit, MOMENTS),
    "step": Pointer(_step, MOMENTS),
}


def to_power(name: str, y: Array, power: Array) -> tuple[Array, Array]:
    """Return the observations and powers of the same likelihood, with fewer powers than before.

    A heaviside is what it is to every power; of a step the logarithm of heights is multiplied.
    """
    if name == "step":
        return y * power, np.ones_like(power)
    return y, np.ones_like(power) if name == "heaviside" else power
