"""The fixed point: sweeps of all rows at once, with means settled between, within a bound.

The means couple the rows far more than the precisions do, and cost no factorisation. None are
settled before the first sweep: from the prior that diverges.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from qpruntime.inference.schedules import Limits, Status
from qpruntime.inference.sites import ImproperPosterior, Sites, without_negative
from qpruntime.inference.sparse.engine import Engine
from qpruntime.inference.sparse.rule import Rule

__all__ = ["MATCHES", "Ended", "settle"]

#: Times that means are settled between sweeps.
MATCHES = 3
# Shares of every step that are tried, one after the other, before precisions are held at zero.
_SHARES = (1.0, 0.5, 0.25)
# Where precisions may be negative, means are settled from this change on: before, they jump from
# peak to peak.
_NEAR = 0.1
_LEAST_SHARE = 0.02
# Steps are halved where so many sweeps in a row have not brought the change down to this fraction.
_PATIENCE, _PROGRESS = 5, 0.9


@dataclass
class Ended:
    """How sweeps ended; sites and posterior are those of the engine."""

    after: Callable[[Engine], None] | None = None
    history: list[float] = field(default_factory=list)
    counts: np.ndarray = field(default_factory=lambda: np.zeros(4, dtype=np.int64))
    damped: int = 0
    held: int = 0
    worst: int = 0
    settled: bool = False

    @property
    def status(self) -> Status:
        """As of `qpruntime.inference.schedules.Settled`."""
        if not self.settled:
            return "not converged"
        return "held" if self.held else "converged"


def settle(
    engine: Engine,
    limits: Limits = Limits(),  # noqa: B008  immutable
    after: Callable[[Engine], None] | None = None,
) -> Ended:
    """Sweep until sites no longer change; if need be, with precisions held at zero or above.

    `after` is called after every sweep.

    Raises
    ------
    NumericalError
        If sites grow without bound, or no proper posterior is left.
    """
    ended = Ended(after)
    free, proper = not engine.rule.nonnegative, False
    start = engine.sites if free else None
    for share in _SHARES if free else (1.0,):
        if share < 1.0 and start is not None:
            engine.sites = start
        try:
            proper = _sweeps(engine, limits, share, ended)
        except ImproperPosterior:
            if not free:
                raise
            proper = False
        if ended.settled:
            break
    if proper or not free:
        return ended
    engine.sites = Sites(*without_negative(engine.sites))
    rule = engine.rule
    engine.rule = Rule(rule.projector, rule.power, bounded=True)
    try:
        engine.sites = engine.sites
        _sweeps(engine, limits, 1.0, ended)
    finally:
        engine.rule = rule
    return ended


def _sweeps(engine: Engine, limits: Limits, share: float, ended: Ended) -> bool:
    """Sweep within the limits; return whether every row has a proper cavity."""
    share *= limits.damping
    least, last, stale, skipped, steady, full = np.inf, np.inf, 0, 0, 0, share
    concave = engine.rule.nonnegative and not engine.rule.bounded
    warm = bool(engine.tau.any())
    for number in range(limits.sweeps):
        near = concave or last < _NEAR
        if (number or warm) and near and share >= limits.damping:
            engine.match(MATCHES)
        found = engine.sweep(share)
        if ended.after:
            ended.after(engine)
        ended.history.append(found.change)
        ended.counts += found.counts.astype(np.int64)
        ended.damped += engine.rows.n if share < 1.0 else 0
        ended.worst, ended.held = found.worst, int(found.counts[3])
        skipped = int(found.counts[2])
        ended.settled = found.change < limits.tol and not skipped
        if ended.settled:
            break
        stale = 0 if found.change < _PROGRESS * least else stale + 1
        least, last = min(least, found.change), found.change
        if stale == _PATIENCE:
            # Going round in circles. Means that are matched overshoot there as well.
            share, stale, least = max(0.5 * share, _LEAST_SHARE), 0, np.inf
        elif share < full:
            # Out of the circle: small steps would take for ever from here.
            steady = 0 if stale else steady + 1
            if steady == _PATIENCE:
                share, steady = min(2.0 * share, full), 0
    return not skipped
