"""Parts of fits that all estimators share: rows that come in parts, and tables found again."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from qpruntime._typing import Array
from qpruntime.errors import InputError, TableError
from qpruntime.estimators.averaging import only_mode
from qpruntime.estimators.process import all_of, one_or_all
from qpruntime.inference.local.posterior import LocalPosterior
from qpruntime.inference.sparse.posterior import SparsePosterior
from qpruntime.learning.inputs import Inputs
from qpruntime.learning.settings import left_open
from qpruntime.projection.open import reopen
from qpruntime.projection.table import Table

if TYPE_CHECKING:
    from qpruntime.estimators.base import GPEstimator

__all__ = [
    "NoParts",
    "begun",
    "extended",
    "fitted_table",
    "remember",
    "table_to_fit",
    "with_inducing",
]

# --- Rows that come in parts, each seen once, with inducing points -------------------------------


class NoParts(InputError, AttributeError):
    """`partial_fit` of an estimator without inducing points; for `hasattr` it is not there."""


class with_inducing:
    """Descriptor of a method that exists only if there are inducing points.

    It acts as `sklearn.utils.metaestimators.available_if`, but its error says what to do.
    """

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method

    def __get__(self, model: Any, owner: Any = None) -> Any:
        if model is None:
            return self._method
        inducing = model.inducing
        if inducing is None or left_open(inducing):
            name = type(model).__name__
            raise NoParts(
                f"partial_fit needs inducing points: use {name}(inducing=200), or fit all rows at "
                "once"
            )
        return self._method.__get__(model, owner)


def begun(model: GPEstimator) -> bool:
    """Decide whether there is a posterior that rows can be added to.

    Raises
    ------
    InputError
        If there is one without inducing points.
    """
    if not hasattr(model, "posterior_"):
        return False
    if not all(
        isinstance(post, SparsePosterior | LocalPosterior) for post in all_of(model.posterior_)
    ):
        raise InputError(
            "the model was fitted without inducing points, so no rows can be added to it: "
            "call partial_fit of a sklearn.base.clone"
        )
    return True


def extended(
    model: GPEstimator,
    points: Inputs,
    targets: Sequence[Array],
    weights: Array | None,
    means: Sequence[ArrayLike],
    scale: Array | None = None,
) -> dict[str, Any]:
    """Return what changes of a fitted model when every process sees these rows as well.

    Parameters
    ----------
    points : Inputs
    targets : sequence of ndarray, shape (n,)
        Of each process, as it observes them.
    weights : ndarray, shape (n,), or None
    means : sequence of float or ndarray, shape (n,)
        Prior mean of each latent function.
    scale : ndarray, shape (n,), or None
        What is observed is the latent function times this.
    """
    only_mode(model, "posteriors that rows can be added to are")
    later = [
        post.extend(points.rows, y, weights=weights, mean=mean, scale=scale)
        for post, y, mean in zip(all_of(model.posterior_), targets, means, strict=True)
    ]
    return {
        "posterior_": one_or_all(later),
        "log_marginal_likelihood_value_": float(np.mean([post.log_evidence for post in later])),
    }


# --- The table of a fit, found again by its hash -------------------------------------------------


def table_to_fit(model: GPEstimator) -> Table | str | os.PathLike[str] | None:
    """Return the parameter ``table``, or the very table of the fit before if it names that one.

    A name may stand for another file by now.

    Raises
    ------
    TableError
        If the table of the fit before is missing, or there is another one in its place.
    """
    reference, known = getattr(model, "_table_reference_", (None, None))
    if known is None or reference is None or reference != _path_or_none(model.table):
        return model.table
    try:
        return fitted_table(model)
    except TableError as error:
        raise TableError(
            f"{error}; to fit with whatever table has that name now, fit a "
            "sklearn.base.clone of the model"
        ) from error


def fitted_table(model: GPEstimator) -> Table:
    """Return the table of the fit; `TableError` if it is missing."""
    reference = model._table_reference_[1]
    assert reference is not None
    return reopen(*reference)


def remember(model: GPEstimator, table: Table | None) -> None:
    """Keep the hash of the table, the path or name given, and how to find it by its hash."""
    model.table_sha256_ = None if table is None else table.sha256
    reference = None if table is None else table.reference()
    model._table_reference_ = _path_or_none(model.table), reference


def _path_or_none(table: object) -> str | None:
    """Return the path or name a table is given by, None if it is given in another way."""
    if not isinstance(table, (str, os.PathLike)) or table == "exact":
        return None
    return str(os.fspath(table))
