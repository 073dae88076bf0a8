"""Search of a series' structure by the evidence."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qpruntime._typing import Array
from qpruntime._validation import choice, flag, number
from qpruntime.errors import ConvergenceWarning, InputError, warn
from qpruntime.forecasting.families import Scale, is_whole, likelihood_of, scale_of
from qpruntime.forecasting.family_search import heavy, rounded, varied
from qpruntime.forecasting.seasonality import find_seasons
from qpruntime.forecasting.structure import Structure
from qpruntime.forecasting.trial import (
    ASTRAY,
    GAIN,
    MANY,
    SURE,
    ChosenStructure,
    ObservedSeries,
    best_of,
    evidence,
    fitted,
    preferred,
    residuals,
)
from qpruntime.likelihoods import Likelihood
from qpruntime.likelihoods.responses import LARGEST_COUNT

__all__ = [
    "calmed",
    "choose",
    "cycling",
    "damped",
    "drifting",
    "far_off",
    "noisy",
    "price_of",
    "regressors_of",
    "seasonal",
]

#: What ``trend=`` may be.
TRENDS = ("auto", "average", "level", "line", "slope", "damped", "none")

# --- Trend, seasons and family -------------------------------------------------------------------


def choose(options: Any, known: ObservedSeries) -> ChosenStructure:
    """Choose what the options of a forecaster leave open, and fit.

    What was tried and not taken may not have settled; what is taken says so.

    Parameters
    ----------
    options : GPForecaster
    known : Known

    Raises
    ------
    InputError
        If observations, regressors or options are not usable.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        best = _chosen(options, known)
    if not best.model.converged_:
        warn("the fit has not settled: see model_.check()", ConvergenceWarning)
    return best


def _chosen(options: Any, known: ObservedSeries) -> ChosenStructure:
    """The best of what was tried."""
    choice(options.trend, "trend", TRENDS)
    for name in ("cycle", "drift", "outliers"):
        asked = getattr(options, name)
        if isinstance(asked, str):
            choice(asked, name, ("auto",))
        elif name == "cycle" and not isinstance(asked, bool | np.bool_):
            number(asked, name, above=2.0)
        else:
            flag(asked, name)
    steps, y = known.steps, known.y
    family: Any = options.family
    if not isinstance(family, str | Likelihood):
        raise InputError(f'family must be "auto", a name or a likelihood, got {family!r}')
    counts = is_whole(family, y) and not (family == "auto" and y.max() > LARGEST_COUNT)
    if family != "auto":
        likelihood_of(family)
    integrate = options.integrate
    if integrate == "auto":
        integrate = "mode" if steps.size >= MANY else "auto"
    if counts and not y.any():
        return _nothing(options, known, integrate)
    best = _searched(options, known, counts)
    rows = _outliers(options, known, best.structure)
    if rows.size:
        other = _searched(options, known, counts, rows)
        least = evidence(best, known) + SURE + price_of(rows.size, y.size)
        best = other if evidence(other, known) > least else best
    # What a fit at the mode can serve as, if nothing else is asked for.
    if integrate != "mode":
        best = fitted(best.structure, known, integrate)
    return best


def _outliers(options: Any, known: ObservedSeries, best: Structure) -> NDArray[np.intp]:
    """Rows that may have an effect of their own."""
    if not options.outliers:
        return np.zeros(0, dtype=np.intp)
    return far_off(known.clock.wall_steps(known.steps), known.y, best.seasons, best.scale)


