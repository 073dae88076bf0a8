"""Search of a response family: overdispersion, extra zeros, heavy tails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import minimize, minimize_scalar
from scipy.special import gammaln

from qpruntime._typing import Array
from qpruntime.forecasting.families import ROUNDED, scale_of
from qpruntime.forecasting.trial import (
    SURE,
    ChosenStructure,
    ObservedSeries,
    best_of,
    evidence,
    fitted,
    preferred,
    residuals,
)

if TYPE_CHECKING:
    from qpruntime.forecasting.forecaster import GPForecaster

__all__ = [
    "best_of_large_counts",
    "has_large_counts",
    "heavy",
    "rounded",
    "varied",
    "zeros_gain",
]


# Residuals vary more than they may by so many standard errors.
_MORE = 3.0
# A residual of so many standard deviations is one of a wider family.
_FAR = 5.0
# Fourth moment of residuals above which heavy tails are tried; that of a normal is 3.
_HEAVY = 4.0
# Counts of so much at least may be numbers that were rounded, if their residuals have a mean square
# below this. That of Poisson's is 1, less a coefficient for every few rows.
_LARGE, _LESS = 20.0, 0.7
# Median from which counts are always compared with real numbers.
_THOUSAND = 1000.0
# Families of real numbers that they are compared with.
_REAL = ("gaussian", "log-normal")
# Log evidence by which a Poisson level is too far behind for its other trends to matter. Slopes
# changed that of six series by 12 at most, and real numbers were 62 to 2500 ahead.
_BEHIND = 50.0
# Log likelihood that zeros of their own gain over a small dispersion, which makes them worth a fit:
# of 180 simulated series without any 8 had more, of 120 with half of the counts made zeros all.
_ZEROS = 2.0


def varies(residual: Array) -> bool:
    """Decide whether squares of residuals exceed 1 by their standard error, or one is far off."""
    square = residual**2
    above = float(square.mean()) - 1.0 > _MORE * float(square.std()) / np.sqrt(square.size)
    return above or float(square.max()) > _FAR**2


def varied(options: GPForecaster, best: ChosenStructure, known: ObservedSeries) -> ChosenStructure:
    """Return a negative binomial fit for overdispersed counts, with excess zeros if needed.

    A Poisson family takes peaks of single counts for autoregressive noise, and a negative binomial
    one takes zeros for a small dispersion. The evidence decides between them.
    """
    structure, tried = best.structure, [best]
    lasting = [structure.noise]
    if structure.noise and isinstance(options.noise, str):
        lasting.append(False)
    elif not varies(residuals(best, known)):
        return best
    for noise in lasting:
        wide = replace(structure, family="negative-binomial", noise=noise)
        tried.append(fitted(wide, known))
    widest = max(tried, key=lambda fit: evidence(fit, known))
    y = known.y[~np.isin(known.steps, structure.outliers)]
    if y.all() or not y.any() or not _positive(known) or zeros_gain(y) < _ZEROS:
        return widest
    wider = [
        fitted(replace(widest.structure, family=name), known)
        for name in ("zero-inflated", "hurdle")
    ]
    more = max(wider, key=lambda fit: evidence(fit, known))
    return more if evidence(more, known) > evidence(widest, known) + SURE else widest


def _positive(known: ObservedSeries) -> bool:
    return known.exposure is None or bool((known.exposure > 0.0).all())


def rounded(best: ChosenStructure, known: ObservedSeries, trends: Sequence[str]) -> ChosenStructure:
    """Return a fit with a family of real numbers if counts do not vary as events do.

    Thousands of litres or of dollars are whole numbers too. The density of a real number is the
    probability of the whole number next to it, if that is not small; small ones are rounded real
    numbers.
    """
    y = known.y
    if known.exposure is not None:
        return best
    small = y.min() < _LARGE
    if float(np.mean(residuals(best, known) ** 2)) > _LESS:
        return best
    more = _best_family(best, known, trends, *((ROUNDED,) if small else _REAL))
    return more if preferred(more, known) > preferred(best, known) + SURE else best


def has_large_counts(known: ObservedSeries) -> bool:
    """Decide whether counts are so large that real numbers are always compared with them."""
    return known.exposure is None and bool(
        known.y.min() >= _LARGE and np.median(known.y) >= _THOUSAND
    )


def best_of_large_counts(
    level: ChosenStructure, known: ObservedSeries, trends: Sequence[str]
) -> ChosenStructure:
    """Return the best fit of large counts: with real numbers, or with Poisson counts.

    Counts of a thousand and more hardly ever vary as little as Poisson's, so that the negative
    binomial family is what real numbers have to beat. If they do, and a Poisson level is far
    behind, its other trends are not fitted.
    """

    def value(fit: ChosenStructure) -> float:
        return preferred(fit, known)

    real = _best_family(level, known, trends, *_REAL)
    wide = _best_family(level, known, trends, "negative-binomial")
    if value(real) > max(value(wide), value(level) + _BEHIND):
        return real
    others = [fitted(replace(level.structure, trend=trend), known) for trend in trends[1:]]
    best = max([level, *others], key=value)
    return real if value(real) > max(value(wide), value(best)) else best


def _best_family(
    best: ChosenStructure, known: ObservedSeries, trends: Sequence[str], *names: str
) -> ChosenStructure:
    """Return the best fit of these families with these trends."""
    return best_of(
        [
            replace(best.structure, family=name, scale=scale_of(name, known.y), trend=trend)
            for name in names
            for trend in trends
        ],
        known,
    )


def heavy(best: ChosenStructure, known: ObservedSeries) -> ChosenStructure:
    """Return a fit with Student's t if residuals have heavy tails and the evidence prefers it."""
    residual = residuals(best, known)
    spread = float(np.mean(residual**2))
    scale = best.structure.scale
    if scale.log or scale.rounded or best.structure.noise or not spread > 0.0:
        return best
    if float(np.mean(residual**4)) < _HEAVY * spread**2:
        return best
    more = fitted(replace(best.structure, family="student-t"), known)
    gains = more.model.converged_ and evidence(more, known) > evidence(best, known) + SURE
    return more if gains else best


