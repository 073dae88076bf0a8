"""Predictions of other estimators as latent values: of classes, of rates, of numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logit, ndtri

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.likelihoods.rates import RateLink

__all__ = ["OfClasses", "OfNumbers", "OfRates"]

# Probabilities are taken to be so far from 0 and 1 at least: leaves of trees say 0.
_SURE = 1e-5


@dataclass(frozen=True)
class OfClasses:
    """Scores on the scale of the latent function.

    Probabilities become the quantiles that the link makes them of; decision functions stay.
    Two classes have one process, more one each. Labels are 0 to K - 1.
    """

    count: int
    logistic: bool

    def __call__(self, model: Any, X: Array) -> Array:
        columns = range(self.count) if self.count > 2 else (1,)
        if hasattr(model, "predict_proba"):
            found, fill = np.asarray(model.predict_proba(X), float), 0.0
        elif hasattr(model, "decision_function"):
            found, fill = np.asarray(model.decision_function(X), float), -1.0
            if found.ndim == 1:
                found = np.column_stack([-found, found])
        else:
            raise InputError(
                f"prior_mean={type(model).__name__} must have predict_proba or decision_function"
            )
        every = np.full((len(X), self.count), fill)
        every[:, np.asarray(model.classes_, dtype=np.intp)] = found
        scores = every[:, list(columns)]
        if not hasattr(model, "predict_proba"):
            return scores
        shares = np.clip(scores, _SURE, 1.0 - _SURE)
        latent: Array = logit(shares) if self.logistic else ndtri(shares)
        return latent


@dataclass(frozen=True)
class OfRates:
    """Latent values of predicted rates, which are `least` at the least."""

    link: RateLink
    least: float

    def __call__(self, model: Any, X: Array) -> Array:
        rates = np.maximum(_predicted(model, X), self.least)
        values: NDArray[Any] = np.array([self.link.latent(float(rate)) for rate in rates])
        return values[:, None]


@dataclass(frozen=True)
class OfNumbers:
    """Predicted numbers, in the units of the latent function."""

    centre: float
    unit: float

    def __call__(self, model: Any, X: Array) -> Array:
        return ((_predicted(model, X) - self.centre) / self.unit)[:, None]


def _predicted(model: Any, X: Array) -> Array:
    found = np.asarray(model.predict(X), float)
    if found.shape != (len(X),):
        raise InputError(
            f"prior_mean={type(model).__name__} predicts an array of shape {found.shape} for "
            f"{len(X)} rows, not one number a row"
        )
    return found
