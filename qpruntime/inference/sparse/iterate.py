"""Sweeps over chunks of rows; tied sites (stochastic EP)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import numpy as np
from scipy.linalg import solve_triangular

from qpruntime.execution.blas_threads import one_blas_thread
from qpruntime.inference.fixed_point.convergence import Ended, Limits
from qpruntime.inference.fixed_point.schedules import Swept, swept_until
from qpruntime.inference.sites import ImproperPosterior, Sites, without_negative
from qpruntime.inference.sparse.engine import HALVINGS, Engine, bounded, swept_by
from qpruntime.inference.sparse.features import divide
from qpruntime.inference.sparse.passes import Done, Job, outcome, sweep
from qpruntime.inference.sparse.state import (
    PowerProjector,
    State,
    Sums,
    posterior_of,
    prior_of,
    unpacked,
    with_base,
)

__all__ = [
    "MATCHES",
    "Tied",
    "settle",
    "settle_tied",
]

# --- Tied sites
#
# Stochastic EP (Li, Hernandez-Lobato & Turner 2015). With Lambda = B - I and h of all N rows, those
# seen before among them, every row's cavity is that of I + (1 - e) Lambda and (1 - e) h, e =
# power/N; Lambda and h are the sums of what the rows ask for there. Nothing of earlier rows changes
# when later ones come: for n of N rows the step is (1 - n/N) of the old sum and n/N of N/n times
# the new one.


def settle_tied(engine: Engine, limits: Limits = Limits()) -> Ended:  # noqa: B008  immutable
    """Settle the shared site, then let every row of `engine` have its own from there.

    Those sites add up to the shared one where it has settled, and EP's evidence of theirs is nearer
    to that of a fit than the energy of the shared site: 0.003 nats off instead of 0.7, on 40 rows
    (test_iterate.py).

    Raises
    ------
    NumericalError
        As of `settle`.
    """
    tied = Tied(**{each.name: getattr(engine, each.name) for each in fields(engine)})
    ended = settle(tied, limits)
    engine.seed(tied.cavity)
    return ended


class Tied(Engine):
    """An `Engine` whose rows, and those of its base, share one site.

    Attributes
    ----------
    state : State
        Belongs to the shared site.
    """

    def gather(self) -> None:
        """Begin anew, from the base."""
        self.state = prior_of(self._inducing(), self.rule, self.base)

    def match(self, steps: int = 1) -> None:
        """Do nothing: here means alone cost as much as means and variances."""

    @property
    def cavity(self) -> State:
        """The posterior without one row's share of the site."""
        now, base = self._state_now, self.base
        left = 1.0 - now.rule.power / (self.rows.n + (0 if base is None else base.n))
        sums = {"B": left * now.B, "h": left * now.h}
        return posterior_of(now.inducing, now.rule, sums)

    def sweep(self, share: float = 1.0) -> Swept:
        """Move the site by this share of the way to what the rows ask for.

        The change is a root mean square over the M directions of w, in units of the posterior.

        Raises
        ------
        ImproperPosterior
            If negative precisions leave no posterior, however short the step; the site stays.
        NumericalError
            As of `Engine.sweep`.
        """
        with one_blas_thread():
            old = self._state_now
            sums = self._pass(_asked, self.cavity)
            asked = with_base(sums, self.base)
            more = {name: asked[name] - getattr(old, name) for name in ("B", "h")}
            row = int(sums["worst"][1])
            swept = swept_by(bounded(_size(more, old), row), row, sums["counts"])
            for left in reversed(range(HALVINGS)):
                step = {name: getattr(old, name) + share * more[name] for name in more}
                try:
                    self.state = posterior_of(old.inducing, old.rule, step)
                    break
                except ImproperPosterior:
                    if not left:
                        raise
                    share *= 0.5
        return swept

    def energy(self) -> float:
        """Return the log evidence as of sites that are equal; there must be no base.

        With Lambda = U diag(l) U^T and q the squares of U^T h.
        """
        now = self._state_now
        B = unpacked(now.B, now.inducing.size)
        own, U = np.linalg.eigh(B)
        q, e = (U.T @ now.h) ** 2, now.rule.power / self.rows.n
        whole = 1.0 + own
        found = q / whole - np.log(whole) - np.log1p(-e * own / whole) / e
        found += q * (e * whole - 1.0 - whole) / (whole * (whole - e * own))
        with one_blas_thread():
            return 0.5 * float(found.sum()) + float(
                self._pass(outcome, self.cavity, rows=False)["terms"]
            )


def _asked(state: State, job: Job) -> Done:
    """What the rows of a chunk, which have no sites, ask for: sums."""
    return Done(sweep(state, job).sums)


def _size(more: Sums, state: State) -> float:
    """Root mean square of changes of B and h, in units of the posterior, whichever is larger."""
    B = unpacked(more["B"], state.inducing.size)
    B += np.tril(B, -1).T
    B = divide(np.ascontiguousarray(divide(B, state.root).T), state.root)
    h = solve_triangular(state.root, more["h"], lower=True, check_finite=False)
    return float(max(np.linalg.norm(B), np.linalg.norm(h))) / np.sqrt(len(h))


# --- Fixed point
#
# The means couple the rows far more than the precisions do, and cost no factorisation. None are
# settled before the first sweep: from the prior that diverges.

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
    engine.rule = PowerProjector(rule.projector, rule.power, bounded=True)
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
