"""Choice of the number of inducing points."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._typing import Array
from qpruntime.errors import NumericalError
from qpruntime.execution.executors import ExecutorError, Threads, threads_of
from qpruntime.execution.resolve import executor_of
from qpruntime.inference.fixed_point.convergence import Ended, Limits
from qpruntime.inference.local.posterior import local_of
from qpruntime.inference.local.storage import held_inputs
from qpruntime.inference.sparse.data import Rows, rows_of
from qpruntime.inference.sparse.engine import Engine
from qpruntime.inference.sparse.iterate import settle
from qpruntime.inference.sparse.posterior import conclude
from qpruntime.inference.sparse.state import Rule
from qpruntime.learning.inducing_points import clusters, levels_of, rows_at, sample, units
from qpruntime.learning.model_selection.budget import Budget, Stage, local_density, sweeps_of
from qpruntime.learning.settings import Data, Settings
from qpruntime.learning.sparse.finish import posterior_of
from qpruntime.projection.projector import Projector

__all__ = [
    "FURTHER",
    "LAST",
    "LEFT_OUT",
    "NEAREST",
    "Ground",
    "Settled",
]

# --- Doubling of inducing points
#
# Sites of the rows are carried from one number of inducing points to the next. Leave-one-out
# densities of some rows say which kernel, how many inducing points, and whether the nearest rows of
# each point predict better.

# Inducing points at most.
_MOST = 4800
#: Nearest rows, where they are taken.
NEAREST = 30
# Sites settle so far between.
_TOL = 1e-3
# What doubling has to gain, in log density a row.
_GAIN = 1e-3
#: Sweeps of those that go on, and of the end.
FURTHER, LAST = 5, 6
# Rows that inducing points are chosen from.
_SAMPLE = 20_000
#: Rows that are left out: a gain of .003 a row is seen among so many.
LEFT_OUT = 8000


@dataclass(frozen=True, eq=False)
class Ground:
    """All rows of a process, in units of the kernel.

    Parameters
    ----------
    data : Data
    settings : Settings
        With ``auto``.
    budget : Budget
    stages : list of Stage
        Appended to.
    seed : int
        Of clusters: the same ones for kernels that measure distances alike.
    left_out : ndarray of int
        Rows whose densities are asked for when they are left out.
    """

    data: Data
    settings: Settings
    budget: Budget
    stages: list[Stage]
    seed: int
    left_out: NDArray[np.intp]

    def settle(
        self, kernel: Kernel, projector: Projector, m: int, words: str, before: Settled | None
    ) -> Settled:
        """Settle all rows with m inducing points, from the sites of another number of them."""
        rng = np.random.default_rng([self.seed, m])
        measured = units(kernel, self._points.std(axis=0))
        Z = clusters(self._points, m, rng, measured, levels_of(kernel))
        n = len(self.data.y)
        dtype = self._dtype(n, m)
        engine = Engine(self._rows, self._rule(projector), kernel, Z, dtype=dtype, **self._options)
        limits = Limits(_TOL, self.settings.max_sweeps, 1.0)
        if before is not None:
            before.engine.release()
        with self._computing(engine):
            try:
                ended = self._settled(engine, before, limits)
            except NumericalError:
                if engine.dtype == np.float64:
                    raise
                engine.tau[:] = engine.nu[:] = 0.0
                engine.move(kernel, Z, np.float64)  # single precision has lost the factor
                ended = self._settled(engine, before, limits)
            posterior = conclude(engine, ended, None, limits)
        self.budget.take(sweeps_of(len(ended.history) + 2, n, m))
        rows, k = self.left_out, self._nearest
        near = None
        alone = self.densities(posterior, rows)
        if k:
            self.budget.take(local_density(len(rows), k, m))
            try:
                near = self.densities(local_of(posterior, self._held, k), rows)
            except NumericalError as error:
                if error.__cause__ is not None:  # a user's own exception
                    raise
        found = Settled(engine, alone, near)
        words = f"{words}{m} inducing points{' and nearest rows' if found.uses_near else ''}"
        self.stages.append(Stage(n, words, found.score, self.budget.taken))
        return found

    @staticmethod
    def _settled(engine: Engine, before: Settled | None, limits: Limits) -> Ended:
        """Settle an engine from the sites of another."""
        if before is not None:
            engine.sites = before.engine.sites
        return settle(engine, limits)

    @contextmanager
    def _computing(self, engine: Engine) -> Iterator[None]:
        """Let the workers of the scheduler carry out passes of an engine, if there is one."""
        if self.settings.scheduler is None:
            yield
            return
        here = engine.executor
        try:
            with executor_of(None, self.settings.scheduler) as engine.executor:
                yield
        except ExecutorError as error:
            raise ExecutorError(
                f"{error}; then fit again, or without scheduler= on this machine"
            ) from error
        finally:
            engine.executor = here

    def _dtype(self, n: int, m: int) -> DTypeLike:
        """Single precision steers where features in double do not fit: reading them takes longest.

        The posterior at the end is of double precision.
        """
        mixed = self._auto.sparse.dtype == "mixed"
        return np.float32 if mixed and 8.0 * n * m > self._auto.sparse.memory else np.float64

    def grow(self, kernel: Kernel, projector: Projector, begun: Settled) -> Settled:
        """Double the inducing points of `begun` while that pays and the budget has it."""
        n, now = len(self.data.y), begun
        while True:
            m = 2 * now.m
            cost = sweeps_of(FURTHER, n, m) + sweeps_of(LAST, n, m)
            if m > min(_MOST, n // 2) or not self.budget.allows(cost):
                return now
            further = self.settle(kernel, projector, m, "", now)
            gained = further.score - now.score
            now = further
            if gained < _GAIN:
                return now

    def end(self, settled: Settled, projector: Projector) -> tuple[Any, int]:
        """Return the posterior by the method asked for, and how many nearest rows correct it."""
        low, high = (float(end(self.data.prior)) for end in (np.min, np.max))
        prior = low if low == high else None
        engine = settled.engine
        with self._computing(engine):
            if engine.dtype != np.float64:
                engine.move(engine.kernel, engine.Z, np.float64)
            posterior = posterior_of(engine, projector, self.settings, prior, _ignore)
        self.budget.take(sweeps_of(posterior.n_sweeps, len(self.data.y), settled.m))
        engine.executor = Threads(None)
        asked = self._auto.nearest
        k = (NEAREST if settled.uses_near else 0) if isinstance(asked, str) else self._nearest
        return (local_of(posterior, self._held, k) if k else posterior), k

    @property
    def _auto(self) -> Any:
        assert self.settings.auto is not None
        return self.settings.auto

    @property
    def _nearest(self) -> int:
        """Nearest rows that are tried: those of a group would tell what the group is to say."""
        asked, groups = self._auto.nearest, self.data.groups
        if not isinstance(asked, str):
            return int(asked)
        if groups is not None and groups.repeat and not groups.coincide:
            return 0
        return NEAREST if len(self.data.y) > NEAREST else 0

    @cached_property
    def _held(self) -> Array:
        """Inputs of all rows, in a file where they do not fit."""
        return held_inputs(self._rows, self._auto.sparse.memory)

    @cached_property
    def _points(self) -> Array:
        """Inputs that inducing points are chosen from."""
        return rows_at(
            self.data.X, sample(len(self.data.y), _SAMPLE, np.random.default_rng(self.seed))
        )

    @cached_property
    def _rows(self) -> Rows:
        data = self.data
        prior = data.prior if data.prior.any() else None
        return rows_of(data.X, data.y, data.weights, prior, data.scale)

    @cached_property
    def _options(self) -> dict[str, Any]:
        threads = Threads(threads_of(self.settings.n_jobs))
        return {"memory": self._auto.sparse.memory, "executor": threads}

    def _rule(self, projector: Projector) -> Rule:
        return Rule(projector.for_evidence(), self._auto.sparse.power)

    def densities(self, posterior: Any, rows: NDArray[np.intp]) -> Array:
        """Densities of some rows without their groups, weighted as the rows are, by groups."""
        groups, weights = self.data.groups, self.data.weights
        found = posterior.loo(rows) if groups is None else groups.left_out(posterior, rows)
        if weights is not None:
            found = found * (weights[rows] / weights[rows].mean())
        return found if groups is None else groups.pooled(found, rows)


def _ignore(engine: Engine) -> None:
    """Nothing is to be done after a sweep."""


# --- Hold-out score of settled rows

# What nearest rows have to gain, in log density a row.
_NEAR = 2e-4


@dataclass(frozen=True, eq=False)
class Settled:
    """Sites of all rows under a kernel, and log densities of the judges, left out.

    `near` are those by their nearest rows, None where these are not looked at.
    """

    engine: Engine
    alone: Array
    near: Array | None

    @property
    def m(self) -> int:
        """Inducing points."""
        return len(self.engine.Z)

    @cached_property
    def uses_near(self) -> bool:
        """Whether the nearest rows predict better, beyond doubt and more than a little."""
        if self.near is None:
            return False
        gain = self.near - self.alone
        doubt = 0.5 * float(np.std(gain)) / math.sqrt(gain.size)
        return bool(float(np.mean(gain)) > max(_NEAR, doubt))

    @property
    def densities(self) -> Array:
        """Densities by the better of the two predictions."""
        return self.near if self.uses_near and self.near is not None else self.alone

    @property
    def score(self) -> float:
        """Mean of the densities of rows left out."""
        return float(np.mean(self.densities))
