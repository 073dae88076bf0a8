"""Calibration by simulation: fit data drawn from a model, and rank what they were drawn from."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri
from sklearn.base import clone

from qpruntime.arrays import Array
from qpruntime.criticism.draws import Drawn
from qpruntime.criticism.leave_one_out import one_number, processes_of
from qpruntime.errors import ConvergenceWarning, InputError
from qpruntime.estimators.classifier import GPClassifier
from qpruntime.learning.settings import generator
from qpruntime.validation import flag, whole

__all__ = ["Calibration", "check_calibration"]

#: Rows of a simulation at most, and those whose ranks are kept.
_ROWS, _KEPT = 300, 30
_LEVEL = 0.9


@dataclass(frozen=True, eq=False, repr=False)
class Calibration:
    """Ranks of drawn latent values in the posteriors of the data drawn with them.

    Attributes
    ----------
    ranks : ndarray, shape (n, T)
        P(f <= f_drawn | y) at T rows of n simulations: uniform, if posteriors are right on average.
    bias, bias_se : float
        Mean of (f_drawn - mean)/std, and its standard error over simulations: right is 0.
    spread, spread_se : float
        Root mean square of the same: right is 1, above it posteriors are too narrow.
    coverage, coverage_se : float
        Share of drawn values inside central intervals of 90 %.
    learnt : bool
        Whether hyper-parameters were learnt anew from each simulation.
    """

    ranks: Array
    bias: float
    bias_se: float
    spread: float
    spread_se: float
    coverage: float
    coverage_se: float
    learnt: bool

    @property
    def words(self) -> tuple[str, ...]:
        """What is further from right than three standard errors, in sentences; none if nothing."""
        said = []
        if abs(self.bias) > 3.0 * self.bias_se:
            way = "below" if self.bias > 0.0 else "above"
            said.append(f"posterior means are {way} what was drawn, by {abs(self.bias):.2f} std")
        if abs(self.spread - 1.0) > 3.0 * self.spread_se:
            way = "narrow" if self.spread > 1.0 else "wide"
            said.append(
                f"posteriors are too {way}: errors are {self.spread:.2f} standard deviations, and "
                f"intervals of 90 % hold {100.0 * self.coverage:.0f} %"
            )
        return tuple(said)

    def __repr__(self) -> str:
        return (
            f"<Calibration of {len(self.ranks)} simulations: bias {self.bias:.3f} "
            f"({self.bias_se:.3f}), spread {self.spread:.3f} ({self.spread_se:.3f}), intervals of "
            f"90 % hold {self.coverage:.3f} ({self.coverage_se:.3f})>"
        )


def check_calibration(
    model: Any,
    n: int = 100,
    *,
    X: ArrayLike | None = None,
    learn: bool = False,
    random_state: int | np.random.Generator | None = None,
) -> Calibration:
    """Draw data from a fitted model, fit each, and say how often posteriors hold what was drawn.

    A latent function of the fitted prior, then observations at the same rows; the model is fitted
    to them, and the drawn values at the rows are ranked in its posterior (Cook, Gelman & Rubin
    2006; Talts et al. 2018). With the hyper-parameters that the data were drawn with, this checks
    the approximation alone. With ``learn=True`` a clone learns its own from each simulation, units,
    kernel and all: what is missing then is that it takes them for certain.

    Parameters
    ----------
    model : fitted GPClassifier of two classes, or estimator of counts or numbers
    n : int
        Simulations, at least 10, each a fit.
    X : array-like, shape (N, d), optional
        Rows to draw at, by default those of the fit: needed if the model did not keep them as they
        came. Of more than 300, 300 are drawn.
    learn : bool
    random_state : int, Generator or None

    Returns
    -------
    Calibration

    Raises
    ------
    InputError
        If the model is of several classes or of slopes, or `X` is needed; with `learn` if it has
        columns of levels; if 100 draws in a row had
        labels of one class.
    """
    count, anew = whole(n, "n", 10), flag(learn, "learn")
    posts = processes_of(model)
    one_number(model)
    if len(posts) > 1 or (isinstance(model, GPClassifier) and model.classes_.size > 2):
        raise InputError("simulations are of models of one latent function, not of several classes")
    if getattr(model, "slopes_", None) is not None:
        raise InputError("a model that was told to be monotone has no draws of its prior here")
    table = getattr(model, "columns_", None)
    if anew and table is not None and not table.plain:
        raise InputError(
            "learn=True fits rows of numbers again, and this model has columns of levels or "
            "missing values: use learn=False"
        )
    rng = generator(random_state)
    points = _points(model, X)
    exposure = getattr(model, "exposure_", None)
    some = np.arange(len(points))
    if some.size > _ROWS:
        some = np.sort(rng.choice(some, _ROWS, replace=False))
    if exposure is not None:
        exposure = exposure[some] if X is None and exposure.size else np.ones(some.size)
    points = points[some]
    (prior,) = model._prior_at(points)
    drawn = Drawn(model, np.broadcast_to(prior, some.size), model._warped(points), exposure)
    kept = rng.permutation(some.size)[:_KEPT]
    z = np.empty((count, kept.size))
    for i in range(count):
        f, y = drawn.once(rng)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            if anew:
                again = clone(model).fit(points, drawn.outcomes(y), *drawn.exposures)
                mean, variance = again.latent(points)
                f = drawn.raw(f)
            else:
                mean, variance = drawn.inferred(y)
        z[i] = ((f - mean) / np.sqrt(variance))[kept]
    return _summed(z, anew)


def _points(model: Any, X: ArrayLike | None) -> Array:
    """Rows to draw at, as the user has them."""
    if X is not None:
        found: Array = model._new_data(X)
        return found
    if not len(model.X_train_) or getattr(model, "warp_", None) is not None:
        raise InputError("the rows of this fit were not kept as they came: pass X")
    kept: Array = model.X_train_
    return kept


def _summed(z: Array, learnt: bool) -> Calibration:
    """Sum up standardised errors (n, T): simulations are independent, rows of one are not."""
    n = len(z)
    bias, square = z.mean(axis=1), (z * z).mean(axis=1)
    inside = (np.abs(z) <= ndtri(0.5 + 0.5 * _LEVEL)).mean(axis=1)
    spread = math.sqrt(square.mean())
    errors = [float(one.std(ddof=1)) / math.sqrt(n) for one in (bias, square, inside)]
    return Calibration(
        ndtr(z), float(bias.mean()), errors[0], spread, errors[1] / (2.0 * spread),
        float(inside.mean()), errors[2], learnt,
    )  # fmt: skip
