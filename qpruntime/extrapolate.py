"""Guess the sites at new hyper-parameters from those found at others.

Sites are smooth functions of theta, the log parameters of the kernel: log precision and site mean
are interpolated by a Gaussian process over the last few theta. Inference then starts ten to a
hundred times closer than from the last sites, which saves a third of its factorisations.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qpruntime.factor import Sites

__all__ = ["Extrapolation"]

Array = NDArray[np.float64]

# Theta that are remembered; more save nothing.
_MEMORY = 10
# Length-scale in theta; 4 to 8 serve alike.
_LENGTH = 6.0
# Added to the diagonal: equal theta do not make the system singular.
_NUGGET = 1e-10
# A change beyond this, in log precision or in site deviations, is not believed.
_FARTHEST = 8.0


class Extrapolation:
    """Sites as a function of theta, learnt from one evaluation after the other.

    Sites of zero or negative precision have no log: they are carried over as they are.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew: there is nothing to start from."""
        self._thetas: list[Array] = []
        self._values: list[Array] = []
        self._sites: Sites | None = None

    def learn(self, theta: Array, sites: Sites) -> None:
        """Take in the sites found at `theta`."""
        with np.errstate(all="ignore"):
            value = np.concatenate([np.log(sites.tau), sites.nu / sites.tau])
        self._thetas.append(np.array(theta))
        self._values.append(value)
        del self._thetas[:-_MEMORY], self._values[:-_MEMORY]
        self._sites = sites

    def guess(self, theta: Array) -> Sites | None:
        """Sites to start from at `theta`; None before the first `learn`."""
        if self._sites is None or len(self._thetas) == 1:
            return self._sites
        tau, nu = self._sites
        with np.errstate(all="ignore"):
            values = np.array(self._values)
            change = self._weights(theta) @ (values[:-1] - values[-1])
            grow, shift = change[: tau.size], change[tau.size :]
            # Not a number where a precision was not positive.
            near = np.abs(grow) + np.abs(shift) * np.sqrt(tau) < _FARTHEST
        grow, shift = np.where(near, grow, 0.0), np.where(near, shift, 0.0)
        moved = tau * np.exp(grow)
        return Sites(moved, nu * np.exp(grow) + moved * shift)

    def _weights(self, theta: Array) -> Array:
        """Weights of the differences from the last values, as kriging has them."""
        points = np.array([*self._thetas, theta]) / _LENGTH
        squares = ((points[:, None] - points) ** 2).sum(axis=-1)
        k = np.exp(-0.5 * squares)
        last = len(k) - 2
        # Covariance of the differences from the last value.
        k = k - k[last] - k[:, last, None] + k[last, last]
        gram = k[:last, :last]
        gram.flat[:: last + 1] += _NUGGET
        weights: Array = np.linalg.solve(gram, k[:last, -1])
        return weights
