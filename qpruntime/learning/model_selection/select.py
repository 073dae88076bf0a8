"""Selection of a kernel and of an inference engine."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._typing import Array
from qpruntime.errors import InputError
from qpruntime.execution.threads import blas_threads, one_blas_thread
from qpruntime.inference.sparse.posterior import SparsePosterior
from qpruntime.learning.inducing_points import FIRST_INDUCING, sample
from qpruntime.learning.initialisation import Start, default_start
from qpruntime.learning.inputs import Data, InputView
from qpruntime.learning.model_selection.budget import (
    DENSE_ROW_LIMIT,
    OPERATIONS_PER_SECOND,
    RUNG_ROWS,
    Budget,
    SelectionContext,
    Stage,
    StageReport,
    class_strata,
    dense_evaluation_cost,
    dense_inference_cost,
    gains_significantly,
    local_density_cost,
    split_rows,
    sweep_cost,
)
from qpruntime.learning.model_selection.candidates import (
    CONFIDENT_ERRORS,
    MAX_ARD_FEATURES,
    Candidate,
    FittedKernel,
    KernelShape,
    Trial,
    combine_candidates,
    fit_last_rung,
    select_kernel,
    subset_data,
)
from qpruntime.learning.model_selection.inducing_growth import (
    CONTINUED_SWEEPS,
    FINAL_SWEEPS,
    LOO_ROWS,
    NEAREST_ROWS,
    InducingSearch,
    ScoredEngine,
    left_out_densities,
)
from qpruntime.learning.options import Settings
from qpruntime.learning.progress import Say, expect_selection, stage_reports
from qpruntime.learning.scaling import Warp
from qpruntime.learning.solvers import Dense
from qpruntime.learning.sparse.objective import advise
from qpruntime.learning.train import Fit
from qpruntime.projection.projector import Projector

__all__ = [
    "COMPARISON_ROWS",
    "Choice",
    "InducingResult",
    "KernelCandidate",
    "compare_kernels",
    "fit_with_selection",
    "log_choice",
    "refit_dense",
    "refit_inducing",
    "screened_choice",
    "tune_variance",
]

# Up to this many rows are fitted densely if the user allows this many seconds.
_LARGE_DENSE_ROW_LIMIT, _LARGE_DENSE_SECONDS = 6000, 120.0
# Largest dense fit of a likelihood that is not log-concave, whose sites may be negative.
_DENSE_ROW_LIMIT_NOT_LOG_CONCAVE = 1000
# Mean log density of a row by which all rows must lose to some of them before the rows are split
# again. Where the prior mean explains everything, tiny losses are significant, and a second split
# took as long again for the same score.
_MIN_REDRAW_LOSS = 1e-3
_SHAPES_TRIED = (
    KernelShape(False, 2.5),
    KernelShape(False, 0.5),
    KernelShape(True, 2.5),
    KernelShape(True, 0.5),
)


class _Attempt(NamedTuple):
    """Fits by one random split, their cost in operations, and their leave-one-out score."""

    fits: list[Fit]
    choice: Choice
    operations: float
    score: float
    loses_to_holdout: bool


def fit_with_selection(
    processes: Sequence[Data], settings: Settings, rng: np.random.Generator, latent_scale: float
) -> tuple[list[Fit], Choice]:
    """Select kernels and an engine, and fit processes with the same X and weights.

    If the fit of all rows predicts worse than the rows that the kernels were learnt from, the split
    was unlucky. The rows are then split once more, and the better fit is returned.

    Parameters
    ----------
    processes : sequence of Data
        Data of at least 60 rows.
    settings : Settings
        Settings with ``auto``.
    rng : Generator
    latent_scale : float
        Approximate standard deviation of the latent functions.

    Returns
    -------
    list of Fit, Choice
        Fits in the units of X, or of its ranks, and the selection.
    """
    if settings.integrate is not None:
        raise InputError(
            f'hyperparameters="integrate" cannot be used with {len(processes[0].y)} rows, '
            "where hold-out chooses the kernel: give a number of points, inducing=200, or "
            "inducing=None for the dense engine"
        )
    assert settings.auto is not None
    n = len(processes[0].y)
    expect_selection(n, Budget(settings.auto.budget, n).limit)
    with stage_reports(settings.verbose) as say:
        attempt = _fit_split(processes, settings, rng, latent_scale, say)
        choice, operations = attempt.choice, attempt.operations
        if attempt.loses_to_holdout:
            if say is not None:
                say(0.0, "all rows predict worse than some of them: other rows are drawn")
            second = _fit_split(processes, settings, rng, latent_scale, say)
            if second.score > attempt.score:
                attempt = second
            stages = (*choice.stages, *second.choice.stages)
            choice = replace(attempt.choice, stages=stages, redrawn_score=attempt.score)
            operations += second.operations
    log_choice(choice, operations)
    return attempt.fits, choice


def _fit_split(
    processes: Sequence[Data],
    settings: Settings,
    rng: np.random.Generator,
    latent_scale: float,
    say: Say | None,
) -> _Attempt:
    """Fit all processes with one random split of the rows."""
    assert settings.auto is not None
    n = len(processes[0].y)
    is_dense = n <= DENSE_ROW_LIMIT or (
        n <= _LARGE_DENSE_ROW_LIMIT and (settings.auto.budget or 0.0) >= _LARGE_DENSE_SECONDS
    )
    inputs = processes[0].inputs
    if is_dense:
        inputs = inputs.in_memory()
        processes = [replace(data, inputs=inputs) for data in processes]
    budget = Budget(settings.auto.budget, n)
    # The sites of a likelihood that is not log-concave are updated one by one, which is slow.
    concave = processes[0].projector.likelihood.log_concave
    groups = inputs.groups
    codes = groups.codes if groups is not None and groups.repeat else None
    subsets = split_rows(
        n,
        class_strata(processes),
        rng,
        RUNG_ROWS[-1] if concave else _DENSE_ROW_LIMIT_NOT_LOG_CONCAVE,
        codes,
    )
    stages = StageReport(budget, say)
    context = SelectionContext(subsets, settings, budget, stages, rng, len(processes))
    views, starts, trials = _trials(context, processes, latent_scale)
    phases = 2 if is_dense else 3
    stages.begin(f"stage 1 of {phases}, comparison of kernels on some of {n} rows")
    with one_blas_thread():
        selection = select_kernel(trials, starts, subsets, stages, others=not is_dense)
    fits, labels, nearest, score, loses_to_holdout = [], [], 0, 0.0, False
    ranks = selection.shape.ranks
    for number, data in enumerate(processes):
        candidates = selection.processes[number]
        if is_dense:
            stages.begin(f"stage 2 of 2{context.process_label(number)}, dense fit of all {n} rows")
            scaled_data = replace(data, inputs=views[ranks].scaled)
            with blas_threads(n):
                fit, best = refit_dense(
                    context, scaled_data, trials[selection.shape][number], candidates[0], number
                )
        else:
            process_trials = {shape: trials[shape][number] for shape in trials}
            result = refit_inducing(
                context, data, views, process_trials, candidates, selection.rows, number
            )
            fit, best = result.fit, result.best
            nearest, ranks = max(nearest, result.nearest), best.shape.ranks
            score, loses_to_holdout = (
                score + result.score,
                loses_to_holdout or result.loses_to_holdout,
            )
        labels.append(best.label)
        fits.append(fit.moved(views[ranks].of_features))
    choice = Choice(
        engine="dense" if is_dense else "inducing+nearest" if nearest else "inducing",
        rows=n,
        kernels=tuple(labels),
        inducing=() if is_dense else tuple(len(fit.posterior.Z) for fit in fits),
        nearest=nearest,
        warp=views[ranks].warp,
        stages=tuple(stages),
    )
    return _Attempt(fits, choice, budget.used, score / len(fits), loses_to_holdout)


def _trials(
    context: SelectionContext, processes: Sequence[Data], latent_scale: float
) -> tuple[dict[bool, InputView], dict[KernelShape, Start], dict[KernelShape, Sequence[Trial]]]:
    """Return the inputs as they are and as ranks, and start and trials of each shape."""
    subsets, inputs = context.subsets, processes[0].inputs
    views: dict[bool, InputView] = {}
    starts: dict[KernelShape, Start] = {}
    trials: dict[KernelShape, Sequence[Trial]] = {}
    order = np.argsort(subsets.order, kind="stable")
    stage_inputs = np.empty((len(subsets.order), inputs.width))
    stage_inputs[order] = inputs.at(subsets.order[order])
    for shape in _SHAPES_TRIED:
        if shape.ranks not in views:
            weights = processes[0].weights
            views[shape.ranks] = InputView.fitted(inputs, weights, context.rng, shape.ranks)
        view = views[shape.ranks]
        starts[shape] = default_start(view.units, latent_scale, nu=shape.nu)
        scaled = view.points(stage_inputs)
        trials[shape] = [
            Trial(
                subset_data(data, scaled, subsets.order),
                context.settings,
                context.budget,
                subsets.holdout,
            )
            for data in processes
        ]
    return views, starts, trials


# --- Fit with inducing points


class InducingResult(NamedTuple):
    """Fit of one process with inducing points, and its selected kernel.

    Attributes
    ----------
    fit : Fit
    best : Candidate
    nearest : int
        Number of nearest rows that correct each prediction.
    loses_to_holdout : bool
        True if all rows predict worse than the rows that kernels were learnt from.
    score : float
        Mean leave-one-out log density.
    """

    fit: Fit
    best: Candidate
    nearest: int
    loses_to_holdout: bool
    score: float


def refit_inducing(
    context: SelectionContext,
    data: Data,
    views: dict[bool, InputView],
    trials: dict[KernelShape, Trial],
    candidates_given: Sequence[Candidate],
    rows: int,
    number: int,
) -> InducingResult:
    """Fit all rows of one process with inducing points.

    Parameters
    ----------
    context : SelectionContext
    data : Data
    views : dict
        Inputs as they are (key False) and as ranks (key True).
    trials : dict
        Trial of each shape.
    candidates_given : sequence of Candidate
        Kernels to compare; the first one is preferred.
    rows : int
        Number of rows that the candidates were learnt from.
    number : int
        Index of the process.
    """
    n = len(data.y)
    context.stages.begin(f"stage 2 of 3{context.process_label(number)}, growth of inducing points")
    compared_rows = sample(n, COMPARISON_ROWS, context.rng) if n > COMPARISON_ROWS else None
    left_out = sample(min(n, COMPARISON_ROWS), LOO_ROWS, context.rng)
    seed = int(context.rng.integers(2**31))

    candidates = list(candidates_given)

    def candidate_of(candidate: Candidate) -> KernelCandidate:
        """Return a candidate with its inputs on the compared rows."""
        inputs = views[candidate.shape.ranks].scaled
        compared_data = (
            replace(data, inputs=inputs)
            if compared_rows is None
            else subset_data(data, inputs.at(compared_rows), compared_rows)
        )
        search = InducingSearch(
            compared_data, context.settings, context.budget, context.stages, seed, left_out
        )
        label = f"{candidate.label}, " if candidates_given[1:] else ""
        return KernelCandidate(
            search, candidate.fitted.kernel, candidate.fitted.projector(compared_data), label
        )

    def combine(densities: dict[int, Array]) -> KernelCandidate | None:
        with one_blas_thread():
            extra = combine_candidates(trials, candidates_given, densities, rows)
        if extra is None:
            return None
        candidates.append(extra)
        return candidate_of(extra)

    compared = [candidate_of(candidate) for candidate in candidates_given]
    winner, kernel, scored = compare_kernels(compared, combine)
    selected, chosen = candidates[winner], compared[winner]
    with one_blas_thread():
        extra = fit_last_rung(trials[selected.shape], selected, context.subsets, context.processes)
    if extra is not None:
        context.stages.append(
            Stage(context.subsets.rungs[-1], extra.label, math.nan, context.budget.used)
        )
        last = chosen._replace(kernel=extra.fitted.kernel, projector=extra.fitted.projector(data))
        last_scored = chosen.search.run(last.kernel, last.projector, scored.m, "", scored)
        tuned_kernel, tuned_scored = tune_variance(last, last_scored)
        # A kernel learnt from more rows is nearly always better; leave-one-out scores show if not.
        if tuned_scored.score >= scored.score:
            selected, chosen, kernel, scored = extra, last, tuned_kernel, tuned_scored
    search, projector = chosen.search, chosen.projector
    if compared_rows is not None:
        inputs = views[selected.shape.ranks].scaled
        left_out = sample(n, LOO_ROWS, context.rng)
        search = replace(search, data=replace(data, inputs=inputs), left_out=left_out)
        scored = search.run(kernel, projector, scored.m, "", None)
    if context.settings.compare_kernels:
        scored = search.grow_inducing(kernel, projector, scored)
    last_one = number + 1 == context.processes
    context.stages.begin(
        f"stage 3 of 3{context.process_label(number)}, final fit of all {n} rows",
        sweep_cost(FINAL_SWEEPS, n, scored.m) if last_one else None,
    )
    posterior, nearest = search.final_posterior(scored, projector)
    advise(kernel, trials[selected.shape].data.X)
    fit = Fit(kernel, projector.likelihood, posterior, (selected.fitted.optimum,))
    loses = _loses_to_holdout(search.data, posterior, context, candidates_given)
    return InducingResult(fit, selected, nearest, loses, scored.score)


def _loses_to_holdout(
    data: Data,
    posterior: SparsePosterior,
    context: SelectionContext,
    candidates: Sequence[Candidate],
) -> bool:
    """Decide whether all rows predict the hold-out rows significantly worse than some rows did."""
    holdout_densities = [
        candidate.holdout_densities
        for candidate in candidates
        if candidate.holdout_densities is not None
    ]
    if not holdout_densities or not context.subsets.has_holdout:
        return False
    best_densities = max(holdout_densities, key=lambda densities: float(np.mean(densities)))
    holdout = context.subsets.order[context.subsets.holdout]
    all_row_densities = left_out_densities(posterior, data, holdout)
    context.budget.spend(local_density_cost(holdout.size, NEAREST_ROWS, len(posterior.Z)))
    loss = best_densities - all_row_densities
    return float(np.mean(loss)) > _MIN_REDRAW_LOSS and gains_significantly(loss, CONFIDENT_ERRORS)


# --- Comparison of kernels with few inducing points
#
# A thousand rows determine the length-scales, but the variance of rough functions only to a factor
# of ten. So the variance is tuned here.

#: Largest number of rows of the comparison.
COMPARISON_ROWS = 10_000
# Candidates are scored within the first share of the budget, variances tuned within the second.
_SETTLING_SHARE, _VARIANCE_SHARE = 0.6, 0.7
# Factor of a step of the variance, largest number of steps, and number of tuned candidates.
_VARIANCE_FACTOR, _MAX_VARIANCE_STEPS, _MAX_TUNED = 3.0, 3, 2
# A candidate drops out if it loses by this many standard errors of the leave-one-out densities.
_CONFIDENT_ERRORS = 2.0


class KernelCandidate(NamedTuple):
    """A candidate kernel for all rows, its scaled inputs, and a label for progress messages."""

    search: InducingSearch
    kernel: Kernel
    projector: Projector
    label: str


def compare_kernels(
    candidates: list[KernelCandidate],
    combine: Callable[[dict[int, Array]], KernelCandidate | None] = lambda _: None,
) -> tuple[int, Kernel, ScoredEngine]:
    """Compare candidate kernels by their leave-one-out densities of the same rows.

    Parameters
    ----------
    candidates : list of KernelCandidate
        The first one is preferred. Appended to.
    combine : callable
        Makes another candidate from the leave-one-out densities of those that were scored.

    Returns
    -------
    int, Kernel, ScoredEngine
        Index of the selected candidate, its kernel and its engine.
    """
    m = min(FIRST_INDUCING, max(1, len(candidates[0].search.data.y) // 4))
    results: dict[int, tuple[Kernel, ScoredEngine]] = {}

    def score(number: int) -> None:
        candidate = candidates[number]
        scored = candidate.search.run(
            candidate.kernel, candidate.projector, m, candidate.label, None
        )
        scored.engine.release()
        results[number] = candidate.kernel, scored

    for number, candidate in enumerate(candidates):
        if number and not _budget_allows(candidate.search, m, _SETTLING_SHARE):
            break
        score(number)
    if _budget_allows(candidates[0].search, m, _SETTLING_SHARE):
        extra = combine({number: scored.densities for number, (_, scored) in results.items()})
        if extra is not None:
            candidates.append(extra)
            score(len(candidates) - 1)
    best = _preferred(results)
    best_densities = results[best][1].densities
    rivals = [
        n
        for n in results
        if not gains_significantly(best_densities - results[n][1].densities, _CONFIDENT_ERRORS)
    ]
    rivals.sort(key=lambda n: (n != best, -results[n][1].score))
    for number in rivals[:_MAX_TUNED]:
        results[number] = tune_variance(candidates[number], results[number][1])
    best = _preferred({number: results[number] for number in sorted(rivals)})
    return best, *results[best]


def tune_variance(candidate: KernelCandidate, scored: ScoredEngine) -> tuple[Kernel, ScoredEngine]:
    """Change the variance of the function while the leave-one-out densities gain by it."""
    search, kernel = candidate.search, candidate.kernel
    step = np.zeros(kernel.n_dims)
    step[1] = math.log(_VARIANCE_FACTOR)
    for direction in (step, -step):
        initial = scored
        for _ in range(_MAX_VARIANCE_STEPS):
            theta = kernel.theta + direction
            inside = (theta >= kernel.bounds[:, 0]) & (theta <= kernel.bounds[:, 1])
            if not inside.all() or not _budget_allows(search, scored.m, _VARIANCE_SHARE):
                break
            moved_kernel = kernel.clone_with_theta(theta)
            moved = search.run(moved_kernel, candidate.projector, scored.m, candidate.label, scored)
            moved.engine.release()
            if not gains_significantly(moved.densities - scored.densities):
                break
            kernel, scored = moved_kernel, moved
        if scored is not initial:
            break
    return kernel, scored


def _preferred(results: dict[int, tuple[Kernel, ScoredEngine]]) -> int:
    """Return the first candidate, or one with significantly higher leave-one-out densities."""
    best, *others = results
    for number in others:
        if gains_significantly(results[number][1].densities - results[best][1].densities):
            best = number
    return best


def _budget_allows(search: InducingSearch, m: int, share: float) -> bool:
    return search.budget.allows(sweep_cost(2 * CONTINUED_SWEEPS, len(search.data.y), m), share)


# --- Dense fit of all rows

# Relative tolerance and iterations of the search with all rows.
_FINAL_SEARCH = (1e-5, 15)
# The same with one length-scale per feature (ARD), and the gain in log evidence that each of them
# must bring unless the hold-out rows already preferred ARD. Akaike's price of 1 is too low.
_ARD_SEARCH, _ARD_PRICE = (1e-3, 30), 1.35
# Evaluations of the evidence that the search with ARD takes.
_ARD_EVALUATIONS = 45


def refit_dense(
    context: SelectionContext, data: Data, trial: Trial, candidate: Candidate, number: int
) -> tuple[Fit, Candidate]:
    """Fit all rows with the dense engine, with as many search steps as the budget allows.

    The process with index `number` shares the remaining budget with the processes after it.
    """
    settings, n = context.settings, len(data.y)
    Dense(settings).require(n, candidate.fitted.kernel, True)
    if n > DENSE_ROW_LIMIT:
        candidate = fit_last_rung(trial, candidate, context.subsets, context.processes) or candidate
    fitted = candidate.fitted
    trial = Trial(data, settings, context.budget, slice(0, 0))
    remaining = context.budget.limit - context.budget.used
    operations = remaining / (context.processes - number) - dense_inference_cost(n)
    tolerance, steps = _FINAL_SEARCH
    steps = min(steps, int(operations / dense_evaluation_cost(n)) - 2)
    # A few steps with all rows pay, but a search that would be cut off at once does not.
    skip_search = n > DENSE_ROW_LIMIT and steps < 2
    last = (
        fitted
        if skip_search
        else trial.optimise(fitted.start, n, tolerance, max(steps, 2), fitted.theta)
    )
    sites = None if skip_search else last.sites
    context.stages.append(Stage(n, "all rows, dense", math.nan, context.budget.used))
    ard = _refit_ard(context, trial, candidate, last)
    if ard is not None:
        last, sites, candidate = ard, ard.sites, replace(candidate, by_feature=True)
    projector = last.projector(data)
    final_data = replace(data, projector=projector)
    posterior = Dense(settings).infer(last.kernel, final_data, sites)
    context.budget.spend(dense_inference_cost(n))
    advise(last.kernel, data.X)
    fit = Fit(last.kernel, projector.likelihood, posterior, (last.optimum, fitted.optimum))
    return fit, candidate


def _refit_ard(
    context: SelectionContext, trial: Trial, candidate: Candidate, last: FittedKernel
) -> FittedKernel | None:
    """Return a fit with one length-scale per feature if it clearly raises the evidence, else None.

    Half of a small data set is too little to learn the length-scales from, so the hold-out rows
    cannot show what all rows gain by them.
    """
    n, shared_length_scale = len(trial.data.y), candidate.common
    n_features = shared_length_scale.start.by_feature if shared_length_scale is not None else 0
    cost = _ARD_EVALUATIONS * dense_evaluation_cost(n, n_features)
    if (
        shared_length_scale is None
        or not 0 < n_features <= MAX_ARD_FEATURES
        or not context.budget.allows(cost)
    ):
        return None
    shared = trial.optimise(shared_length_scale.start, n, *_FINAL_SEARCH, shared_length_scale.theta)
    ard = trial.optimise(shared.start.refined(shared.theta), n, *_ARD_SEARCH)
    context.stages.append(
        Stage(n, "all rows, one length-scale a feature", math.nan, context.budget.used)
    )
    price = n_features if candidate.by_feature else _ARD_PRICE * n_features
    is_clear = ard.optimum.value - shared.optimum.value > price
    return ard if is_clear and ard.optimum.value > last.optimum.value else None


# --- Summary of the choice

_LOG = logging.getLogger("qpruntime")

# Fits that cost more seconds than this at the reference speed log their choice as a warning.
_LONG_SECONDS = 60.0
# Usual number of evaluations of a dense fit of all rows.
_DENSE_EVALUATIONS = 30


@dataclass(frozen=True, eq=False)
class Choice:
    """Selected kernels and engine of all processes of a model.

    Attributes
    ----------
    engine : {"dense", "inducing", "inducing+nearest"}
    rows : int
    kernels : tuple of str
        Description of the kernel of each process.
    inducing : tuple of int
        Number of inducing points of each process; empty if the engine is dense.
    nearest : int
        Number of nearest rows that correct each prediction.
    warp : Warp or None
        Transform of the features.
    stages : tuple of Stage
    redrawn_score : float or None
        Leave-one-out density of the better fit if the rows were split a second time.
    """

    engine: str
    rows: int
    kernels: tuple[str, ...]
    inducing: tuple[int, ...]
    nearest: int
    warp: Warp | None
    stages: tuple[Stage, ...]
    redrawn_score: float | None = None

    @property
    def summary(self) -> str:
        """The choice in one line."""
        engine = "all of them by the dense engine"
        if self.inducing:
            low, high = min(self.inducing), max(self.inducing)
            engine = f"{low} inducing points" if low == high else f"{low} to {high} inducing points"
        if self.nearest:
            engine += f" and the {self.nearest} nearest rows of each point"
        kernel = self.kernels[0] if len(set(self.kernels)) == 1 else "kernels that differ"
        holdout_densities = [
            stage.density for stage in self.stages if not math.isnan(stage.density)
        ]
        holdout = f"; {-holdout_densities[-1]:.4f} a row held out" if holdout_densities else ""
        if self.redrawn_score is not None:
            holdout = (
                f"; begun again with other rows drawn: {-self.redrawn_score:.4f} a row left out"
            )
        return f"{self.rows} rows: {engine}, {kernel}{holdout}"


def screened_choice(
    rows: int, processes: int, warp: Warp | None, features: int, stages: tuple[Stage, ...]
) -> Choice:
    """Return and log the choice of a dense fit whose features were screened."""
    kernel = f"{'ranks of features, ' if warp else ''}Matérn 2.5 of {features} features"
    choice = Choice("dense", rows, (kernel,) * processes, (), 0, warp, stages)
    # The hold-out densities of the stages belong to a shared length-scale, not to this fit.
    log_choice(replace(choice, stages=()), 0.0)
    return choice


def log_choice(choice: Choice, operations: float) -> None:
    """Log the choice, as a warning if the fit took long."""
    alternative = ""
    if choice.engine != "dense":
        seconds = (
            len(choice.kernels)
            * _DENSE_EVALUATIONS
            * dense_evaluation_cost(choice.rows)
            / OPERATIONS_PER_SECOND
        )
        alternative = f"; inducing=None would take about {_duration(seconds)}"
    level = (
        logging.WARNING
        if choice.redrawn_score is not None or operations > _LONG_SECONDS * OPERATIONS_PER_SECOND
        else logging.INFO
    )
    _LOG.log(level, "qpruntime: %s%s", choice.summary, alternative)


def _duration(seconds: float) -> str:
    for size, name in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds > 2.0 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} s"
