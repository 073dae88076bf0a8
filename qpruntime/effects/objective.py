"""Log evidence of hyper-parameters, with exact slopes, and log prior; sites stay warm."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import sparse

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime.dataframes.readers import DataColumns
from qpruntime.effects.families import ObservationFamily
from qpruntime.effects.term import LOG_DEVIATION, EffectBlock, block_pattern
from qpruntime.errors import NumericalError
from qpruntime.inference.fixed_point.convergence import DEFAULT_MAX_SWEEPS, DEFAULT_TOL
from qpruntime.inference.posterior import solution_of
from qpruntime.inference.precision.cholesky import Pattern
from qpruntime.inference.precision.infer import infer_precision
from qpruntime.inference.precision.iterate import Nearby
from qpruntime.inference.precision.posterior import PrecisionPosterior
from qpruntime.inference.sites import Sites
from qpruntime.learning.objective import parameter_slopes

__all__ = [
    "GAIN",
    "Assembly",
    "EffectsObjective",
    "ObjectiveValue",
    "deviation_gains",
]


#: Tolerance of the sites during a search, as a share of the distance to the nearest known
#: hyper-parameters, and its largest value.
_LOOSE, _LOOSEST = 1e-2, 1e-3
#: Least gain of a step of a search: the step before was of .005 posterior standard deviations then,
#: and what would follow is smaller by far.
GAIN = 1e-5
#: Numbers of a factor above which the inverse beside it is made anew where it is asked for again.
_LARGE = 5e7


@dataclass(frozen=True, eq=False)
class ObjectiveValue:
    """Evidence, slope and posterior at one theta.

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


