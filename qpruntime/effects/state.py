"""What a fit keeps: design, data, and EP's sites at every node of the hyper-parameters.

Posteriors follow from sites by one factorisation each; they are made when they are asked for, and
files and pickles leave them out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

from qpruntime.arrays import Array
from qpruntime.effects.frame import Frame
from qpruntime.effects.integration import Nodes
from qpruntime.effects.mixture import Mixture
from qpruntime.effects.objective import Evaluation, Objective
from qpruntime.inference.precision.observed_rows import observed_sites
from qpruntime.inference.precision.pattern import Pattern
from qpruntime.inference.precision.solution import PrecisionSolution
from qpruntime.inference.precision.solver import PrecisionPrior, PrecisionSolved
from qpruntime.inference.problem import Problem
from qpruntime.inference.site_update import Marginals
from qpruntime.inference.sites import Sites
from qpruntime.likelihoods import Likelihood
from qpruntime.projection.projector import Projector

__all__ = ["State"]


class State:
    """A fitted model's posterior: a mixture over nodes of hyper-parameters.

    Parameters
    ----------
    objective : Objective
    nodes : Nodes
    evaluations : list of Evaluation
        Of the nodes.
    """

    def __init__(self, objective: Objective, nodes: Nodes, evaluations: list[Evaluation]) -> None:
        self.assembly, self.family = objective.assembly, objective.family
        A = sparse.csr_array(objective.A)
        self.design = (A.data, A.indices, A.indptr)
        self.y, self.offset, self.weights = objective.y, objective.offset, objective.weights
        self.limits = objective.tol, objective.max_sweeps
        self.nodes = nodes
        self.sites = [one.posterior.sites for one in evaluations]
        self.log_z = [np.asarray(one.posterior.loo()) for one in evaluations]
        self._solutions: dict[int, PrecisionSolution] = {}
        self._pattern: Pattern | None = objective.pattern

    def objective(self) -> Objective:
        """The evidence that was maximised."""
        data = self.A, self.y, self.offset, self.weights
        return Objective(self.assembly, *data, self.family, *self.limits)

    @property
    def count(self) -> int:
        """Number of nodes."""
        return len(self.nodes.weights)

    @property
    def rows(self) -> int:
        """Rows of the fit."""
        return len(self.offset)

    def split(self, theta: Array) -> tuple[Array, Array]:
        """Hyper-parameters of the blocks, and logarithms of those of the likelihood."""
        own, logs = np.split(theta, [len(self.assembly.start)])
        return own, logs

    def likelihood(self, k: int) -> Likelihood:
        """The likelihood at a node."""
        return self.family.at(self.split(self.nodes.theta[k])[1])

    @property
    def A(self) -> sparse.csr_array:
        """Design of the rows of the fit."""
        return sparse.csr_array(self.design, shape=(self.rows, self.assembly.size))

    def solution(self, k: int) -> PrecisionSolution:
        """The posterior at a node, from its sites."""
        found = self._solutions.get(k)
        if found is not None:
            return found
        own, logs = self.split(self.nodes.theta[k])
        A, Q = self.A, self.assembly.precision(own)[0]
        if self._pattern is None:
            self._pattern = Pattern(A, Q)
        pattern = self._pattern
        log_det = self.assembly.log_det(own)[0]
        constraint = self.assembly.constraint
        # Equal rows have shares of one site: these leave the same posterior.
        seen = observed_sites(A, self.offset, self.y, self.likelihood(k), self.weights, False)
        rows, halves = pattern.rows(A), pattern.halves(Q)
        prior = PrecisionPrior(pattern, rows, halves, self.offset, constraint, log_det)
        sites = Sites(*self.sites[k])
        solved = PrecisionSolved(prior, sites)
        variance, kept = solved.marginals()
        here = Marginals(solved.mean, variance, kept, solved.weights)
        projector, y = Projector(self.family.at(logs), "ep").observing(self.y)
        problem = Problem(prior, y, projector, weights=self.weights)
        found = PrecisionSolution(
            sites, here, self.log_z[k], solved, seen, problem, projector.likelihood
        )
        # Factors of a few nodes only: of many rows each is large.
        if len(self._solutions) * pattern.symbolic.size < 2e7:
            self._solutions[k] = found
        return found

    def _mixed(self, ask: Any) -> Mixture:
        pairs = [ask(k) for k in range(self.count)]
        mean, variance = (np.array([pair[i] for pair in pairs]) for i in (0, 1))
        return Mixture(mean, variance, self.nodes.weights)

    def at_rows(self) -> Mixture:
        """The linear predictor at the rows of the fit."""
        return self._mixed(lambda k: self.solution(k).moments())

    def ahead(self, data: Frame, offset: Array) -> Mixture:
        """The linear predictor at new rows, with the prior's variance of what is unknown."""

        def one(k: int) -> tuple[Array, Array]:
            own, _ = self.split(self.nodes.theta[k])
            A, unknown = self.assembly.ahead(data, own)
            # Offsets may be infinite, of exposure 0.
            mean, variance = self.solution(k).predict((A,), 0.0)
            return mean + offset, variance + unknown

        return self._mixed(one)

    def effects(self, block: int, rows: sparse.csr_array) -> Mixture:
        """Sums of one block's effects."""
        place = self.assembly.places[block]
        own = sparse.coo_array(rows)
        shape = (rows.shape[0], self.assembly.size)
        A = sparse.csr_array(sparse.coo_array((own.data, (own.row, own.col + place.start)), shape))
        return self._mixed(lambda k: self.solution(k).predict((A,), 0.0))

    def draws(self, rng: np.random.Generator, count: int) -> Array:
        """Draws of all effects, shape (count, K), nodes by their weights."""
        numbers = rng.multinomial(count, self.nodes.weights)
        parts = [self.solution(k).draw((), 0.0, int(n), rng) for k, n in enumerate(numbers) if n]
        return np.concatenate(parts)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_solutions": {}, "_pattern": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
