"""Fit processes without arguments: choose the kernel, then the engine for the rows there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from sklearn.gaussian_process.kernels import Kernel

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.execution.blas_threads import blas_threads, one_blas_thread
from qpruntime.inference.posterior import moved_to
from qpruntime.inference.sparse.lazy import is_lazy, read
from qpruntime.learning.data import Data
from qpruntime.learning.default_kernel import Start, default_start
from qpruntime.learning.inducing import rows_at
from qpruntime.learning.policy.acts import DENSE
from qpruntime.learning.policy.candidates import Shape
from qpruntime.learning.policy.choice import Choice, tell
from qpruntime.learning.policy.dense_end import end_dense
from qpruntime.learning.policy.inducing_end import end_inducing
from qpruntime.learning.policy.judged import Stage
from qpruntime.learning.policy.kernels import choose
from qpruntime.learning.policy.operations import Budget
from qpruntime.learning.policy.rest import Rest
from qpruntime.learning.policy.subsets import drawn
from qpruntime.learning.policy.trial import Trial, some_of
from qpruntime.learning.policy.views import View
from qpruntime.learning.settings import Settings
from qpruntime.learning.training import Fit

__all__ = ["fitted"]

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
    found = _drawn(processes, settings, rng, latent_scale)
    choice, taken = found.choice, found.taken
    if found.short:
        other = _drawn(processes, settings, rng, latent_scale)
        if other.score > found.score:
            found = other
        stages = (*choice.stages, *other.choice.stages)
        choice = replace(found.choice, stages=stages, again=found.score)
        taken += other.taken
    tell(choice, taken)
    return found.fits, choice


def _drawn(
    processes: Sequence[Data], settings: Settings, rng: np.random.Generator, latent_scale: float
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
    subsets = drawn(n, _strata(processes), rng, **({} if concave else {"most": _FEWER}))
    stages: list[Stage] = []
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
    with one_blas_thread():
        chosen = choose(trials, starts, subsets, stages, others=not dense)
    rest = Rest(subsets, settings, budget, stages, rng, len(processes))
    fits, words, nearest, score, short = [], [], 0, 0.0, False
    ranks = chosen.shape.ranks
    for number, data in enumerate(processes):
        candidates = chosen.processes[number]
        if dense:
            own = replace(data, X=views[ranks].scaled)
            with blas_threads(n):
                fit, best = end_dense(
                    rest, own, trials[chosen.shape][number], candidates[0], number
                )
        else:
            each = {shape: trials[shape][number] for shape in trials}
            ended = end_inducing(rest, data, views, each, candidates, chosen.rows)
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


def _strata(processes: Sequence[Data]) -> Array | None:
    """Return the class of each row, None for observations that are no labels."""
    first = processes[0]
    if not first.discrete or len(np.unique(first.y[:1000])) > 2:
        return None
    if len(processes) == 1:
        return first.y
    strata: Array = np.argmax([data.y for data in processes], axis=0)
    return strata