class EffectsObjective:
    """Evidence of an assembly with its data.

    Parameters
    ----------
    assembly : Assembly
    A : sparse (N, K)
    y : ndarray
        Encoded observations.
    offset : ndarray, shape (N,)
    weights : ndarray, shape (N,), or None
    family : ObservationFamily
    tol : float
    max_sweeps : int
    operations : float, optional
        Of one factorisation at most.
    """

    def __init__(
        self,
        assembly: Assembly,
        A: sparse.csr_array,
        y: Array,
        offset: Array,
        weights: Array | None,
        family: ObservationFamily,
        tol: float = DEFAULT_TOL,
        max_sweeps: int = DEFAULT_MAX_SWEEPS,
        operations: float | None = None,
    ) -> None:
        self.assembly, self.A, self.y, self.offset = assembly, A, y, offset
        self.weights, self.family, self.tol, self.max_sweeps = weights, family, tol, max_sweeps
        self.bounds = np.vstack([assembly.bounds, np.log([*family.learn.values()]).reshape(-1, 2)])
        self.start = np.clip(np.concatenate([assembly.start, family.start]), *self.bounds.T)
        #: Estimate of the curvature, (p, p), for a search that starts near the mode.
        self.curvature: Array | None = None
        #: Gain of the log density below which a step of a search is the last one.
        self.gain = GAIN
        self.operations = operations
        Q = assembly.precision(assembly.start)[0]
        self.pattern = Pattern(A, Q, operations=operations)
        # More than a plane needs: nodes lie on all sides of the mode.
        self.nearby = Nearby(3 * len(self.start) - 1)
        self.evaluations = 0

    @property
    def size(self) -> int:
        """Number of hyper-parameters."""
        return len(self.start)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of theta's entries: of the blocks, then of the likelihood."""
        return *self.assembly.names, *(f"log {name}" for name in self.family.learn)

    @property
    def parameters(self) -> list[str]:
        """The same names without those of the blocks, as in "log sd"."""
        by_block = [name for block in self.assembly.blocks for name in block.parameters]
        return [*by_block, *self.names[len(by_block) :]]

    @property
    def scaled(self) -> list[bool]:
        """True for each entry of theta that is the logarithm of a number in the unit of y."""
        return [name.split(" ")[1:2] in (["sd"], ["scale"]) for name in self.parameters]

    def with_row(self, row: sparse.csr_array, y: float, offset: float) -> EffectsObjective:
        """Return the evidence of the data and one more row of the design, shape (1, K)."""
        weights = None if self.weights is None else np.append(self.weights, 1.0)
        A = sparse.csr_array(sparse.vstack([self.A, row], format="csr"))
        data = A, np.append(self.y, y), np.append(self.offset, offset), weights
        limits = self.tol, self.max_sweeps, self.operations
        return EffectsObjective(self.assembly, *data, self.family, *limits)

    def posterior(
        self,
        theta: Array,
        method: Literal["ep", "qp"] = "ep",
        sites: Sites | None = None,
        tol: float | None = None,
        damping: float = 1.0,
        Q: sparse.csr_array | None = None,
    ) -> PrecisionPosterior:
        """Infer at theta, from these sites or Newton's; Q is the precision there, if known."""
        block_theta, logs = np.split(theta, [len(self.assembly.start)])
        if Q is None:
            Q = self.assembly.precision(block_theta)[0]
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
            log_det=self.assembly.log_det(block_theta)[0],
            tol=self.tol if tol is None else tol,
            max_sweeps=self.max_sweeps,
            damping=damping,
            sites=sites,
        )

    def loosely(self, theta: Array) -> ObjectiveValue:
        """Evaluate at theta as well as a search needs it that comes from far away.

        The evidence is stationary in the sites: its error is of second order in theirs.
        """
        loose = min(_LOOSE * self.nearby.distance(theta), _LOOSEST)
        return self(theta, max(loose, self.tol))

    def __call__(
        self,
        theta: Array,
        tol: float | None = None,
        key: Array | None = None,
        with_slope: bool = True,
    ) -> ObjectiveValue:
        """Evaluate at theta, from the sites of near ones, by theta or another key.

        The slope is NaN if it is not wanted.
        """
        self.evaluations += 1
        block_theta, logs = np.split(theta, [len(self.assembly.start)])
        tol = self.tol if tol is None else tol
        key = theta if key is None else key
        # Sites of normal noise follow from y and need no start.
        exact = self.family.likelihood.is_normal
        start = None if exact else self.nearby.at(key)
        Q, slopes = self.assembly.precision(block_theta)
        try:
            evaluation = self.posterior(theta, sites=start, tol=tol, Q=Q)
        except NumericalError:
            if start is None:
                raise
            # Sites of a theta too far away.
            self.nearby.clear()
            evaluation = self.posterior(theta, tol=tol, Q=Q)
        if evaluation.converged and not exact:
            self.nearby.add(key, evaluation.sites)
        slope = np.full(len(self.start), np.nan)
        if with_slope:
            slope = self._by_blocks(block_theta, slopes, evaluation)
            if self.family.learn:
                slope = np.concatenate([slope, self._by_family(evaluation)])
        prior, prior_slope = self.assembly.log_prior(block_theta)
        if self.family.learn:
            more, more_slope = self.family.log_prior(logs)
            prior, prior_slope = prior + more, np.concatenate([prior_slope, more_slope])
        if self.pattern.symbolic.size > _LARGE:
            solution_of(evaluation).solved.discard()
        # Often far less than what was asked for: the search then need not come here again.
        reached = evaluation.history[-1] if evaluation.converged else tol
        return ObjectiveValue(
            np.array(theta),
            evaluation,
            evaluation.log_evidence,
            slope,
            prior,
            np.asarray(prior_slope),
            reached,
        )

    def _by_blocks(self, own: Array, slopes: list[Array], found: PrecisionPosterior) -> Array:
        """(tr(S0 dQ) - tr(S dQ) - x'dQ x)/2 for all dQ at once."""
        covariance, mean = found.slope()
        pattern = self.assembly.pattern
        if not np.array_equal(covariance.indices, pattern.indices):
            covariance.sort_indices()
        products = covariance.data + mean[pattern.indices] * mean[pattern.columns]
        prior = self.assembly.log_det(own)[1]
        return 0.5 * (prior - self.assembly.slopes(slopes, products))

    def _by_family(self, found: PrecisionPosterior) -> Array:
        """Slopes of log Z at the cavities."""
        solution = solution_of(found)
        marginals = solution.here
        variance = marginals.variance / marginals.kept
        centre, names = marginals.mean - marginals.pull * variance, tuple(self.family.learn)
        log_z, _ = parameter_slopes(solution.problem, names, centre, np.sqrt(variance))
        return np.asarray(log_z.sum(axis=1))


def deviation_gains(
    objective: EffectsObjective, mode: ObjectiveValue, indices: Iterable[int]
) -> list[tuple[int, float]]:
    """Return what the evidence gains over a deviation of 0, for those deviations among theta."""
    gains = []
    for k in indices:
        if k < len(objective.assembly.names) and ": log sd" in objective.assembly.names[k]:
            theta = mode.theta.copy()
            theta[k] = LOG_DEVIATION[0]
            objective.nearby.add(mode.theta, mode.posterior.sites)
            gains.append((int(k), float(mode.evidence - objective(theta).evidence)))
    return gains


# --- Assembly of blocks --------------------------------------------------------------------------


