"""Posterior of C independent priors, given the sites."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dtpttr, dtrttp

from qpruntime._memory import in_blocks
from qpruntime._restorable import restorable
from qpruntime._typing import Array, ArrayLike
from qpruntime.errors import InputError, NumericalError
from qpruntime.inference.dense import blas
from qpruntime.inference.dense.cholesky_kernels import mirror_upper
from qpruntime.inference.multiclass.linalg import Blocks, Layout, slope_of
from qpruntime.inference.multiclass.site_kernels import visit_rows
from qpruntime.inference.parallel_updates import matched, propose_all
from qpruntime.inference.site_kernels import Marginals
from qpruntime.inference.sites import Counts, ImproperPosterior, Sites
from qpruntime.inference.solver_protocol import Prior, Pullback, SiteProblem, Solved

__all__ = ["ClassKept", "ClassPrior", "ClassSolved", "settle_means"]

# --- Solver of classes

# Least precision along z as a share of that of the prior, in factorisations only.
_FLOOR = 1e-12
# Number of steps of the means per factorisation.
_MEANS = 6
# Largest number of visits to the sites of a row before they settle.
_MOST, _SETTLED = 100, 1e-10


class ClassPrior(Prior):
    """Contrasts of C independent priors of N rows each, all with mean 0.

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
        """Prior mean of the sites, 0."""
        return np.zeros(self.layout.sites)

    @property
    def variance(self) -> Array:
        """Prior variances of the sites."""
        rows, others = self.layout.rows, self.layout.others
        return np.asarray(
            1.0 + self.squares[self.layout.own[rows], rows] + self.squares[others, rows]
        )

    def rows(self) -> Array:
        """Return the prior counterpart of `ClassSolved.rows`: z_c is f_c minus f_own and u."""
        layout, n = self.layout, np.arange(self.layout.n)
        own_spread = 1.0 + self.squares[layout.own, n]
        covariance: Array = np.eye(layout.classes) * self.squares.T[:, None, :]
        covariance += own_spread[:, None, None]
        return covariance

    def factor(self, sites: Sites) -> ClassSolved:
        """Return the posterior of these sites."""
        return ClassSolved(self, sites)

    def draw(self, rng: np.random.Generator) -> Array:
        """Raise `NotImplementedError`: only restarts draw."""
        raise NotImplementedError("restarts are for likelihoods that are not log-concave")


