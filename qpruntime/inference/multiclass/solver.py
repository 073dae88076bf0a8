"""The solver of classes jointly: `qpruntime.inference.solver`, by blocks of one class each."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.inference.classes.algebra import Blocks
from qpruntime.inference.classes.layout import Layout
from qpruntime.inference.classes.means import settle_means
from qpruntime.inference.classes.rows import visit_rows
from qpruntime.inference.classes.stored import ClassKept
from qpruntime.inference.proposals import propose_all
from qpruntime.inference.site_update import Marginals
from qpruntime.inference.sites import Counts, ImproperPosterior, Sites
from qpruntime.inference.solver import Asked, Prior, Pullback, Solved

__all__ = ["ClassPrior", "ClassSolved"]

# Precisions along z are at least this share of that of the prior: in factorisations only.
_FLOOR = 1e-12
# Steps of the means from one factorisation.
_MEANS = 6
# Visits to the sites of a row until they settle.
_MOST, _SETTLED = 100, 1e-10


class ClassPrior(Prior):
    """Contrasts of C independent priors of N rows each, all of mean 0.

    Parameters
    ----------
    K : ndarray, shape (C, N, N) or (1, N, N)
        Covariances, one for each class or one for all.
    layout : Layout
    """

    covariance = None

    def __init__(self, K: Array, layout: Layout) -> None:
        self.K, self.layout = K, layout
        #: Prior variances of f, shape (C, N).
        self.squares = np.array([K[c % len(K)].diagonal() for c in range(layout.classes)])

    @property
    def mean(self) -> Array:
        return np.zeros(self.layout.sites)

    @property
    def variance(self) -> Array:
        rows, others = self.layout.rows, self.layout.others
        return 1.0 + self.squares[self.layout.own[rows], rows] + self.squares[others, rows]

    def rows(self) -> Array:
        """As `ClassSolved.rows`, of the prior: z_c is f_c less f_own and u."""
        layout, n = self.layout, np.arange(self.layout.n)
        own = 1.0 + self.squares[layout.own, n]
        covariance: Array = np.eye(layout.classes) * self.squares.T[:, None, :]
        covariance += own[:, None, None]
        return covariance

    def factor(self, sites: Sites) -> ClassSolved:
        return ClassSolved(self, sites)

    def draw(self, rng: np.random.Generator) -> Array:
        raise NotImplementedError("restarts are for likelihoods that are not log-concave")


class ClassSolved(Solved):
    """The posterior of given sites; nothing is factorised where these say nothing.

    Raises
    ------
    NumericalError
        If double precision does not suffice.
    ImproperPosterior
        If a precision is negative.
    """

    def __init__(self, prior: ClassPrior, sites: Sites) -> None:
        if (sites.tau < 0.0).any():
            raise ImproperPosterior("site precisions of classes are not negative")
        self._prior, self._layout, self.tau = prior, prior.layout, sites.tau
        self.relocate(sites.nu)
        if sites.tau.any():
            self.blocks  # noqa: B018  what fails here is the caller's to know

    @cached_property
    def blocks(self) -> Blocks:
        """The factorisations."""
        D = np.maximum(self._layout.whole(self.tau, 1.0).T, _FLOOR / self._prior.squares)
        return Blocks(self._prior.K, np.ascontiguousarray(D))

    @property
    def _is_prior(self) -> bool:
        return not self.tau.any()

    def relocate(self, nu: Array) -> None:
        self._nu = nu
        self._solution: tuple[Array, Array, Array] | None = None

    def between(self, start: tuple[Array, ...], share: float) -> None:
        """Go back to this share of the way from a solution to the present one: it is linear."""
        nu, *solution = start
        here = self.solution()
        self._nu = nu + share * (self._nu - nu)
        first, second, third = (a + share * (b - a) for a, b in zip(solution, here, strict=True))
        self._solution = first, second, third

    def solution(self) -> tuple[Array, Array, Array]:
        """Weights and means of all classes, each of shape (C, N), and s, shape (N,)."""
        if self._solution is None:
            # g = -z, and so are the precision-weighted means.
            nu = np.ascontiguousarray(-self._layout.whole(self._nu, 0.0).T)
            if self._is_prior and not nu.any():
                self._solution = nu, nu, nu[0]
            else:
                self._solution = self.blocks.solve(nu)
        return self._solution

    @property
    def mean(self) -> Array:
        _, mean, shift = self.solution()
        return self._layout.flat(-(mean + shift).T)

    @property
    def weights(self) -> Array:
        return self._layout.flat(-self.solution()[0].T)

    @property
    def log_det(self) -> float:
        return 0.0 if self._is_prior else self.blocks.log_det

    def rows(self) -> Array:
        """Cov(z_i), shape (N, C, C), but for what has to do with a row's own class."""
        return self._prior.rows() if self._is_prior else self.blocks.covariances(self._layout.own)

    def marginals(self) -> tuple[Array, Array]:
        layout = self._layout
        if self._is_prior:
            return self._prior.variance, np.ones(layout.sites)
        variance, kept = self.blocks.marginals(layout.own)
        return layout.flat(variance), layout.flat(kept)

    def propose(
        self,
        asked: Asked,
        marginals: tuple[Array, Array],
        sites: Sites,
        steps: int,
        counts: Counts,
    ) -> tuple[Sites, Array, Array]:
        # More than are asked for: they cost little beside a factorisation.
        if steps:
            sites = settle_means(self, asked, marginals, sites, _MEANS)
        here = Marginals(self.mean, *marginals, self.weights)
        return sites, *propose_all(asked, asked.rules(), here, sites, counts)

    def sweep(
        self,
        asked: Asked,
        sites: Sites,
        damping: float,
        visits: NDArray[np.intp] | None,
        counts: Counts,
    ) -> tuple[Array, Array, Array]:
        """All rows from one posterior, each visited until its own sites settle.

        There is no order of visits that is not N times as dear: `visits` is not used.
        """
        marginals = self.marginals()
        d_tau, d_nu = self._visit(asked, marginals, sites, _MOST, counts)
        return marginals[0], damping * d_tau, damping * d_nu

    def _visit(
        self,
        asked: Asked,
        marginals: tuple[Array, Array],
        sites: Sites,
        visits: int,
        counts: Counts,
    ) -> tuple[Array, Array]:
        """Changes of all sites after so many visits to each row."""
        tau, nu, failure = sites.tau.copy(), sites.nu.copy(), np.zeros(2)
        status, site = visit_rows(
            asked.rules(),
            asked.observations,
            np.ascontiguousarray(self.rows()),  # one layout, so that it is compiled once
            self._layout.others,
            (*Marginals(self.mean, *marginals, self.weights),),
            (tau, nu),
            visits,
            _SETTLED,
            (counts, failure),
        )
        asked.check(status, site, failure)
        return tau - sites.tau, nu - sites.nu

    def discard(self) -> None:
        self.solution()
        vars(self).pop("blocks", None)

    def keep(self) -> ClassKept:
        return ClassKept(self.blocks, self.solution()[0], self.weights)

    def slope(self) -> Iterator[Array]:
        """Derivatives of the log evidence by each K_c, the sites being fixed, one by one."""
        return self.keep().slopes()

    def pullback(self, marginals: tuple[Array, Array]) -> Pullback:
        raise InputError(
            'classes jointly have no slope of the leave-one-out density: use optimize="evidence"'
        )