def _searched(
    options: Any, known: ObservedSeries, counts: bool, rows: NDArray[np.intp] | None = None
) -> ChosenStructure:
    """The best of what was tried at the mode, with effects for some of the rows."""
    y, family = known.y, options.family
    seen = y if rows is None else calmed(y, rows)
    seasons = _seasons(options.seasons, replace(known, y=seen), counts)
    first = Structure(
        seasons,
        regressors_of(known),
        "level",
        False,
        "poisson",
        scale_of("", y),
        clock=known.clock,
    )
    if rows is not None:
        first = replace(first, outliers=tuple(known.steps[rows].tolist()))
    if family != "auto":
        tried = [family]
    elif counts:
        tried = ["poisson"]
    else:
        tried = ["gaussian", "log-normal"] if (y > 0.0).all() else ["gaussian"]
    trends: tuple[str, ...] = (options.trend,)
    if options.trend in ("auto", "average"):
        # Levels of a long series say where a line would go.
        trends = ("level", "slope") if y.size >= MANY else ("level", "line", "slope")
    best = best_of(
        [
            replace(first, family=name, scale=scale_of(name, y), trend=one)
            for name in tried
            for one in trends
        ],
        known,
    )
    if family == "auto" and counts:
        best = rounded(best, known, trends)
        counts = best.structure.scale.whole
    best = noisy(options.noise, best, known, trends)
    best = cycling(options, best, known, trends)
    if family == "auto":
        best = varied(options, best, known) if counts else heavy(best, known)
    best = drifting(options, best, known, trends)
    return best if len(trends) == 1 else damped(best, known)


def damped(best: ChosenStructure, known: ObservedSeries) -> ChosenStructure:
    """Let the slope revert to zero if the evidence prefers it.

    It is tried once, with all other parts chosen, which costs one fit; to compare all trends again
    there chose the same for each of 55 series. Long series are spared the fit, because their
    evidence knows levels and slopes well.
    """
    if known.y.size >= MANY:
        return best
    more = best_of([replace(best.structure, trend="damped")], known)
    return more if preferred(more, known) > preferred(best, known) else best


def _nothing(options: Any, known: ObservedSeries, integrate: Any) -> ChosenStructure:
    """Fit to counts that are all 0: a level, and no more."""
    family = "poisson" if options.family == "auto" else options.family
    own = Structure((), regressors_of(known), "none", False, family, scale_of(family, known.y))
    return fitted(replace(own, empty=True), known, integrate)


def regressors_of(known: ObservedSeries) -> tuple[str, ...]:
    """Columns that differ from row to row; the others have no coefficient."""
    if known.X is None:
        return ()
    used: list[str] = []
    constant: list[str] = []
    for name, column in known.X.items():
        own = np.asarray(column)
        differs = own.size > 1 and bool((own[1:] != own[:-1]).any())
        (used if differs else constant).append(str(name))
    if constant:
        warn(
            f"regressor {', '.join(map(repr, constant))} has one value at all times of the fit: "
            "nothing is known of its effect, and it is left out",
            UserWarning,
        )
    return tuple(used)


def _seasons(asked: Any, known: ObservedSeries, counts: bool) -> tuple[float, ...]:
    """Periods in steps."""
    steps = known.steps
    if isinstance(asked, str):
        choice(asked, "seasons", ("auto",))
        return find_seasons(steps, seasonal(known.y, counts), known.clock.calendar())
    found = tuple(sorted(number(p, "seasons", above=2.0) for p in asked))
    span = float(steps[-1] - steps[0])
    for p in found:
        if p > span:
            raise InputError(
                f"season {p:g} is longer than the series, {span:g} steps: leave it out"
            )
    return found


def seasonal(y: Array, counts: bool | None = None) -> Array:
    """Return numbers whose square roots seasons are looked for in, of counts the counts."""
    if counts is None:
        counts = is_whole("auto", y)
    return y if counts else (y - y.min()) ** 2


# --- Outliers, found before any fit --------------------------------------------------------------

#: Neighbours on either side whose median an observation is compared with, and seasons whose phases
#: are taken off; they have to occur so often.
_SIDE, _OUTLIER_TIMES = 5, 4.0
#: How far off, in standard deviations by the median absolute one, and which share of all at most:
#: more of them are no mistakes but the family of the observations.
_FAR, _OUTLIER_SHARE = 8.0, 0.01
_MAD = 1.4826
# Series of fewer observations have none: their medians are of nothing.
_FEWEST = 20


