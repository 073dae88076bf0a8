"""Contract of a solver: what inference needs of a prior over N latent values.

Schedules, evidence and learning use a prior by these members only, whether its covariance is an
array, a state space or a diagonal. `qpruntime.inference.dense` implements it for an array. A solver
computes the posterior of Gaussian sites, t_i(f) = exp(nu_i f - tau_i f^2/2). The kernels of
`qpruntime.inference.site_kernels` compute the sites that a likelihood proposes; a solver's sweep
calls them.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from qpruntime._typing import Array, ArrayLike
from qpruntime.inference.site_kernels import PlainRules
from qpruntime.inference.sites import Counts, Sites

__all__ = ["PredictiveState", "Prior", "Pullback", "SiteProblem", "Solved"]


class SiteProblem(Protocol):
    """View of a problem for solvers: observations and the rules that propose sites."""

    @property
    def n(self) -> int:
        """Number of sites."""

    @property
    def observations(self) -> tuple[Array, Array]:
        """`Observations` as a plain tuple: observations and their weights."""

    def rules(self) -> PlainRules:
        """Return the rules that propose sites."""

    def matching(self) -> PlainRules:
        """Return the cheapest rules that give the means of sites."""

    def check(self, status: int, site: int, failure: Array) -> None:
        """Raise the error that a kernel's status means; `failure` holds the cavity (mean, std)."""


class Prior(Protocol):
    """Gaussian prior of N latent values."""

    @property
    def mean(self) -> Array:
        """Prior mean, shape (N,)."""

    @property
    def variance(self) -> Array:
        """Prior variances, shape (N,)."""

    @property
    def covariance(self) -> Array | None:
        """Prior covariance (N, N) if it is held as an array, which corrected marginals need."""

    def factor(self, sites: Sites) -> Solved:
        """Return the posterior of these sites.

        Raises
        ------
        NumericalError
            If double precision does not suffice; the message says what to do.
        ImproperPosterior
            If negative precisions leave no posterior.
        """

    def draw(self, rng: np.random.Generator) -> Array:
        """Return latent values sampled from the prior, shape (N,)."""


class Solved(Protocol):
    """Gaussian posterior of a prior and given sites."""

    @property
    def mean(self) -> Array:
        """Posterior mean, shape (N,)."""

    @property
    def weights(self) -> Array:
        """Weights K^-1 (posterior mean - prior mean), shape (N,), for prior covariance K."""

    @property
    def log_det(self) -> float:
        """Log determinant log |I + K diag(tau)|."""

    def marginals(self) -> tuple[Array, Array]:
        """Return the posterior variances and 1 - tau variance, each of shape (N,).

        The second determines the cavity, and must not be computed by that subtraction, which
        cancels if a site dominates its marginal.
        """

    def relocate(self, nu: Array) -> None:
        """Set the sites' precision-weighted means; precisions and variances stay."""

    def propose(
        self,
        problem: SiteProblem,
        marginals: tuple[Array, Array],
        sites: Sites,
        steps: int,
        counts: Counts,
    ) -> tuple[Sites, Array, Array]:
        """Propose updates of all sites from one posterior.

        The means are matched `steps` times with the precisions fixed, which relocates this
        posterior. The results are the sites after that, and the proposed changes of tau and nu.
        `qpruntime.inference.parallel_updates.propose_matched` does this for any solver.
        """

    def sweep(
        self,
        problem: SiteProblem,
        sites: Sites,
        damping: float,
        visits: NDArray[np.intp] | None,
        counts: Counts,
    ) -> tuple[Array, Array, Array]:
        """Update one site after the other, and the posterior after each; this object is consumed.

        Parameters
        ----------
        problem : SiteProblem
            Observations and the rules that propose sites.
        sites : Sites
            Not changed.
        damping : float
            Fraction of every update that is applied.
        visits : ndarray of int, shape (N,), or None
            Order of visits; None visits sites from the first to the last.
        counts : ndarray, shape (3,)
            Added to.

        Returns
        -------
        variance, d_tau, d_nu : ndarray, shape (N,)
            Posterior variances before the sweep, and the changes of the sites.
        """

    def discard(self) -> None:
        """Free the memory of the factorisation; mean and weights stay."""

    def keep(self) -> PredictiveState:
        """Return the state that predictions of a finished posterior need."""

    def slope(self) -> Any:
        """Return the derivative of the log evidence by the prior with the sites fixed.

        Its form is the solver's own, which only the matching family of priors in
        `qpruntime.learning.objective` needs to understand (Rasmussen & Williams, 5.27).
        """

    def pullback(self, marginals: tuple[Array, Array]) -> Pullback:
        """Return the transposed derivative of the given marginals.

        Only the leave-one-out objective needs it.
        """


class Pullback(Protocol):
    """Transposed derivative of the posterior marginals with respect to sites and prior.

    Both methods take the derivatives of a scalar by the posterior variances and by the posterior
    means, each of shape (N,).
    """

    def to_sites(self, by_variance: Array, by_mean: Array) -> Array:
        """Return its derivatives by tau and nu, shape (2, N), with the prior fixed."""

    def to_prior(self, by_variance: Array, by_mean: Array) -> Any:
        """Return its derivative by the prior, sites fixed, in the form of `Solved.slope`."""


class PredictiveState(Protocol):
    """State of a solver that predictions need after inference; it pickles."""

    @property
    def weights(self) -> Array:
        """Weights K^-1 (posterior mean - prior mean), shape (N,)."""

    def predict(self, *new: Any) -> tuple[Array, Array]:
        """Return latent means and variances at T new points, each of shape (T,).

        The arguments that give the points, and their checks, depend on the solver.
        """

    def evidence_gradient(self, change: ArrayLike) -> Array | float:
        """Return the slope of the log evidence for a change of the prior with the sites fixed."""