class ClassSolved(Solved):
    """Posterior of given sites; nothing is factorised if all sites are zero.

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
        return Blocks(self._prior.K, np.ascontiguousarray(D), self._layout.own)

    @property
    def _is_prior(self) -> bool:
        return not self.tau.any()

    def relocate(self, nu: Array) -> None:
        """Set the sites' precision-weighted means."""
        self._nu = nu
        self._solution: tuple[Array, Array, Array] | None = None

    def between(self, start: tuple[Array, ...], share: float) -> None:
        """Go back to this share of the way from a solution to the present one."""
        nu, *solution = start
        present = self.solution()
        self._nu = nu + share * (self._nu - nu)
        first, second, third = (a + share * (b - a) for a, b in zip(solution, present, strict=True))
        self._solution = first, second, third

    def solution(self) -> tuple[Array, Array, Array]:
        """Return weights and means of all classes, each of shape (C, N), and s, shape (N,)."""
        if self._solution is None:
            # The precision-weighted means change sign, because g = -z.
            nu = np.ascontiguousarray(-self._layout.whole(self._nu, 0.0).T)
            if self._is_prior and not nu.any():
                self._solution = nu, nu, nu[0]
            else:
                self._solution = self.blocks.solve(nu)
        return self._solution

    @property
    def mean(self) -> Array:
        """Posterior mean of the sites."""
        _, mean, shift = self.solution()
        return self._layout.flat(-(mean + shift).T)

    @property
    def weights(self) -> Array:
        """Weights of the sites, as in `Solved`."""
        return self._layout.flat(-self.solution()[0].T)

    @property
    def log_det(self) -> float:
        """Log determinant log |I + K diag(tau)|."""
        return 0.0 if self._is_prior else self.blocks.log_det

    def rows(self) -> Array:
        """Return Cov(z_i), shape (N, C, C), without entries of a row's own class."""
        return self._prior.rows() if self._is_prior else self.blocks.covariances()

    def marginals(self) -> tuple[Array, Array]:
        """Return posterior variances and 1 - tau variance of the sites."""
        layout = self._layout
        if self._is_prior:
            return self._prior.variance, np.ones(layout.sites)
        variance, kept = self.blocks.marginals()
        return layout.flat(variance), layout.flat(kept)

    def propose(
        self,
        problem: SiteProblem,
        marginals: tuple[Array, Array],
        sites: Sites,
        steps: int,
        counts: Counts,
    ) -> tuple[Sites, Array, Array]:
        """Match the means, then propose updates of all sites; see `Solved.propose`."""
        # More steps are taken than asked for, because they cost little beside a factorisation.
        if steps:
            sites = settle_means(self, problem, marginals, sites, _MEANS)
        marginals_of_sites = Marginals(self.mean, *marginals, self.weights)
        return sites, *propose_all(problem, problem.rules(), marginals_of_sites, sites, counts)

    def sweep(
        self,
        problem: SiteProblem,
        sites: Sites,
        damping: float,
        visits: NDArray[np.intp] | None,
        counts: Counts,
    ) -> tuple[Array, Array, Array]:
        """Update all rows from one posterior, visiting each until its own sites settle.

        An order of visits would cost N times as much, so `visits` is not used.
        """
        marginals = self.marginals()
        d_tau, d_nu = self._visit(problem, marginals, sites, _MOST, counts)
        return marginals[0], damping * d_tau, damping * d_nu

    def _visit(
        self,
        problem: SiteProblem,
        marginals: tuple[Array, Array],
        sites: Sites,
        visits: int,
        counts: Counts,
    ) -> tuple[Array, Array]:
        """Return changes of all sites after so many visits to each row."""
        tau, nu, failure = sites.tau.copy(), sites.nu.copy(), np.zeros(2)
        status, site = visit_rows(
            problem.rules(),
            problem.observations,
            np.ascontiguousarray(self.rows()),  # one layout, so that it is compiled once
            self._layout.others,
            (*Marginals(self.mean, *marginals, self.weights),),
            (tau, nu),
            visits,
            _SETTLED,
            (counts, failure),
        )
        problem.check(status, site, failure)
        return tau - sites.tau, nu - sites.nu

    def discard(self) -> None:
        """Free the memory of the factorisations."""
        self.solution()
        vars(self).pop("blocks", None)

    def keep(self) -> ClassKept:
        """Return the algebra of predictions."""
        return ClassKept(self.blocks, self.solution()[0], self.weights)

    def slope(self) -> Iterator[Array]:
        """Yield derivatives of the log evidence by each K_c with the sites fixed."""
        return self.keep().slopes()

    def pullback(self, marginals: tuple[Array, Array]) -> Pullback:
        """Raise `InputError`: there is none."""
        raise InputError(
            'classes jointly have no slope of the leave-one-out density: use optimize="evidence"'
        )


# --- Algebra that a posterior keeps


