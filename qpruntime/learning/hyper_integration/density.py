"""The log density of hyper-parameters, up to the evidence of the model, with its slope."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._restorable import restorable
from qpruntime._special import HALF_LOG_2PI
from qpruntime._typing import Array
from qpruntime.errors import NumericalError
from qpruntime.inference.sites import Sites
from qpruntime.kernels.default import LogNormal
from qpruntime.learning.hyper_integration.designs import directions
from qpruntime.learning.hyperpriors import Priors
from qpruntime.learning.initialisation import start_from
from qpruntime.likelihoods import Likelihood

__all__ = [
    "LENGTH_SCALE_DEVIATION",
    "OTHER_DEVIATION",
    "Density",
    "Evaluated",
    "Integrated",
    "ProperPrior",
    "proper_prior",
]

# Step of the differences of slopes, which leave relative errors of the Hessian of about 1e-4.
_STEP = 1e-2


class Evaluated(NamedTuple):
    """The density at one theta (p,): its logarithm, the slope (p,), and the sites found there."""

    theta: Array
    value: float
    slope: Array
    sites: Sites | None


class SettledObjective(Protocol):
    """Negative log evidence less the log prior, with its gradient, and the sites found last."""

    sites: Sites | None

    @property
    def evaluations(self) -> int:
        """Number of evaluations so far."""

    def __call__(self, theta: Array) -> tuple[float, Array]:
        """Return the objective and its gradient."""


class Density:
    """Log evidence and log prior of log parameters, between bounds.

    Parameters
    ----------
    objective : SettledObjective
    bounds : ndarray, shape (p, 2)
    """

    def __init__(self, objective: SettledObjective, bounds: Array) -> None:
        self._objective = objective
        self.low, self.high = bounds.T

    @property
    def evaluations(self) -> int:
        """Number of evaluations so far."""
        return self._objective.evaluations

    def at(self, theta: Array) -> Evaluated | None:
        """Return what is found at theta; None out of bounds, and where inference fails."""
        if not ((theta >= self.low) & (theta <= self.high)).all():
            return None
        try:
            value, slope = self._objective(theta)
        except NumericalError as error:
            if error.__cause__ is not None:  # a user's own exception
                raise
            return None
        sites = self._objective.sites
        # Failures are plateaus, which leave no sites.
        return None if sites is None else Evaluated(theta.copy(), -value, -slope, sites)

    def directions(self, mode: Array) -> Array:
        """Return V (p, p) with theta = mode + V z of unit curvature, by differences of the slopes.

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
                node = self.at(theta)
                if node is None:
                    raise NumericalError("inference fails beside the mode of the hyper-parameters")
                ends.append(node)
            H[:, k] = -(ends[1].slope - ends[0].slope) / (ends[1].theta[k] - ends[0].theta[k])
        return directions(H)


# --- Nodes with a posterior each


