"""Sites of all rows, and the passes over them: what a posterior of w is made of, and settles by."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from qpruntime._memory import fits, require, squares
from qpruntime._row_blocks import in_blocks
from qpruntime._typing import Array
from qpruntime.errors import NumericalError
from qpruntime.execution.blas_threads import one_blas_thread
from qpruntime.execution.executors import Divided, Executor, Threads
from qpruntime.inference.fixed_point.schedules import Swept
from qpruntime.inference.sites import ImproperPosterior, Sites
from qpruntime.inference.sparse.data import CHUNK, ChunkedRows, ChunkTask
from qpruntime.inference.sparse.features import InducingInputs, divide
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

__all__ = [
    "HALVINGS",
    "MEMORY",
    "Engine",
    "Keeper",
    "Outcome",
    "bounded",
    "leave_out",
    "seen_by_likelihood",
    "swept_by",
    "without_site",
]

# --- Selected rows of an engine


def leave_out(engine: Engine, chosen: NDArray[np.intp]) -> Array:
    """Return leave-one-out log densities of some rows, as `Engine.outcome` has them of all."""

    def of(block: Block, at: Cavities) -> Array:
        log_z: Array = project(engine.rule, block, at, "log_z", whole=True)[0]
        return log_z

    found: Array = _of_cavities(engine, chosen, of)
    return found


def without_site(engine: Engine, chosen: NDArray[np.intp]) -> tuple[Array, Array]:
    """Cavity means and variances of some rows, of what the likelihood takes; nan where improper."""
    found: tuple[Array, Array] = _of_cavities(engine, chosen, seen_by_likelihood)
    return found


def seen_by_likelihood(block: Block, at: Cavities) -> tuple[Array, Array]:
    """Cavity means and variances of what the likelihood takes; nan where a cavity is improper."""
    slope = 1.0 if block.scale is None else block.scale
    mean, variance = slope * block.centre(at.mean), slope * slope * at.v
    return np.where(at.proper, mean, np.nan), np.where(at.proper, variance, np.nan)


def _of_cavities(engine: Engine, chosen: NDArray[np.intp], of: Callable[..., Any]) -> Any:
    """Join what `of` makes of blocks of some rows and their cavities."""
    state, rule = engine.state, engine.rule
    rows = engine.rows.some(chosen)

    def one(some: slice) -> Any:
        columns = rows.weights, rows.prior, rows.scale
        _, prior, scale = (None if a is None else a[some] for a in columns)
        tau, nu = engine.tau[chosen[some]], engine.nu[chosen[some]]
        block = Block(rows.y[some], None, prior, tau, nu, scale)
        phi, r = state.inducing.features(rows.X[some])
        mean = (phi @ state.mean.astype(phi.dtype)).astype(float)
        solved = divide(phi, state.rounded)
        w = np.einsum("nm,nm->n", solved, solved).astype(float)
        return of(block, cavities(block, mean, w, r, rule.power, 1.0))

    return in_blocks(one, len(chosen), state.inducing.size)


# --- Cached features

#: Bytes of features that are kept by default.
MEMORY = 1e9
# Features are kept where so many times their bytes are there: what else passes take is left.
_SPARE = 1.5


class Keeper:
    """Features of N rows under one `InducingInputs`; under another they are computed anew."""

    def __init__(self) -> None:
        self._owner: InducingInputs | None = None
        self._phi: Any = None
        self._r: Array = np.empty(0)
        self._full: dict[int, Any] = {}
        self._root: Array | None = None
        self._w: Array | None = None
        self._variances_known: dict[int, Any] = {}

    def of(self, inducing: InducingInputs, n: int, memory: float) -> Keeper:
        """Return the keeper with room for these features if they fit, else with none."""
        if self._owner is inducing:
            return self
        self._owner, self._full, self._root = inducing, {}, None
        shape = (n, inducing.size)
        nbytes = n * inducing.size * inducing.dtype.itemsize
        if nbytes > memory:
            self._phi = None
        elif self._phi is None or (self._phi.shape, self._phi.dtype) != (shape, inducing.dtype):
            self._phi = None
            if fits(_SPARE * nbytes):
                self._phi, self._r = np.empty(shape, inducing.dtype), np.empty(n)
        return self

    def chunk(self, number: int, some: slice) -> Features | None:
        """Return the features of a chunk, or room for them; None if they are not kept."""
        if self._phi is None:
            return None
        full = self._full.setdefault(number, np.zeros(1, dtype=bool))
        return Features(self._phi[some], self._r[some], full)

    def under(self, root: Array, n: int, memory: float) -> Keeper:
        """Return the keeper with room for the variances of N rows under this root of B.

        Means are settled several times between sweeps, and the root stays: what they spare is
        all of the M^2 operations a row.
        """
        if self._root is not root:
            self._root, self._variances_known = root, {}
            if 8.0 * n > memory:
                self._w = None
            elif self._w is None or len(self._w) != n:
                self._w = np.empty(n)
        return self

    def variances(self, number: int, some: slice) -> Variances | None:
        """Return the variances of a chunk, or room for them; None if they are not kept."""
        if self._w is None:
            return None
        full = self._variances_known.setdefault(number, np.zeros(1, dtype=bool))
        return Variances(self._w[some], full)


# --- `Engine`

#: A step that leaves no proper posterior is halved so often, as in the dense engine.
HALVINGS = 40


@dataclass(frozen=True, eq=False)
class Outcome:
    """What the sites as they are stand for.

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


