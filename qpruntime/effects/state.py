"""State of a fit: design, data, and EP's sites at every node of the hyper-parameters.

Posteriors follow from sites by one factorisation each; they are made when they are asked for, and
files and pickles leave them out.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime.dataframes.readers import DataColumns
from qpruntime.effects.fixed import FixedBlock
from qpruntime.effects.integration import HyperNodes
from qpruntime.effects.objective import EffectsObjective, ObjectiveValue
from qpruntime.inference.posterior import solution_of
from qpruntime.inference.precision.cholesky import Pattern
from qpruntime.inference.precision.solver import PrecisionPrior, PrecisionSolved
from qpruntime.inference.sites import Sites
from qpruntime.likelihoods import Likelihood
from qpruntime.predictive.mixtures import Mixture

__all__ = [
    "EffectsState",
    "Node",
]


#: Operations of a factor that the fit has allowed.
_ANY = 1e300


@restorable("state/1")
class EffectsState:
    """A fitted model's posterior: a mixture over nodes of hyper-parameters.

    Parameters
    ----------
    objective : EffectsObjective
    nodes : HyperNodes
    evaluations : list of ObjectiveValue
        Of the nodes.
    """

    def __init__(
        self, objective: EffectsObjective, nodes: HyperNodes, evaluations: list[ObjectiveValue]
    ) -> None:
        self.assembly, self.family = objective.assembly, objective.family
        A = sparse.csr_array(objective.A)
        self.design = (A.data, A.indices, A.indptr)
        self.y, self.offset, self.weights = objective.y, objective.offset, objective.weights
        self.limits = objective.tol, objective.max_sweeps, objective.operations
        self.nodes = nodes
        self.site = _sites_of_rows(evaluations[0])
        self.sites = [evaluation.posterior.sites for evaluation in evaluations]
        log_unit = self.family.log_unit
        self.log_z = [
            np.asarray(evaluation.posterior.loo()) - log_unit for evaluation in evaluations
        ]
        self._nodes: dict[int, Node] = {}
        self._pattern: Pattern | None = objective.pattern

    def objective(self) -> EffectsObjective:
        """Return the evidence that was maximised."""
        data = self.A, self.y, self.offset, self.weights
        return EffectsObjective(self.assembly, *data, self.family, *self.limits)

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
        block_theta, logs = np.split(theta, [len(self.assembly.start)])
        return block_theta, logs

    def inner_likelihood(self, k: int) -> Likelihood:
        """Return the likelihood at a node, of observations in the units inside."""
        return self.family.at(self.split(self.nodes.theta[k])[1])

    def likelihood(self, k: int) -> Likelihood:
        """Return the likelihood at a node, of observations in the units of y."""
        return self.family.outside(self.inner_likelihood(k))

    @property
    def A(self) -> sparse.csr_array:
        """Design of the rows of the fit."""
        return sparse.csr_array(self.design, shape=(self.rows, self.assembly.size))

    def node(self, k: int) -> Node:
        """Return the posterior at a node, from its sites."""
        node = self._nodes.get(k)
        if node is not None:
            return node
        block_theta, _ = self.split(self.nodes.theta[k])
        A, Q = self.A, self.assembly.precision(block_theta)[0]
        if self._pattern is None:
            self._pattern = Pattern(A, Q, operations=_ANY)
        constraint, log_det = self.assembly.constraint, self.assembly.log_det(block_theta)[0]
        sites = Sites(*self.sites[k])
        node = Node(self._pattern, A, Q, self.offset, constraint, log_det, sites)
        # Factors of a few nodes only: of many rows each is large.
        if len(self._nodes) * self._pattern.symbolic.size < 2e7:
            self._nodes[k] = node
        return node

    def _mixed(self, moments: Callable[[int], tuple[Array, Array]]) -> Mixture:
        """Return the mixture over nodes of normals with these moments at node k."""
        pairs = [moments(k) for k in range(self.count)]
        mean, variance = (np.array([pair[i] for pair in pairs]) for i in (0, 1))
        return Mixture(mean, variance, self.nodes.weights)

    def at_rows(self) -> Mixture:
        """Return the linear predictor at the rows of the fit."""
        return self._outside(self._mixed(lambda k: self.node(k).moments()), self.family.centre)

    def ahead(self, data: DataColumns, offset: Array) -> Mixture:
        """Return the linear predictor at new rows, with the prior variance of what is unknown."""
        thetas = [self.split(theta)[0] for theta in self.nodes.theta]
        designs = self.assembly.ahead(data, thetas)

        def one(k: int) -> tuple[Array, Array]:
            A, unknown = next(designs)
            mean, variance = self.node(k).predict(A)
            return mean, variance + unknown

        # Offsets may be infinite, of exposure 0.
        return self._outside(self._mixed(one), self.family.centre + offset)

    def _outside(self, mixture: Mixture, shift: Array | float) -> Mixture:
        """Return numbers of the inside in the units of y, with a shift."""
        mean, variance, weights = mixture
        return Mixture(self.family.unit * mean + shift, self.family.unit**2 * variance, weights)

    def shifts(self, block: int, rows: sparse.csr_array) -> Array:
        """Return what sums of one block's effects have beside `effects` in units of y, shape (R,).

        The intercept has the centre of y.
        """
        fixed = self.assembly.blocks[block]
        if not (isinstance(fixed, FixedBlock) and fixed.intercept):
            return np.zeros(rows.shape[0])
        return np.asarray(self.family.centre * sparse.csr_array(rows)[:, [0]].toarray()[:, 0])

    def design_of(self, block: int, rows: sparse.csr_array) -> sparse.csr_array:
        """Return sums (R, K of the block) of one block's effects as rows of the design (R, K)."""
        entries, place = sparse.coo_array(rows), self.assembly.places[block]
        at = entries.row, entries.col + place.start
        shape = (rows.shape[0], self.assembly.size)
        return sparse.csr_array(sparse.coo_array((entries.data, at), shape))

    def effects(self, block: int, rows: sparse.csr_array) -> Mixture:
        """Return sums of one block's effects, in the units of y."""
        A = self.design_of(block, rows)
        mixture = self._mixed(lambda k: self.node(k).predict(A))
        return self._outside(mixture, self.shifts(block, rows))

    def draws(self, rng: np.random.Generator, count: int) -> Array:
        """Draws of all effects in the units inside, shape (count, K), nodes by their weights."""
        numbers = rng.multinomial(count, self.nodes.weights)
        parts = [self.node(k).draw(int(n), rng) for k, n in enumerate(numbers) if n]
        return np.concatenate(parts)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_nodes": {}, "_pattern": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        # Kernels follow the indices without a look at the sizes of arrays.
        self.A.check_format(full_check=True)


