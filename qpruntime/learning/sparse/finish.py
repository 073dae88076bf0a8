"""End of a fit with inducing points: the result of a stage, and the posterior of all rows.

The posterior has double precision. EP converges first, then the requested method.
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

# EP converges to this tolerance before QP continues.
_EP_TOL = 1e-4
# Usual number of sweeps after the first one.
_USUAL_SWEEPS = 4
# Number of rows on which the default kernel is checked.
_CHECKED_ROWS = 2000


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
    """Run an engine with EP's rule and double precision to convergence, and return its posterior.

    `projector` has the requested method, `prior` is the prior mean that all rows share, and `after`
    is called after every sweep.
    """
    limits = Limits(settings.tol, settings.max_sweeps, 1.0)
    needs_ep_first = projector.method != "ep"
    first_limits = limits._replace(tol=max(settings.tol, _EP_TOL)) if needs_ep_first else limits
    result = settle(engine, first_limits, after)
    if needs_ep_first:
        engine.rule = PowerProjector(projector, engine.rule.power)
        after_sweep = _announced(engine.rows.n, projector.method, after)
        first, result = result, settle(engine, limits, after_sweep)
        result.history[:0] = first.history
    warn_unsettled(result, limits.tol, engine.rows.n, of_estimator=True)
    return conclude(engine, result, prior)


def _announced(n: int, method: str, then: Callable[[Engine], None]) -> Callable[[Engine], None]:
    """Announce after the first sweep how long the others will take, if that is long."""
    start_time, announced = time.perf_counter(), False

    def after(engine: Engine) -> None:
        nonlocal announced
        then(engine)
        if not announced:
            announced = True
            seconds = _USUAL_SWEEPS * (time.perf_counter() - start_time)
            words = f'settling the sites of {n} rows by method "{method}"'
            announce(words, seconds, 'method="ep" spares it')

    return after


def advise(kernel: Kernel, points: Array) -> None:
    """Warn if what the default kernel has learnt from these rows is nothing."""
    if blind := learns_nothing(kernel, points[:_CHECKED_ROWS]):
        warn(blind, ConvergenceWarning)