@restorable("class-kept/1")
class ClassKept:
    """Weights and precisions of all classes; it pickles triangles without their mirror images.

    Attributes
    ----------
    weights : ndarray, shape (N (C - 1),)
        Weights of sites, as in `qpruntime.inference.solver_protocol.PredictiveState`.
    by_class : ndarray, shape (C, N)
        K_c^-1 (posterior mean of f_c).
    E : ndarray, shape (C, N, N)
    lower : ndarray, shape (N, N)
        Factors, as in `Blocks`.
    shared : bool
        Whether all classes have the same covariance.
    """

    def __init__(self, blocks: Blocks, by_class: Array, weights: Array) -> None:
        self.E, self.lower = blocks.E, blocks.lower
        self.by_class, self.weights, self.shared = by_class, weights, len(blocks.K) == 1

    def predict(self, *new: Array) -> tuple[Array, Array]:
        """Return latent means (T, C) and covariances (T, C, C) from K_star and prior variances.

        The arguments have shape (C, T, N) or (1, T, N), and (C, T) or (1, T).
        """
        K_star, diagonal = new
        C, n = self.by_class.shape

        def moments(block: slice) -> tuple[Array, Array]:
            """Return means and the reduction of covariances by data, for a block of points."""
            crossed = K_star[:, block]
            count = crossed.shape[1]
            mean, covariance = np.empty((count, C)), np.empty((count, C, C))
            halves = []
            with np.errstate(over="ignore", invalid="ignore"):
                for c in range(C):
                    rows = crossed[c % len(crossed)]
                    reached = rows @ self.E[c]
                    mean[:, c] = rows @ self.by_class[c]
                    covariance[:, c, c] = -np.einsum("ti,ti->t", rows, reached)
                    halves.append(blas.solve_lower(self.lower, reached.T))
                for c in range(C):
                    for d in range(c):
                        product = np.einsum("it,it->t", halves[c], halves[d])
                        covariance[:, c, d] = covariance[:, d, c] = product
                    covariance[:, c, c] += np.einsum("it,it->t", halves[c], halves[c])
            return mean, covariance

        mean, covariance = in_blocks(moments, K_star.shape[1], n * C)
        for c in range(C):
            lifted = covariance[:, c, c] + diagonal[c % len(diagonal)]
            covariance[:, c, c] = np.maximum(lifted, 0.0)
        if not (np.isfinite(mean).all() and np.isfinite(covariance).all()):
            raise NumericalError(
                "a prediction is beyond double precision: K_star does not belong to this "
                "posterior, or the latent functions have to be rescaled"
            )
        return mean, covariance

    def slopes(self) -> Iterator[Array]:
        """Return derivatives of the log evidence by each K_c with the sites fixed, (N, N) each."""
        for E, weights in zip(self.E, self.by_class, strict=True):
            yield slope_of(E, self.lower, weights)

    def evidence_gradient(self, change: ArrayLike) -> Array | float:
        """Return the slope of the log evidence for a change of the priors.

        The change has shape (N, N) or (N, N, p) if all classes share one prior, else (C, N, N) or
        (C, N, N, p).
        """
        dK = np.asarray(change)
        by_class = dK[None] if self.shared else dK
        terms = [
            np.tensordot(slope, by_class[c % len(by_class)], axes=([0, 1], [0, 1]))
            for c, slope in enumerate(self.slopes())
        ]
        gradient = np.sum(terms, axis=0)
        return float(gradient) if np.ndim(gradient) == 0 else gradient

    def __getstate__(self) -> dict[str, object]:
        packed = np.array([dtrttp(block.T, uplo="L")[0] for block in self.E])
        lower, _ = dtrttp(self.lower, uplo="L")
        return vars(self) | {"E": packed, "lower": lower}

    def __setstate__(self, state: dict[str, Array | list[Array]]) -> None:
        vars(self).update(state)
        n = self.by_class.shape[1]
        self.lower, _ = dtpttr(n, state["lower"], uplo="L")
        self.E = np.empty((len(state["E"]), n, n))
        for whole, packed in zip(self.E, state["E"], strict=True):
            whole[...] = dtpttr(n, packed, uplo="L")[0].T
            mirror_upper(whole)


# --- Matched means
#
# Matching means with precisions fixed minimises a convex function of the posterior means, because a
# site's tilted mean rises less than its marginal mean. A step that treats every site alone goes too
# far if several sites share information, as the C - 1 sites of a row and those of nearby rows do. A
# line search along the step finds how far to go. Means and sites are linear along it, so that no
# product with a matrix is needed.

# The line search ends when the slope along a step is below this share of its initial value.
_LEFT = 0.25
_TRIALS = 8
# Steps end when the root mean square change of means is below this, in posterior deviations.
_NEAR = 1e-3


def settle_means(
    solved: ClassSolved,
    problem: SiteProblem,
    marginals: tuple[Array, Array],
    sites: Sites,
    most: int,
) -> Sites:
    """Move nu until marginal means equal projected ones, in at most `most` steps."""
    tau, nu = sites
    mean, pull = solved.mean, solved.weights
    lacking = matched(problem, Marginals(mean, *marginals, pull), sites) - nu
    for _ in range(most):
        begun = nu, *solved.solution()
        solved.relocate(nu + lacking)
        end, end_pull = solved.mean, solved.weights
        way = end - mean
        slope = float(way @ lacking)

        def ahead(share: float) -> Array:
            moved_marginals = Marginals(
                mean + share * way,  # noqa: B023  called before they change
                *marginals,
                pull + share * (end_pull - pull),  # noqa: B023
            )
            moved = nu + share * lacking  # noqa: B023
            return matched(problem, moved_marginals, Sites(tau, moved)) - moved

        share, further = 1.0, ahead(1.0)
        low, high = (0.0, slope), (1.0, float(way @ further))
        for _ in range(_TRIALS):
            slope_left = float(way @ further)
            if abs(slope_left) <= _LEFT * slope or (share == 1.0 and slope_left > 0.0):
                break
            low, high = (
                ((share, slope_left), high) if slope_left > 0.0 else (low, (share, slope_left))
            )
            share = low[0] + (high[0] - low[0]) * min(max(low[1] / (low[1] - high[1]), 0.1), 0.9)
            further = ahead(share)
        nu = nu + share * lacking
        if share < 1.0:
            solved.between(begun, share)
        mean, pull, lacking = solved.mean, solved.weights, further
        step = lacking * np.sqrt(marginals[0])
        if not float(step @ step) > _NEAR**2 * step.size:
            break
    return Sites(tau, nu)