def far_off(steps: Array, y: Array, seasons: tuple[float, ...], scale: Scale) -> NDArray[np.intp]:
    """Return rows that are far off, shape (k,), rising.

    Parameters
    ----------
    steps, y : ndarray, shape (n,)
        In the order of time, none missing.
    seasons : tuple of float
    scale : Scale
        Of counts roots are compared, whose standard deviation is 1/2 at least, else the numbers
        that the likelihood sees.
    """
    none = np.zeros(0, dtype=np.intp)
    if y.size < _FEWEST:
        return none
    z = np.sqrt(y) if scale.whole else scale.into(y)
    left = z - _medians(z)
    for period in seasons:
        if steps[-1] - steps[0] >= _OUTLIER_TIMES * period:
            phase = np.floor(np.mod(steps, period) + 1e-9)
            for one in np.unique(phase):
                left[phase == one] -= np.median(left[phase == one])
    spread = _MAD * float(np.median(np.abs(left)))
    if scale.whole:
        spread = max(spread, 0.5)
    if not spread > 0.0:
        return none
    found = np.flatnonzero(np.abs(left) > _FAR * spread)
    return found if found.size <= max(1.0, _OUTLIER_SHARE * y.size) else none


def calmed(y: Array, rows: NDArray[np.intp]) -> Array:
    """Return the observations with those of these rows replaced by medians around them."""
    found = np.array(y, dtype=float)
    found[rows] = _medians(found)[rows]
    return found


def price_of(count: int, n: int) -> float:
    """Return the log of how many choices of so many of n rows there were, at most."""
    return count * float(np.log(n))


def _medians(z: Array) -> Array:
    """Medians of each number and its neighbours, fewer at the ends."""
    wide = np.pad(z, _SIDE, constant_values=np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(wide, 2 * _SIDE + 1)
    return np.asarray(np.nanmedian(windows, axis=1))


# --- Noise, cycles and drifting seasons ----------------------------------------------------------

# Residuals correlate if by so many standard errors, of so many pairs.
_LASTS, _PAIRS = 3.0, 20
# A swing is looked for where neighbours show one: periods between this many steps and this share
# of the series, that lose less than so much of their height over a step.
_SHORTEST, _SHARE, _STAYS = 3.0, 1.0 / 3.0, 0.5
# A season drifts if it has at most so many steps, and occurs so often.
_PHASES, _TIMES = 60, 4.0


def noisy(
    asked: Any, best: ChosenStructure, known: ObservedSeries, trends: Sequence[str]
) -> ChosenStructure:
    """Add noise that lasts, if it is asked for or the evidence prefers it.

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
    """Decide whether residuals so many steps apart are correlated by so many standard errors."""
    before = np.searchsorted(steps, steps - lag)
    follows = np.flatnonzero(steps[before] == steps - lag)
    if follows.size < _PAIRS:
        return False
    products = residual[follows] * residual[before[follows]]
    share = float(np.mean(products)) / float(np.mean(residual**2))
    return share > errors / np.sqrt(follows.size)


def cycling(
    options: Any, best: ChosenStructure, known: ObservedSeries, trends: Sequence[str]
) -> ChosenStructure:
    """Add a cycle whose period is not fixed, if it is asked for or the evidence prefers it.

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


def _periods(own: Any, known: ObservedSeries) -> list[float]:
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


def drifting(
    options: Any, best: ChosenStructure, known: ObservedSeries, trends: Sequence[str]
) -> ChosenStructure:
    """Add seasons whose pattern changes from one to the next, as `cycling`.

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


def _drifts(period: float, known: ObservedSeries, times: float) -> bool:
    """Decide whether a season has phases that are whole steps, and occurs so often."""
    whole = period == round(period) and bool((known.steps == np.round(known.steps)).all())
    span = float(known.steps[-1] - known.steps[0]) + 1.0
    return whole and period <= _PHASES and span >= times * period
