"""Where each observation lies in its leave-one-out predictive distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qpruntime.arrays import Array
from qpruntime.criticism.leave_one_out import one_number, processes_of, rows_of
from qpruntime.errors import InputError, NumericalError
from qpruntime.estimators.classifier import GPClassifier
from qpruntime.estimators.predictive.by_likelihood import Predicted
from qpruntime.estimators.predictive.mixture import cdf
from qpruntime.inference.posterior import solution_of
from qpruntime.learning.settings import generator

__all__ = ["left_out_moments", "outcomes_of", "pit"]


def pit(
    model: Any,
    y: ArrayLike | None = None,
    *,
    rows: ArrayLike | None = None,
    random_state: int | np.random.Generator | None = None,
) -> Array:
    """Probability integral transform of the rows of a fit, each predicted from the others.

    ``P(Y_i <= y_i | y_-i)`` by the cavity of the row, shape (n,). They are uniform if the model is
    right: a hump means that its intervals are too wide, a valley too narrow, a slope a bias. Of a
    count the value is drawn between ``P(Y_i < y_i | y_-i)`` and ``P(Y_i <= y_i | y_-i)``, which
    makes it uniform as well (Czado, Gneiting & Held 2009).

    Parameters
    ----------
    model : fitted GPPoissonRegressor, GPRobustRegressor or GPRegressor
        Labels have few values: for classifiers see `qpruntime.plotting.CalibrationDisplay`.
    y : array-like, shape (N,), optional
        What was fitted, in its order: needed if the model was fitted by states or inducing points.
    rows : array-like of int, shape (n,), optional
        Only of these rows.
    random_state : int, Generator or None
        For counts.

    Returns
    -------
    ndarray, shape (n,)

    Raises
    ------
    InputError
        If the model is another, or `y` is needed.
    """
    own = getattr(model, "likelihood_", None)
    if own is None or own.given is None:
        raise InputError(
            f"pit takes a model whose observations have a distribution function, got "
            f"{type(model).__name__}; of a classifier draw "
            "qpruntime.plotting.CalibrationDisplay.from_estimator(model, X, y)"
        )
    one_number(model)
    (post,) = processes_of(model)
    chosen = rows_of(model, rows)
    seen = outcomes_of(model, post, y)[chosen]
    mean, variance = left_out_moments(post, chosen)
    upto: Array = cdf(own, mean, variance, seen)
    if not Predicted.discrete(own):
        return upto
    below = np.where(seen >= 1.0, cdf(own, mean, variance, np.maximum(seen - 1.0, 0.0)), 0.0)
    drawn: Array = below + generator(random_state).uniform(size=seen.size) * (upto - below)
    return drawn


def left_out_moments(post: Any, rows: NDArray[np.intp]) -> tuple[Array, Array]:
    """Cavity means and variances of rows, (n,), as the likelihood takes them.

    The posterior without the whole site of the row: 1/v_c = 1/v - tau and m_c/v_c = m/v - nu.
    Inducing points have a residue beside, and say it themselves.

    Raises
    ------
    NumericalError
        If a row has none: its site has more than its posterior.
    """
    solution = solution_of(post)
    if hasattr(solution, "left_out"):
        mean, variance = solution.left_out(rows)
    else:
        m, v, tau, nu = (a[rows] for a in (post.mean, post.variance, *post.sites))
        kept = 1.0 - tau * v
        mean, variance = (m - v * nu) / kept, v / kept
    wrong = ~(np.isfinite(mean) & (variance > 0.0))
    if wrong.any():
        raise NumericalError(f"row {rows[wrong][0]} has no cavity: leave it out, rows=...")
    return mean, variance


def outcomes_of(model: Any, post: Any, y: ArrayLike | None) -> Array:
    """Encoded outcomes of the fit, as its likelihood takes them."""
    solution = solution_of(post)
    if y is None:
        if solution.name != "dense":
            raise InputError("the outcomes of this fit are not kept: pass y, in its order")
        kept: Array = solution.observed().y
        return kept
    centre, unit = model._units()
    if isinstance(model, GPClassifier):
        labels = np.asarray(y)
        if not np.isin(labels, model.classes_).all():
            raise InputError(f"y has labels beside the classes {list(model.classes_)} of the fit")
        seen = np.where(labels == model.classes_[-1], 1.0, -1.0)
    else:
        seen = np.asarray(y, dtype=float)
    if seen.shape != (solution.held_rows,):
        raise InputError(f"y must have shape {(solution.held_rows,)}, got {seen.shape}")
    scaled: Array = (seen - centre) / unit
    return scaled
