"""More rows than a dense fit takes: inducing points are doubled until rows left out say stop.

The kernel is known. Sites of the rows are carried from one number of inducing points to the next.
Leave-one-out densities say whether more of them, or the nearest rows of each point, predict better.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.gaussian_process.kernels import Kernel

from qpruntime.arrays import Array
from qpruntime.execution.calls import Threads
from qpruntime.inference.schedules import Limits
from qpruntime.inference.sparse.engine import Engine
from qpruntime.inference.sparse.lazy import rows_of
from qpruntime.inference.sparse.rows import Rows
from qpruntime.inference.sparse.rule import Rule
from qpruntime.inference.sparse.settle import settle
from qpruntime.learning.data import Data
from qpruntime.learning.inducing import clusters, rows_at, sample, units
from qpruntime.learning.policy.kernels import Stage
from qpruntime.learning.policy.operations import Budget, sweeps_of
from qpruntime.learning.settings import Settings
from qpruntime.learning.sparse_end import posterior_of
from qpruntime.projection.projector import Projector

__all__ = ["Grown", "grow"]

#: Inducing points to begin with, and most.
_FIRST, _MOST = 300, 4800
# Sites settle so far between.
_TOL = 1e-3
# What doubling has to gain, in log density a row.
_GAIN = 1e-3
# Sweeps: of the first, of those that go on, and of the end.
_SWEEPS, _FURTHER, _LAST = 8, 5, 6
# Rows that inducing points are chosen from.
_SAMPLE = 20_000


@dataclass(frozen=True, eq=False)
class Grown:
    """What was settled: the posterior of all rows, and how many nearest rows correct it."""

    posterior: Any
    nearest: int


def grow(
    data: Data,
    kernel: Kernel,
    projector: Projector,
    settings: Settings,
    judges: NDArray[np.intp],
    budget: Budget,
    stages: list[Stage],
    rng: np.random.Generator,
) -> Grown:
    """Settle all rows, with as many inducing points as pay and the budget has.

    Parameters
    ----------
    data : Data
        All rows, in units of the kernel.
    kernel : scikit-learn kernel
    projector : Projector
        Of the method asked for, with the parameters that were learnt.
    settings : Settings
    judges : ndarray of int
        Rows whose leave-one-out densities say when to stop.
    budget : Budget
    stages : list of Stage
        Appended to.
    rng : Generator
        Of clusters.
    """
    assert settings.auto is not None
    sparse, n = settings.auto.sparse, len(data.y)
    data = replace(data, projector=projector)
    points = rows_at(data.X, sample(n, _SAMPLE, rng))
    spread = points.std(axis=0)
    judges = np.sort(judges)
    rows = rows_of(data.X, data.y, data.weights, _prior(data), data.scale)
    n_jobs = settings.n_jobs or 0
    options: Any = {"memory": sparse.memory, "executor": Threads(n_jobs if n_jobs > 0 else None)}
    rule = Rule(projector.for_evidence(), sparse.power)
    limits = Limits(_TOL, settings.max_sweeps, 1.0)
    engine: Engine | None = None
    m, before = min(_FIRST, max(1, n // 4)), -math.inf
    while True:
        Z = clusters(points, m, rng, units(kernel, spread))
        further = Engine(rows, rule, kernel, Z, **options)
        if engine is not None:
            engine.release()
            further.sites = engine.sites
        engine = further
        ended = settle(engine, limits)
        budget.take(sweeps_of(len(ended.history), n, m))
        density = _left_out(engine, judges)
        mean = float(np.mean(density))
        stages.append(Stage(n, f"{m} inducing points", mean, budget.taken))
        gained, before = mean - before, mean
        more = sweeps_of(_FURTHER, n, 2 * m) + sweeps_of(_LAST, n, 2 * m)
        if gained < _GAIN or 2 * m > min(_MOST, n // 2) or not budget.allows(more):
            break
        m *= 2
    low, high = (float(end(data.prior)) for end in (np.min, np.max))
    posterior = posterior_of(engine, projector, settings, low if low == high else None, _ignore)
    return Grown(posterior, 0)


def _ignore(engine: Engine) -> None:
    """Nothing is to be done after a sweep."""


def _prior(data: Data) -> Array | None:
    return data.prior if data.prior.any() else None


def _left_out(engine: Engine, judges: NDArray[np.intp]) -> Array:
    """Leave-one-out log densities of some rows."""
    found = engine.outcome(rows=True).rows
    assert found is not None
    return found[2][judges]