@restorable("integrated/1")
@dataclass(frozen=True, eq=False)
class Integrated:
    """Nodes of the hyper-parameters, their weights, and the posterior at each node.

    Attributes
    ----------
    design : {"grid", "composite", "importance"}
        Design of the nodes.
    names : tuple of str, length p
        Names of the parameters: first those of the kernel, then those of the likelihood.
    theta : ndarray, shape (J, p)
        Logarithms of the parameters at the nodes, in the units of `Optimum.theta`.
    weights : ndarray, shape (J,)
        Weights of the nodes; they sum to 1.
    log_evidence : float
        Log of the evidence integrated over the prior of the parameters.
    effective : float
        Effective number of nodes: 1 over the sum of squared weights.
    pareto_k : float
        Shape of the tail of importance weights of a Student t around the mode, by which the
        density is far from it: above 0.7 such weights are not relied on.
    evaluations : int
        Number of evaluations of the evidence.
    kernels, likelihoods, posteriors : tuple, length J
        Values at the nodes, as `kernel_`, `likelihood_` and `posterior_` are at the mode.

    See Also
    --------
    qpruntime.Integrate

    Examples
    --------
    >>> from qpruntime import GPClassifier, Integrate
    >>> model = GPClassifier(method="ep", hyperparameters=Integrate("composite"))
    >>> result = model.fit([[-2.0], [-1.0], [1.0], [2.0]], [0, 0, 1, 1]).integrated_
    >>> len(result.names) == result.theta.shape[1], round(float(result.weights.sum()), 6)
    (True, 1.0)
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
# The evidence alone need not be integrable: if classes are separable, it has a limit as the
# variance of the latent function grows. The hyper-priors do not depend on the observations.

#: Standard deviations of the logarithms: of length-scales about the distances of rows, and of all
#: other parameters about their start.
LENGTH_SCALE_DEVIATION, OTHER_DEVIATION = 1.5, 3.0


@dataclass(frozen=True)
class ProperPrior:
    """Proper log density of log parameters, normalised: the user's priors and log-normal ones.

    Attributes
    ----------
    user_priors : Priors or None
    mean, deviation : ndarray, shape (p,)
        Moments of the log parameters; the deviation is infinite if the user gives a prior.
    """

    user_priors: Priors | None
    mean: Array
    deviation: Array

    def __call__(self, theta: Array) -> tuple[float, Array]:
        """Return the log density at theta and its gradient."""
        z = (theta - self.mean) / self.deviation
        has_lognormal = np.isfinite(self.deviation)
        value = -0.5 * float(z @ z) - float(
            (np.log(self.deviation[has_lognormal]) + HALF_LOG_2PI).sum()
        )
        slope = -z / self.deviation
        if self.user_priors is not None:
            user_value, user_slope = self.user_priors(theta)
            value, slope = value + user_value, slope + user_slope
        return value, slope


def proper_prior(
    search_prior: Priors | LogNormal | None,
    kernel: Kernel,
    start: Array,
    X: Array,
    likelihood_start: Array,
) -> ProperPrior:
    """Return the prior of all parameters, first of the kernel, then of the likelihood.

    Parameters
    ----------
    search_prior : Priors, LogNormal or None
        Prior of the search.
    kernel : scikit-learn kernel
        Kernel at its start; the fitted kernel may have more parameters.
    start : ndarray, shape (q,)
        Log parameters of the kernel at the start of the search.
    X : ndarray, shape (N, d)
    likelihood_start : ndarray, shape (r,)
        Log parameters of the likelihood at their start.
    """
    data_theta = start_from(kernel.clone_with_theta(start), X)
    # Priors of variances are centred at their start; only length-scales depend on the data.
    lengths = _is_length_scale(kernel)
    mean = np.where(lengths, start if data_theta is None else data_theta, start)
    deviation = np.where(lengths, LENGTH_SCALE_DEVIATION, OTHER_DEVIATION)
    mean = np.concatenate([mean, likelihood_start])
    deviation = np.concatenate([deviation, np.full(likelihood_start.size, OTHER_DEVIATION)])
    if isinstance(search_prior, LogNormal):
        n_known = search_prior.mean.size
        mean[:n_known] = search_prior.mean
        deviation[:n_known] = np.minimum(search_prior.deviation, deviation[:n_known])
        return ProperPrior(None, mean, deviation)
    if isinstance(search_prior, Priors):
        places = [place for place, _ in search_prior.placed]
        deviation[places] = np.inf
        return ProperPrior(search_prior, mean, deviation)
    return ProperPrior(None, mean, deviation)


def _is_length_scale(kernel: Kernel) -> Array:
    """Return a mask (q,) of the free parameters that are length-scales."""
    free = [h for h in kernel.hyperparameters if not h.fixed]
    return np.array(
        [h.name.endswith("length_scale") for h in free for _ in range(h.n_elements)], dtype=bool
    )
