"""Proper priors of all log parameters: what is given, and weak ones where nothing is.

The evidence alone need not be integrable: where classes are separable it has a limit as the
variance of the latent function grows. Nothing here looks at observations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import Kernel

from qpruntime.arrays import Array
from qpruntime.kernels.default import LogNormal
from qpruntime.learning.priors import Priors
from qpruntime.learning.starts import start_from

__all__ = ["LENGTHS", "OTHERS", "Proper", "proper_prior"]

#: Deviations of the logarithms: of length-scales about the distances of rows, and of all else about
#: where it begins.
LENGTHS, OTHERS = 1.5, 3.0
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


@dataclass(frozen=True)
class Proper:
    """Log density of log parameters, with its constant: that given, and log-normal ones.

    Attributes
    ----------
    given : Priors or None
    mean, deviation : ndarray, shape (p,)
        Of the log parameters; an infinite deviation where there is a prior that is given.
    """

    given: Priors | None
    mean: Array
    deviation: Array

    def __call__(self, theta: Array) -> tuple[float, Array]:
        """Log density at theta, and its gradient."""
        z = (theta - self.mean) / self.deviation
        own = np.isfinite(self.deviation)
        value = -0.5 * float(z @ z) - float((np.log(self.deviation[own]) + _HALF_LOG_2PI).sum())
        slope = -z / self.deviation
        if self.given is not None:
            extra, further = self.given(theta)
            value, slope = value + extra, slope + further
        return value, slope


def proper_prior(given: Any, begun: Kernel, theta: Array, X: Array, likelihood: Array) -> Proper:
    """Return the prior of all parameters: of a kernel, then of a likelihood.

    Parameters
    ----------
    given : Priors, LogNormal or None
        What the search has had.
    begun : scikit-learn kernel
        With the parameters that it begins with; those of the fit may be more.
    theta : ndarray, shape (q,)
        Log parameters of the kernel where the search begins.
    X : ndarray, shape (N, d)
    likelihood : ndarray, shape (r,)
        Log parameters of the likelihood where they begin.
    """
    found = start_from(begun.clone_with_theta(theta), X)
    # Variances stay where they begin; only length-scales are of the data.
    lengths = _lengths(begun)
    mean = np.where(lengths, theta if found is None else found, theta)
    deviation = np.where(lengths, LENGTHS, OTHERS)
    mean = np.concatenate([mean, likelihood])
    deviation = np.concatenate([deviation, np.full(likelihood.size, OTHERS)])
    if isinstance(given, LogNormal):
        known = given.mean.size
        mean[:known] = given.mean
        deviation[:known] = np.minimum(given.deviation, deviation[:known])
        return Proper(None, mean, deviation)
    if isinstance(given, Priors):
        places = [place for place, _ in given.placed]
        deviation[places] = np.inf
        return Proper(given, mean, deviation)
    return Proper(None, mean, deviation)


def _lengths(kernel: Kernel) -> Array:
    """Which free parameters are length-scales, (q,)."""
    free = [h for h in kernel.hyperparameters if not h.fixed]
    return np.array(
        [h.name.endswith("length_scale") for h in free for _ in range(h.n_elements)], dtype=bool
    )
