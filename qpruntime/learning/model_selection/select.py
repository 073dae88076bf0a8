"""Selection of a kernel and of an inference engine."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._typing import Array
from qpruntime.errors import InputError
from qpruntime.execution.blas_threads import blas_threads, one_blas_thread
from qpruntime.inference.posterior import moved_to
from qpruntime.inference.sparse.data import is_lazy, read
from qpruntime.learning.default_kernel import Start, default_start
from qpruntime.learning.dense_solver import Dense
from qpruntime.learning.inducing_points import rows_at, sample
from qpruntime.learning.model_selection.budget import (
    DENSE,
    RATE,
    RUNGS,
    Budget,
    Rest,
    Stage,
    StageReport,
    better,
    dense_evaluation,
    dense_inference,
    drawn,
    local_density,
    strata_of,
    sweeps_of,
)
from qpruntime.learning.model_selection.candidates import (
    SURE,
    WIDE,
    Candidate,
    Climbed,
    Shape,
    Trial,
    combined,
    last_rung,
    some_of,
)
from qpruntime.learning.model_selection.inducing_growth import (
    FURTHER,
    LAST,
    LEFT_OUT,
    NEAREST,
    Ground,
    Settled,
)
from qpruntime.learning.model_selection.kernel_selection import choose
from qpruntime.learning.model_selection.small_data import View
from qpruntime.learning.progress import Say, expect_selection, telling
from qpruntime.learning.rank_transform import Warp
from qpruntime.learning.settings import Data, Settings
from qpruntime.learning.sparse.finish import advise
from qpruntime.learning.train import Fit
from qpruntime.projection.projector import Projector

__all__ = [
    "FIRST",
    "ROWS",
    "Case",
    "Choice",
    "Ended",
    "contest",
    "end_dense",
    "end_inducing",
    "fitted",
    "looked_at",
    "moved",
    "tell",
]

# --- Automatic model selection

# So many rows are fitted densely too where the user gives so many seconds.
_LARGE, _GENEROUS = 6000, 120.0
# Rows of a dense fit whose sites may be negative.
_FEWER = 1000
_SHAPES = (Shape(False, 2.5), Shape(False, 0.5), Shape(True, 2.5), Shape(True, 0.5))


class _Drawn(NamedTuple):
    """Fits by rows that were drawn, the operations they took, and what rows left out say."""

    fits: list[Fit]
    choice: Choice
    taken: float
    score: float
    short: bool


def fitted(
    processes: Sequence[Data], settings: Settings, rng: np.random.Generator, latent_scale: float
) -> tuple[list[Fit], Choice]:
    """Return the fits of processes with the same X and weights, in the units of X, or its ranks.

    Where all rows predict worse than the few that kernels were learnt from, which only an unlucky
    draw explains, other rows are drawn, once, and the better fit is taken.

    Parameters
    ----------
    processes : sequence of Data
        Of at least 60 rows.
    settings : Settings
        With ``auto``.
    rng : Generator
    latent_scale : float
        By which latent functions vary, about.
    """
    if settings.integrate is not None:
        raise InputError(
            f'hyperparameters="integrate" of {len(processes[0].y)} rows: the evidence chooses no '
            "kernel there, rows held out do; give their number, inducing=200, or "
            "inducing=None for the dense engine"
        )
    assert settings.auto is not None
    n = len(processes[0].y)
    expect_selection(n, Budget(settings.auto.budget, n).most)
    with telling(settings.verbose) as say:
        found = _drawn(processes, settings, rng, latent_scale, say)
        choice, taken = found.choice, found.taken
        if found.short:
            if say is not None:
                say(0.0, "all rows predict worse than some of them: other rows are drawn")
            other = _drawn(processes, settings, rng, latent_scale, say)
            if other.score > found.score:
                found = other
            stages = (*choice.stages, *other.choice.stages)
            choice = replace(found.choice, stages=stages, again=found.score)
            taken += other.taken
    tell(choice, taken)
    return found.fits, choice


def _drawn(
    processes: Sequence[Data],
    settings: Settings,
    rng: np.random.Generator,
    latent_scale: float,
    say: Say | None,
) -> _Drawn:
    """Fit by rows that are drawn."""
    assert settings.auto is not None
    n = len(processes[0].y)
    dense = n <= DENSE or (n <= _LARGE and (settings.auto.budget or 0.0) >= _GENEROUS)
    if dense and is_lazy(processes[0].X):
        held = read(processes[0].X, slice(0, n))
        processes = [replace(data, X=held) for data in processes]
    X = processes[0].X
    budget = Budget(settings.auto.budget, n)
    # Sites of likelihoods that are not log-concave settle one after the other, which takes long.
    concave = processes[0].projector.likelihood.log_concave
    groups = processes[0].groups
    codes = groups.codes if groups is not None and groups.repeat else None
    subsets = drawn(n, strata_of(processes), rng, RUNGS[-1] if concave else _FEWER, codes)
    stages = StageReport(budget, say)
    views: dict[bool, View] = {}
    starts: dict[Shape, Start] = {}
    trials: dict[Shape, Sequence[Trial]] = {}
    order = np.argsort(subsets.order, kind="stable")
    seen = np.empty((len(subsets.order), int(X.shape[1])))
    seen[order] = rows_at(X, subsets.order[order])
    for shape in _SHAPES:
        if shape.ranks not in views:
            views[shape.ranks] = View.of(
                X, processes[0].weights, rng, shape.ranks, processes[0].levels
            )
        view = views[shape.ranks]
        starts[shape] = default_start(view.units, latent_scale, nu=shape.nu)
        scaled = view.rows(seen)
        trials[shape] = [
            Trial(some_of(data, scaled, subsets.order), settings, budget, subsets.judged)
            for data in processes
        ]
    phases = 2 if dense else 3
    stages.begin(f"stage 1 of {phases}, comparison of kernels on some of {n} rows")
    with one_blas_thread():
        chosen = choose(trials, starts, subsets, stages, others=not dense)
    rest = Rest(subsets, settings, budget, stages, rng, len(processes))
    fits, words, nearest, score, short = [], [], 0, 0.0, False
    ranks = chosen.shape.ranks
    for number, data in enumerate(processes):
        candidates = chosen.processes[number]
        if dense:
            stages.begin(f"stage 2 of 2{rest.named(number)}, dense fit of all {n} rows")
            own = replace(data, X=views[ranks].scaled)
            with blas_threads(n):
                fit, best = end_dense(
                    rest, own, trials[chosen.shape][number], candidates[0], number
                )
        else:
            each = {shape: trials[shape][number] for shape in trials}
            ended = end_inducing(rest, data, views, each, candidates, chosen.rows, number)
            fit, best = ended.fit, ended.best
            nearest, ranks = max(nearest, ended.nearest), best.shape.ranks
            score, short = score + ended.score, short or ended.short
        words.append(best.words)
        fits.append(_unscaled(fit, views[ranks]))
    choice = Choice(
        engine="dense" if dense else "inducing+nearest" if nearest else "inducing",
        rows=n,
        kernels=tuple(words),
        inducing=() if dense else tuple(len(fit.posterior.Z) for fit in fits),
        nearest=nearest,
        warp=views[ranks].warp,
        stages=tuple(stages),
    )
    return _Drawn(fits, choice, budget.taken, score / len(fits), short)


def _unscaled(fit: Fit, view: View) -> Fit:
    """Return the fit as one of the features that users give."""

    def change(kernel: Kernel, posterior: Any) -> tuple[Kernel, Any]:
        own = view.units.kernel_of_features(kernel)
        return own, moved_to(posterior, own, view.features, view.units.unscaled)

    return fit.moved(change)


# --- Inducing-point fit of all rows


class Ended(NamedTuple):
    """The fit of a process, and what became of its kernel.

    Attributes
    ----------
    fit : Fit
    best : Candidate
    nearest : int
        Rows that correct a point.
    short : bool
        Whether rows left out are predicted worse than by the rows that kernels were learnt from.
    score : float
        Mean log density of rows left out.
    """

    fit: Fit
    best: Candidate
    nearest: int
    short: bool
    score: float


def end_inducing(
    rest: Rest,
    data: Data,
    views: dict[bool, View],
    trials: dict[Shape, Trial],
    given: Sequence[Candidate],
    rows: int,
    number: int,
) -> Ended:
    """All rows by inducing points, given candidates that were learnt from so many rows.

    It is process `number`, counted from 0.
    """
    n = len(data.y)
    rest.stages.begin(f"stage 2 of 3{rest.named(number)}, growth of inducing points")
    some = sample(n, ROWS, rest.rng) if n > ROWS else None
    left_out = sample(min(n, ROWS), LEFT_OUT, rest.rng)
    seed = int(rest.rng.integers(2**31))

    candidates = list(given)

    def case_of(one: Candidate) -> Case:
        X = views[one.shape.ranks].scaled
        own = replace(data, X=X) if some is None else some_of(data, rows_at(X, some), some)
        ground = Ground(own, rest.settings, rest.budget, rest.stages, seed, left_out)
        words = f"{one.words}, " if given[1:] else ""
        return Case(ground, one.climbed.kernel, one.climbed.projector(own), words)

    def both(densities: dict[int, Array]) -> Case | None:
        with one_blas_thread():
            further = combined(trials, given, densities, rows)
        if further is None:
            return None
        candidates.append(further)
        return case_of(further)

    cases = [case_of(one) for one in given]
    winner, kernel, settled = contest(cases, both)
    best, case = candidates[winner], cases[winner]
    with one_blas_thread():
        further = last_rung(trials[best.shape], best, rest.subsets, rest.processes)
    if further is not None:
        rest.stages.append(
            Stage(rest.subsets.rungs[-1], further.words, math.nan, rest.budget.taken)
        )
        climbed = further.climbed
        later = case._replace(kernel=climbed.kernel, projector=climbed.projector(data))
        begun = case.ground.settle(later.kernel, later.projector, settled.m, "", settled)
        own, last = moved(later, begun)
        # More rows know more, nearly always: rows left out say where not.
        if last.score >= settled.score:
            best, case, kernel, settled = further, later, own, last
    ground, projector = case.ground, case.projector
    if some is not None:
        X = views[best.shape.ranks].scaled
        left_out = sample(n, LEFT_OUT, rest.rng)
        ground = replace(ground, data=replace(data, X=X), left_out=left_out)
        settled = ground.settle(kernel, projector, settled.m, "", None)
    settled = ground.grow(kernel, projector, settled)
    last_one = number + 1 == rest.processes
    rest.stages.begin(
        f"stage 3 of 3{rest.named(number)}, final fit of all {n} rows",
        sweeps_of(LAST, n, settled.m) if last_one else None,
    )
    posterior, nearest = ground.end(settled, projector)
    advise(kernel, trials[best.shape].data.X)
    fit = Fit(kernel, projector.likelihood, posterior, (best.climbed.optimum,))
    return Ended(fit, best, nearest, _short(ground, posterior, rest, given), settled.score)


def _short(ground: Ground, posterior: Any, rest: Rest, given: Sequence[Candidate]) -> bool:
    """Whether judges are sure that all rows predict them worse than some of the rows did."""
    known = [one.judged for one in given if one.judged is not None]
    if not known or not rest.subsets.judging:
        return False
    some = max(known, key=lambda densities: float(np.mean(densities)))
    judges = rest.subsets.order[rest.subsets.judged]
    found = ground.densities(posterior, judges)
    rest.budget.take(local_density(judges.size, NEAREST, len(posterior.Z)))
    return better(some - found, SURE)


# --- Kernel choice by few inducing points
#
# A thousand rows find the length-scales, and the variance of rough functions only to a factor of
# ten.

#: Inducing points to begin with.
FIRST = 300
#: Of more rows so many are settled.
ROWS = 10_000
# All cases are settled within this share of the budget, and variances moved within the next.
_SHARE, _MOVING = 0.6, 0.7
# By these factors, at most so often; and how many of the best cases are.
_FACTOR, _STEPS, _BEST = 3.0, 3, 2
# Rows left out are sure of a loss of so many standard errors.
_SURE = 2.0


class Case(NamedTuple):
    """A kernel of all rows, with inputs in its units, and words for its stages."""

    ground: Ground
    kernel: Kernel
    projector: Projector
    words: str


def contest(
    cases: list[Case], combined: Callable[[dict[int, Array]], Case | None] = lambda _: None
) -> tuple[int, Kernel, Settled]:
    """Settle the same rows in each of some cases; the first is preferred.

    Parameters
    ----------
    cases : list of Case
        Appended to.
    combined : callable
        Makes another case of those that have been settled, by the densities of their rows.

    Returns
    -------
    int, Kernel, Settled
        Which one was chosen, its kernel and its sites.
    """
    m = min(FIRST, max(1, len(cases[0].ground.data.y) // 4))
    found: dict[int, tuple[Kernel, Settled]] = {}

    def settle(number: int) -> None:
        case = cases[number]
        settled = case.ground.settle(case.kernel, case.projector, m, case.words, None)
        settled.engine.release()
        found[number] = case.kernel, settled

    for number, case in enumerate(cases):
        if number and not _room(case.ground, m, _SHARE):
            break
        settle(number)
    if _room(cases[0].ground, m, _SHARE):
        further = combined({number: settled.densities for number, (_, settled) in found.items()})
        if further is not None:
            cases.append(further)
            settle(len(cases) - 1)
    best = _best(found)
    top = found[best][1].densities
    near = [n for n in found if not better(top - found[n][1].densities, _SURE)]
    near.sort(key=lambda n: (n != best, -found[n][1].score))
    for number in near[:_BEST]:
        found[number] = moved(cases[number], found[number][1])
    best = _best({number: found[number] for number in sorted(near)})
    return best, *found[best]


def moved(case: Case, settled: Settled) -> tuple[Kernel, Settled]:
    """Move the variance of the function while rows left out gain by it."""
    ground, kernel = case.ground, case.kernel
    step = np.zeros(kernel.n_dims)
    step[1] = math.log(_FACTOR)
    for direction in (step, -step):
        begun = settled
        for _ in range(_STEPS):
            theta = kernel.theta + direction
            inside = (theta >= kernel.bounds[:, 0]) & (theta <= kernel.bounds[:, 1])
            if not inside.all() or not _room(ground, settled.m, _MOVING):
                break
            other = kernel.clone_with_theta(theta)
            further = ground.settle(other, case.projector, settled.m, case.words, settled)
            further.engine.release()
            if not better(further.densities - settled.densities):
                break
            kernel, settled = other, further
        if settled is not begun:
            break
    return kernel, settled


def _best(found: dict[int, tuple[Kernel, Settled]]) -> int:
    """Return the first one, or one that rows left out gain by."""
    first, *others = found
    for number in others:
        if better(found[number][1].densities - found[first][1].densities):
            first = number
    return first


def _room(ground: Ground, m: int, share: float) -> bool:
    return ground.budget.allows(sweeps_of(2 * FURTHER, len(ground.data.y), m), share)


# --- Dense fit of all rows

# Relative tolerance and iterations with all of these rows.
_END = (1e-5, 15)
# And with length-scales of single features; what each must raise the log evidence by there, unless
# judges gain by them as well: Akaike's price of 1 is too little for judges who do not know.
_EACH, _CLEAR = (1e-3, 30), 1.35
# What that takes, in evaluations.
_EVALUATIONS = 45


def end_dense(
    rest: Rest, data: Data, trial: Trial, candidate: Candidate, number: int
) -> tuple[Fit, Candidate]:
    """All rows by the dense engine, as many steps further as there is room; and their kernel.

    Process `number` shares what the budget has left with those after it.
    """
    settings, n = rest.settings, len(data.y)
    Dense(settings).require(n, candidate.climbed.kernel, True)
    if n > DENSE:
        candidate = last_rung(trial, candidate, rest.subsets, rest.processes) or candidate
    climbed = candidate.climbed
    trial = Trial(data, settings, rest.budget, slice(0, 0))
    left = rest.budget.most - rest.budget.taken
    room = left / (rest.processes - number) - dense_inference(n)
    tolerance, steps = _END
    steps = min(steps, int(room / dense_evaluation(n)) - 2)
    # All rows are worth a few steps, but none if they would be cut off at once.
    few = n > DENSE and steps < 2
    last = (
        climbed if few else trial.climb(climbed.start, n, tolerance, max(steps, 2), climbed.theta)
    )
    sites = None if few else last.sites
    rest.stages.append(Stage(n, "all rows, dense", math.nan, rest.budget.taken))
    each = _by_feature(rest, trial, candidate, last)
    if each is not None:
        last, sites, candidate = each, each.sites, replace(candidate, by_feature=True)
    projector = last.projector(data)
    own = replace(data, projector=projector)
    posterior = Dense(settings).infer(last.kernel, own, sites)
    rest.budget.take(dense_inference(n))
    advise(last.kernel, data.X)
    fit = Fit(last.kernel, projector.likelihood, posterior, (last.optimum, climbed.optimum))
    return fit, candidate


def _by_feature(rest: Rest, trial: Trial, candidate: Candidate, last: Climbed) -> Climbed | None:
    """A length-scale for each feature where the evidence of all rows is far higher by them.

    Half of the rows learn too little for them where there are few, and rows held out cannot
    know what all will.
    """
    n, common = len(trial.data.y), candidate.common
    count = common.start.by_feature if common is not None else 0
    cost = _EVALUATIONS * dense_evaluation(n, count)
    if common is None or not 0 < count <= WIDE or not rest.budget.allows(cost):
        return None
    one = trial.climb(common.start, n, *_END, common.theta)
    each = trial.climb(one.start.refined(one.theta), n, *_EACH)
    rest.stages.append(
        Stage(n, "all rows, one length-scale a feature", math.nan, rest.budget.taken)
    )
    price = count if candidate.by_feature else _CLEAR * count
    clear = each.optimum.value - one.optimum.value > price
    return each if clear and each.optimum.value > last.optimum.value else None


# --- Summary of the choice

_LOG = logging.getLogger("qpruntime")

# Fits that cost as many seconds at the reference speed say what they chose without being asked.
_LONG = 60.0
# Evaluations of a dense fit of all rows.
_USUAL = 30


@dataclass(frozen=True, eq=False)
class Choice:
    """What was chosen for all processes of a model.

    Attributes
    ----------
    engine : {"dense", "inducing", "inducing+nearest"}
    rows : int
    kernels : tuple of str
        Of every process, in words.
    inducing : tuple of int
        Inducing points of every process; none where the engine is dense.
    nearest : int
        Rows that correct a point.
    warp : Warp or None
        What features go through.
    stages : tuple of Stage
    again : float or None
        Where other rows were drawn, because all rows predicted worse than the first: the density
        of rows left out of the fit that was taken.
    """

    engine: str
    rows: int
    kernels: tuple[str, ...]
    inducing: tuple[int, ...]
    nearest: int
    warp: Warp | None
    stages: tuple[Stage, ...]
    again: float | None = None

    @property
    def words(self) -> str:
        """The choice in one line of words."""
        how = "all of them by the dense engine"
        if self.inducing:
            low, high = min(self.inducing), max(self.inducing)
            how = f"{low} inducing points" if low == high else f"{low} to {high} inducing points"
        if self.nearest:
            how += f" and the {self.nearest} nearest rows of each point"
        kernel = self.kernels[0] if len(set(self.kernels)) == 1 else "kernels that differ"
        last = [stage.density for stage in self.stages if not math.isnan(stage.density)]
        judged = f"; {-last[-1]:.4f} a row held out" if last else ""
        if self.again is not None:
            judged = f"; begun again with other rows drawn: {-self.again:.4f} a row left out"
        return f"{self.rows} rows: {how}, {kernel}{judged}"


def looked_at(
    rows: int, processes: int, warp: Warp | None, features: int, stages: tuple[Stage, ...]
) -> Choice:
    """All rows by the dense engine, of so many features, which may be their ranks."""
    kernel = f"{'ranks of features, ' if warp else ''}Matérn 2.5 of {features} features"
    choice = Choice("dense", rows, (kernel,) * processes, (), 0, warp, stages)
    # Densities of rows left out are those of a common length-scale, and not of this fit.
    tell(replace(choice, stages=()), 0.0)
    return choice


def tell(choice: Choice, operations: float) -> None:
    """Say what was chosen: where it took long, also to those who have not asked."""
    other = ""
    if choice.engine != "dense":
        seconds = len(choice.kernels) * _USUAL * dense_evaluation(choice.rows) / RATE
        other = f"; inducing=None would take about {_duration(seconds)}"
    level = (
        logging.WARNING if choice.again is not None or operations > _LONG * RATE else logging.INFO
    )
    _LOG.log(level, "qpruntime: %s%s", choice.words, other)


def _duration(seconds: float) -> str:
    for size, name in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds > 2.0 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} s"
