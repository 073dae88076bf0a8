"""Priors with parameters: what learning asks of them, and that of a scikit-learn kernel.

The parameters are logarithms, theta. Slopes by a prior have a form of its solver's own
(`qpruntime.inference.solver.Solved.slope`); only the family knows how they become slopes by theta.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from qpruntime.arrays import Array
from qpruntime.inference.dense.solver import DensePrior
from qpruntime.inference.solver import Prior
from qpruntime.kernels.gradient import covariance_function

__all__ = ["Family", "KernelFamily"]


class Family(Protocol):
    """Priors of N latent values, one for every theta."""

    @property
    def theta(self) -> Array:
        """Where it is natural to begin, shape (p,)."""

    @property
    def bounds(self) -> Array:
        """Least and greatest theta, shape (p, 2)."""

    def at(self, theta: Array) -> Prior:
        """Return the prior of these parameters."""

    def contract(self, slope: Any) -> Array:
        """Turn the slope of a number by the prior that was asked for last into that by theta.

        Shape (p,). `slope` may be used up.
        """


class KernelFamily(Family):
    """Priors whose covariance is ``kernel(X)``.

    Parameters
    ----------
    kernel : scikit-learn kernel
    X : ndarray, shape (N, d)
    mean : ndarray, shape (N,)
        Prior mean.
    scale : ndarray, shape (N,), optional
        The latent values observed are these multiples of the kernel's: K_ij scale_i scale_j.
    """

    def __init__(self, kernel: Any, X: Array, mean: Array, scale: Array | None = None) -> None:
        self._kernel, self._mean = kernel, mean
        self._covariance = covariance_function(kernel, X)
        self._scales = None if scale is None else np.outer(scale, scale)

    @property
    def theta(self) -> Array:
        theta: Array = self._kernel.theta
        return theta

    @property
    def bounds(self) -> Array:
        bounds: Array = self._kernel.bounds
        return bounds.reshape(-1, 2)

    def at(self, theta: Array) -> DensePrior:
        K = self._covariance.at(theta)
        return DensePrior(K if self._scales is None else K * self._scales, self._mean)

    def contract(self, slope: Array) -> Array:
        if self._scales is not None:
            slope *= self._scales
        return self._covariance.contract(slope)
