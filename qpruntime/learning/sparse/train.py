"""Sparse fits in stages, and their checkpoints.

A stage on a sample is written when it has ended, with the posterior it leaves; the one of all rows
after evaluations, at the best place so far and with the sites there.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._atomic_file import remove_parts
from qpruntime._sealed_file import DamagedFile
from qpruntime._typing import Array
from qpruntime.errors import InputError
from qpruntime.execution.resolve import executor_of
from qpruntime.execution.threads import ExecutorError
from qpruntime.inference.sites import Sites
from qpruntime.inference.solution_protocol import common_value
from qpruntime.inference.sparse.checkpoint import (
    FORMAT,
    Checkpoint,
    array_of,
    digest,
    kernel_words,
    projector_words,
)
from qpruntime.inference.sparse.engine import Engine
from qpruntime.inference.sparse.iterate import settle
from qpruntime.inference.sparse.posterior import SparsePosterior
from qpruntime.inference.sparse.rows import ChunkedRows
from qpruntime.inference.sparse.state import State
from qpruntime.learning.hyper_integration.density import Integrated
from qpruntime.learning.hyper_integration.integrate import NOTHING_TO_INTEGRATE, integrate_sparse
from qpruntime.learning.inducing_points import choose_inducing_points, first, sample, tell
from qpruntime.learning.initialisation import Start
from qpruntime.learning.inputs import Data
from qpruntime.learning.objective import learnt
from qpruntime.learning.optimise import Optimum, all_bounds, first_theta
from qpruntime.learning.options import Settings
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

__all__ = ["FitFile", "FitState", "check", "problem_of", "remove_checkpoints", "train_sparse"]

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
        again = fit.file.hint("fit again") if fit.file else "; then fit again, from the first stage"
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
            stood = self.file.state(self.n, self.points.shape[1])
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
        self.file.keep(
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
        kernel = self.ground.kernel_at(place)
        projector = learnt(self.data.projector, self.data.learn, place.theta)
        engine.move(kernel, place.Z, np.float64)
        prior = common_value(self.data.prior)
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


# Settings that change a fit, in addition to those of inducing points.
_MOVING = ("optimize", "tol", "max_sweeps", "approximate")
_SEARCHED = ("objective", "max_iter", "ftol")


@dataclass(frozen=True, eq=False)
class FitState:
    """State of a fit.

    Attributes
    ----------
    stages : int
        Number of stages that have ended.
    place : Place
        Best hyper-parameters and inducing inputs so far.
    optima : tuple of Optimum
        Optima of the stages that have ended, the last first.
    refined : ndarray or None
        Parameters at which the kernel became ARD, if it did.
    state : (root, h, mean) or None
        Posterior of the rows of the stage before, until all rows have sites.
    sites : Sites or None
        Sites of all rows.
    random : str
        State of the generator.
    """

    stages: int
    place: Place
    optima: tuple[Optimum, ...]
    refined: Array | None
    state: tuple[Array, Array, Array] | None
    sites: Sites | None
    random: str

    def seed(self, engine: Engine) -> None:
        """Give an engine of all rows the stored sites, or those that the stored state implies."""
        if self.sites is not None:
            engine.sites = self.sites
        elif self.state is not None:
            engine.seed(State(engine.state.inducing, engine.rule, *self.state))


class FitFile(Checkpoint):
    """The checkpoint of one fit.

    Parameters
    ----------
    path : path
    problem : dict
        Words that tell this fit from others: `problem_of`.
    """

    def __init__(self, path: str | os.PathLike[str], problem: dict[str, str]) -> None:
        super().__init__(path, "fit")
        self._problem = problem

    def keep(self, standing: FitState) -> None:
        """Write where the fit stands."""
        content: dict[str, Any] = {
            "stages": standing.stages,
            "theta": standing.place.theta,
            "Z": standing.place.Z,
            "optima": json.dumps([_plain(optimum) for optimum in standing.optima]),
            "random": standing.random,
        }
        if standing.refined is not None:
            content["refined"] = standing.refined
        if standing.state is not None:
            content |= dict(zip(("root", "h", "mean"), standing.state, strict=True))
        if standing.sites is not None:
            content |= {"tau": standing.sites.tau, "nu": standing.sites.nu}
        self.write(self._problem, content)

    def state(self, n: int, width: int) -> FitState | None:
        """Return where the fit of n rows of so many columns stood, None if there is no file.

        Raises
        ------
        InputError
            If it is the file of another fit, or none.
        """
        kept = self.read(self._problem)
        if kept is None:
            return None
        with self.understood():
            return _standing(kept, n, width)


def _standing(fields: dict[str, Any], n: int, width: int) -> FitState:
    """Return the state in a file, or raise an error that `Checkpoint.understood` catches."""
    place = Place(array_of(fields, "theta", None), array_of(fields, "Z", None, width))
    m = len(place.Z)
    state = sites = None
    if "root" in fields:
        state = (
            array_of(fields, "root", m, m),
            array_of(fields, "h", m),
            array_of(fields, "mean", m),
        )
    if "tau" in fields:
        sites = Sites(array_of(fields, "tau", n), array_of(fields, "nu", n))
    return FitState(
        stages=_stages(fields["stages"]),
        place=place,
        optima=tuple(_optimum(optimum) for optimum in json.loads(str(fields["optima"]))),
        refined=array_of(fields, "refined", None) if "refined" in fields else None,
        state=state,
        sites=sites,
        random=str(fields["random"]),
    )


def _stages(number: NDArray[Any]) -> int:
    if number.ndim or number.dtype.kind not in "iu" or number < 0:
        raise DamagedFile(f"its number of stages is {number}")
    return int(number)


def problem_of(data: Data, settings: Settings, rows: ChunkedRows, points: Array) -> dict[str, str]:
    """Return what tells a fit from another one: its data, and every setting that moves it.

    `points` are the rows of the sample, which depend on the seed too.
    """
    sparse = settings.sparse
    assert sparse is not None
    points_option = sparse.points
    array = isinstance(points_option, np.ndarray)
    options = {name: getattr(sparse, name) for name in ("power", "learn", "subsample", "dtype")}
    options |= {"points": "given" if array else points_option}
    options |= {name: getattr(settings, name) for name in _MOVING}
    options |= {name: getattr(settings.search, name) for name in _SEARCHED}
    learnt = {name: [float(end) for end in ends] for name, ends in data.learn.items()}
    return {
        "format": FORMAT,
        "kernel": kernel_words(settings.kernel, bounds=settings.optimize),
        **projector_words(data.projector, data.y),
        "learnt": json.dumps(learnt, sort_keys=True),
        "options": json.dumps(options, sort_keys=True),
        "rows": str(rows.n),
        "data": digest(rows, points, *([points_option] if array else [])),
    }


def remove_checkpoints(ended: Iterable[Settings]) -> None:
    """Remove the files of fits that have ended: all processes of one model."""
    for settings in ended:
        if (path := settings.checkpoint) is not None:
            # A warning has named what could not be written, a folder among them.
            with contextlib.suppress(OSError):
                path.unlink()
            remove_parts(path.absolute())


def _plain(optimum: Optimum) -> dict[str, Any]:
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value
        for name, value in asdict(optimum).items()
    }


def _optimum(fields: dict[str, Any]) -> Optimum:
    arrays = {name: np.array(value) for name, value in fields.items() if isinstance(value, list)}
    whole: dict[str, Any] = fields | arrays
    return Optimum(**whole)
