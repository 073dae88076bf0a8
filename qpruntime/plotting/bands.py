"""What an estimator predicts at rows, with the ends of an interval: one function for all curves."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.estimators.predictive.links import LINKS, exposures
from qpruntime.likelihoods.rates import CUT
from qpruntime.validation import choice, finite, number, shown

__all__ = ["QUANTITIES", "Band", "band", "drawn", "known_level", "natural", "rate_ends"]

#: What can be drawn, by what an estimator needs for it.
QUANTITIES = {
    "latent": ("latent",),
    "probability": ("predict_proba", "predict_interval"),
    "rate": ("predict_count", "latent"),
    "observation": ("predict_quantiles",),
}
# Halvings of an interval, after which it is as short as double precision has it.
_HALVINGS = 60


class Band(NamedTuple):
    """Predictions and the two ends of their central interval, each of shape (T,)."""

    middle: Array
    low: Array
    high: Array


def known_level(level: object) -> float:
    """Return the probability of an interval, strictly between 0 and 1."""
    found = number(level, "level", above=0.0)
    if found >= 1.0:
        raise InputError(f"level must be below 1, got {found:g}: 0.9 is an interval of 90 %")
    return found


def natural(model: Any) -> str:
    """Return what an estimator is drawn by if nothing is asked for."""
    for quantity in ("probability", "rate", "latent"):
        if all(hasattr(model, need) for need in QUANTITIES[quantity]):
            return quantity
    raise InputError(
        f"{shown(model)} has no intervals to draw: fit GPClassifier, GPPoissonRegressor or "
        "GPRobustRegressor"
    )


def band(model: Any, points: Any, quantity: str, level: float, exposure: Any = None) -> Band:
    """Return one of `QUANTITIES` of a fitted estimator at rows.

    "latent" is the latent function with the interval of a normal of its mean and variance,
    "probability" that of the second class, "rate" the mean rate with quantiles of the rate,
    "observation" the median of an observation with its quantiles.
    """
    choice(quantity, "quantity", QUANTITIES)
    if missing := [need for need in QUANTITIES[quantity] if not hasattr(model, need)]:
        raise InputError(
            f"quantity={quantity!r} needs an estimator with {', '.join(missing)}, got "
            f"{shown(model)}: leave quantity out, or fit another estimator"
        )
    classes = getattr(model, "classes_", ())
    if len(classes) > 2:
        raise InputError(
            f"bands are drawn of two classes, the model has {len(classes)}: fit one class "
            "against the rest, y == label"
        )
    tails = np.array([0.5 - 0.5 * level, 0.5 + 0.5 * level])
    if quantity == "latent":
        mean, variance = model.latent(points)
        reach = ndtri(tails[1]) * np.sqrt(variance)
        return Band(mean, mean - reach, mean + reach)
    if quantity == "probability":
        low, high = model.predict_interval(points, level=level).T
        return Band(model.predict_proba(points)[:, 1], low, high)
    if quantity == "rate":
        scale = 1.0 if exposure is None else exposure
        mean, variance = model.latent(points)
        low, high = scale * rate_ends(mean, variance, model.link_, tails).T
        return Band(model.predict(points, exposure=exposure), low, high)
    given = {} if exposure is None else {"exposure": exposure}
    found = model.predict_quantiles(points, [tails[0], 0.5, tails[1]], **given)
    low, middle, high = np.asarray(found, dtype=float).T
    return Band(middle, low, high)


def drawn(model: Any, y: ArrayLike, exposure: ArrayLike | None) -> Array:
    """Return observations as they are drawn: 0 and 1 of two classes, counts by their exposures."""
    if exposure is not None and not hasattr(model, "predict_count"):
        raise InputError(f"exposure is for counts, and {shown(model)} is no model of counts")
    if (labels := getattr(model, "classes_", None)) is not None:
        return (np.asarray(y) == labels[-1]).astype(float)
    found = finite(y, "y")
    return found if exposure is None else found / exposures(exposure, len(found))


def rate_ends(mean: Array, variance: Array, link: str, q: Array) -> Array:
    """Return quantiles of the rate, shape (T, len(q)), for normal f of this mean and variance."""
    rate = LINKS[link].distribution(mean, variance)
    least, most = rate.roots(np.full(mean.size, CUT), np.full(mean.size, CUT))
    low = np.repeat(least[:, None], q.size, axis=1)
    high = np.repeat(most[:, None], q.size, axis=1)
    for _ in range(_HALVINGS):
        root = 0.5 * (low + high)
        short = rate.tail(root**2, False) < q
        low, high = np.where(short, root, low), np.where(short, high, root)
    return (0.5 * (low + high)) ** 2
