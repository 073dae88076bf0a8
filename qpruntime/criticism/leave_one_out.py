"""Leave-one-out log predictive densities of a fitted model, in units of the data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.estimators.classifier import GPClassifier
from qpruntime.estimators.coupling import coupled, statements
from qpruntime.estimators.over_nodes import is_integrated, left_out
from qpruntime.estimators.process import all_of
from qpruntime.inference.classes.posterior import ClassPosterior
from qpruntime.inference.contract import row_numbers
from qpruntime.inference.posterior import Posterior, solution_of
from qpruntime.validation import shown

__all__ = ["LeaveOneOut", "leave_one_out", "one_number", "processes_of", "rows_of"]


@dataclass(frozen=True, eq=False, repr=False)
class LeaveOneOut:
    """How well each row is predicted from the others.

    Attributes
    ----------
    log_density : ndarray, shape (n,)
        ``log p(y_i | y_-i)``, in units of the data: of probabilities for labels and counts.
    """

    log_density: Array

    @property
    def elpd(self) -> float:
        """Expected log predictive density of n new rows: the sum, in nats."""
        return float(self.log_density.sum())

    @property
    def se(self) -> float:
        """Standard error of `elpd`, sqrt(n) times the standard deviation of a row; nan of one."""
        return standard_error(self.log_density)

    def __repr__(self) -> str:
        n = self.log_density.size
        return f"<LeaveOneOut of {n} rows: elpd {self.elpd:.2f}, standard error {self.se:.2f}>"


def leave_one_out(
    model: Any, y: ArrayLike | None = None, *, rows: ArrayLike | None = None
) -> LeaveOneOut:
    """Leave-one-out log predictive densities of the rows a model was fitted to.

    Those of `Posterior.loo`, by the cavities of the sites, at the hyper-parameters of the fit: no
    fit is repeated, and what the row has told them stays in; of those that were integrated it is
    taken out by weights. They are of the data's units, so
    models that scale y differently compare. Of several classes they are log probabilities of the
    class, coupled as the model's predictions are.

    Parameters
    ----------
    model : fitted estimator, or Posterior
        A posterior is taken as it is, in the units it was inferred in.
    y : array-like, shape (N,), optional
        Labels of the fit, in its order: of several classes, one against the rest, only.
    rows : array-like of int, shape (n,), optional
        Only of these rows; of a million rows a few thousand say enough.

    Returns
    -------
    LeaveOneOut

    Raises
    ------
    InputError
        If `y` or `rows` do not fit the model, or it is of a kind that is not known here.
    """
    if isinstance(model, ClassPosterior | Posterior):
        found = model.loo()
        return LeaveOneOut(found if rows is None else found[row_numbers(rows, found.size)])
    posts = processes_of(model)
    if isinstance(posts[0], ClassPosterior):
        return leave_one_out(posts[0], rows=rows)
    chosen = rows_of(model, rows)
    if len(posts) == 1:
        unit = math.log(model._units()[1])
        return LeaveOneOut(_left_out(model, chosen)[0] - unit)
    codes = _codes(model, posts, y)[chosen]
    minus, plus = statements(_left_out(model, chosen), codes)
    return LeaveOneOut(coupled(minus, plus, model.coupling_)[np.arange(codes.size), codes])


def processes_of(model: Any) -> tuple[Any, ...]:
    """Return the posteriors of a fitted estimator.

    Raises
    ------
    InputError
        If it is no estimator of this package.
    """
    if not hasattr(model, "_processes") or not hasattr(model, "get_params"):
        raise InputError(f"a fitted estimator of qpruntime is needed, got {shown(model)}")
    check_is_fitted(model)
    return all_of(model.posterior_)


def one_number(model: Any) -> None:
    """Raise `InputError` if an observation of this model is several numbers."""
    own = getattr(model, "likelihood_", None)
    if own is not None and own.columns > 1:
        raise InputError(
            f"an observation of {own.name!r} is {own.columns} numbers, which have no rank and are "
            "not drawn: leave_one_out and compare take such models"
        )


def rows_of(model: Any, rows: ArrayLike | None) -> NDArray[np.intp]:
    """Numbers of rows of the data, by default all: statements about slopes come after them."""
    held = solution_of(all_of(model.posterior_)[0]).held_rows
    n = len(model.X_train_) or held
    if n > held:
        raise InputError(f"the posterior has {held} of {n} rows: say which, rows=...")
    return np.arange(n) if rows is None else row_numbers(rows, n)


def standard_error(values: Array) -> float:
    """Standard error of a sum, by the standard deviation of its terms; nan of one term."""
    n = values.size
    return math.sqrt(n) * float(values.std(ddof=1)) if n > 1 else math.nan


def _left_out(model: Any, chosen: NDArray[np.intp]) -> list[Array]:
    """Densities of rows left out, of every process; with hyper-parameters weighed again."""
    if not is_integrated(model):
        return [post.loo(chosen) for post in processes_of(model)]
    return [
        left_out(one.weights, [post.loo(chosen) for post in one.posteriors])
        for one in all_of(model.integrated_)
    ]


def _codes(model: GPClassifier, posts: tuple[Any, ...], y: ArrayLike | None) -> NDArray[np.intp]:
    """Return the class of each row, from labels or from the data that the engine has kept."""
    if y is None:
        if solution_of(posts[0]).name != "dense":
            raise InputError(
                "the labels of this fit are not kept: pass y, those it was fitted to, in its order"
            )
        signs = np.array([solution_of(post).observed().y for post in posts])
        return np.argmax(signs, axis=0).astype(np.intp)
    labels = np.asarray(y)
    held = solution_of(posts[0]).held_rows
    if labels.shape != (held,):
        raise InputError(f"y must have shape {(held,)}, the rows of the fit, got {labels.shape}")
    if not np.isin(labels, model.classes_).all():
        wrong = shown(labels[~np.isin(labels, model.classes_)][0].item())
        known = shown(model.classes_.tolist())
        raise InputError(f"y has the label {wrong}, and the model knows {known}")
    return np.searchsorted(model.classes_, labels).astype(np.intp)
