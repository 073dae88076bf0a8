"""What lasts beside a trend, as the evidence asks for it: noise, cycles, seasons that drift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.forecasting.tried import (
    ASTRAY,
    GAIN,
    MANY,
    SURE,
    Chosen,
    Known,
    best_of,
    preferred,
    residuals,
)
from qpruntime.validation import choice, flag

__all__ = ["cycling", "drifting", "noisy"]

# Residuals correlate if by so many standard errors, of so many pairs.
_LASTS, _PAIRS = 3.0, 20
# A swing is looked for where neighbours show one: periods between this many steps and this share
# of the series, that lose less than so much of their height over a step.
_SHORTEST, _SHARE, _STAYS = 3.0, 1.0 / 3.0, 0.5
# A season drifts if it has at most so many steps, and occurs so often.
_PHASES, _TIMES = 60, 4.0


def noisy(asked: Any, best: Chosen, known: Known, trends: Sequence[str]) -> Chosen:
    """With noise that lasts, if it is asked for or the evidence prefers it.

    A trend that drifts fast takes up what lasts a few steps, and then goes astray: residuals do not
    show it, and with noise another trend may be the better one. Long series are spared the fits
    where residuals of neighbours are not correlated.
    """
    if not isinstance(asked, str):
        wanted = flag(asked, "noise")
        return best_of([replace(best.structure, noise=True)], known) if wanted else best
    choice(asked, "noise", ("auto",))
    y = known.y
    if (y == y[0]).all() or (y.size >= MANY and not _lasts(residuals(best, known), known.steps)):
        return best
    tried = trends if y.size < MANY else [best.structure.trend]
    more = best_of([replace(best.structure, noise=True, trend=t) for t in tried], known)
    return more if preferred(more, known) > preferred(best, known) + GAIN else best


def _lasts(residual: Array, steps: Array, lag: float = 1.0, errors: float = _LASTS) -> bool:
    """Whether residuals so many steps apart are correlated by so many standard errors."""
    before = np.searchsorted(steps, steps - lag)
    follows = np.flatnonzero(steps[before] == steps - lag)
    if follows.size < _PAIRS:
        return False
    products = residual[follows] * residual[before[follows]]
    share = float(np.mean(products)) / float(np.mean(residual**2))
    return share > errors / np.sqrt(follows.size)


def cycling(options: Any, best: Chosen, known: Known, trends: Sequence[str]) -> Chosen:
    """With a cycle whose period is not fixed, if it is asked for or the evidence prefers it.

    It stands for periods that were found in the values: those of the calendar do not wander.
    """
    asked = options.cycle
    own = best.structure
    if not isinstance(asked, str):
        if isinstance(asked, bool | np.bool_):
            if not asked:
                return best
            periods = _periods(own, known)
            if not periods:
                raise InputError("cycle=True, and the values show none: say its period in steps")
        else:
            periods = [float(asked)]
        return best_of([replace(own, cycle=p) for p in periods], known)
    free = isinstance(options.seasons, str) and not known.clock.calendar()
    # A swing is noise that lasts, too; where there is none the fits are spared.
    if not free or not own.noise or known.y.size >= MANY:
        return best
    lasting = [False, True] if isinstance(options.noise, str) else [True]
    structures = [
        replace(own, seasons=(), cycle=p, noise=noise)
        for p in _periods(own, known)
        for noise in lasting
    ]
    if not structures:
        return best
    more = best_of(structures, known)
    if preferred(more, known) <= preferred(best, known) + ASTRAY:
        return best
    others = [replace(more.structure, trend=trend) for trend in trends if trend != own.trend]
    each = [more, best_of(others, known)] if others else [more]
    return max(each, key=lambda one: preferred(one, known))


def _periods(own: Any, known: Known) -> list[float]:
    """Periods that a search for a cycle starts from: of a swing, and of the longest season."""
    steps, y = known.steps, known.y
    z = np.log1p(y) if own.scale.whole else own.scale.into(y)
    z = z - np.polyval(np.polyfit(steps, z, 1), steps)
    after = np.flatnonzero((np.diff(steps)[1:] == 1.0) & (np.diff(steps)[:-1] == 1.0)) + 2
    found = []
    if after.size >= _PAIRS:
        design = np.column_stack([z[after - 1], z[after - 2]])
        first, second = np.linalg.lstsq(design, z[after], rcond=None)[0]
        stays = np.sqrt(max(-second, 0.0))
        if stays > _STAYS and abs(first) < 2.0 * stays:
            found.append(float(2.0 * np.pi / np.arccos(0.5 * first / stays)))
    most = _SHARE * float(steps[-1] - steps[0])
    found += [p for p in own.seasons[-1:] if all(abs(np.log(p / q)) > 0.2 for q in found)]
    return [p for p in found if _SHORTEST <= p <= most]


def drifting(options: Any, best: Chosen, known: Known, trends: Sequence[str]) -> Chosen:
    """With seasons whose pattern changes from one to the next, as `cycling`.

    What else lasts is chosen again with them: noise and trends take up some of it before.
    """
    asked, own = options.drift, best.structure
    if not isinstance(asked, str):
        fits = tuple(p for p in own.seasons if _drifts(p, known, 1.0))
        return best_of([replace(own, drifting=fits)], known) if asked and fits else best
    able = [p for p in own.seasons if _drifts(p, known, _TIMES)]
    if able:
        # A pattern that has changed leaves residuals that are alike a season apart.
        residual, errors = residuals(best, known), _LASTS if known.y.size >= MANY else 0.0
        able = [p for p in able if _lasts(residual, known.steps, p, errors)]
    if not able:
        return best
    more = best_of([replace(own, drifting=(p,)) for p in able], known)
    if preferred(more, known) <= preferred(best, known) + SURE:
        return best
    own = more.structure
    lasting = [False, True] if isinstance(options.noise, str) else [own.noise]
    others = [
        replace(own, trend=trend, noise=noise)
        for trend in trends
        for noise in lasting
        if (trend, noise) != (own.trend, own.noise)
    ]
    if known.y.size >= MANY or not others:
        return more
    other = best_of(others, known)
    return other if preferred(other, known) > preferred(more, known) + GAIN else more


def _drifts(period: float, known: Known, times: float) -> bool:
    """Whether a season has phases that are whole steps, and occurs so often."""
    whole = period == round(period) and bool((known.steps == np.round(known.steps)).all())
    span = float(known.steps[-1] - known.steps[0]) + 1.0
    return whole and period <= _PHASES and span >= times * period