def bounded(change: float, worst: int) -> float:
    """Return the change of a sweep.

    Raises
    ------
    NumericalError
        If it is not finite.
    """
    if math.isfinite(change):
        return change
    raise NumericalError(
        f"the sites grow without bound, row {worst} first: observations that the kernel ties "
        'together contradict each other; use likelihood="probit", or add a WhiteKernel to the '
        "kernel"
    )


def swept_by(change: float, worst: int, counts: Array) -> Swept:
    """Return what a sweep did, of what a pass has counted: lookups, skipped, held at zero."""
    inside, outside, skipped, held = counts.astype(np.int64)
    return Swept(change, worst, np.array([inside, outside, skipped]), held=int(held))


@dataclass
class Engine:
    """N rows, their sites, and the posterior of w that these leave.

    Parameters
    ----------
    rows : Rows
    rule : Rule
        May be set: learn with EP's, end with QP's.
    kernel : scikit-learn kernel
    Z : ndarray, shape (M, d)
    jitter : float
        As of `InducingInputs`.
    dtype : dtype
        Of features and their products; float32 steers a fit, float64 ends it.
    executor : Executor, optional
        By default threads of this process.
    memory : float
        Bytes that features may take. If all fit, and threads of this process compute, they are kept
        from pass to pass: an evaluation takes two thirds of the time.
    base : Base, optional
        What rows seen before have left, under this very kernel and Z: nothing may be moved then.

    Attributes
    ----------
    state : State
        Belongs to the sites.
    tau, nu : ndarray, shape (N,)
        Sites of f about the prior mean.
    """

    rows: ChunkedRows
    rule: PowerProjector
    kernel: Any
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
        """Copies of the sites about the prior mean; set them, and the posterior follows."""
        return Sites(self.tau.copy(), self.nu.copy())

    @sites.setter
    def sites(self, sites: Sites) -> None:
        self.tau[:], self.nu[:] = sites
        self.gather()

    def move(self, kernel: Any, Z: Array, dtype: DTypeLike | None = None) -> None:
        """Go to another kernel, other inducing inputs or another dtype with the sites there are.

        Raises
        ------
        NumericalError
            If the kernel has no covariance there, or the sites no posterior.
        """
        self.kernel, self.Z = kernel, Z
        self.dtype = self.dtype if dtype is None else dtype
        self.gather()

    def gather(self) -> None:
        """Form the posterior of the sites as they are."""
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
        """Let all rows take the posterior of other rows as their cavity, under this rule.

        The kernel and Z have to be those of `state`; sites there were are forgotten.
        """
        with one_blas_thread():
            self.tau[:] = self.nu[:] = 0.0
            start = State(self._inducing(), self.rule, state.root, state.h, state.mean)
            sums = self._pass(sweep, start, (self.tau, self.nu))
            self.state = posterior_of(start.inducing, self.rule, sums, self.base)

    def match(self, steps: int = 1) -> None:
        """Settle the means so many times, precisions and variances being fixed."""
        with one_blas_thread():
            for _ in range(steps):
                sums = self._pass(means, self._state_now, (self.tau, self.nu))
                h = sums["h"] if self.base is None else sums["h"] + self.base.state.h
                self.state = self.state.relocated(h)

    def sweep(self, share: float = 1.0) -> Swept:
        """Update all sites by this share of what they ask for, and the posterior after that.

        Raises
        ------
        ImproperPosterior
            If negative precisions leave no posterior, however short the step; sites stay.
        NumericalError
            If sites grow without bound, or double precision does not suffice.
        """
        with one_blas_thread():
            now = self._state_now
            # Only where precisions may be negative a step may have to be taken back.
            new = (self.tau, self.nu) if self.rule.nonnegative else np.empty((2, self.rows.n))
            for _ in range(HALVINGS):
                sums = self._pass(sweep, now, (*new,), share=share)
                _, worst = sums["worst"]
                change = bounded(math.sqrt(sums["change"].max() / self.rows.n), int(worst))
                try:
                    self.state = posterior_of(now.inducing, self.rule, sums, self.base)
                except ImproperPosterior:
                    if self.rule.nonnegative:
                        raise
                    share *= 0.5
                    continue
                self.tau, self.nu = new
                return swept_by(change, int(worst), sums["counts"])
        raise ImproperPosterior(
            "negative site precisions leave no proper posterior however short the step; "
            "use a smaller prior variance or a prior mean away from zero"
        )

    def outcome(self, rows: bool = False) -> Outcome:
        """Evidence of the sites as they are; of all rows, marginals and leave-one-out densities.

        Raises
        ------
        NumericalError
            If the evidence is not finite.
        """
        with one_blas_thread():
            columns = np.empty((3, self.rows.n)) if rows else None
            given = () if columns is None else (*columns,)
            sums = self._pass(outcome, self._state_now, given, rows=rows)
            value = evidence(self.state, sums, self.base)
            if not math.isfinite(value):
                raise NumericalError(
                    f"the log evidence is {value}: an observation has no likelihood left in "
                    "double precision under the others; check outliers, or widen the kernel"
                )
            size, row = sums["worst"]
            return Outcome(value, (-float(size), int(row)), columns)

    def evaluate(self, sweeps: int = 1, parameters: Sequence[str] = ()) -> Evaluation:
        """Sweep so many times, then return the evidence and its gradient.

        The gradient is that of EP at its fixed point, from which sweeps keep at most a distance.

        Parameters
        ----------
        sweeps : int
            One is enough where sites come from hyper-parameters nearby.
        parameters : sequence of str
            Of the likelihood, to differentiate by the logarithms of.
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
        """Give back the memory of features that are kept; they are made again when needed."""
        self._keeper = Keeper()

    @property
    def _state_now(self) -> State:
        """The state, with the rule of now."""
        state = self.state
        return State(state.inducing, self.rule, state.root, state.h, state.mean)

    def _pass(
        self,
        function: Callable[..., Done],
        state: State,
        columns: Sequence[Array] = (),
        **options: Any,
    ) -> Sums:
        """Carry out a pass over all chunks; fill columns of all rows, return the sums."""
        tree = SumTree(self.rows.chunks)
        local = isinstance(self.executor, Threads)
        n, memory = self.rows.n, self.memory if local else 0.0
        keeper = self._keeper.of(state.inducing, n, memory).under(state.root, n, memory)

        def take(number: int, done: Done) -> None:
            tree.put(number, done.sums)
            for column, values in zip(columns, done.columns, strict=True):
                column[self.rows.slice(number)] = values

        def jobs() -> Any:
            work = partial(function, state, **options)
            there = partial(_there, work)
            for number in range(self.rows.chunks):
                some = self.rows.slice(number)
                tau, nu = self.tau[some], self.nu[some]
                if local:
                    kept = keeper.chunk(number, some), keeper.variances(number, some)
                    yield work, Job(self.rows.piece(number), some.start, tau, nu, *kept)
                else:
                    rest = some.start, tau, nu
                    yield there, Divided(self.rows, number, self.rows.piece, rest)

        self.executor.each(jobs(), take)
        return tree.total()


def _there(
    work: Callable[[Job], Done], divided: tuple[ChunkTask, tuple[int, Array, Array]]
) -> Done:
    """Carry out a pass where the piece is kept."""
    piece, rest = divided
    return work(Job(piece, *rest))
