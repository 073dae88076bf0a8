"""How a fit by inducing points ends: what a stage has found, and the posterior of all rows.

That is of double precision, settled by EP and then by the method asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sklearn.gaussian_process.kernels import Kernel

from qpruntime._duration import announce
from qpruntime._typing import Array
from qpruntime.errors import ConvergenceWarning, warn
from qpruntime.inference.fixed_point.convergence import Limits, warn_unsettled
from qpruntime.inference.sparse.engine import Engine
from qpruntime.inference.sparse.iterate import settle
from qpruntime.inference.sparse.posterior import SparsePosterior, conclude
from qpruntime.inference.sparse.state import PowerProjector
from qpruntime.learning.default_kernel import learns_nothing
from qpruntime.learning.optimise import Optimum
from qpruntime.learning.settings import Settings
from qpruntime.learning.sparse.objective import EvidenceOptimum, EvidenceSearch
from qpruntime.projection.projector import Projector

__all__ = ["advise", "optimum_of", "posterior_of"]

# EP settles so far before QP goes on.
_ROUGH = 1e-4
# Sweeps that follow the first one, usually.
_SWEEPS = 4
# Rows that the default kernel is looked at on.
_LOOKED_AT = 2000


def optimum_of(search: EvidenceSearch, ended: EvidenceOptimum, start: Array) -> Optimum:
    """Return what a stage that began at `start` has found."""
    assert search.place is not None
    theta, prior = search.place.theta, search.log_prior
    extra = 0.0 if prior is None else prior(theta)[0]
    return Optimum(
        theta=theta,
        value=search.best - extra,
        n_iterations=ended.iterations,
        n_evaluations=search.evaluations,
        success=ended.success,
        message=ended.message,
        start=start,
        slope=search.slope,
        log_prior=extra,
    )


def posterior_of(
    engine: Engine,
    projector: Projector,
    settings: Settings,
    prior: float | None,
    after: Callable[[Engine], None],
) -> SparsePosterior:
    """Settle the sites of an engine of double precision, which has EP's rule, and conclude.

    `projector` is that of the method asked for; `prior` is the prior mean that all rows share;
    `after` is called after every sweep.
    """
    limits = Limits(settings.tol, settings.max_sweeps, 1.0)
    rough = projector.method != "ep"
    first_limits = limits._replace(tol=max(settings.tol, _ROUGH)) if rough else limits
    ended = settle(engine, first_limits, after)
    if rough:
        engine.rule = PowerProjector(projector, engine.rule.power)
        told = _announced(engine.rows.n, projector.method, after)
        first, ended = ended, settle(engine, limits, told)
        ended.history[:0] = first.history
    warn_unsettled(ended, limits.tol, engine.rows.n, of_estimator=True)
    return conclude(engine, ended, prior)


def _announced(n: int, method: str, then: Callable[[Engine], None]) -> Callable[[Engine], None]:
    """Say after the first sweep how long the others will take, if that is long."""
    begun, told = time.perf_counter(), False

    def after(engine: Engine) -> None:
        nonlocal told
        then(engine)
        if not told:
            told = True
            seconds = _SWEEPS * (time.perf_counter() - begun)
            words = f'settling the sites of {n} rows by method "{method}"'
            announce(words, seconds, 'method="ep" spares it')

    return after


def advise(kernel: Kernel, points: Array) -> None:
    """Warn if what the default kernel has learnt from these rows is nothing."""
    if blind := learns_nothing(kernel, points[:_LOOKED_AT]):
        warn(blind, ConvergenceWarning)
