"""The fixed point: sweeps of all rows at once, with means settled between, within a bound.

The means couple the rows far more than the precisions do, and cost no factorisation. None are
settled before the first sweep: from the prior that diverges.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from qpruntime.inference.fixed_point.ended import Ended, Limits
from qpruntime.inference.fixed_point.loop import Swept, swept_until
from qpruntime.inference.sites import ImproperPosterior, Sites, without_negative
from qpruntime.inference.sparse.engine import Engine
from qpruntime.inference.sparse.rule import Rule

__all__ = ["MATCHES", "settle"]

After = Callable[[Engine], None]

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


def settle(
    engine: Engine,
    limits: Limits = Limits(),  # noqa: B008  immutable
    after: After | None = None,
) -> Ended:
    """Sweep until sites no longer change; if need be, with precisions held at zero or above.

    `after` is called after every sweep.

    Raises
    ------
    NumericalError
        If sites grow without bound, or no proper posterior is left.
    """
    ended = Ended()
    free, proper = not engine.rule.nonnegative, False
    start = engine.sites if free else None
    for share in _SHARES if free else (1.0,):
        if share < 1.0 and start is not None:
            engine.sites = start
        try:
            proper = _sweeps(engine, limits, share, ended, after)
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
        _sweeps(engine, limits, 1.0, ended, after)
    finally:
        engine.rule = rule
    return ended


class _Circles:
    """Halves the step while sites oscillate, and doubles it again once they no longer do."""

    def __init__(self, share: float, most: float) -> None:
        self.share = self._full = share
        self._least_share = _LEAST_SHARE / most
        self._least, self.last, self._stale, self._steady = np.inf, np.inf, 0, 0

    @property
    def whole(self) -> bool:
        """Whether steps are as long as was asked for."""
        return self.share >= 1.0

    def ends(self, swept: Swept) -> bool:
        """Take in a change; never end the loop early."""
        self._stale = 0 if swept.change < _PROGRESS * self._least else self._stale + 1
        self._least, self.last = min(self._least, swept.change), swept.change
        if self._stale == _PATIENCE:
            # Means that are matched overshoot there as well.
            self.share = max(0.5 * self.share, self._least_share)
            self._stale, self._least = 0, np.inf
        elif self.share < self._full:
            # Out of the circle: small steps would take for ever from here.
            self._steady = 0 if self._stale else self._steady + 1
            if self._steady == _PATIENCE:
                self.share, self._steady = min(2.0 * self.share, self._full), 0
        return False


def _sweeps(
    engine: Engine, limits: Limits, share: float, ended: Ended, after: After | None
) -> bool:
    """Sweep within the limits; return whether every row has a proper cavity."""
    steering = _Circles(share, limits.damping)
    concave = engine.rule.nonnegative and not engine.rule.bounded
    warm, begun = bool(engine.tau.any()), False

    def sweep(share: float) -> Swept:
        nonlocal begun
        if (begun or warm) and (concave or steering.last < _NEAR) and steering.whole:
            engine.match(MATCHES)
        begun = True
        found = engine.sweep(share)
        if after:
            after(engine)
        return found._replace(shortened=engine.rows.n if share < 1.0 else 0)

    ended.settled, last = swept_until(sweep, limits, steering, ended.trace)
    ended.worst, ended.held = last.worst, last.held
    return not last.counts[2]
