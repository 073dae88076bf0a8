"""Selection of the number of inducing points by doubling it while hold-out densities gain."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._typing import Array
from qpruntime.errors import NumericalError
from qpruntime.execution.resolve import executor_of
from qpruntime.execution.threads import ExecutorError, Threads, threads_of
from qpruntime.inference.fixed_point.convergence import Ended, Limits
from qpruntime.inference.local.blocks import PlaceSearch
from qpruntime.inference.local.posterior import local_of
from qpruntime.inference.local.storage import held_inputs
from qpruntime.inference.posterior import Posterior, solution_of
from qpruntime.inference.solution_protocol import common_value
from qpruntime.inference.sparse.engine import Engine
from qpruntime.inference.sparse.iterate import settle
from qpruntime.inference.sparse.posterior import SparsePosterior, conclude
from qpruntime.inference.sparse.rows import ChunkedRows
from qpruntime.inference.sparse.state import PowerProjector
from qpruntime.learning.inducing_points import (
    MAX_INDUCING,
    SAMPLE,
    clusters,
    levels_of,
    sample,
    units,
)
from qpruntime.learning.inputs import Data
from qpruntime.learning.model_selection.budget import Budget, Stage, local_density_cost, sweep_cost
from qpruntime.learning.model_selection.candidates import pooled_densities
from qpruntime.learning.options import Inducing, Settings
from qpruntime.learning.sparse.objective import posterior_of
from qpruntime.projection.projector import Projector

__all__ = [
    "CONTINUED_SWEEPS",
    "FINAL_SWEEPS",
    "LOO_ROWS",
    "NEAREST_ROWS",
    "InducingSearch",
    "ScoredEngine",
    "left_out_densities",
]

# --- Doubling of inducing points
#
# The sites of all rows are carried from one number of inducing points to the next. Leave-one-out
# densities of a sample of rows select the kernel, the number of inducing points, and whether the
# nearest rows of each point correct its prediction.

#: Number of nearest rows that correct a prediction.
NEAREST_ROWS = 30
# Tolerance of EP before the final fit.
_SITE_TOL = 1e-3
# Doubling continues while the mean log density of a row gains at least this much.
_MIN_DOUBLING_GAIN = 1e-3
#: Expected sweeps of a run that continues another one, and of the final run.
CONTINUED_SWEEPS, FINAL_SWEEPS = 5, 6
#: Number of rows with leave-one-out densities, among which a mean gain of 0.004 is significant.
#: These densities take most of a comparison's time. The errors of three sets change by less than
#: 0.4 % with 8000 rows.
LOO_ROWS = 5000


@dataclass
class _SharedResults:
    """Results shared by runs whose kernels differ in their variances alone."""

    centres: dict[Hashable, Array] = field(default_factory=dict)
    search: PlaceSearch | None = None


@dataclass(frozen=True, eq=False)
class InducingSearch:
    """Search over the number of inducing points for all rows of a process, in the kernel's units.

    Parameters
    ----------
    data : Data
    settings : Settings
        Settings with ``auto``.
    budget : Budget
    stages : list of Stage
        Appended to.
    seed : int
        Seed of the clusters, so that kernels with the same distances have the same clusters.
    left_out : ndarray of int
        Rows whose leave-one-out densities are computed.
    """

    data: Data
    settings: Settings
    budget: Budget
    stages: list[Stage]
    seed: int
    left_out: NDArray[np.intp]

    def run(
        self,
        kernel: Kernel,
        projector: Projector,
        m: int,
        label: str,
        previous: ScoredEngine | None,
    ) -> ScoredEngine:
        """Return the scored engine of m inducing points, and record the stage under a label."""
        scored = self.score(self.infer(kernel, projector, m, previous), self.left_out)
        label = f"{label}{m} inducing points{' and nearest rows' if scored.uses_nearest else ''}"
        self.stages.append(Stage(len(self.data.y), label, scored.score, self.budget.used))
        return scored

    def infer(
        self, kernel: Kernel, projector: Projector, m: int, previous: ScoredEngine | None = None
    ) -> SparsePosterior:
        """Run EP on all rows with m inducing points, starting from the sites of an earlier run."""
        n, Z = len(self.data.y), self._centres(kernel, m)
        dtype = self._dtype(n, m)
        engine = Engine(self._rows, self._rule(projector), kernel, Z, dtype=dtype, **self._options)
        limits = Limits(_SITE_TOL, self.settings.max_sweeps, 1.0)
        if previous is not None:
            previous.engine.release()
        with self._on_workers(engine):
            try:
                result = self._run_engine(engine, previous, limits)
            except NumericalError:
                if engine.dtype == np.float64:
                    raise
                engine.tau[:] = engine.nu[:] = 0.0
                engine.move(kernel, Z, np.float64)  # single precision has lost the factor
                result = self._run_engine(engine, previous, limits)
            posterior = conclude(engine, result, None, limits)
        self.budget.spend(sweep_cost(len(result.history) + 2, n, m))
        return posterior

    def score(self, posterior: SparsePosterior, rows: NDArray[np.intp]) -> ScoredEngine:
        """Return the engine of a posterior with leave-one-out densities of rows."""
        engine, k = solution_of(posterior).engine, self._nearest
        nearest_densities = None
        sparse_densities = left_out_densities(posterior, self.data, rows)
        if k:
            self.budget.spend(local_density_cost(len(rows), k, len(engine.Z)))
            try:
                local = local_of(posterior, self._stored_inputs, k, self._shared.search)
                nearest_densities = left_out_densities(local, self.data, rows)
                self._shared.search = solution_of(local).search
            except NumericalError as error:
                if error.__cause__ is not None:  # a user's own exception
                    raise
        return ScoredEngine(engine, sparse_densities, nearest_densities)

    @staticmethod
    def _run_engine(engine: Engine, previous: ScoredEngine | None, limits: Limits) -> Ended:
        """Run EP of an engine, starting from the sites of another one."""
        if previous is not None:
            engine.sites = previous.engine.sites
        return settle(engine, limits)

    @contextmanager
    def _on_workers(self, engine: Engine) -> Iterator[None]:
        """Let the workers of the scheduler, if there is one, compute the passes of an engine."""
        if self.settings.scheduler is None:
            yield
            return
        own_executor = engine.executor
        try:
            with executor_of(None, self.settings.scheduler) as engine.executor:
                yield
        except ExecutorError as error:
            raise ExecutorError(
                f"{error}; then fit again, or without scheduler= on this machine"
            ) from error
        finally:
            engine.executor = own_executor

    def _dtype(self, n: int, m: int) -> DTypeLike:
        """Return single precision if features in double precision exceed the memory.

        Reading features from a file takes longest, and single precision is enough to compare
        kernels. The final posterior has double precision.
        """
        mixed = self._auto.dtype == "mixed"
        return np.float32 if mixed and 8.0 * n * m > self._auto.memory else np.float64

    def grow_inducing(
        self, kernel: Kernel, projector: Projector, initial: ScoredEngine
    ) -> ScoredEngine:
        """Double the number of inducing points while that pays and the budget allows it."""
        n, current = len(self.data.y), initial
        while True:
            m = 2 * current.m
            cost = sweep_cost(CONTINUED_SWEEPS, n, m) + sweep_cost(FINAL_SWEEPS, n, m)
            if m > min(MAX_INDUCING, n // 2) or not self.budget.allows(cost):
                return current
            doubled = self.run(kernel, projector, m, "", current)
            gain = doubled.score - current.score
            current = doubled
            if gain < _MIN_DOUBLING_GAIN:
                return current

    def final_posterior(
        self, scored: ScoredEngine, projector: Projector
    ) -> tuple[SparsePosterior, int]:
        """Return the posterior by the requested method, and its number of nearest rows."""
        prior = common_value(self.data.prior)
        engine = scored.engine
        with self._on_workers(engine):
            if engine.dtype != np.float64:
                engine.move(engine.kernel, engine.Z, np.float64)
            posterior = posterior_of(engine, projector, self.settings, prior, lambda _: None)
        self.budget.spend(sweep_cost(posterior.n_sweeps, len(self.data.y), scored.m))
        engine.executor = Threads(None)
        requested = self._auto.nearest
        k = self._nearest
        if isinstance(requested, str):
            k = NEAREST_ROWS if scored.uses_nearest else 0
        return (local_of(posterior, self._stored_inputs, k) if k else posterior), k

    @property
    def _auto(self) -> Inducing:
        assert self.settings.auto is not None
        return self.settings.auto

    @property
    def _nearest(self) -> int:
        """Number of nearest rows to try.

        It is 0 for groups of rows, because the nearest rows of a left-out row would belong to its
        group.
        """
        requested, groups = self._auto.nearest, self.data.groups
        if not isinstance(requested, str):
            return int(requested)
        if groups is not None and groups.repeat and not groups.coincide:
            return 0
        return NEAREST_ROWS if len(self.data.y) > NEAREST_ROWS else 0

    @cached_property
    def _stored_inputs(self) -> Array:
        """Inputs of all rows, in a file if they do not fit into memory."""
        return held_inputs(self._rows, self._auto.memory)

    @cached_property
    def _points(self) -> Array:
        """Inputs that inducing points are chosen from."""
        rng = np.random.default_rng(self.seed)
        return self.data.inputs.at(sample(len(self.data.y), SAMPLE, rng))

    def _centres(self, kernel: Kernel, m: int) -> Array:
        """Return m centres of the inputs, which kernels with the same length-scales share."""
        scales, levels = units(kernel, self._points.std(axis=0)), levels_of(kernel)
        key = m, scales.tobytes(), tuple(levels.items())
        if key not in self._shared.centres:
            rng = np.random.default_rng([self.seed, m])
            self._shared.centres[key] = clusters(self._points, m, rng, scales, levels)
        return self._shared.centres[key]

    @cached_property
    def _shared(self) -> _SharedResults:
        return _SharedResults()

    @cached_property
    def _rows(self) -> ChunkedRows:
        data = self.data
        return data.inputs.chunked(data.y, data.weights, data.prior, data.scale)

    @cached_property
    def _options(self) -> dict[str, Any]:
        threads = Threads(threads_of(self.settings.n_jobs))
        return {"memory": self._auto.memory, "executor": threads}

    def _rule(self, projector: Projector) -> PowerProjector:
        return PowerProjector(projector.for_evidence(), self._auto.power)


def left_out_densities(posterior: Posterior, data: Data, rows: NDArray[np.intp]) -> Array:
    """Return weighted leave-one-group-out log densities of rows of data, pooled by groups."""
    groups = data.groups
    log_densities = posterior.loo(rows) if groups is None else groups.left_out(posterior, rows)
    return pooled_densities(log_densities, data, rows)


# --- Leave-one-out score of an engine

# Nearest rows are used if they gain at least this much mean log density of a row.
_MIN_NEAREST_GAIN = 2e-4


@dataclass(frozen=True, eq=False)
class ScoredEngine:
    """Engine with the sites of all rows, and its leave-one-out log densities.

    `nearest_densities` are those corrected by the nearest rows, or None if not computed.
    """

    engine: Engine
    sparse_densities: Array
    nearest_densities: Array | None

    @property
    def m(self) -> int:
        """Number of inducing points."""
        return len(self.engine.Z)

    @cached_property
    def uses_nearest(self) -> bool:
        """True if the nearest rows improve the predictions significantly and by enough."""
        if self.nearest_densities is None:
            return False
        gain = self.nearest_densities - self.sparse_densities
        half_error = 0.5 * float(np.std(gain)) / math.sqrt(gain.size)
        return bool(float(np.mean(gain)) > max(_MIN_NEAREST_GAIN, half_error))

    @property
    def densities(self) -> Array:
        """Leave-one-out log densities of the better of the two predictions."""
        if self.uses_nearest and self.nearest_densities is not None:
            return self.nearest_densities
        return self.sparse_densities

    @property
    def score(self) -> float:
        """Mean leave-one-out log density."""
        return float(np.mean(self.densities))
