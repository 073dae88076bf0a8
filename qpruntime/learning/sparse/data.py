"""Rows, stages and samples of a sparse fit."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._typing import Array
from qpruntime.errors import NumericalError
from qpruntime.execution.threads import Executor, Threads, threads_of
from qpruntime.inference.sites import Sites
from qpruntime.inference.sparse.engine import Engine
from qpruntime.inference.sparse.rows import ChunkedRows
from qpruntime.inference.sparse.state import PowerProjector
from qpruntime.learning.initialisation import Start
from qpruntime.learning.inputs import Data, Inputs
from qpruntime.learning.objective import reparametrised
from qpruntime.learning.optimise import Optimum, all_bounds
from qpruntime.learning.options import Inducing, Settings
from qpruntime.learning.progress import Say, call_both, stage_reports, time_left
from qpruntime.learning.sparse.objective import EvidenceSearch, Place, climb, optimum_of

__all__ = [
    "MAX_JOINT_ITERATIONS",
    "SAMPLE_GAIN",
    "SparseFitData",
    "SparseStage",
    "Stages",
    "on_sample",
    "planned",
    "staged",
]

# --- First stage: a sample

#: The search on a sample ends when an iteration raises the evidence per row by less than this.
SAMPLE_GAIN = 2e-5
#: Largest number of iterations on a sample: of theta and Z, and of theta alone.
MAX_JOINT_ITERATIONS, _MAX_THETA_ITERATIONS = 80, 40
# A length-scale per feature must raise the evidence by at least this much, as in dense fits.
_MIN_ARD_GAIN = 10.0


def on_sample(
    ground: SparseFitData, rows: ChunkedRows, place: Place, choose: Callable[[Kernel], Array] | None
) -> tuple[Place, Engine]:
    """Learn from a sample, beginning at a place.

    Parameters
    ----------
    ground : SparseFitData
    rows : ChunkedRows
        The sample.
    place : Place
    choose : callable or None
        Returns the inducing inputs for a kernel, where their number follows from it.

    Returns
    -------
    place : Place
    engine : Engine
        With the sample, there.
    """
    assert ground.report is not None
    engine = ground.engine(rows, place)
    ground.report.begin(0)
    place = _best_start(ground, engine, place)
    place = ground.climbed(engine, place, False, _MAX_THETA_ITERATIONS, SAMPLE_GAIN)
    if ground.begin.by_feature:
        place, engine = _by_feature(ground, place, engine)
    if choose is not None:
        place = Place(place.theta, choose(engine.kernel))
        engine = ground.engine(rows, place)
    if ground.sparse.learn:
        ground.report.begin(1)
        place = ground.climbed(engine, place, True, MAX_JOINT_ITERATIONS, SAMPLE_GAIN)
    return place, engine


def _best_start(ground: SparseFitData, engine: Engine, place: Place) -> Place:
    """Return the best place among the starts of the default kernel."""
    assert ground.report is not None
    if not ground.begin.thetas:
        return place
    search = ground.search(engine, False)
    likelihood_theta = place.theta[ground.kernel.n_dims :]
    for theta in ground.begin.thetas:
        engine.tau[:] = engine.nu[:] = 0.0
        evaluation = search.tried(Place(np.concatenate([theta, likelihood_theta]), place.Z))
        if evaluation is not None:
            ground.report(theta, evaluation[0])
    if search.place is None:
        return place
    search.go(search.place)
    return search.place


def _by_feature(ground: SparseFitData, place: Place, engine: Engine) -> tuple[Place, Engine]:
    """Use one length-scale per feature if that raises the evidence by more than chance."""
    before, begin = ground.optima[0], ground.begin
    ground.refine(place.theta)
    start = Place(ground.begin.thetas[0], place.Z)
    refined_engine = ground.engine(engine.rows, start)
    refined_engine.tau[:], refined_engine.nu[:] = engine.sites
    refined_place = ground.climbed(refined_engine, start, False, _MAX_THETA_ITERATIONS, SAMPLE_GAIN)
    if ground.optima[0].value - before.value > max(begin.by_feature - 1, _MIN_ARD_GAIN):
        return refined_place, refined_engine
    ground.begin, ground.refined = begin, None
    ground.optima[:] = [before, *(run for run in ground.optima if run is not before)]
    engine.move(ground.kernel_at(place), place.Z)
    return place, engine


# --- Engines shared by the stages


@dataclass(eq=False)
class SparseFitData:
    """Data, settings and engine options that the stages of a fit share.

    Parameters
    ----------
    data : Data
    begin : Start
        Kernel and start of the search.
    settings : Settings
    spread : ndarray, shape (d,)
        Unit of the steps of inducing points.
    offer : callable
        Called with the best place so far, the engine and the sites there after every evaluation.

    Attributes
    ----------
    optima : list of Optimum
        Optima of the searches, the last first.
    executor, local : Executor
        Executors for all rows, and for a sample.
    judge : Projector
        Projector of EP.
    report : Stages or None
        Called with theta and the score after every evaluation.
    refined : ndarray or None
        Parameters at which each feature got its own length-scale, if it did.
    """

    data: Data
    begin: Start
    settings: Settings
    spread: Array
    offer: Callable[[Place, Engine, Sites | None], None]
    optima: list[Optimum] = field(default_factory=list)
    report: Stages | None = None
    refined: Array | None = None

    def __post_init__(self) -> None:
        self.local = Threads(threads_of(self.settings.n_jobs))
        self.executor: Executor = self.local
        self.judge = self.data.projector.for_evidence()

    @property
    def n(self) -> int:
        """Number of all rows."""
        return len(self.data.y)

    @property
    def sparse(self) -> Inducing:
        """The settings for inducing points."""
        assert self.settings.sparse is not None
        return self.settings.sparse

    @property
    def kernel(self) -> Kernel:
        """The kernel with its initial parameters."""
        return self.begin.kernel

    def kernel_at(self, place: Place) -> Kernel:
        """Return the kernel with the parameters of a place."""
        return self.kernel.clone_with_theta(place.theta[: self.kernel.n_dims])

    def refine(self, theta: Array) -> None:
        """Give each feature a length-scale of its own, from these parameters of the kernel."""
        self.begin, self.refined = self.begin.refined(theta), theta

    def engine(self, rows: ChunkedRows, place: Place) -> Engine:
        """Return an EP engine for these rows at a place; its sites are still zero."""
        projector = self.judge
        if self.data.learn:
            logs = place.theta[self.kernel.n_dims :]
            projector = reparametrised(projector, tuple(self.data.learn), logs)
        dtype = np.float32 if self.sparse.dtype == "mixed" else np.float64
        rule = PowerProjector(projector, self.sparse.power)
        executor = self.executor if rows.n == self.n else self.local
        options: Any = {"dtype": dtype, "executor": executor, "memory": self.sparse.memory}
        return Engine(rows, rule, self.kernel_at(place), place.Z, **options)

    def rows(self, indices: NDArray[np.intp] | None = None) -> ChunkedRows:
        """Return the rows of these indices, or all."""
        data = self.data
        if indices is None or len(indices) == self.n:
            return data.inputs.chunked(data.y, data.weights, data.prior, data.scale)
        weights, scale = (None if a is None else a[indices] for a in (data.weights, data.scale))
        sampled = Inputs(data.inputs.at(indices))
        return sampled.chunked(data.y[indices], weights, data.prior[indices], scale)

    def search(self, engine: Engine, moving: bool) -> EvidenceSearch:
        """Return a search of theta, and of the inducing inputs if these are moving."""
        units = self.spread if moving else None
        return EvidenceSearch(engine, self.kernel, self.data.learn, self.begin.log_prior, units)

    def climbed(
        self, engine: Engine, place: Place, moving: bool, iterations: int, change: float
    ) -> Place:
        """Maximise from a place until an iteration raises the score per row by less than `change`.

        The engine is left at the best place, which is returned; its optimum becomes the first one.
        """
        search = self.search(engine, moving)
        bounds = all_bounds(self.kernel, self.data.learn)

        def offer(*_: Any) -> None:
            if search.place is not None:
                self.offer(search.place, engine, search.kept)

        report = call_both(call_both(self.report, offer), self.settings.search.callback)
        max_iterations = min(iterations, self.settings.search.max_iter)
        run = partial(
            climb, search, place, bounds, iterations=max_iterations, change=change, report=report
        )
        try:
            result = run()
        except NumericalError:
            if engine.dtype == np.float64:
                raise
            engine.dtype = np.float64  # single precision has lost the factor
            engine.tau[:] = engine.nu[:] = 0.0
            result = run()
        assert search.place is not None
        search.go(search.place)
        self.optima.insert(0, optimum_of(search, result, place.theta))
        return search.place


# --- Progress


class SparseStage(NamedTuple):
    """One stage: its words, rows, inducing inputs, and how many evaluations it usually takes."""

    words: str
    rows: int
    inducing: int
    usual: int

    @property
    def cost(self) -> float:
        """Cost of one evaluation, in some unit."""
        return float(self.rows) * self.inducing**2


def planned(sizes: Sequence[int], m: int, moving: bool) -> list[SparseStage]:
    """Return the stages of a fit with these numbers of rows, of which the last are all rows."""
    sample_rows, *more = sizes
    stages = [SparseStage(f"parameters on {sample_rows} rows", sample_rows, m, 25)]
    if moving:
        stages.append(
            SparseStage(f"inducing inputs too, on {sample_rows} rows", sample_rows, m, 40)
        )
    stages += [SparseStage(f"{sample_size} rows", sample_size, m, 30) for sample_size in more[:-1]]
    stages += [SparseStage(f"all {n} rows", n, m, 12) for n in more[-1:]]
    return stages


class Stages:
    """Called with theta and value after every evaluation; `say` takes the share done, and words."""

    def __init__(self, stages: Sequence[SparseStage], say: Say | None) -> None:
        self.stages, self._say = tuple(stages), say
        self._now, self._done, self._spent = 0, 0, 0.0
        self._begun = time.perf_counter()

    def begin(self, number: int) -> None:
        """Go to a stage, counted from 0."""
        self._now, self._done = number, 0

    def __call__(self, theta: Array, value: float) -> None:
        """Count an evaluation, and tell how far the fit is."""
        stage = self.stages[self._now]
        self._done += 1
        self._spent += stage.cost
        if self._say is None:
            return
        # A stage that takes longer than usual may end at any time.
        remaining_cost = max(stage.usual - self._done, 0) * stage.cost
        remaining_cost += sum(later.usual * later.cost for later in self.stages[self._now + 1 :])
        seconds = (time.perf_counter() - self._begun) / self._spent * remaining_cost
        self._say(
            self._spent / (self._spent + remaining_cost),
            f"stage {self._now + 1} of {len(self.stages)}, {stage.words}: {self._done} "
            f"evaluations, evidence per row {value / stage.rows:.5f}{time_left(seconds)}",
        )


@contextlib.contextmanager
def staged(verbose: int, stages: Sequence[SparseStage]) -> Iterator[Stages]:
    """Yield what is to be told of every evaluation; silent unless `verbose`."""
    with stage_reports(verbose) as say:
        yield Stages(stages, say)
