"""The fixed point: sweeps of all rows at once, with means settled between, within a bound.

The means couple the rows far more than the precisions do, and cost no factorisation. None are
settled before the first sweep: from the prior that diverges.
"""

from __future__ import annotations

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
_SHARES = (1.0, 0.5)
_LEAST_SHARE = 0.02


@dataclass
class Ended:
    """How sweeps ended; sites and posterior are those of the engine."""

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


def settle(engine: Engine, limits: Limits = Limits()) -> Ended:  # noqa: B008  immutable
    """Sweep until sites no longer change; if need be, with precisions held at zero or above.

    Raises
    ------
    NumericalError
        If sites grow without bound, or no proper posterior is left.
    """
    ended = Ended()
    free = not engine.rule.nonnegative
    for share in _SHARES if free else (1.0,):
        try:
            if _sweeps(engine, limits, share, ended) or not free:
                return ended
        except ImproperPosterior:
            if not free:
                raise
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
    last, grew, skipped = np.inf, 0, 0
    warm = bool(engine.tau.any())
    for number in range(limits.sweeps):
        if number or warm:
            engine.match(MATCHES)
        found = engine.sweep(share)
        ended.history.append(found.change)
        ended.counts += found.counts.astype(np.int64)
        ended.damped += engine.rows.n if share < 1.0 else 0
        ended.worst, ended.held = found.worst, int(found.counts[3])
        skipped = int(found.counts[2])
        ended.settled = found.change < limits.tol and not skipped
        if ended.settled:
            break
        grew = grew + 1 if found.change > last else 0
        if grew == 2:
            share, grew = max(0.5 * share, _LEAST_SHARE), 0
        last = found.change
    return not skipped
