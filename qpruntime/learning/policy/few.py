"""Few rows: whether their features are better seen as ranks, by leaving out each row in turn.

All of them are fitted as ever. The common length-scale of all features is compared, for it has
too few parameters to learn rows by heart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qpruntime.arrays import Array
from qpruntime.execution.blas_threads import blas_threads
from qpruntime.learning.data import Data
from qpruntime.learning.default_kernel import default_start
from qpruntime.learning.policy.candidates import SURE
from qpruntime.learning.policy.judged import Stage, better
from qpruntime.learning.policy.operations import Budget
from qpruntime.learning.policy.trial import Trial, some_of
from qpruntime.learning.policy.views import View
from qpruntime.learning.settings import Settings
from qpruntime.learning.warp import Warp

__all__ = ["Looked", "look"]

# Where every feature is as straight in its ranks, by their correlation, ranks change little.
_STRAIGHT = 0.9
# Relative tolerance and iterations.
_CLIMB = (1e-3, 20)
# Of many classes so many say.
_CLASSES = 3
# Rows whose sites may be negative settle one after the other.
_SLOW = 500


@dataclass(frozen=True, eq=False)
class Looked:
    """Features as they are or as ranks, and where the fits of the first processes may begin."""

    warp: Warp | None
    thetas: tuple[Array, ...]
    stages: tuple[Stage, ...]


def look(processes: Sequence[Data], settings: Settings, latent_scale: float) -> Looked | None:
    """Take ranks of features where rows left out are sure that they predict better.

    Of fits that `qpruntime.learning.policy.acts.acts_on_few` names, with X in memory. None, and
    nothing is computed, where features are nearly straight in their ranks.
    """
    first = processes[0]
    rng = np.random.default_rng(0)
    warped = View.of(first.X, first.weights, rng, True, first.levels)
    if not _bent(first.X, warped.features):
        return None
    n, budget = len(first.y), Budget(None, len(first.y))
    concave = first.projector.likelihood.log_concave
    rows = np.arange(n) if concave else np.sort(rng.permutation(n)[:_SLOW])
    seen, stages, thetas = [], [], []
    for view in (View.of(first.X, first.weights, rng, False, first.levels), warped):
        start = default_start(view.units, latent_scale)
        left: Array = np.zeros(rows.size)
        ends = []
        for data in processes[:_CLASSES]:
            own = some_of(data, view.scaled[rows], rows)
            trial = Trial(own, settings, budget, slice(0, 0))
            with blas_threads(rows.size):
                climbed = trial.climb(start, rows.size, *_CLIMB)
                left += trial.left_out(climbed, rows.size)
            ends.append(climbed.theta)
        words = "ranks of features" if view is warped else "features"
        stages.append(Stage(rows.size, words, float(left.mean()), budget.taken))
        seen.append(left)
        thetas.append(tuple(ends))
    sure = better(seen[1] - seen[0], SURE)
    return Looked(warped.warp if sure else None, thetas[sure], tuple(stages))


def _bent(X: Array, shares: Array) -> bool:
    """Whether any feature is far from straight in its ranks."""
    x, r = X - X.mean(axis=0), shares - shares.mean(axis=0)
    with np.errstate(all="ignore"):
        scale = np.abs(x).max(axis=0)
        x = x / np.where(scale > 0.0, scale, 1.0)
        norms = np.sqrt((x * x).sum(axis=0) * (r * r).sum(axis=0))
        straight = (x * r).sum(axis=0) > _STRAIGHT * norms
    return not bool((straight | (norms == 0.0)).all())
