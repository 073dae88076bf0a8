"""Fits by inducing points, in stages: some rows first, then all; then the posterior.

Kernel parameters are learnt on a sample, then with the inducing inputs, then both on all rows,
where few evaluations are left to do. Single precision steers; the posterior is of double precision,
settled by EP and then by the method asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.gaussian_process.kernels import Kernel

from qpruntime.arrays import Array
from qpruntime.errors import NumericalError
from qpruntime.execution.calls import Executor, ExecutorError, Threads
from qpruntime.execution.executors import executor_of
from qpruntime.inference.sparse.engine import Engine
from qpruntime.inference.sparse.lazy import rows_of
from qpruntime.inference.sparse.posterior import SparsePosterior
from qpruntime.inference.sparse.rows import Held, Rows
from qpruntime.inference.sparse.rule import Rule
from qpruntime.learning.data import Data
from qpruntime.learning.default_kernel import Start
from qpruntime.learning.inducing import enough, first, rows_at, sample, tell
from qpruntime.learning.maximise import Optimum, all_bounds, first_theta
from qpruntime.learning.parameter_slopes import learnt, reparametrised
from qpruntime.learning.progress import both
from qpruntime.learning.settings import Settings, Sparse
from qpruntime.learning.sparse_checks import check
from qpruntime.learning.sparse_end import advise, optimum_of, posterior_of
from qpruntime.learning.sparse_objective import Place, Search, climb
from qpruntime.learning.stages import planned, staged
from qpruntime.likelihoods import Likelihood
from qpruntime.projection.projector import Projector

__all__ = ["train_sparse"]

#: Kernel, likelihood with what was learnt, posterior, and one run for each stage, the last first.
Trained = tuple[Kernel, Likelihood, SparsePosterior, tuple[Optimum, ...]]

# Above so many rows a sample of that many comes between.
_MANY, _BETWEEN = 1_000_000, 100_000
# Stages end where an iteration raises the evidence per row by less: on samples, and on all rows.
_EARLY, _LATE = 2e-5, 1e-5
# Iterations at most: of theta, of theta and Z on the sample, on more rows.
_THETA, _BOTH, _ALL = 40, 80, 20
# A length-scale for each feature has to raise the evidence by that much at least, as in dense fits.
_BEYOND_CHANCE = 10.0


def train_sparse(data: Data, begin: Start, settings: Settings, rng: np.random.Generator) -> Trained:
    """Learn kernel, noise and inducing inputs in stages, then infer.

    Arguments are those of `qpruntime.learning.training.train`; ``settings.sparse`` is not None.

    Raises
    ------
    InputError
        If what is asked for cannot be had with inducing points.
    NumericalError
        If double precision does not suffice.
    ExecutorError
        If the cluster of ``settings.scheduler`` went away for good.
    """
    fit = _Fit(data, begin, settings, rng)
    if settings.scheduler is None:
        return fit.run()
    try:
        with executor_of(None, settings.scheduler) as fit.executor:
            return fit.run()
    except ExecutorError as error:
        raise ExecutorError(
            f"{error}; then fit again, from the first stage, or without scheduler= on this machine"
        ) from error


@dataclass(eq=False)
class _Fit:
    """The state of one staged fit."""

    data: Data
    begin: Start
    settings: Settings
    rng: np.random.Generator

    def __post_init__(self) -> None:
        assert self.settings.sparse is not None
        self.sparse: Sparse = self.settings.sparse
        self.n = len(self.data.y)
        self.kernel = self.begin.kernel
        self.judge = self.data.projector.for_evidence()
        self.optima: list[Optimum] = []
        self.local = Threads(self.settings.n_jobs if (self.settings.n_jobs or 0) > 0 else None)
        self.executor: Executor = self.local
        self.some = sample(self.n, self.sparse.subsample, self.rng)
        self.points = rows_at(self.data.X, self.some)
        check(self.data, self.settings, self.points)
        self.between = self.n > _MANY and len(self.some) < _BETWEEN
        self.spread = self.points.std(axis=0)

    def run(self) -> Trained:
        sparse, some = self.sparse, self.some
        Z = first(sparse.inducing, self.kernel, self.points, self.spread, self.rng)
        place = Place(first_theta(self.kernel, self.judge, self.data.learn), Z)
        engine = None
        if self.settings.optimize and place.theta.size:
            sizes = len(some), _BETWEEN * self.between, self.n
            stages = planned(sizes, len(Z), sparse.optimize)
            with staged(self.settings.verbose, stages) as report:
                self.report = report
                place, engine = self._on_sample(some, place)
                if isinstance(sparse.inducing, str):
                    tell(len(place.Z), self.share)
                for size in [_BETWEEN] * self.between + [self.n] * (self.n > len(some)):
                    place, engine = self._on_more(size, place, engine)
        elif isinstance(sparse.inducing, str):
            place = Place(place.theta, self._chosen(self.kernel))
            tell(len(place.Z), self.share)
        return self._end(place, engine)

    def _chosen(self, kernel: Kernel) -> Array:
        """Inducing inputs for these parameters, as many as the tolerance takes."""
        found, self.share = enough(kernel, self.points, self.spread, self.rng)
        return found

    def _engine(self, rows: Any, projector: Projector, place: Place) -> Engine:
        kernel = self.kernel.clone_with_theta(place.theta[: self.kernel.n_dims])
        if self.data.learn:
            logs = place.theta[self.kernel.n_dims :]
            projector = reparametrised(projector, tuple(self.data.learn), logs)
        dtype = np.float32 if self.sparse.dtype == "mixed" else np.float64
        rule = Rule(projector, self.sparse.power)
        here = self.executor if rows.n == self.n else self.local
        options: Any = {"dtype": dtype, "executor": here, "memory": self.sparse.memory}
        return Engine(rows, rule, kernel, place.Z, **options)

    def _rows(self, some: NDArray[np.intp] | slice) -> Rows:
        data = self.data
        weights, prior = (None if a is None else a[some] for a in (data.weights, data.prior))
        if prior is not None and not prior.any():
            prior = None
        if isinstance(some, slice):
            return rows_of(data.X, data.y[some], weights, prior)
        return Held(rows_at(data.X, some), data.y[some], weights, prior)

    def _on_sample(self, some: NDArray[np.intp], place: Place) -> tuple[Place, Engine]:
        """Parameters on the sample, then inducing inputs too."""
        rows = self._rows(some if len(some) < self.n else slice(None))
        engine = self._engine(rows, self.judge, place)
        self.report.begin(0)
        place = self._best_start(engine, place)
        place = self._climbed(engine, place, False, _THETA, _EARLY)
        if self.begin.by_feature:
            place, engine = self._by_feature(rows, place, engine)
        if isinstance(self.sparse.inducing, str):
            place = Place(place.theta, self._chosen(engine.kernel))
            engine = self._engine(rows, self.judge, place)
        if self.sparse.optimize:
            self.report.begin(1)
            place = self._climbed(engine, place, True, _BOTH, _EARLY)
        return place, engine

    def _best_start(self, engine: Engine, place: Place) -> Place:
        """The best of the places where the default kernel may begin."""
        if not self.begin.thetas:
            return place
        search = self._search(engine, False)
        rest = place.theta[self.kernel.n_dims :]
        for theta in self.begin.thetas:
            search.engine.tau[:] = search.engine.nu[:] = 0.0
            found = search.tried(Place(np.concatenate([theta, rest]), place.Z))
            if found is not None:
                self.report(theta, found[0])
        if search.place is None:
            return place
        search.go(search.place)
        return search.place

    def _by_feature(self, rows: Rows, place: Place, engine: Engine) -> tuple[Place, Engine]:
        """A length-scale for each feature, if that raises the evidence by more than chance."""
        before, kernel, begin = self.optima[0], self.kernel, self.begin
        further = begin.refined(place.theta)
        self.kernel, self.begin = further.kernel, further
        there = self._engine(rows, self.judge, Place(further.thetas[0], place.Z))
        there.tau[:], there.nu[:] = engine.sites
        found = self._climbed(there, Place(further.thetas[0], place.Z), False, _THETA, _EARLY)
        if self.optima[0].value - before.value > max(begin.by_feature - 1, _BEYOND_CHANCE):
            return found, there
        self.kernel, self.begin = kernel, begin
        self.optima = [before, *(run for run in self.optima if run is not before)]
        engine.move(kernel.clone_with_theta(place.theta[: kernel.n_dims]), place.Z)
        return place, engine

    def _on_more(self, size: int, place: Place, before: Engine) -> tuple[Place, Engine]:
        """Go on with more rows, whose sites take the posterior at hand for their cavity."""
        some = slice(None) if size == self.n else sample(self.n, size, self.rng)
        engine = self._engine(self._rows(some), self.judge, place)
        engine.seed(before.state)
        self.report.begin(len(self.report.stages) - 1 - (size != self.n))
        place = self._climbed(engine, place, self.sparse.optimize, _ALL, _LATE)
        return place, engine

    def _search(self, engine: Engine, moving: bool) -> Search:
        units = self.spread if moving else None
        return Search(engine, self.kernel, self.data.learn, self.begin.log_prior, units)

    def _climbed(
        self, engine: Engine, place: Place, moving: bool, iterations: int, change: float
    ) -> Place:
        search = self._search(engine, moving)
        bounds = all_bounds(self.kernel, self.data.learn)
        report = both(self.report, self.settings.callback)
        most = min(iterations, self.settings.max_iter)
        go = partial(climb, search, place, bounds, iterations=most, change=change, report=report)
        try:
            ended = go()
        except NumericalError:
            if engine.dtype == np.float64:
                raise
            engine.dtype = np.float64  # single precision has lost the factor
            engine.tau[:] = engine.nu[:] = 0.0
            ended = go()
        assert search.place is not None
        search.go(search.place)
        self.optima.insert(0, optimum_of(search, ended, place.theta))
        return search.place

    def _end(self, place: Place, engine: Engine | None) -> Trained:
        """The posterior of all rows, and what was learnt."""
        kernel = self.kernel.clone_with_theta(place.theta[: self.kernel.n_dims])
        projector = self.data.projector
        if self.data.learn:
            logs = place.theta[self.kernel.n_dims :]
            projector = learnt(projector, tuple(self.data.learn), logs)
        if engine is None:
            engine = self._engine(self._rows(slice(None)), self.judge, place)
        engine.move(kernel, place.Z, np.float64)
        priors = np.unique(self.data.prior)
        prior = float(priors[0]) if priors.size == 1 else None
        posterior = posterior_of(engine, projector, self.settings, prior)
        if self.optima and not self.settings.given:
            advise(kernel, self.points)
        engine.executor = self.local
        return kernel, projector.likelihood, posterior, tuple(self.optima)
