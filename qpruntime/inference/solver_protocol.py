"""What inference asks of a prior over N latent values: the contract of a solver.

Schedules, evidence and learning know no more of a prior than is written here: not whether its
covariance is an array, a state space or a diagonal. `qpruntime.inference.dense` is the
implementation for an array. A solver says how a posterior follows from Gaussian sites, t_i(f) =
exp(nu_i f - tau_i f^2/2); what sites a likelihood asks for is in
`qpruntime.inference.site_kernels`, whose kernels a solver's own sweep calls.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from qpruntime._typing import Array
from qpruntime.inference.site_kernels import PlainRules
from qpruntime.inference.sites import Counts, Sites

__all__ = ["PredictiveState", "Prior", "Pullback", "SiteProblem", "Solved"]


class SiteProblem(Protocol):
    """What a solver is told of a problem: how sites are proposed (`Problem` tells it)."""

    @property
    def n(self) -> int:
        """Number of sites."""

    @property
    def observations(self) -> tuple[Array, Array]:
        """`Observations` as a plain tuple: observations and their weights."""

    def rules(self) -> PlainRules:
        """How sites are proposed."""

    def matching(self) -> PlainRules:
        """How they are where only their means count: at least cost."""

    def check(self, status: int, site: int, failure: Array) -> None:
        """Raise what the status of a kernel stands for; `failure` holds the cavity (mean, std)."""


class Prior(Protocol):
    """A Gaussian over N latent values, before any observation."""

    @property
    def mean(self) -> Array:
        """Prior mean, shape (N,)."""

    @property
    def variance(self) -> Array:
        """Prior variances, shape (N,)."""

    @property
    def covariance(self) -> Array | None:
        """Prior covariance (N, N) where it is at hand as an array: corrected marginals take it."""

    def factor(self, sites: Sites) -> Solved:
        """Return the posterior that these sites leave.

        Raises
        ------
        NumericalError
            If double precision does not suffice; the message says what to do.
        ImproperPosterior
            If negative precisions leave no posterior.
        """

    def draw(self, rng: np.random.Generator) -> Array:
        """Latent values drawn from the prior, shape (N,)."""


class Solved(Protocol):
    """The Gaussian posterior of a prior and given sites."""

    @property
    def mean(self) -> Array:
        """Posterior mean, shape (N,)."""

    @property
    def weights(self) -> Array:
        """K^-1 (posterior mean - prior mean), shape (N,), for prior covariance K."""

    @property
    def log_det(self) -> float:
        """log |I + K diag(tau)|."""

    def marginals(self) -> tuple[Array, Array]:
        """Return the posterior variances and 1 - tau variance, each of shape (N,).

        The second is what a cavity is made of, and must not be formed by that subtraction, which
        cancels where a site dominates its marginal.
        """

    def relocate(self, nu: Array) -> None:
        """Set the sites' precision-weighted means; precisions stay, and so do the variances."""

    def propose(
        self,
        asked: SiteProblem,
        marginals: tuple[Array, Array],
        sites: Sites,
        steps: int,
        counts: Counts,
    ) -> tuple[Sites, Array, Array]:
        """What all sites ask for at once.

        Match the means `steps` times with the precisions fixed, which relocates this posterior;
        then return the sites it has come to and the changes of tau and nu that it asks for.
        `qpruntime.inference.parallel_updates.propose_matched` does so for any solver.
        """

    def sweep(
        self,
        asked: SiteProblem,
        sites: Sites,
        damping: float,
        visits: NDArray[np.intp] | None,
        counts: Counts,
    ) -> tuple[Array, Array, Array]:
        """Update one site after the other, and the posterior after each; this one is used up.

        Parameters
        ----------
        asked : Asked
            Has the observations and the rules by which sites are proposed.
        sites : Sites
            Not changed.
        damping : float
            Fraction of every update that is taken.
        visits : ndarray of int, shape (N,), or None
            Sites in the order of their visits; None is from the first to the last.
        counts : ndarray, shape (3,)
            Added to.

        Returns
        -------
        variance, d_tau, d_nu : ndarray, shape (N,)
            Posterior variances before the sweep, and the changes of the sites.
        """

    def discard(self) -> None:
        """Give back memory that only a factorisation needs; mean and weights stay."""

    def keep(self) -> PredictiveState:
        """Return what a finished posterior has to keep."""

    def slope(self) -> Any:
        """Derivative of the log evidence by the prior, the sites being fixed.

        In the solver's own form, which only the family that the prior is of needs to understand:
        `qpruntime.learning.objective`. (Rasmussen & Williams, 5.27.)
        """

    def pullback(self, marginals: tuple[Array, Array]) -> Pullback:
        """Return the transposed derivative of the marginals, whose values are given.

        Only the leave-one-out objective needs it.
        """


class Pullback(Protocol):
    """Carries slopes by the posterior marginals back to what these are made of.

    Both methods take the derivatives of some number by the posterior variances and by the posterior
    means, each of shape (N,).
    """

    def to_sites(self, by_variance: Array, by_mean: Array) -> Array:
        """Its derivatives by tau and nu, shape (2, N), the prior being fixed."""

    def to_prior(self, by_variance: Array, by_mean: Array) -> Any:
        """Its derivative by the prior, the sites being fixed, in the form of `Solved.slope`."""


class PredictiveState(Protocol):
    """What a finished posterior keeps of its solver; it pickles."""

    @property
    def weights(self) -> Array:
        """K^-1 (posterior mean - prior mean), shape (N,)."""

    def predict(self, *new: Any) -> tuple[Array, Array]:
        """Latent means and variances at T new points, each of shape (T,).

        What says where the points are is a matter of the solver, as is what it demands of it.
        """

    def evidence_gradient(self, change: Any) -> Array | float:
        """Slope of the log evidence where the prior changes so, the sites being fixed."""
