"""Search of a series' structure by the evidence."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from qpruntime._typing import Array
from qpruntime._validation import choice, flag, number
from qpruntime.effects.families import MAD_SCALE
from qpruntime.effects.integration import Integration
from qpruntime.errors import ConvergenceWarning, InputError, warn
from qpruntime.forecasting.families import Scale, is_whole, likelihood_of, scale_of
from qpruntime.forecasting.family_search import (
    best_of_large_counts,
    has_large_counts,
    heavy,
    rounded,
    varied,
)
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

if TYPE_CHECKING:
    from qpruntime.forecasting.forecaster import GPForecaster

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

#: Values of ``trend=``.
TRENDS = ("auto", "average", "level", "line", "slope", "damped", "none")

# --- Trend, seasons and family -------------------------------------------------------------------


def choose(options: GPForecaster, known: ObservedSeries) -> ChosenStructure:
    """Choose what the options of a forecaster leave open, and fit.

    Only the chosen fit warns if it has not converged.

    Parameters
    ----------
    options : GPForecaster
    known : ObservedSeries

    Raises
    ------
    InputError
        If observations, regressors or options are not usable.
    """
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        best = _chosen(options, known)
    if not best.model.converged_:
        warn("the fit has not settled: see model_.check()", ConvergenceWarning)
    return best


def _chosen(options: GPForecaster, known: ObservedSeries) -> ChosenStructure:
    """Return the best of the structures tried."""
    choice(options.trend, "trend", TRENDS)
    for name in ("cycle", "drift", "outliers"):
        option = getattr(options, name)
        if isinstance(option, str):
            choice(option, name, ("auto",))
        elif name == "cycle" and not isinstance(option, bool | np.bool_):
            number(option, name, above=2.0)
        else:
            flag(option, name)
    steps, y = known.steps, known.y
    family = options.family
    if not isinstance(family, str | Likelihood):
        raise InputError(f'family must be "auto", a name or a likelihood, got {family!r}')
    counts = is_whole(family, y) and not (family == "auto" and y.max() > LARGEST_COUNT)
    if family != "auto":
        likelihood_of(family)
    integrate = options.integrate
    if integrate == "auto" and steps.size >= MANY:
        integrate = "mode"
    if counts and not y.any():
        return _nothing(options, known, integrate)
    best = _searched(options, known, counts)
    rows = _outliers(options, known, best.structure)
    if rows.size:
        with_outliers = _searched(options, known, counts, rows)
        least = evidence(best, known) + SURE + price_of(rows.size, y.size)
        best = with_outliers if evidence(with_outliers, known) > least else best
    # An exact fit at the mode serves unless the options ask for an integral.
    if best.rough or integrate != "mode":
        best = fitted(best.structure, known, integrate)
    return best


def _outliers(options: GPForecaster, known: ObservedSeries, best: Structure) -> NDArray[np.intp]:
    """Return the rows that may have an outlier effect."""
    if not options.outliers:
        return np.zeros(0, dtype=np.intp)
    return far_off(known.clock.wall_steps(known.steps), known.y, best.seasons, best.scale)


def _searched(
    options: GPForecaster,
    known: ObservedSeries,
    counts: bool,
    rows: NDArray[np.intp] | None = None,
) -> ChosenStructure:
    """Return the best structure at the mode, with outlier effects for these rows."""
    y, family = known.y, options.family
    usual = y if rows is None else calmed(y, rows)
    seasons = _seasons(options.seasons, replace(known, y=usual), counts)
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
    large = family == "auto" and counts and has_large_counts(known)
    best = best_of(
        [
            replace(first, family=name, scale=scale_of(name, y), trend=trend)
            for name in tried
            for trend in (trends[:1] if large else trends)
        ],
        known,
    )
    if family == "auto" and counts:
        best = (best_of_large_counts if large else rounded)(best, known, trends)
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
    more = fitted(replace(best.structure, trend="damped"), known)
    return more if preferred(more, known) > preferred(best, known) else best


def _nothing(
    options: GPForecaster, known: ObservedSeries, integrate: Integration
) -> ChosenStructure:
    """Fit a level only, to counts that are all 0."""
    family = "poisson" if options.family == "auto" else options.family
    structure = Structure(
        (), regressors_of(known), "none", False, family, scale_of(family, known.y)
    )
    return fitted(replace(structure, empty=True), known, integrate)


def regressors_of(known: ObservedSeries) -> tuple[str, ...]:
    """Return names of the columns that vary; the others get no coefficient."""
    if known.X is None:
        return ()
    used: list[str] = []
    constant: list[str] = []
    for name, column in known.X.items():
        values = np.asarray(column)
        differs = values.size > 1 and bool((values[1:] != values[:-1]).any())
        (used if differs else constant).append(str(name))
    if constant:
        warn(
            f"regressor {', '.join(map(repr, constant))} has one value at all times of the fit: "
            "nothing is known of its effect, and it is left out",
            UserWarning,
        )
    return tuple(used)


def _seasons(
    option: str | Sequence[float], known: ObservedSeries, counts: bool
) -> tuple[float, ...]:
    """Return periods in steps."""
    steps = known.steps
    if isinstance(option, str):
        choice(option, "seasons", ("auto",))
        return find_seasons(steps, seasonal(known.y, counts), known.clock.calendar())
    periods = tuple(sorted(number(p, "seasons", above=2.0) for p in option))
    span = float(steps[-1] - steps[0])
    for p in periods:
        if p > span:
            raise InputError(
                f"season {p:g} is longer than the series, {span:g} steps: leave it out"
            )
    return periods


def seasonal(y: Array, counts: bool | None = None) -> Array:
    """Return counts, or squares of other numbers: seasons are sought in their square roots."""
    if counts is None:
        counts = is_whole("auto", y)
    return y if counts else (y - y.min()) ** 2


# --- Outliers, found before any fit --------------------------------------------------------------

#: Number of neighbours on either side whose median an observation is compared with, and number of
#: repetitions that a season needs before its phases are subtracted.
_SIDE, _OUTLIER_TIMES = 5, 4.0
#: Distance of an outlier in robust standard deviations, and the largest share of outliers. More of
#: them are no mistakes but a property of the family.
_FAR, _OUTLIER_SHARE = 8.0, 0.01
# Shorter series have no outliers, because their medians have too few neighbours.
_FEWEST = 20


def far_off(steps: Array, y: Array, seasons: tuple[float, ...], scale: Scale) -> NDArray[np.intp]:
    """Return rows of outliers, shape (k,), in increasing order.

    Parameters
    ----------
    steps, y : ndarray, shape (n,)
        In the order of time, none missing.
    seasons : tuple of float
    scale : Scale
        Counts are compared by their roots, whose standard deviation is at least 1/2; other
        observations by the numbers that the likelihood sees.
    """
    none = np.zeros(0, dtype=np.intp)
    if y.size < _FEWEST:
        return none
    z = np.sqrt(y) if scale.whole else scale.into(y)
    remainder = z - _medians(z)
    for period in seasons:
        if steps[-1] - steps[0] >= _OUTLIER_TIMES * period:
            phase = np.floor(np.mod(steps, period) + 1e-9)
            for value in np.unique(phase):
                remainder[phase == value] -= np.median(remainder[phase == value])
    spread = MAD_SCALE * float(np.median(np.abs(remainder)))
    if scale.whole:
        spread = max(spread, 0.5)
    if not spread > 0.0:
        return none
    outlying = np.flatnonzero(np.abs(remainder) > _FAR * spread)
    return outlying if outlying.size <= max(1.0, _OUTLIER_SHARE * y.size) else none


def calmed(y: Array, rows: NDArray[np.intp]) -> Array:
    """Return the observations with these rows replaced by medians of their neighbours."""
    replaced = np.array(y, dtype=float)
    replaced[rows] = _medians(replaced)[rows]
    return replaced


def price_of(count: int, n: int) -> float:
    """Return an upper bound on the log number of ways to choose `count` of n rows."""
    return count * float(np.log(n))


def _medians(z: Array) -> Array:
    """Return the median of each number and its neighbours, fewer at the ends."""
    wide = np.pad(z, _SIDE, constant_values=np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(wide, 2 * _SIDE + 1)
    return np.asarray(np.nanmedian(windows, axis=1))


# --- Noise, cycles and drifting seasons ----------------------------------------------------------

# Residuals are autocorrelated beyond this many standard errors, from this many pairs on.
_LASTS, _PAIRS = 3.0, 20
# A cycle is sought if neighbouring values show one: its period is between this many steps and this
# share of the series, and it keeps more than this share of its height over a step.
_SHORTEST, _SHARE, _STAYS = 3.0, 1.0 / 3.0, 0.5
# A season may drift if it has at most this many steps and at least this many repetitions.
_PHASES, _TIMES = 60, 4.0


def noisy(
    option: str | bool, best: ChosenStructure, known: ObservedSeries, trends: Sequence[str]
) -> ChosenStructure:
    """Add noise that lasts, if it is asked for or the evidence prefers it.

    A trend that drifts fast takes up what lasts a few steps, and then goes astray: residuals do not
    show it, and with noise another trend may be the better one. Long series are spared the fits
    where residuals of neighbours are not correlated.
    """
    if not isinstance(option, str):
        wanted = flag(option, "noise")
        return best_of([replace(best.structure, noise=True)], known) if wanted else best
    choice(option, "noise", ("auto",))
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
    # Residuals may all be 0, so that their correlation is not defined.
    return bool(np.mean(products) > errors / np.sqrt(follows.size) * np.mean(residual**2))


def cycling(
    options: GPForecaster, best: ChosenStructure, known: ObservedSeries, trends: Sequence[str]
) -> ChosenStructure:
    """Add a cycle whose period is not fixed, if it is asked for or the evidence prefers it.

    It stands for periods that were found in the values: those of the calendar do not wander.
    """
    option = options.cycle
    structure = best.structure
    if not isinstance(option, str):
        if isinstance(option, bool | np.bool_):
            if not option:
                return best
            periods = _periods(structure, known)
            if not periods:
                raise InputError("cycle=True, and the values show none: say its period in steps")
        else:
            periods = [float(option)]
        return best_of([replace(structure, cycle=p) for p in periods], known)
    free = isinstance(options.seasons, str) and not known.clock.calendar()
    # A swing is noise that lasts, too; where there is none the fits are spared.
    if not free or not structure.noise or known.y.size >= MANY:
        return best
    lasting = [False, True] if isinstance(options.noise, str) else [True]
    structures = [
        replace(structure, seasons=(), cycle=p, noise=noise)
        for p in _periods(structure, known)
        for noise in lasting
    ]
    if not structures:
        return best
    more = best_of(structures, known)
    if preferred(more, known) <= preferred(best, known) + ASTRAY:
        return best
    others = [replace(more.structure, trend=trend) for trend in trends if trend != structure.trend]
    candidates = [more, best_of(others, known)] if others else [more]
    return max(candidates, key=lambda fit: preferred(fit, known))


def _periods(structure: Structure, known: ObservedSeries) -> list[float]:
    """Return starting periods of a cycle: one from autocorrelation, and the longest season."""
    steps, y = known.steps, known.y
    z = np.log1p(y) if structure.scale.whole else structure.scale.into(y)
    z = z - np.polyval(np.polyfit(steps, z, 1), steps)
    after = np.flatnonzero((np.diff(steps)[1:] == 1.0) & (np.diff(steps)[:-1] == 1.0)) + 2
    periods = []
    if after.size >= _PAIRS:
        design = np.column_stack([z[after - 1], z[after - 2]])
        first, second = np.linalg.lstsq(design, z[after], rcond=None)[0]
        stays = np.sqrt(max(-second, 0.0))
        if stays > _STAYS and abs(first) < 2.0 * stays:
            periods.append(float(2.0 * np.pi / np.arccos(0.5 * first / stays)))
    most = _SHARE * float(steps[-1] - steps[0])
    periods += [p for p in structure.seasons[-1:] if all(abs(np.log(p / q)) > 0.2 for q in periods)]
    return [p for p in periods if _SHORTEST <= p <= most]


def drifting(
    options: GPForecaster, best: ChosenStructure, known: ObservedSeries, trends: Sequence[str]
) -> ChosenStructure:
    """Add seasons whose pattern changes from one to the next, as `cycling`.

    Noise and trend are chosen again with them, because they fit some of the change otherwise.
    """
    option, structure = options.drift, best.structure
    if not isinstance(option, str):
        fits = tuple(p for p in structure.seasons if _drifts(p, known, 1.0))
        return best_of([replace(structure, drifting=fits)], known) if option and fits else best
    able = [p for p in structure.seasons if _drifts(p, known, _TIMES)]
    if able:
        # A pattern that has changed leaves residuals that are alike a season apart.
        residual, errors = residuals(best, known), _LASTS if known.y.size >= MANY else 0.0
        able = [p for p in able if _lasts(residual, known.steps, p, errors)]
    if not able:
        return best
    patterns = [fitted(replace(structure, drifting=(p,)), known) for p in able]
    more = max(patterns, key=lambda fit: preferred(fit, known))
    if preferred(more, known) <= preferred(best, known) + SURE:
        return best
    if known.y.size >= MANY:
        return more
    variants = [more]
    if isinstance(options.noise, str):
        variants.append(fitted(replace(more.structure, noise=not more.structure.noise), known))
    variant = max(variants, key=lambda fit: preferred(fit, known))
    others = [replace(variant.structure, trend=t) for t in trends if t != more.structure.trend]
    variants += [fitted(structure, known) for structure in others]
    variant = max(variants, key=lambda fit: preferred(fit, known))
    return variant if preferred(variant, known) > preferred(more, known) + GAIN else more


def _drifts(period: float, known: ObservedSeries, times: float) -> bool:
    """Decide whether a season has phases that are whole steps, and occurs so often."""
    whole = period == round(period) and bool((known.steps == np.round(known.steps)).all())
    span = float(known.steps[-1] - known.steps[0]) + 1.0
    return whole and period <= _PHASES and span >= times * period
