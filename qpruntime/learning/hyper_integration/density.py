"""The log density of hyper-parameters, up to the evidence of the model, with its slope."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime.errors import NumericalError
from qpruntime.inference.sites import Sites
from qpruntime.kernels.default import LogNormal
from qpruntime.learning.hyper_integration.designs import directions
from qpruntime.learning.hyperpriors import Priors
from qpruntime.learning.initialisation import start_from
from qpruntime.learning.objective import Objective
from qpruntime.likelihoods import Likelihood

__all__ = [
    "LENGTHS",
    "OTHERS",
    "Density",
    "Evaluated",
    "Integrated",
    "Proper",
    "proper_prior",
]

# Step of differences of slopes: relative errors of the Hessian of about 1e-4.
_STEP = 1e-2


class Evaluated(NamedTuple):
    """The density at one theta (p,): its logarithm, the slope (p,), and the sites found there."""

    theta: Array
    value: float
    slope: Array
    sites: Sites | None


class Density:
    """Log evidence and log prior of log parameters, between bounds.

    Parameters
    ----------
    objective : Objective
        Negative; with the prior in it.
    bounds : ndarray, shape (p, 2)
    """

    def __init__(self, objective: Any, bounds: Array) -> None:
        self._objective: Objective = objective
        self.low, self.high = bounds.T

    @property
    def evaluations(self) -> int:
        """How many there were."""
        return self._objective.evaluations

    def at(self, theta: Array) -> Evaluated | None:
        """Return what is found at theta; None out of bounds, and where inference fails."""
        if not ((theta >= self.low) & (theta <= self.high)).all():
            return None
        try:
            value, slope = self._objective(theta)
        except NumericalError:
            return None
        sites = self._objective.sites
        # Failures are plateaus, which leave no sites.
        return None if sites is None else Evaluated(theta.copy(), -value, -slope, sites)

    def directions(self, mode: Array) -> Array:
        """V (p, p) with theta = mode + V z of unit curvature, by differences of the slopes.

        Raises
        ------
        NumericalError
            If inference fails beside the mode.
        """
        H = np.empty((mode.size, mode.size))
        for k in range(mode.size):
            ends = []
            for sign in (-1.0, 1.0):
                theta = mode.copy()
                theta[k] = np.clip(theta[k] + sign * _STEP, self.low[k], self.high[k])
                one = self.at(theta)
                if one is None:
                    raise NumericalError("inference fails beside the mode of the hyper-parameters")
                ends.append(one)
            H[:, k] = -(ends[1].slope - ends[0].slope) / (ends[1].theta[k] - ends[0].theta[k])
        return directions(H)


# --- Nodes with a posterior each


@restorable("integrated/1")
@dataclass(frozen=True, eq=False)
class Integrated:
    """What hyper-parameters may be, how likely that is, and the posterior with each of them.

    Attributes
    ----------
    design : {"grid", "composite", "importance"}
        How nodes were found.
    names : tuple of str, length p
        Of the parameters: those of the kernel, then those of the likelihood.
    theta : ndarray, shape (J, p)
        Their logarithms at the nodes, in the units of `Optimum.theta`.
    weights : ndarray, shape (J,)
        They sum to 1.
    log_evidence : float
        Log of the evidence integrated over the prior of the parameters.
    effective : float
        Effective number of nodes: 1 over the sum of squared weights.
    pareto_k : float
        Shape of the tail of importance weights of a Student t around the mode, by which the
        density is far from it: above 0.7 such weights are not relied on.
    evaluations : int
        How often the evidence was computed.
    kernels, likelihoods, posteriors : tuple, length J
        At the nodes, as `kernel_`, `likelihood_` and `posterior_` are at the mode.
    """

    design: str
    names: tuple[str, ...]
    theta: Array
    weights: Array
    log_evidence: float
    effective: float
    pareto_k: float
    evaluations: int
    kernels: tuple[Kernel, ...]
    likelihoods: tuple[Likelihood, ...]
    posteriors: tuple[Any, ...]

    def moved(self, change: Callable[[Kernel, Any], tuple[Kernel, Any]]) -> Integrated:
        """Return the same with other kernels and posteriors, as of features in other units."""
        pairs = zip(self.kernels, self.posteriors, strict=True)
        kernels, posteriors = zip(*(change(*pair) for pair in pairs), strict=True)
        return replace(self, kernels=kernels, posteriors=posteriors)

    def __repr__(self) -> str:
        return (
            f"Integrated({self.design}: {len(self.weights)} nodes of {', '.join(self.names)}; "
            f"effective {self.effective:.1f}, k {self.pareto_k:.2f}, {self.evaluations} "
            "evaluations)"
        )


# --- Hyper-priors of all log parameters
#
# The evidence alone need not be integrable: where classes are separable it has a limit as the
# variance of the latent function grows. Nothing here looks at observations.

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
