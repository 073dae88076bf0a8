"""Arguments of certified functions, checked and broadcast, and what kernels say of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from qpruntime import likelihoods
from qpruntime.arrays import Array
from qpruntime.certified.closed import to_power
from qpruntime.errors import InputError
from qpruntime.likelihoods import Likelihood
from qpruntime.projection.kernel import raise_status
from qpruntime.validation import broadcast, real

__all__ = ["Given", "checked", "is_own", "refuse"]


class Given(NamedTuple):
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

    def where(self, mask: Any) -> Given:
        """Return the cavities where `mask` is true."""
        mu, sigma, y, power = (a[mask] for a in (self.mu, self.sigma, self.y, self.power))
        return Given(self.likelihood, mu, sigma, y, power, mu.shape)


def checked(
    likelihood: Likelihood,
    mu: ArrayLike,
    sigma: ArrayLike,
    y: ArrayLike,
    power: ArrayLike,
    absorbed: bool = True,
) -> Given:
    """Check and broadcast; powers that only change the observation are taken into it.

    Raises
    ------
    InputError
        Unless all are finite numbers that broadcast, widths and powers positive, and y are
        observations of the likelihood.
    """
    own, numbers = likelihood.observing(y)
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
    return Given(own, m, s, labels, w, arrays[0].shape)


def is_own(likelihood: Likelihood) -> bool:
    """Whether it comes with the package."""
    known = likelihood.name in likelihoods.names() and likelihood.recipe is None
    return known and likelihoods.get(likelihood.name).split is likelihood.split


def refuse(given: Given, status: int, i: int) -> None:
    """Raise what a kernel's status says of cavity i, if it says anything."""
    if status:
        raise_status(status, given.likelihood, given.mu[i], given.sigma[i], given.y[i])
