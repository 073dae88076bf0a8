"""Log evidence of hyper-parameters, with exact slopes, and log prior; sites stay warm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.effects.assembly import Assembly
from qpruntime.effects.families import Family
from qpruntime.errors import NumericalError
from qpruntime.inference.posterior import solution_of
from qpruntime.inference.precision.infer import infer_precision
from qpruntime.inference.precision.nearby import Nearby
from qpruntime.inference.precision.pattern import Pattern
from qpruntime.inference.precision.posterior import PrecisionPosterior
from qpruntime.inference.sites import Sites
from qpruntime.learning.parameter_slopes import parameter_slopes

__all__ = ["Evaluation", "Objective"]

#: Of the distance to the nearest hyper-parameters that are known, what a search leaves of the
#: sites' changes; and the most of them.
_LOOSE, _LOOSEST = 1e-2, 1e-3
#: Numbers of a factor above which the inverse beside it is made anew where it is asked for again.
_LARGE = 5e7


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What is known at one theta.

    Attributes
    ----------
    theta : ndarray, shape (p,)
        Of the blocks, then logarithms of learnt parameters of the likelihood.
    posterior : PrecisionPosterior
    evidence : float
    evidence_slope : ndarray, shape (p,)
    log_prior : float
    prior_slope : ndarray, shape (p,)
    tol : float
        To which the sites have settled.
    """

    theta: Array
    posterior: PrecisionPosterior
    evidence: float
    evidence_slope: Array
    log_prior: float
    prior_slope: Array
    tol: float

    @property
    def value(self) -> float:
        """Log evidence and log prior."""
        return self.evidence + self.log_prior

    @property
    def slope(self) -> Array:
        """Slope of the value by theta."""
        return self.evidence_slope + self.prior_slope


class Objective:
    """Evidence of an assembly with its data.

    Parameters
    ----------
    assembly : Assembly
    A : sparse (N, K)
    y : ndarray
        Encoded observations.
    offset : ndarray, shape (N,)
    weights : ndarray, shape (N,), or None
    family : Family
    tol : float
    max_sweeps : int
    operations : float, optional
        Of one factorisation at most.
    """

    def __init__(
        self,
        assembly: Assembly,
        A: Any,
        y: Array,
        offset: Array,
        weights: Array | None,
        family: Family,
        tol: float = 1e-6,
        max_sweeps: int = 100,
        operations: float | None = None,
    ) -> None:
        self.assembly, self.A, self.y, self.offset = assembly, A, y, offset
        self.weights, self.family, self.tol, self.max_sweeps = weights, family, tol, max_sweeps
        self.bounds = np.vstack([assembly.bounds, np.log([*family.learn.values()]).reshape(-1, 2)])
        self.start = np.clip(np.concatenate([assembly.start, family.start]), *self.bounds.T)
        #: What is known of the curvature, (p, p), where a search starts from something near.
        self.curvature: Array | None = None
        self.operations = operations
        Q = assembly.precision(assembly.start)[0]
        self.pattern = Pattern(A, Q, operations=operations)
        self.nearby = Nearby(len(self.start) + 1)
        self.evaluations = 0

    @property
    def size(self) -> int:
        """Number of hyper-parameters."""
        return len(self.start)

    def posterior(
        self,
        theta: Array,
        method: Any = "ep",
        sites: Sites | None = None,
        tol: float | None = None,
    ) -> PrecisionPosterior:
        """Infer at theta, from these sites or Newton's."""
        own, logs = np.split(theta, [len(self.assembly.start)])
        Q, _ = self.assembly.precision(own)
        return infer_precision(
            self.A,
            Q,
            self.y,
            self.family.at(logs),
            method,
            offset=self.offset,
            constraint=self.assembly.constraint,
            weights=self.weights,
            pattern=self.pattern,
            log_det=self.assembly.log_det(own)[0],
            tol=self.tol if tol is None else tol,
            max_sweeps=self.max_sweeps,
            sites=sites,
        )

    def loosely(self, theta: Array) -> Evaluation:
        """Evaluate at theta as well as a search needs it that comes from far away.

        The evidence is stationary in the sites: its error is of second order in theirs.
        """
        loose = min(_LOOSE * self.nearby.distance(theta), _LOOSEST)
        return self(theta, max(loose, self.tol))

    def __call__(
        self, theta: Array, tol: float | None = None, key: Array | None = None
    ) -> Evaluation:
        """Evaluate at theta, from the sites of near ones, by theta or another key."""
        self.evaluations += 1
        own, logs = np.split(theta, [len(self.assembly.start)])
        tol = self.tol if tol is None else tol
        key = theta if key is None else key
        start = self.nearby.at(key)
        try:
            found = self.posterior(theta, sites=start, tol=tol)
        except NumericalError:
            if start is None:
                raise
            # Sites of a theta too far away.
            self.nearby.clear()
            found = self.posterior(theta, tol=tol)
        if found.converged:
            self.nearby.add(key, found.sites)
        slope = self._by_blocks(own, found)
        prior, prior_slope = self.assembly.log_prior(own)
        if self.family.learn:
            slope = np.concatenate([slope, self._by_family(found)])
            more, more_slope = self.family.log_prior(logs)
            prior, prior_slope = prior + more, np.concatenate([prior_slope, more_slope])
        if self.pattern.symbolic.size > _LARGE:
            solution_of(found).solved.discard()
        # Often far less than what was asked for: the search then need not come here again.
        reached = found.history[-1] if found.converged else tol
        return Evaluation(
            np.array(theta),
            found,
            found.log_evidence,
            slope,
            prior,
            np.asarray(prior_slope),
            reached,
        )

    def _by_blocks(self, own: Array, found: PrecisionPosterior) -> Array:
        """(tr(S0 dQ) - tr(S dQ) - x'dQ x)/2 for all dQ at once."""
        covariance, mean = found.slope()
        pattern = self.assembly.pattern
        if not np.array_equal(covariance.indices, pattern.indices):
            covariance.sort_indices()
        products = covariance.data + mean[pattern.indices] * mean[pattern.columns]
        slopes = self.assembly.precision(own)[1]
        prior = self.assembly.log_det(own)[1]
        return 0.5 * (prior - self.assembly.slopes(slopes, products))

    def _by_family(self, found: PrecisionPosterior) -> Array:
        """Slopes of log Z at the cavities."""
        own = solution_of(found)
        here = own.here
        variance = here.variance / here.kept
        centre, names = here.mean - here.pull * variance, tuple(self.family.learn)
        log_z, _ = parameter_slopes(own.problem, names, centre, np.sqrt(variance))
        return log_z.sum(axis=1)