def _sites_of_rows(one: ObjectiveValue) -> NDArray[np.int32] | None:
    """Return the site of every row; None if no rows are equal and share one."""
    problem = solution_of(one.posterior).seen
    site = problem.collapsed.rows.site
    if problem.collapsed.rows.first.size == site.size:
        return None
    # Rows that see nothing have no site.
    sites = site.size + np.arange(problem.n)
    sites[slice(None) if problem.kept is None else problem.kept] = site
    return np.asarray(sites, dtype=np.int32)


class Node:
    """Effects x ~ N(0, Q^-1), C x = 0, seen through sites at the rows of A.

    Parameters
    ----------
    pattern : Pattern
        Of A and Q.
    A, Q : csr_array
    offset : ndarray, shape (N,)
    constraint : ndarray, shape (m, K), or None
    log_det : float
        Of Q off the constraint.
    sites : Sites
        Of all rows; equal ones have shares of one, which leave the same posterior.
    """

    def __init__(
        self,
        pattern: Pattern,
        A: sparse.csr_array,
        Q: sparse.csr_array,
        offset: Array,
        constraint: Array | None,
        log_det: float,
        sites: Sites,
    ) -> None:
        rows, halves = pattern.rows(A), pattern.halves(Q)
        self.prior = PrecisionPrior(pattern, rows, halves, offset, constraint, log_det)
        self.solved = PrecisionSolved(self.prior, sites)

    @cached_property
    def latent(self) -> Array:
        """Posterior mean of the effects, shape (K,)."""
        return self.solved.latent[self.prior.pattern.symbolic.place]

    def moments(self) -> tuple[Array, Array]:
        """Means and variances of the linear predictor at the rows."""
        return self.solved.mean, self.solved.marginals()[0]

    def predict(self, A: sparse.csr_array) -> tuple[Array, Array]:
        """Means and variances of A x, each of shape (T,)."""
        return A @ self.latent, self.solved.variances_at(A)

    def draw(self, count: int, rng: np.random.Generator) -> Array:
        """Draws of x, shape (count, K)."""
        x = self.prior.draw_latent(self.solved.factor, rng, count)
        return np.ascontiguousarray((x + self.latent[:, None]).T)
