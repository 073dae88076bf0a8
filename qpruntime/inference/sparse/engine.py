"""Engine of sparse inference: sites of all rows, and passes over them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from qpruntime._memory import fits, in_blocks, require, squares
from qpruntime._typing import Array
from qpruntime.dataframes.lazy_rows import CHUNK
from qpruntime.execution.threads import Divided, Executor, Threads, one_blas_thread
from qpruntime.inference.fixed_point.convergence import finite_evidence, unbounded
from qpruntime.inference.fixed_point.schedules import Swept
from qpruntime.inference.sites import NO_STEP, ImproperPosterior, Sites
from qpruntime.inference.sparse.passes import (
    Block,
    Cavities,
    Done,
    Evaluation,
    Features,
    Job,
    Variances,
    cavities,
    evaluation,
    gather,
    means,
    outcome,
    project,
    slopes,
    sweep,
)
from qpruntime.inference.sparse.rows import ChunkedRows, ChunkTask, InducingInputs, Rows, divide
from qpruntime.inference.sparse.state import (
    Base,
    PowerProjector,
    State,
    Sums,
    SumTree,
    evidence,
    posterior_of,
    prior_of,
)
from qpruntime.projection.projector import moved

if TYPE_CHECKING:
    from sklearn.gaussian_process.kernels import Kernel

__all__ = [
    "HALVINGS",
    "MEMORY",
    "Engine",
    "Keeper",
    "Outcome",
    "log_densities",
    "of_cavities",
    "seen_by_likelihood",
    "swept_by",
]

# --- Selected rows of an engine

Result = TypeVar("Result", Array, tuple[Array, Array])


def log_densities(rule: PowerProjector, block: Block, at: Cavities) -> Array:
    """Return leave-one-out log densities of rows, equal to those of `Engine.outcome`."""
    return np.asarray(project(rule, block, at, "log_z", whole=True)[0])


def seen_by_likelihood(block: Block, at: Cavities) -> tuple[Array, Array]:
    """Return cavity means and variances of the latent that the likelihood sees; NaN if improper."""
    slope = 1.0 if block.scale is None else block.scale
    mean, variance = slope * block.centre(at.mean), slope * slope * at.v
    return np.where(at.proper, mean, np.nan), np.where(at.proper, variance, np.nan)


def of_cavities(
    engine: Engine, chosen: NDArray[np.intp], function: Callable[[Block, Cavities], Result]
) -> Result:
    """Join the values of `function` for blocks of selected rows and their cavities."""
    state, rule = engine.state, engine.rule
    rows = engine.rows.some(chosen)

    def of_block(block_rows: slice) -> Result:
        prior, scale = (None if a is None else a[block_rows] for a in (rows.prior, rows.scale))
        tau, nu = engine.tau[chosen[block_rows]], engine.nu[chosen[block_rows]]
        block = Block(rows.y[block_rows], None, prior, tau, nu, scale)
        phi, r = state.inducing.features(rows.X[block_rows])
        mean = state.means(phi)
        whitened = divide(phi, state.rounded)
        w = np.einsum("nm,nm->n", whitened, whitened).astype(float)
        return function(block, cavities(block, mean, w, r, rule.power, 1.0))

    return in_blocks(of_block, len(chosen), state.inducing.size)


# --- Cached features

#: Default memory for cached features, in bytes.
MEMORY = 1e9
# Features are cached if this multiple of their bytes is available, which leaves room for passes.
_MEMORY_MARGIN = 1.5


class Keeper:
    """Features of N rows under one `InducingInputs`; under another they are computed anew."""

    def __init__(self) -> None:
        self._owner: InducingInputs | None = None
        self._phi: Rows | None = None
        self._r: Array = np.empty(0)
        self._full: dict[int, NDArray[np.bool_]] = {}
        self._root: Array | None = None
        self._w: Array | None = None
        self._variances_known: dict[int, NDArray[np.bool_]] = {}

    def of(self, inducing: InducingInputs, n: int, memory: float) -> Keeper:
        """Return the cache with room for these features if they fit into memory."""
        if self._owner is inducing:
            return self
        self._owner, self._full, self._root = inducing, {}, None
        shape = (n, inducing.size)
        nbytes = n * inducing.size * inducing.dtype.itemsize
        if nbytes > memory:
            self._phi = None
        elif self._phi is None or (self._phi.shape, self._phi.dtype) != (shape, inducing.dtype):
            self._phi = None
            if fits(_MEMORY_MARGIN * nbytes):
                self._phi, self._r = np.empty(shape, inducing.dtype), np.empty(n)
        return self

    def chunk(self, number: int, rows: slice) -> Features | None:
        """Return the features of a chunk or room for them, or None if they are not cached."""
        if self._phi is None:
            return None
        full = self._full.setdefault(number, np.zeros(1, dtype=bool))
        return Features(self._phi[rows], self._r[rows], full)

    def under(self, root: Array, n: int, memory: float) -> Keeper:
        """Return the cache with room for the variances of N rows under this root of B.

        Means are matched several times between sweeps with the same root, so cached variances save
        all of the M^2 operations a row.
        """
        if self._root is not root:
            self._root, self._variances_known = root, {}
            if 8.0 * n > memory:
                self._w = None
            elif self._w is None or len(self._w) != n:
                self._w = np.empty(n)
        return self

    def variances(self, number: int, rows: slice) -> Variances | None:
        """Return the variances of a chunk or room for them, or None if they are not cached."""
        if self._w is None:
            return None
        full = self._variances_known.setdefault(number, np.zeros(1, dtype=bool))
        return Variances(self._w[rows], full)


# --- `Engine`

#: Most halvings of a step that leaves no proper posterior, as in the dense engine.
HALVINGS = 40


@dataclass(frozen=True, eq=False)
class Outcome:
    """Evidence and marginals of the current sites.

    Attributes
    ----------
    log_evidence : float
    least : tuple of float and int
        Least leave-one-out log density, and its row.
    rows : ndarray, shape (3, N), or None
        Mean and variance of f, and leave-one-out log densities, at the rows.
    """

    log_evidence: float
    least: tuple[float, int]
    rows: Array | None = None


def swept_by(change: float, worst: int, counts: Array) -> Swept:
    """Return the report of a sweep from the counts of a pass: lookups, skipped, held at zero.

    Raises
    ------
    NumericalError
        If the change is not finite.
    """
    if not math.isfinite(change):
        raise unbounded(f"row {worst}")
    inside, outside, skipped, bounded = counts.astype(np.int64)
    return Swept(change, worst, np.array([inside, outside, skipped]), held=int(bounded))


@dataclass
class Engine:
    """N rows, their sites, and the posterior of w.

    Parameters
    ----------
    rows : ChunkedRows
    rule : PowerProjector
        Rule of projection, which may be replaced: hyper-parameters are learnt with EP's, the last
        sites with QP's.
    kernel : scikit-learn kernel
    Z : ndarray, shape (M, d)
    jitter : float
        As for `InducingInputs`.
    dtype : dtype
        Type of features and their products: float32 during a search, float64 for the result.
    executor : Executor, optional
        By default threads of this process.
    memory : float
        Memory for features, in bytes. If all fit, and threads of this process compute, they are
        cached from pass to pass: an evaluation takes two thirds of the time.
    base : Base, optional
        Posterior of earlier rows under the same kernel and Z, which may then not move.

    Attributes
    ----------
    state : State
        Posterior of the current sites.
    tau, nu : ndarray, shape (N,)
        Sites of f measured from the prior mean.
    """

    rows: ChunkedRows
    rule: PowerProjector
    kernel: Kernel
    Z: Array
    jitter: float = 1e-8
    dtype: DTypeLike = np.float64
    executor: Executor = field(default_factory=Threads)
    memory: float = MEMORY
    base: Base | None = None

    def __post_init__(self) -> None:
        m = len(self.Z)
        require(
            squares(m, 2.0) + min(self.rows.n, CHUNK) * m * np.dtype(self.dtype).itemsize,
            f"inference with {m} inducing inputs: two matrices of M x M and features of a chunk",
            "take fewer inducing inputs",
        )
        self.tau, self.nu = np.zeros(self.rows.n), np.zeros(self.rows.n)
        self._keeper = Keeper()
        self.state = prior_of(self._inducing(), self.rule, self.base)

    def _inducing(self) -> InducingInputs:
        return InducingInputs(self.kernel, self.Z, self.jitter, self.dtype)

    @property
    def sites(self) -> Sites:
        """Copies of the sites about the prior mean; setting them updates the posterior."""
        return Sites(self.tau.copy(), self.nu.copy())

    @sites.setter
    def sites(self, sites: Sites) -> None:
        self.tau[:], self.nu[:] = sites
        self.gather()

    def move(self, kernel: Kernel, Z: Array, dtype: DTypeLike | None = None) -> None:
        """Change kernel, inducing inputs or dtype, and keep the sites.

        Raises
        ------
        NumericalError
            If the kernel has no covariance at Z, or the sites no proper posterior.
        """
        self.kernel, self.Z = kernel, Z
        self.dtype = self.dtype if dtype is None else dtype
        self.gather()

    def gather(self) -> None:
        """Compute the posterior of the current sites."""
        with one_blas_thread():
            empty = prior_of(self._inducing(), self.rule, self.base)
            if not (self.tau.any() or self.nu.any()):
                self.state = empty
                return
            sums = self._pass(gather, empty, (self.tau, self.nu))
            try:
                self.state = posterior_of(empty.inducing, self.rule, sums, self.base)
            except ImproperPosterior:
                negative = self.tau < 0.0
                self.tau[negative] = self.nu[negative] = 0.0
                sums = self._pass(gather, empty, (self.tau, self.nu))
                self.state = posterior_of(empty.inducing, self.rule, sums, self.base)

    def seed(self, state: State) -> None:
        """Set all sites by one update whose cavity is the posterior of other rows.

        The kernel and Z have to be those of `state`; previous sites are discarded.
        """
        with one_blas_thread():
            self.tau[:] = self.nu[:] = 0.0
            start = replace(state, inducing=self._inducing(), rule=self.rule)
            sums = self._pass(sweep, start, (self.tau, self.nu))
            self.state = posterior_of(start.inducing, self.rule, sums, self.base)

    def match(self, steps: int = 1) -> None:
        """Match the means `steps` times, with precisions and variances fixed."""
        with one_blas_thread():
            for _ in range(steps):
                sums = self._pass(means, self._state_now, (self.tau, self.nu))
                h = sums["h"] if self.base is None else sums["h"] + self.base.state.h
                self.state = self.state.relocated(h)

    def sweep(self, share: float = 1.0) -> Swept:
        """Update all sites by this share of their proposed changes, then the posterior.

        Raises
        ------
        ImproperPosterior
            If negative precisions leave no posterior, however short the step; sites stay.
        NumericalError
            If sites grow without bound, or double precision does not suffice.
        """
        with one_blas_thread():
            now = self._state_now
            # A step may have to be undone only if precisions may be negative.
            new = (self.tau, self.nu) if self.rule.nonnegative else np.empty((2, self.rows.n))
            for _ in range(HALVINGS):
                sums = self._pass(sweep, now, (*new,), share=share)
                change = math.sqrt(sums["change"].max() / self.rows.n)
                swept = swept_by(change, int(sums["worst"][1]), sums["counts"])
                try:
                    self.state = posterior_of(now.inducing, self.rule, sums, self.base)
                except ImproperPosterior:
                    if self.rule.nonnegative:
                        raise
                    share *= 0.5
                    continue
                self.tau, self.nu = new
                return swept
        raise ImproperPosterior(NO_STEP)

    def outcome(self, rows: bool = False) -> Outcome:
        """Return the evidence of the current sites, with `rows` also marginals and densities.

        Raises
        ------
        NumericalError
            If the evidence is not finite.
        """
        with one_blas_thread():
            columns = np.empty((3, self.rows.n)) if rows else None
            column_arrays = () if columns is None else (*columns,)
            sums = self._pass(outcome, self._state_now, column_arrays, rows=rows)
            value = finite_evidence(evidence(self.state, sums, self.base))
            size, row = sums["worst"]
            return Outcome(value, (-float(size), int(row)), columns)

    def evaluate(self, sweeps: int = 1, parameters: Sequence[str] = ()) -> Evaluation:
        """Run `sweeps` sweeps, then return the evidence and its gradient.

        The gradient is that of EP at its fixed point, to which the sweeps stay close.

        Parameters
        ----------
        sweeps : int
            One is enough if the sites belong to nearby hyper-parameters.
        parameters : sequence of str
            Parameters of the likelihood, by whose logarithms to differentiate.
        """
        with one_blas_thread():
            for _ in range(sweeps):
                self.sweep()
            rule = self.rule
            rules = [
                {k: PowerProjector(p, rule.power) for k, p in moved(rule.projector, name).items()}
                for name in parameters
            ]
            sums = self._pass(slopes, self._state_now, moved=rules)
            return evaluation(self.state, sums)

    def release(self) -> None:
        """Free the memory of cached features; they are computed again when needed."""
        self._keeper = Keeper()

    @property
    def _state_now(self) -> State:
        """State with the current rule."""
        return replace(self.state, rule=self.rule)

    def _pass(
        self,
        function: Callable[..., Done],
        state: State,
        columns: Sequence[Array] = (),
        **options: Any,
    ) -> Sums:
        """Run a pass over all chunks, fill columns of all rows, and return the sums."""
        tree = SumTree(self.rows.chunks)
        local = isinstance(self.executor, Threads)
        n, memory = self.rows.n, self.memory if local else 0.0
        keeper = self._keeper.of(state.inducing, n, memory).under(state.root, n, memory)

        def take(number: int, done: Done) -> None:
            tree.put(number, done.sums)
            for column, values in zip(columns, done.columns, strict=True):
                column[self.rows.slice(number)] = values

        def jobs() -> Iterator[tuple[Callable[..., Done], Job | Divided]]:
            """Yield the pass and its arguments for each chunk."""
            work = partial(function, state, **options)
            on_worker = partial(_on_worker, work)
            for number in range(self.rows.chunks):
                rows = self.rows.slice(number)
                tau, nu = self.tau[rows], self.nu[rows]
                if local:
                    cached = keeper.chunk(number, rows), keeper.variances(number, rows)
                    yield work, Job(self.rows.piece(number), rows.start, tau, nu, *cached)
                else:
                    job_fields = rows.start, tau, nu
                    yield on_worker, Divided(self.rows, number, self.rows.piece, job_fields)

        self.executor.each(jobs(), take)
        return tree.total()


def _on_worker(
    work: Callable[[Job], Done], divided: tuple[ChunkTask, tuple[int, Array, Array]]
) -> Done:
    """Carry out a pass where the piece is kept."""
    piece, job_fields = divided
    return work(Job(piece, *job_fields))
