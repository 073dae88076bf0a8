"""Sparse fits in stages."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._typing import Array
from qpruntime.errors import InputError
from qpruntime.execution.executors import ExecutorError
from qpruntime.execution.resolve import executor_of
from qpruntime.inference.sites import Sites
from qpruntime.inference.sparse.engine import Engine
from qpruntime.inference.sparse.iterate import settle
from qpruntime.inference.sparse.posterior import SparsePosterior
from qpruntime.learning.default_kernel import Start
from qpruntime.learning.hyper_integration.density import Integrated
from qpruntime.learning.hyper_integration.integrate import NOTHING_TO_INTEGRATE
from qpruntime.learning.hyper_integration.integrate_sparse import integrate_sparse
from qpruntime.learning.inducing_points import choose_inducing_points, first, sample, tell
from qpruntime.learning.objective import learnt
from qpruntime.learning.optimise import Optimum, all_bounds, first_theta
from qpruntime.learning.settings import Data, Settings
from qpruntime.learning.sparse.checkpoint import FitFile, FitState, problem_of
from qpruntime.learning.sparse.data import (
    MAX_JOINT_ITERATIONS,
    SAMPLE_GAIN,
    SparseFitData,
    on_sample,
    planned,
    staged,
)
from qpruntime.learning.sparse.objective import Place, advise, posterior_of
from qpruntime.likelihoods import Likelihood

__all__ = ["check", "train_sparse"]

# --- Stages of a fit
#
# Kernel parameters are learnt on a sample, then with the inducing inputs, then both on all rows,
# where few evaluations are left to do. Single precision steers; the posterior is of double
# precision, settled by EP and then by the method asked for.

#: Kernel, likelihood with what was learnt, posterior, one run for each stage, the last first, no
#: slopes, and hyper-parameters if these were integrated.
Trained = tuple[Kernel, Likelihood, SparsePosterior, tuple[Optimum, ...], None, Integrated | None]

# Samples of these sizes are fitted before all rows if there are this many times as many rows.
_SAMPLE_SIZES, _SAMPLE_FACTOR = (100_000, 1_000_000), 10
# The larger stages end where an iteration raises the evidence per row by less.
_LATE = 1e-5
# Maximum number of their iterations, and the reduction with all rows for each earlier sample.
_ALL, _FEWER = 20, 5


def train_sparse(data: Data, begin: Start, settings: Settings, rng: np.random.Generator) -> Trained:
    """Learn kernel, noise and inducing inputs in stages, then infer.

    Arguments are those of `qpruntime.learning.train.train`; ``settings.sparse`` is not None.

    Raises
    ------
    InputError
        If an option is not available with inducing points.
    NumericalError
        If double precision does not suffice.
    ExecutorError
        If the cluster of ``settings.scheduler`` went away for good.
    """
    fit = _Fit(data, begin, settings, rng)
    if settings.scheduler is None:
        return fit.run()
    try:
        with executor_of(None, settings.scheduler) as fit.ground.executor:
            return fit.run()
    except ExecutorError as error:
        again = fit.file.hint() if fit.file else "; then fit again, from the first stage"
        raise ExecutorError(f"{error}{again}, or without scheduler= on this machine") from error


@dataclass(eq=False)
class _Fit:
    """The state of one staged fit."""

    data: Data
    begin: Start
    settings: Settings
    rng: np.random.Generator

    def __post_init__(self) -> None:
        assert self.settings.sparse is not None
        self.sparse, self.n = self.settings.sparse, len(self.data.y)
        self.some = sample(self.n, self.sparse.subsample, self.rng)
        self.points = self.data.inputs.at(self.some)
        check(self.data, self.settings, self.points)
        least = len(self.some)
        between = [
            size for size in _SAMPLE_SIZES if least < size and _SAMPLE_FACTOR * size <= self.n
        ]
        self.sizes = [least, *between, *([self.n] if least < self.n else [])]
        spread = self.points.std(axis=0)
        self.ground = SparseFitData(self.data, self.begin, self.settings, spread, self._offer)
        self.stages = 0
        self.file: FitFile | None = None
        if (path := self.settings.checkpoint) is not None:
            words = problem_of(self.data, self.settings, self.ground.rows(), self.points)
            self.file = FitFile(path, words)

    def run(self) -> Trained:
        """Choose inducing points, learn hyper-parameters in stages, and infer from all rows."""
        ground = self.ground
        points_option: Any = self.sparse.points
        Z = first(points_option, ground.kernel, self.points, ground.spread, self.rng)
        place, engine = Place(first_theta(ground.kernel, ground.judge, self.data.learn), Z), None
        stood = None
        if self.file and self.sparse.resume:
            stood = self.file.read(self.n, self.points.shape[1])
        if stood is not None:
            place = self._back(stood)
        if self.settings.optimize and place.theta.size:
            place, engine = self._learnt(place, stood)
        elif stood is None and isinstance(points_option, str):
            place = Place(place.theta, self._chosen(ground.kernel))
            tell(len(place.Z), self.share)
        if engine is None:
            engine = ground.engine(ground.rows(), place)
            if stood is not None:
                stood.seed(engine)
        return self._end(place, engine)

    def _learnt(self, place: Place, stood: FitState | None) -> tuple[Place, Engine | None]:
        """Run the stages that are left; return no engine if there are none."""
        ground, engine = self.ground, None
        stages = planned(self.sizes, len(place.Z), self.sparse.learn)
        with staged(self.settings.verbose, stages) as ground.report:
            if stood is None:
                choose = self._chosen if isinstance(self.sparse.points, str) else None
                place, engine = on_sample(ground, ground.rows(self.some), place, choose)
                if choose is not None:
                    tell(len(place.Z), self.share)
                self._ended(place, engine)
            for size in self.sizes[self.stages :]:
                sampled = None if size == self.n else sample(self.n, size, self.rng)
                further = ground.engine(ground.rows(sampled), place)
                # The posterior at hand is the cavity of all rows.
                if engine is not None:
                    further.seed(engine.state)
                elif stood is not None:
                    stood.seed(further)
                engine = further
                ground.report.begin(self.stages + self.sparse.learn)
                place = ground.climbed(engine, place, self.sparse.learn, *self._limits(size))
                self._ended(place, engine)
        return place, engine

    def _limits(self, size: int) -> tuple[int, float]:
        """Return the limit on iterations of a stage of this size, and the gain that stops it."""
        if size < self.n and size == min(_SAMPLE_SIZES):
            return MAX_JOINT_ITERATIONS, SAMPLE_GAIN
        between = len(self.sizes) - 2 if size == self.n else 0
        return _ALL - _FEWER * between, _LATE

    def _chosen(self, kernel: Kernel) -> Array:
        """Choose inducing inputs for these parameters, as many as the tolerance needs."""
        inducing_inputs, self.share = choose_inducing_points(
            kernel, self.points, self.ground.spread, self.rng
        )
        return inducing_inputs

    def _back(self, stood: FitState) -> Place:
        """Restore the state that a checkpoint holds."""
        assert self.file is not None
        with self.file.understood():
            self.rng.bit_generator.state = json.loads(stood.random)
            if stood.stages > len(self.sizes):
                raise ValueError(f"its number of stages is {stood.stages}, of {len(self.sizes)}")
            self.stages, self.ground.optima = stood.stages, list(stood.optima)
            if stood.refined is not None:
                self.ground.refine(stood.refined)
            bounds = all_bounds(self.ground.kernel, self.data.learn)
            if stood.place.theta.shape != bounds.shape[:1]:
                raise ValueError(f"it has {stood.place.theta.size} parameters, of {len(bounds)}")
        return stood.place

    def _ended(self, place: Place, engine: Engine) -> None:
        """Count a stage that has ended, and write where the fit stands."""
        self.stages += 1
        self._write(place, engine)

    def _offer(self, place: Place, engine: Engine, sites: Sites | None = None) -> None:
        """Write where the fit stands with all rows, if that was long ago."""
        whole = engine.rows.n == self.n and (self.stages or not self.settings.optimize)
        if self.file and self.file.due and whole:
            self._write(place, engine, sites)

    def _write(self, place: Place, engine: Engine, sites: Sites | None = None) -> None:
        if self.file is None:
            return
        state, whole = engine.state, engine.rows.n == self.n
        self.file.write(
            FitState(
                self.stages,
                place,
                tuple(self.ground.optima),
                self.ground.refined,
                None if whole else (state.root, state.h, state.mean),
                (sites or engine.sites) if whole else None,
                json.dumps(self.rng.bit_generator.state),
            )
        )

    def _end(self, place: Place, engine: Engine) -> Trained:
        """Return the posterior of all rows and what was learnt."""
        kernel, projector = self.ground.kernel_at(place), self.data.projector
        if self.data.learn:
            logs = place.theta[kernel.n_dims :]
            projector = learnt(projector, tuple(self.data.learn), logs)
        engine.move(kernel, place.Z, np.float64)
        low, high = (float(end(self.data.prior)) for end in (np.min, np.max))
        prior = low if low == high else None
        after = partial(self._offer, place)
        nodes = None
        if self.settings.integrate is not None:
            if not place.theta.size:
                raise InputError(NOTHING_TO_INTEGRATE)
            settle(engine)
            rng = self.rng if self.settings.seeded else np.random.default_rng(0)
            fit = self.data, self.begin, self.settings, rng, self.ground, self.points
            nodes = integrate_sparse(*fit, place, engine.sites, prior)
        posterior = posterior_of(engine, projector, self.settings, prior, after)
        if self.ground.optima and not self.settings.given:
            advise(kernel, self.points)
        engine.executor = self.ground.local
        return kernel, projector.likelihood, posterior, tuple(self.ground.optima), None, nodes


# --- Refusals


def check(data: Data, settings: Settings, points: Array) -> None:
    """Raise `InputError` if inducing points cannot serve this fit; `points` are some rows of X."""
    sparse, n = settings.sparse, len(data.y)
    assert sparse is not None
    if data.projector.method == "vb":
        raise InputError(
            'method "vb" is dense only: use "ep" or "qp" with Inducing(200, power=0.05), '
            "which is close to it"
        )
    if settings.search.objective == "loo":
        raise InputError(
            'optimize="loo" needs inducing=None: inducing points are learnt by optimize="evidence"'
        )
    if settings.search.restarts:
        raise InputError(
            "restarts needs inducing=None, because stages with inducing points continue from "
            "one another: give a kernel that starts elsewhere, and compare "
            "log_marginal_likelihood_value_"
        )
    points_option = sparse.points
    if isinstance(points_option, int) and points_option > n:
        rows = "1 sample" if n == 1 else f"{n} rows"
        raise InputError(
            f"inducing={points_option} is more than the {rows}: use inducing=None, the dense "
            "or fewer"
        )
    if isinstance(points_option, np.ndarray):
        if points_option.shape[1] != points.shape[1]:
            raise InputError(
                f"inducing must have {points.shape[1]} columns like X, got {points_option.shape[1]}"
            )
        low, high = points.min(axis=0), points.max(axis=0)
        reach = 10.0 * np.maximum(high - low, 1e-12)
        beyond = (points_option < low - reach) | (points_option > high + reach)
        if beyond.any(axis=1).all():
            raise InputError(
                "every inducing input is more than ten times the range of X away from X: give "
                "points in the units of X, or their number"
            )
