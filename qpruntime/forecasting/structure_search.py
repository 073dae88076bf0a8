"""What a series asks for: seasons, a trend, what lasts beside them, a family of observations."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qpruntime.arrays import Array
from qpruntime.errors import ConvergenceWarning, InputError, warn
from qpruntime.forecasting.families import is_whole, likelihood_of, scale_of
from qpruntime.forecasting.lasting import cycling, drifting, noisy
from qpruntime.forecasting.outliers import calmed, far_off, price_of
from qpruntime.forecasting.seasons import find_seasons
from qpruntime.forecasting.structure import Structure
from qpruntime.forecasting.tried import MANY, SURE, Chosen, Known, best_of, evidence, fitted
from qpruntime.forecasting.widening import heavy, rounded, varied
from qpruntime.likelihoods import Likelihood
from qpruntime.likelihoods.observations import LARGEST_COUNT
from qpruntime.validation import choice, flag, number

__all__ = ["choose", "regressors_of", "seasonal"]


def choose(options: Any, known: Known) -> Chosen:
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


def _chosen(options: Any, known: Known) -> Chosen:
    """The best of what was tried."""
    choice(options.trend, "trend", ("auto", "level", "line", "slope", "none"))
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


def _outliers(options: Any, known: Known, best: Structure) -> NDArray[np.intp]:
    """Rows that may have an effect of their own."""
    if not options.outliers:
        return np.zeros(0, dtype=np.intp)
    return far_off(known.steps, known.y, best.seasons, best.scale)


def _searched(
    options: Any, known: Known, counts: bool, rows: NDArray[np.intp] | None = None
) -> Chosen:
    """The best of what was tried at the mode, with effects for some of the rows."""
    y, family = known.y, options.family
    seen = y if rows is None else calmed(y, rows)
    seasons = _seasons(options.seasons, replace(known, y=seen), counts)
    first = Structure(seasons, regressors_of(known), "level", False, "poisson", scale_of("", y))
    if rows is not None:
        first = replace(first, outliers=tuple(known.steps[rows].tolist()))
    if family != "auto":
        tried = [family]
    elif counts:
        tried = ["poisson"]
    else:
        tried = ["gaussian", "log-normal"] if (y > 0.0).all() else ["gaussian"]
    trends: tuple[str, ...] = (options.trend,)
    if options.trend == "auto":
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
    return drifting(options, best, known, trends)


def _nothing(options: Any, known: Known, integrate: Any) -> Chosen:
    """Fit to counts that are all 0: a level, and no more."""
    family = "poisson" if options.family == "auto" else options.family
    own = Structure((), regressors_of(known), "none", False, family, scale_of(family, known.y))
    return fitted(replace(own, empty=True), known, integrate)


def regressors_of(known: Known) -> tuple[str, ...]:
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


def _seasons(asked: Any, known: Known, counts: bool) -> tuple[float, ...]:
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