@restorable("assembly/1")
class Assembly:
    """All parts of a predictor.

    Parameters
    ----------
    blocks : list of EffectBlock

    Attributes
    ----------
    start, bounds : ndarray, shape (p,) and (p, 2)
        Of all blocks' theta, one after the other.
    constraint : ndarray, shape (c, K), or None
    places : tuple of slice
        Effects of every block.
    parts : tuple of slice
        Entries of theta of every block.
    """

    def __init__(self, blocks: list[EffectBlock]) -> None:
        self.blocks = list(blocks)
        self.pattern = block_pattern([block.pattern for block in blocks])
        self.places = _slices([block.size for block in blocks])
        self.parts = _slices([len(block.start) for block in blocks])
        # Position of each entry in the concatenated entries of the blocks.
        self._order = np.argsort(self.pattern.place)
        self._entries = _slices([block.pattern.count for block in blocks])
        self.start = np.concatenate([block.start for block in blocks])
        self.bounds = np.vstack([block.bounds for block in blocks])
        rows = []
        for block, place in zip(blocks, self.places, strict=True):
            if block.constraint is not None:
                block_rows = np.zeros((len(block.constraint), self.size))
                block_rows[:, place] = block.constraint
                rows.append(block_rows)
        self.constraint = np.vstack(rows) if rows else None
        self._determined: tuple[Array, float, Array] | None = None

    @property
    def size(self) -> int:
        """Number of effects."""
        return self.pattern.size

    @property
    def names(self) -> list[str]:
        """Names of theta's entries, with their blocks."""
        return [f"{block.name}: {name}" for block in self.blocks for name in block.parameters]

    def columns(self, data: DataColumns) -> sparse.csr_array:
        """Design of the rows that the blocks were bound to."""
        return _joined([block.columns(data) for block in self.blocks])

    def ahead(
        self, data: DataColumns, thetas: Sequence[Array]
    ) -> Iterator[tuple[sparse.csr_array, Array]]:
        """Design of new rows, and the prior variance of what no known effect says, by theta.

        Blocks are asked again only for what follows theta.
        """
        pairs = list(zip(self.blocks, self.parts, strict=True))
        first = [block.ahead(data, thetas[0][part]) for block, part in pairs]
        again = [block.moves or v.any() for (block, _), (_, v) in zip(pairs, first, strict=True)]
        joined = _joined([design for design, _ in first])
        for theta in thetas:
            parts = [
                block.ahead(data, theta[part]) if again_needed else known
                for (block, part), again_needed, known in zip(pairs, again, first, strict=True)
            ]
            moves = any(block.moves for block in self.blocks)
            design = _joined([block_design for block_design, _ in parts]) if moves else joined
            yield design, np.sum([v for _, v in parts], axis=0)

    def precision(self, theta: Array) -> tuple[sparse.csr_array, list[Array]]:
        """Return the precision (K, K), and slopes of its entries by theta, block by block."""
        entries_and_slopes = [
            block.entries(theta[part]) for block, part in zip(self.blocks, self.parts, strict=True)
        ]
        sorted_entries = np.concatenate([entries for entries, _ in entries_and_slopes])[self._order]
        # A symmetric matrix by columns is one by rows.
        arrays = (sorted_entries, self.pattern.indices, self.pattern.indptr)
        return sparse.csr_array(arrays, shape=(self.size, self.size)), [
            s for _, s in entries_and_slopes
        ]

    def slopes(self, slopes: list[Array], products: Array) -> Array:
        """Return sums over the entries of dQ/dtheta times `products` on the pattern, shape (p,)."""
        block_products = products[self.pattern.place]
        pairs = zip(slopes, self._entries, strict=True)
        return np.concatenate([by_theta @ block_products[at] for by_theta, at in pairs])

    def log_det(self, theta: Array) -> tuple[float, Array]:
        """Log determinant off the constraints, and its slopes; the last one is kept."""
        if self._determined is None or not np.array_equal(self._determined[0], theta):
            pairs = zip(self.blocks, self.parts, strict=True)
            values_and_slopes = [block.log_det(theta[part]) for block, part in pairs]
            slope = np.concatenate([s for _, s in values_and_slopes])
            self._determined = np.array(theta), float(sum(v for v, _ in values_and_slopes)), slope
        return self._determined[1:]

    def log_prior(self, theta: Array) -> tuple[float, Array]:
        """Log prior density of theta and its slopes."""
        pairs = zip(self.blocks, self.parts, strict=True)
        values_and_slopes = [block.log_prior(theta[part]) for block, part in pairs]
        return sum(v for v, _ in values_and_slopes), np.concatenate(
            [s for _, s in values_and_slopes]
        )


def _slices(sizes: list[int]) -> tuple[slice, ...]:
    ends = np.cumsum([0, *sizes]).tolist()
    return tuple(slice(a, b) for a, b in itertools.pairwise(ends))


def _joined(designs: list[sparse.csr_array]) -> sparse.csr_array:
    joined = sparse.csr_array(sparse.hstack(designs, format="csr"))
    joined.sort_indices()
    return joined
