"""Kernel selection: candidates are optimised on few rows and scored on hold-out rows.

Length-scales of single features, rough functions and ranks of features raise the evidence more
often than they improve predictions. So the evidence only optimises, and hold-out rows select: a
more flexible kernel is used if it raises their log density by more than the standard error of the
gain.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._typing import Array
from qpruntime.errors import ConvergenceWarning, NumericalError
from qpruntime.inference.sites import Sites
from qpruntime.kernels.default import LogNormal
from qpruntime.learning.initialisation import Start
from qpruntime.learning.inputs import Data
from qpruntime.learning.model_selection.budget import (
    Budget,
    Stage,
    Subsets,
    dense_evaluation_cost,
    dense_inference_cost,
    gains_significantly,
)
from qpruntime.learning.objective import learnt
from qpruntime.learning.optimise import Optimum, optimise
from qpruntime.learning.options import Settings
from qpruntime.learning.solvers import Dense
from qpruntime.projection.projector import Projector, project_arrays

__all__ = [
    "CONFIDENT_ERRORS",
    "MAX_ARD_FEATURES",
    "Candidate",
    "FittedKernel",
    "KernelShape",
    "Trial",
    "combine_candidates",
    "fit_last_rung",
    "rival_candidate",
    "select_kernel",
    "subset_data",
]

# --- Optimised kernels

#: Relative tolerance and iterations of a search that continues an earlier one.
CONTINUED_SEARCH = (1e-3, 10)
# The same of the first search with one length-scale per feature, of one without their prior, and of
# the last rung.
_ARD_SEARCH, _ARD_SEARCH_WITHOUT_PRIOR, _LAST_RUNG_SEARCH = (1e-3, 15), (1e-3, 10), (1e-3, 5)
# The log length-scales of single features have a normal prior about the shared one, with this
# standard deviation.
_LOG_LENGTH_SCALE_DEVIATION = 1.0
#: Above this number of features, length-scales of single features are learnt on the first rung
#: only.
MAX_ARD_FEATURES = 200
#: The last rung starts if at most the first share of the budget is used, and if at most the second
#: share will be used when it ends.
LAST_RUNG_START_SHARE, LAST_RUNG_END_SHARE = 0.5, 0.85
#: A loss counts as certain if it exceeds this many standard errors.
CONFIDENT_ERRORS = 2.0


@dataclass(frozen=True)
class KernelShape:
    """Kernel family to try: features or their ranks, and the smoothness of the Matérn kernel."""

    ranks: bool
    nu: float

    @property
    def label(self) -> str:
        """Short description used in messages."""
        return f"{'ranks of features, ' if self.ranks else ''}Matérn {self.nu:g}"


@dataclass(frozen=True)
class Candidate:
    """Optimised kernel of a process, with one shared length-scale or one per feature.

    Attributes
    ----------
    fitted : FittedKernel
    shape : KernelShape
    by_feature : bool
    common : FittedKernel or None
        The kernel with one shared length-scale, None if hold-out rows rule it out.
    holdout_densities : ndarray or None
        Log densities of the hold-out rows, if computed.
    """

    fitted: FittedKernel
    shape: KernelShape
    by_feature: bool
    common: FittedKernel | None = None
    holdout_densities: Array | None = None

    @property
    def label(self) -> str:
        """Short description used in messages."""
        return ard_label(self.shape) if self.by_feature else self.shape.label


def ard_label(shape: KernelShape) -> str:
    """Describe a shape with one length-scale per feature."""
    return f"{shape.label}, one length-scale a feature"


def fit_last_rung(
    trial: Trial, candidate: Candidate, subsets: Subsets, n_processes: int
) -> Candidate | None:
    """Optimise on the last rung if there is one and the budget of all processes allows it."""
    used_rows = subsets.holdout.start
    larger_rungs = [rung for rung in subsets.rungs if rung > used_rows]
    if not larger_rungs:
        return None
    rows = larger_rungs[-1]
    cost = n_processes * (_LAST_RUNG_SEARCH[1] + 2) * dense_evaluation_cost(rows)
    if not (
        trial.budget.allows(0.0, LAST_RUNG_START_SHARE)
        and trial.budget.allows(cost, LAST_RUNG_END_SHARE)
    ):
        return None
    fitted = candidate.fitted
    return replace(
        candidate, fitted=trial.optimise(fitted.start, rows, *_LAST_RUNG_SEARCH, fitted.theta)
    )


def make_stage(rows: int, label: str, densities: Array, operations: float) -> Stage:
    """Return a stage with its mean hold-out density, NaN if no density was computed."""
    has_densities = densities.size > 1
    return Stage(rows, label, float(np.mean(densities)) if has_densities else math.nan, operations)


def select_length_scales(
    trial: Trial,
    common: FittedKernel,
    shape: KernelShape,
    subsets: Subsets,
    rows: int,
    stages: list[Stage],
) -> list[Candidate]:
    """Use one length-scale per feature (ARD) if the hold-out rows gain by it.

    The other choice is returned as the second candidate unless it is clearly worse.
    """
    shared, n_features = Candidate(common, shape, False), common.start.by_feature
    if not n_features:
        return [shared]
    first = subsets.rungs[0]
    refined = common.start.refined(common.theta)
    shrunk = trial.optimise(_with_length_scale_prior(refined), first, *_ARD_SEARCH)
    if n_features <= MAX_ARD_FEATURES and rows > first:
        shrunk = trial.optimise(shrunk.start, rows, *CONTINUED_SEARCH, shrunk.theta)
    elif rows > first:
        common = trial.optimise(common.start, first, *CONTINUED_SEARCH, common.theta)
        rows = first
    shared_densities, ard_densities = trial.densities(common, rows), trial.densities(shrunk, rows)
    label = ard_label(shape)
    stages.append(make_stage(rows, label, ard_densities, trial.budget.used))
    shared = replace(shared, holdout_densities=shared_densities)
    ard = Candidate(shrunk, shape, True, common, ard_densities)
    if not gains_significantly(ard_densities - shared_densities):
        is_confident = gains_significantly(shared_densities - ard_densities, CONFIDENT_ERRORS)
        return [shared] if is_confident else [replace(shared, common=common), ard]
    if n_features > MAX_ARD_FEATURES:
        return [replace(ard, common=None), shared]
    free = trial.optimise(refined, rows, *_ARD_SEARCH_WITHOUT_PRIOR, shrunk.theta)
    free_densities = trial.densities(free, rows)
    stages.append(
        make_stage(rows, f"{label} without their prior", free_densities, trial.budget.used)
    )
    if float(np.mean(free_densities - ard_densities)) > 0.0:
        ard = replace(ard, fitted=free, holdout_densities=free_densities)
        ard_densities = free_densities
    is_confident = gains_significantly(ard_densities - shared_densities, CONFIDENT_ERRORS)
    return [ard] if is_confident else [ard, shared]


def rival_candidate(
    trial: Trial, common: FittedKernel, shape: KernelShape, chosen: Candidate, rows: int
) -> Candidate:
    """Return a candidate of another shape with the same number of length-scales.

    Its search starts at the length-scales of the chosen candidate.
    """
    if not chosen.by_feature:
        return Candidate(common, shape, False, common)
    start = replace(common.start.refined(common.theta), log_prior=chosen.fitted.start.log_prior)
    fitted = trial.optimise(start, rows, *CONTINUED_SEARCH, chosen.fitted.theta)
    return Candidate(fitted, shape, True, common)


def combine_candidates(
    trials: dict[KernelShape, Trial],
    candidates: Sequence[Candidate],
    densities: dict[int, Array],
    rows: int,
) -> Candidate | None:
    """Combine another smoothness with another choice of length-scales, if rows gain by each.

    The gains are those of the candidates that differ from the first one in one of the two.
    """
    indices = {(candidates[n].shape, candidates[n].by_feature): n for n in densities}
    first = candidates[0]
    for shape, by_feature in indices:
        alternative = replace(first.shape, nu=shape.nu)
        sibling = indices.get((first.shape, not first.by_feature))
        if shape != alternative or shape == first.shape or sibling is None:
            continue
        rival = candidates[indices[shape, by_feature]]
        gains = [densities[n] - densities[0] for n in (sibling, indices[shape, by_feature])]
        missing = (shape, not first.by_feature) not in indices
        if missing and rival.common is not None and all(map(gains_significantly, gains)):
            return rival_candidate(trials[shape], rival.common, shape, candidates[sibling], rows)
    return None


def _with_length_scale_prior(start: Start) -> Start:
    """Add a prior of the single length-scales, centred at the shared one."""
    if not isinstance(start.log_prior, LogNormal):
        return start
    mean = start.thetas[0][2 : start.kernel.n_dims]
    deviation = np.full(mean.size, _LOG_LENGTH_SCALE_DEVIATION)
    prior = LogNormal(
        np.concatenate([start.log_prior.mean, mean]),
        np.concatenate([start.log_prior.deviation, deviation]),
    )
    return replace(start, log_prior=prior)


# --- Optimisation on training rows and scores of hold-out rows

# EP of the stages stops at this tolerance, which is enough to compare densities to three digits.
_SITE_TOL = 1e-4


@dataclass(frozen=True)
class FittedKernel:
    """Optimised parameters of a kernel, and the sites of its training rows."""

    start: Start
    optimum: Optimum
    sites: Sites | None

    @property
    def theta(self) -> Array:
        """Log parameters of the kernel, then of the likelihood."""
        return self.optimum.theta

    @property
    def kernel(self) -> Kernel:
        """The kernel with its parameters."""
        kernel = self.start.kernel
        return kernel.clone_with_theta(self.theta[: kernel.n_dims])

    def projector(self, data: Data) -> Projector:
        """Return the projector of the data with the learnt likelihood parameters."""
        if not data.learn:
            return data.projector
        log_parameters = self.theta[self.start.kernel.n_dims :]
        return learnt(data.projector, tuple(data.learn), log_parameters)


def subset_data(data: Data, X: Array, rows: slice | NDArray[np.intp]) -> Data:
    """Return some rows of the data, with the inputs X of these rows."""
    columns = data.y, data.prior, data.weights, data.scale
    y, prior, weights, scale = (None if c is None else c[rows] for c in columns)
    assert y is not None
    assert prior is not None
    y = np.asarray(y, dtype=float)
    groups = None if data.groups is None else data.groups.subset(rows)
    inputs = replace(data.inputs, rows=X, groups=groups)
    return replace(data, inputs=inputs, y=y, prior=prior, weights=weights, scale=scale)


@dataclass(frozen=True, eq=False)
class Trial:
    """Training and hold-out rows of a process, on which kernels are optimised and compared.

    The search maximises the evidence of EP as the final fit does, and hold-out densities use EP's
    posterior.
    """

    data: Data
    settings: Settings
    budget: Budget
    holdout: slice

    def optimise(
        self, start: Start, rows: int, ftol: float, iterations: int, theta: Array | None = None
    ) -> FittedKernel:
        """Maximise the evidence of the first rows, from `theta` or from the start's own parameters.

        Raises
        ------
        NumericalError
            If inference fails where it begins.
        """
        data = self._first(rows)
        settings = replace(self.settings.shortened(ftol, iterations), kernel=None)
        if theta is not None:
            start = replace(start, thetas=(theta,))
        rng = np.random.default_rng(0)  # for restarts, of which there are none
        optima, sites, _ = optimise(data, start, settings, rng, None, Dense(settings))
        best = optima[0]
        features = start.kernel.n_dims if start.by_feature == 0 else 1
        self.budget.spend(best.n_evaluations * dense_evaluation_cost(rows, features))
        # The search is meant to stop early, so the user need not be warned.
        return FittedKernel(start, replace(best, success=True), sites)

    def densities(self, fitted: FittedKernel, rows: int) -> Array:
        """Return log predictive densities of the hold-out rows given the first rows.

        They are weighted as the rows are, pooled by groups, and minus infinity if inference fails.
        """
        count = self.holdout.stop - self.holdout.start
        log_densities = _densities_or_minus_infinity(lambda: self._densities(fitted, rows), count)
        groups = self.data.groups
        return log_densities if groups is None else groups.pooled(log_densities, self.holdout)

    def left_out(self, fitted: FittedKernel, rows: int) -> Array:
        """Return weighted leave-one-group-out log densities of the first rows.

        They are minus infinity if inference fails.
        """
        first = self._first(rows)

        def leave_one_out() -> Array:
            posterior = self._posterior(fitted, rows)[1]
            groups = first.groups
            densities = posterior.loo() if groups is None else groups.left_out(posterior)
            return _weighted(densities, first.weights)

        densities = _densities_or_minus_infinity(leave_one_out, rows)
        return densities if first.groups is None else first.groups.pooled(densities)

    def _densities(self, fitted: FittedKernel, rows: int) -> Array:
        data = self._first(rows)
        holdout = subset_data(self.data, self.data.X[self.holdout], self.holdout)
        projector, post = self._posterior(fitted, rows)
        kernel = fitted.kernel
        K_star = kernel(holdout.X, data.X)
        if data.scale is not None:
            K_star *= data.scale
        mean, variance = post.predict(K_star, kernel.diag(holdout.X), mean=holdout.prior)
        deviation = np.sqrt(np.maximum(variance, 0.0))
        if holdout.scale is not None:
            mean, deviation = mean * holdout.scale, deviation * holdout.scale
        # Rounding may give a latent variance of 0, but projections need a positive width.
        deviation = np.maximum(deviation, 1e-15)
        log_densities = project_arrays(projector.likelihood, mean, deviation, holdout.y, "ep").log_z
        return _weighted(log_densities, holdout.weights)

    def _posterior(self, fitted: FittedKernel, rows: int) -> tuple[Projector, Any]:
        """Return the projector and the posterior of EP for the first rows."""
        data = self._first(rows)
        projector = fitted.projector(data).for_evidence()
        dense = Dense(replace(self.settings, tol=max(_SITE_TOL, self.settings.tol)))
        with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
            evidence_data = replace(data, projector=projector)
            post = dense.infer(fitted.kernel, evidence_data, fitted.sites)
        self.budget.spend(dense_inference_cost(rows))
        return projector, post

    def _first(self, rows: int) -> Data:
        return subset_data(self.data, self.data.X[:rows], slice(rows))


def _densities_or_minus_infinity(densities: Callable[[], Array], count: int) -> Array:
    """Compute densities, or return minus infinity if inference fails."""
    try:
        return densities()
    except NumericalError as error:
        if error.__cause__ is not None:  # a user's own exception
            raise
        return np.full(count, -np.inf)


def _weighted(densities: Array, weights: Array | None) -> Array:
    return densities if weights is None else densities * (weights / weights.mean())


# Relative tolerance and iterations of the first search.
_FIRST_SEARCH = (1e-4, 30)
# The best shape with the other features is tried if at most this share of the budget is used.
_OTHER_FEATURES_SHARE = 0.5
# Usual number of evaluations of the first search of a shape.
_FIRST_EVALUATIONS = 25
# Usual number of evaluations of a search that continues an earlier one.
_CONTINUED_EVALUATIONS = 6


@dataclass(frozen=True, eq=False)
class KernelSelection:
    """Kernels selected for processes that share their rows.

    Attributes
    ----------
    shape : KernelShape
    processes : tuple of tuple of Candidate
        The selected candidate of each process, then others that all rows might prefer.
    rows : int
        Number of rows that kernels were learnt from.
    """

    shape: KernelShape
    processes: tuple[tuple[Candidate, ...], ...]
    rows: int


def select_kernel(
    trials: dict[KernelShape, Sequence[Trial]],
    starts: dict[KernelShape, Start],
    subsets: Subsets,
    stages: list[Stage],
    others: bool,
) -> KernelSelection:
    """Select the kernels of processes that share their rows.

    Parameters
    ----------
    trials : dict
        Trials of all processes for each shape, with inputs transformed as the shape says.
    starts : dict
        Start of the search of each shape. The first shape is the default.
    subsets : Subsets
    stages : list of Stage
        Appended to.
    others : bool
        True if all rows compare the candidates once more: kernels of another smoothness are then
        kept if few rows cannot tell them from the best. If false, another shape than the default
        must gain two standard errors instead of one.
    """
    shapes, count = list(starts), len(trials[next(iter(starts))])
    budget, settings = trials[shapes[0]][0].budget, trials[shapes[0]][0].settings
    is_compared = settings.compare_kernels and subsets.has_holdout
    first, rungs = subsets.rungs[0], [r for r in subsets.rungs if r <= subsets.holdout.start]
    first_cost = _FIRST_EVALUATIONS * count * dense_evaluation_cost(first)
    if not (is_compared and budget.allows(len(shapes) * first_cost, LAST_RUNG_START_SHARE)):
        shapes = shapes[:1]
    results: dict[KernelShape, tuple[list[FittedKernel], Array]] = {}

    def keep(shape: KernelShape, fitted: list[FittedKernel], rung: int, judge: bool) -> None:
        results[shape] = fitted, _holdout_densities(trials[shape], fitted, rung, judge)
        stages.append(make_stage(rung, shape.label, results[shape][1], budget.used))

    for shape in shapes:
        fitted = [t.optimise(starts[shape], first, *_FIRST_SEARCH) for t in trials[shape]]
        keep(shape, fitted, first, len(shapes) > 1)
    first_results, kept = dict(results), _default_and_best(results)
    rows = rungs[0]
    for rung in rungs[1:]:
        cost = len(kept) * count * _CONTINUED_EVALUATIONS * dense_evaluation_cost(rung)
        if not budget.allows(cost, LAST_RUNG_END_SHARE):
            break
        rows = rung
        for shape in kept:
            fitted = _optimise_further(trials[shape], results[shape][0], rung)
            keep(shape, fitted, rung, subsets.has_holdout)
    shape = kept[0]
    # The best of several shapes is also the luckiest, and a dense fit has few hold-out rows.
    errors = 1.0 if others else CONFIDENT_ERRORS
    if len(kept) > 1 and gains_significantly(results[kept[1]][1] - results[shape][1], errors):
        shape = kept[1]
    cost = count * _FIRST_EVALUATIONS * dense_evaluation_cost(rows)
    has_holdout = budget.allows(cost, LAST_RUNG_END_SHARE) and is_compared
    lists = [
        select_length_scales(trial, c, shape, subsets, rows, stages)
        if has_holdout
        else [Candidate(c, shape, False)]
        for trial, c in zip(trials[shape], results[shape][0], strict=True)
    ]
    has_budget = budget.allows(cost, LAST_RUNG_END_SHARE)
    rival = _other_roughness(shape, first_results) if others and has_budget else None
    if rival is not None:
        if rival not in kept or rows == first:
            further = _optimise_further(trials[rival], first_results[rival][0], rows)
            results[rival] = further, np.zeros(1)
        for trial, c, candidates in zip(trials[rival], results[rival][0], lists, strict=True):
            candidates.append(rival_candidate(trial, c, rival, candidates[0], rows))
        stages.append(Stage(rows, rival.label, math.nan, budget.used))
    if others and count == 1 and budget.allows(cost, _OTHER_FEATURES_SHARE):
        alternative = _best_other_features(shape, first_results)
        if alternative is not None and alternative not in kept and rows > first:
            fitted = _optimise_further(trials[alternative], first_results[alternative][0], rows)
            keep(alternative, fitted, rows, True)
        if alternative is not None and not gains_significantly(
            results[shape][1] - results[alternative][1], CONFIDENT_ERRORS
        ):
            trial, (common,) = trials[alternative][0], results[alternative][0]
            lists[0].extend(select_length_scales(trial, common, alternative, subsets, rows, stages))
    return KernelSelection(shape, tuple(map(tuple, lists)), rows)


def _optimise_further(
    trials: Sequence[Trial], kernels: Sequence[FittedKernel], rows: int
) -> list[FittedKernel]:
    """Continue the search of each process with more rows."""
    pairs = zip(trials, kernels, strict=True)
    return [
        trial.optimise(fitted.start, rows, *CONTINUED_SEARCH, fitted.theta)
        for trial, fitted in pairs
    ]


def _holdout_densities(
    trials: Sequence[Trial], kernels: Sequence[FittedKernel], rows: int, is_needed: bool
) -> Array:
    """Return the hold-out densities, summed over processes; zeros if they are not needed."""
    if not is_needed:
        return np.zeros(1)
    pairs = zip(trials, kernels, strict=True)
    return np.asarray(np.sum([trial.densities(fitted, rows) for trial, fitted in pairs], axis=0))


def _default_and_best(
    results: dict[KernelShape, tuple[list[FittedKernel], Array]],
) -> list[KernelShape]:
    """Return the default shape, and the best other shape unless it is clearly worse."""
    default, *others = results
    best = _unless_worse(others, default, results)
    return [default] if best is None else [default, best]


def _other_roughness(
    shape: KernelShape, results: dict[KernelShape, tuple[list[FittedKernel], Array]]
) -> KernelShape | None:
    """Return the other smoothness of the same features unless it is clearly worse."""
    rivals = [rival for rival in results if rival.ranks == shape.ranks and rival != shape]
    return _unless_worse(rivals, shape, results)


def _best_other_features(
    shape: KernelShape, results: dict[KernelShape, tuple[list[FittedKernel], Array]]
) -> KernelShape | None:
    """Return the best shape with ranks for features, or vice versa, unless clearly worse."""
    rivals = [rival for rival in results if rival.ranks != shape.ranks]
    return _unless_worse(rivals, shape, results)


def _unless_worse(
    rivals: Sequence[KernelShape],
    shape: KernelShape,
    results: dict[KernelShape, tuple[list[FittedKernel], Array]],
) -> KernelShape | None:
    """Return the best of the rivals; None if there are none, or it is clearly worse."""
    if not rivals:
        return None
    best = max(rivals, key=lambda other: float(np.mean(results[other][1])))
    is_worse = gains_significantly(results[shape][1] - results[best][1], CONFIDENT_ERRORS)
    return None if is_worse else best
