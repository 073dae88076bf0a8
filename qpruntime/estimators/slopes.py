"""How much of a prior mean to believe beside a Gaussian process: its slope by the evidence.

Alone a score is worth what it says of the observations; beside a process that learns the same it is
worth less, and more where the process takes noise off it. So few rows are fitted densely, and the
slope is where the evidence is highest under the kernel that was found; twice, for that moves it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from qpruntime.arrays import Array
from qpruntime.errors import NumericalError
from qpruntime.estimators.cross_fitted import CrossFitted
from qpruntime.learning.data import Data
from qpruntime.learning.dense import Dense
from qpruntime.learning.policy.choice import Choice
from qpruntime.learning.policy.trial import some_of
from qpruntime.learning.settings import Settings
from qpruntime.learning.training import Fit
from qpruntime.projection.projector import Projector

__all__ = ["Train", "beside_a_process"]

Train = Callable[[Sequence[Data], Settings, np.random.Generator], tuple[list[Fit], Choice | None]]

# Rows, rounds, and slopes by that of the score alone.
_ROWS, _ROUNDS, _WIDEST = 500, 2, 2.0


def beside_a_process(
    mean: CrossFitted,
    scores: Array,
    X: Array,
    processes: Sequence[Data],
    besides: Array | float,
    settings: Settings,
    rng: np.random.Generator,
    train: Train,
) -> CrossFitted:
    """Return the prior mean with slopes that are learnt beside the processes.

    Parameters
    ----------
    mean : CrossFitted
        With slopes of the scores alone.
    scores : ndarray, shape (N, K)
    X : ndarray, shape (N, d)
    processes, besides, settings, rng, train
        As of `qpruntime.estimators.mean_choice.with_mean`.
    """
    n = len(X)
    rows = np.sort(rng.permutation(n)[:_ROWS])
    few = replace(
        settings, auto=None, sparse=None, n_restarts=0, scheduler=None, callback=None, verbose=0
    )
    known = np.broadcast_to(besides, n)[rows]
    slope, shift = mean.slope.copy(), mean.shift.copy()
    for k, process in enumerate(processes):
        data, score = some_of(process, X[rows], rows), scores[rows, k]
        centre, most = float(score.mean()), _WIDEST * mean.slope[k]
        level = shift[k] + slope[k] * centre
        if not most > 0.0:
            continue
        for _ in range(_ROUNDS):

            def prior(b: float, level: float = level, at: Array = score - centre) -> Array:
                return level + b * at + known

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                own = replace(data, prior=prior(slope[k]))
                try:
                    (fit,), _ = train([own], few, rng)
                    slope[k] = _highest(fit, data, prior, most, few)
                except NumericalError as error:
                    if error.__cause__ is not None:  # a user's own exception
                        raise
                    break
        shift[k] = level - slope[k] * centre
    return replace(mean, slope=slope, shift=shift)


def _highest(
    fit: Fit, data: Data, prior: Callable[[float], Array], most: float, settings: Settings
) -> float:
    """The slope of the highest evidence under the kernel of a fit."""
    projector = Projector(fit.likelihood, "ep") if data.learn else data.projector.for_evidence()
    dense = Dense(settings)

    def loss(b: float) -> float:
        try:
            own = replace(data, projector=projector, prior=prior(b))
            return -dense.infer(fit.kernel, own, None).log_evidence
        except NumericalError:
            return 1e300

    found: Any = minimize_scalar(
        loss, bounds=(0.0, most), method="bounded", options={"xatol": 1e-2 * most}
    )
    return float(found.x)