#: Logarithms of dispersions, and of means over that of the positive counts.
_DISPERSION, _MEAN = (-5.0, 8.0), (-5.0, 1.0)


def zeros_gain(y: Array) -> float:
    """Return how much a separate probability of 0 adds to the log likelihood.

    Both likelihoods are maximised with one negative binomial rate for all times. The gain is the
    log likelihood with a hurdle at 0 less the one without.

    Parameters
    ----------
    y : ndarray, shape (n,)
        Counts, some of them 0 and some not.
    """
    values, times = np.unique(y, return_counts=True)
    positive, counts = values[1:], times[1:]
    n, m = float(times.sum()), float(counts.sum())

    def log_mass(log_r: float, log_mean: float, at: Array) -> Array:
        r, log_top = np.exp(log_r), np.logaddexp(log_r, log_mean)
        ways = gammaln(at + r) - gammaln(r) - gammaln(at + 1.0)
        return np.asarray(ways + r * (log_r - log_top) + at * (log_mean - log_top))

    def lost(log_r: float) -> float:
        return -float(times @ log_mass(log_r, float(np.log(times @ values / n)), values))

    def lost_beyond(at: Array) -> float:
        none = log_mass(at[0], at[1], np.zeros(1))[0]
        log_positive = np.log(max(-np.expm1(none), 1e-300))
        return float(m * log_positive - counts @ log_mass(at[0], at[1], positive))

    loss_without_hurdle = minimize_scalar(lost, bounds=_DISPERSION, method="bounded").fun
    top = np.log(counts @ positive / m)
    ends = [_DISPERSION, (top + _MEAN[0], top + _MEAN[1])]
    loss_with_hurdle = min(
        minimize(lost_beyond, [start, top - 0.1], method="L-BFGS-B", bounds=ends).fun
        for start in (0.0, 4.0)
    )
    gain = m * np.log(m / n) + (n - m) * np.log1p(-m / n)
    return float(loss_without_hurdle - loss_with_hurdle + gain)
