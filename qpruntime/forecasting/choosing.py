"""What a series asks for: seasons, a trend, noise that lasts, a family of observations."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.effects import EffectsModel
from qpruntime.errors import ConvergenceWarning, InputError, warn
from qpruntime.forecasting.clock import Clock
from qpruntime.forecasting.families import is_whole, likelihood_of, scale_of
from qpruntime.forecasting.seasons import find_seasons
from qpruntime.forecasting.structure import Structure, ahead_of
from qpruntime.likelihoods import Likelihood
from qpruntime.likelihoods.observations import LARGEST_COUNT
from qpruntime.validation import choice, flag, number

__all__ = ["Chosen", "Known", "choose", "fitted", "regressors_of", "seasonal"]

#: Noise lasts if residuals of neighbours correlate by so many standard errors.
_LASTS = 3.0
#: From so many observations on hyper-parameters are well known: their mode is taken.
_MANY = 2000
# Log evidence that an additional part has to gain.
_GAIN = 1.0
# Slopes that drift go astray ahead: their evidence has to be so much above that of levels. Of
# series whose slope lasts it is 8 to 11, of one that a recession bends 4.
_ASTRAY = 6.0
# A residual of so many standard deviations is one of a wider family.
_FAR = 5.0
# And that heavy tails have to gain, which leave EP more to do.
_SURE = 3.0
# Fourth moment of residuals above which heavy tails are tried; that of a normal is 3.
_HEAVY = 4.0


@dataclass(frozen=True, eq=False)
class Known:
    """Observations that are not missing, in the order of time, with what belongs to them.

    Attributes
    ----------
    clock : Clock
    steps, y : ndarray, shape (n,)
    X : mapping of columns, or None
    exposure : ndarray, shape (n,), or None
    """

    clock: Clock
    steps: Array
    y: Array
    X: Any
    exposure: Array | None


@dataclass(frozen=True, eq=False)
class Chosen:
    """A structure with the model of it, fitted."""

    structure: Structure
    model: EffectsModel


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
    choice(options.trend, "trend", ("auto", "level", "slope", "none"))
    steps, y = known.steps, known.y
    family: Any = options.family
    if not isinstance(family, str | Likelihood):
        raise InputError(f'family must be "auto", a name or a likelihood, got {family!r}')
    counts = is_whole(family, y) and not (family == "auto" and y.max() > LARGEST_COUNT)
    if family != "auto":
        likelihood_of(family)
    seasons = _seasons(options.seasons, known, counts)
    integrate = options.integrate
    if integrate == "auto":
        integrate = "mode" if steps.size >= _MANY else "auto"
    if counts and not y.any():
        return _nothing(options, known, integrate)
    first = Structure(seasons, regressors_of(known), "level", False, "poisson", scale_of("", y))
    if family != "auto":
        tried = [family]
    elif counts:
        tried = ["poisson"]
    else:
        tried = ["gaussian", "log-normal"] if (y > 0.0).all() else ["gaussian"]
    trends = ("level", "slope") if options.trend == "auto" else (options.trend,)
    found = [
        fitted(replace(first, family=name, scale=scale_of(name, y), trend=one), known, "mode")
        for name in tried
        for one in trends
    ]
    best = max(found, key=lambda one: _preferred(one, known))
    # What a fit at the mode can serve as, if nothing else is asked for.
    best = _noisy(options.noise, best, known, trends)
    if family == "auto":
        best = _varied(options, best, known) if counts else _heavy(best, known)
    if integrate != "mode":
        best = fitted(best.structure, known, integrate)
    return best


def _nothing(options: Any, known: Known, integrate: Any) -> Chosen:
    """Fit to counts that are all 0: a level, and no more."""
    family = "poisson" if options.family == "auto" else options.family
    own = Structure((), regressors_of(known), "none", False, family, scale_of(family, known.y))
    return fitted(replace(own, empty=True), known, integrate)


def fitted(structure: Structure, known: Known, integrate: Any) -> Chosen:
    """Fit one structure."""
    data = structure.columns(known.steps, known.X, known.exposure)
    model = structure.model(data, integrate)
    return Chosen(structure, model.fit(data, structure.scale.into(known.y)))


def evidence(one: Chosen, known: Known) -> float:
    """Log evidence of the observations in their own units."""
    slopes = one.structure.scale.log_slope(known.y)
    return float(one.model.log_evidence_) + float(slopes.sum())


def _preferred(one: Chosen, known: Known) -> float:
    """Log evidence, of slopes less what they have to gain."""
    return evidence(one, known) - _ASTRAY * (one.structure.trend == "slope")


def residuals(one: Chosen, known: Known) -> Array:
    """Observed less expected, in standard deviations, shape (n,)."""
    data = one.structure.columns(known.steps, known.X, known.exposure)
    return ahead_of(one.model, data, one.structure.scale).residuals(known.y)


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


def _noisy(asked: Any, best: Chosen, known: Known, trends: Sequence[str]) -> Chosen:
    """With noise that lasts, if it is asked for or the evidence prefers it.

    A trend that drifts fast takes up what lasts a few steps, and then goes astray: residuals do not
    show it, and with noise another trend may be the better one. Long series are spared the fits
    where residuals of neighbours are not correlated.
    """
    if not isinstance(asked, str):
        wanted = flag(asked, "noise")
        return fitted(replace(best.structure, noise=True), known, "mode") if wanted else best
    choice(asked, "noise", ("auto",))
    y = known.y
    if (y == y[0]).all() or (y.size >= _MANY and not _lasts(residuals(best, known), known.steps)):
        return best
    tried = trends if y.size < _MANY else [best.structure.trend]
    each = [fitted(replace(best.structure, noise=True, trend=t), known, "mode") for t in tried]
    more = max(each, key=lambda one: _preferred(one, known))
    return more if _preferred(more, known) > _preferred(best, known) + _GAIN else best


def _lasts(residual: Array, steps: Array) -> bool:
    """Whether residuals of neighbouring steps are correlated."""
    follows = np.flatnonzero(np.diff(steps) == 1.0) + 1
    if follows.size < 20:
        return False
    share = float(np.mean(residual[follows] * residual[follows - 1])) / float(np.mean(residual**2))
    return share > _LASTS / np.sqrt(follows.size)


def _varies(residual: Array) -> bool:
    """Whether squares of residuals are above 1, by their own standard error, or one is far off."""
    square = residual**2
    above = float(square.mean()) - 1.0 > _LASTS * float(square.std()) / np.sqrt(square.size)
    return above or float(square.max()) > _FAR**2


def _varied(options: Any, best: Chosen, known: Known) -> Chosen:
    """Negative binomial if counts vary more than Poisson's; with more zeros if there are more.

    Peaks of single counts look like noise that lasts under a Poisson family: the evidence decides.
    """
    structure, tried = best.structure, [best]
    lasting = [structure.noise]
    if structure.noise and isinstance(options.noise, str):
        lasting.append(False)
    elif not _varies(residuals(best, known)):
        return best
    for one in lasting:
        tried.append(
            fitted(replace(structure, family="negative-binomial", noise=one), known, "mode")
        )
    found = max(tried, key=lambda one: evidence(one, known))
    if found.structure.family == "poisson":
        return found
    zero = known.y == 0.0
    if not zero.any() or zero.all():
        return found
    data = found.structure.columns(known.steps, known.X, known.exposure)
    expected = np.exp(
        ahead_of(found.model, data, found.structure.scale).log_density(np.zeros(known.y.size))
    )
    spread = np.sqrt(max(float((expected * (1.0 - expected)).sum()), 1e-12))
    if float(zero.sum() - expected.sum()) < 2.0 * spread or not _positive(known):
        return found
    wider = [
        fitted(replace(found.structure, family=name), known, "mode")
        for name in ("zero-inflated", "hurdle")
    ]
    more = max(wider, key=lambda one: evidence(one, known))
    return more if evidence(more, known) > evidence(found, known) + _GAIN else found


def _positive(known: Known) -> bool:
    return known.exposure is None or bool((known.exposure > 0.0).all())


def _heavy(best: Chosen, known: Known) -> Chosen:
    """Student's t if residuals have heavy tails and the evidence says so."""
    residual = residuals(best, known)
    spread = float(np.mean(residual**2))
    if best.structure.scale.log or best.structure.noise or not spread > 0.0:
        return best
    if float(np.mean(residual**4)) < _HEAVY * spread**2:
        return best
    more = fitted(replace(best.structure, family="student-t"), known, "mode")
    gains = more.model.converged_ and evidence(more, known) > evidence(best, known) + _SURE
    return more if gains else best
