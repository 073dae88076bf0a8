"""Training of one process after another, in scaled units."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._memory import require
from qpruntime._typing import Array
from qpruntime.errors import InputError, TableError
from qpruntime.estimators.averaging import only_mode
from qpruntime.estimators.monotone import train_monotone
from qpruntime.estimators.process import all_of, one_or_all
from qpruntime.inference.local.posterior import LocalPosterior
from qpruntime.inference.posterior import moved_to
from qpruntime.inference.sparse.data import is_lazy, mapped, read
from qpruntime.inference.sparse.posterior import SparsePosterior
from qpruntime.kernels.scaling import Units
from qpruntime.learning.default_kernel import Start, automatic_start, default_start, given_start
from qpruntime.learning.inducing_points import SAMPLE, rows_at, sample
from qpruntime.learning.model_selection.budget import rank_screening_applies, selection_applies
from qpruntime.learning.model_selection.select import Choice, fit_with_selection, screened_choice
from qpruntime.learning.model_selection.small_data import screen_features, screen_ranks
from qpruntime.learning.settings import Data, Settings, left_open, numbered
from qpruntime.learning.sparse.checkpoint import remove_checkpoints
from qpruntime.learning.train import Fit, train
from qpruntime.projection.open import reopen
from qpruntime.projection.table import Table

__all__ = [
    "NoParts",
    "begun",
    "extended",
    "fitted_table",
    "remember",
    "table_to_fit",
    "train_all",
    "whole",
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


def begun(model: Any) -> bool:
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
    model: Any,
    points: Any,
    targets: Sequence[Array],
    weights: Array | None,
    means: Sequence[ArrayLike],
    scale: Array | None = None,
) -> dict[str, Any]:
    """Return what changes of a fitted model when every process sees these rows as well.

    Parameters
    ----------
    points : array-like, shape (n, d)
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
        post.extend(points, y, weights=weights, mean=mean, scale=scale)
        for post, y, mean in zip(all_of(model.posterior_), targets, means, strict=True)
    ]
    return {
        "posterior_": one_or_all(later),
        "log_marginal_likelihood_value_": float(np.mean([post.log_evidence for post in later])),
    }


# --- The table of a fit, found again by its hash -------------------------------------------------


def table_to_fit(model: Any) -> Table | str | os.PathLike[str] | None:
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


def fitted_table(model: Any) -> Table:
    """Return the table of the fit; `TableError` if it is missing."""
    reference = model._table_reference_[1]
    assert reference is not None
    return reopen(*reference)


def remember(model: Any, table: Table | None) -> None:
    """Keep the hash of the table, the path or name given, and how to find it by its hash."""
    model.table_sha256_ = None if table is None else table.sha256
    reference = None if table is None else table.reference()
    model._table_reference_ = _path_or_none(model.table), reference


def _path_or_none(table: Any) -> str | None:
    """Return the path or name a table is given by, None if it is given in another way."""
    if not isinstance(table, (str, os.PathLike)) or table == "exact":
        return None
    return str(os.fspath(table))


# --- Training in units of each feature's spread --------------------------------------------------


def train_all(
    processes: Sequence[Data],
    settings: Settings,
    rng: np.random.Generator,
    latent_scale: float,
    theta: Array | None = None,
) -> tuple[list[Fit], Choice | None]:
    """Return the fits of processes with the same X and weights, in the units of X; what was chosen.

    A kernel that is given is taken as it is. Others are learnt in units of each feature's spread,
    for latent functions that vary by about `latent_scale`; they may begin at `theta`.
    """
    X = processes[0].X
    if processes[0].slopes is not None:
        return train_monotone(processes, settings, rng, latent_scale, theta), None
    if selection_applies(processes[0], settings):
        return fit_with_selection(processes, settings, rng, latent_scale)
    if settings.sparse is None and is_lazy(X):
        X = whole(X)
        # Convert targets as for other inputs, because kernels would compile again for integers.
        processes = [replace(data, X=X, y=np.asarray(data.y, dtype=float)) for data in processes]
    if isinstance(settings.kernel, Kernel):
        begin = given_start(settings.kernel, settings.search.priors, processes[0].learn)
        return _trained(processes, [begin] * len(processes), settings, rng), None
    few = rank_screening_applies(processes[0], settings) and not is_lazy(X)
    looked = screen_ranks(processes, settings, latent_scale) if few else None
    if looked is not None and looked.warp is not None:
        X = looked.warp(X)
    units = _units(X, processes[0].weights, rng, processes[0].levels)
    screened = screen_features(processes, X, units, settings, latent_scale) if few else None
    if screened is not None:
        units = screened[0]
    scaled = mapped(X, units.scaled, units.width)
    scaled_settings = settings.in_units(units)
    if scaled_settings.solver == "auto" and (int(X.shape[1]) > 1 or units.levels):
        # Constant columns are left out of the units, and one that is left is no series.
        scaled_settings = replace(scaled_settings, solver="dense")
    elif scaled_settings.solver == "markov" and int(X.shape[1]) != int(scaled.shape[1]):
        raise InputError(
            f'solver="markov" takes X of one column, got {X.shape[1]}: leave out constant columns'
        )
    start = default_start if settings.kernel is None else automatic_start
    begin = start(units, latent_scale)
    thetas = looked.thetas if looked is not None and screened is None else ()
    begins = [replace(begin, thetas=(end,)) for end in thetas]
    if theta is not None:
        begin = replace(begin, thetas=(theta,))
    begins += [begin] * (len(processes) - len(begins))
    fits = _trained([replace(data, X=scaled) for data in processes], begins, scaled_settings, rng)
    fits = [_unscaled(fit, X, units) for fit in fits]
    if looked is None and screened is None:
        return fits, None
    warp = looked.warp if looked is not None else None
    stages = (looked.stages if looked is not None else ()) + (
        screened[1] if screened is not None else ()
    )
    return fits, screened_choice(len(X), len(fits), warp, units.count, stages)


def whole(X: Any) -> Array:
    """Return all rows of inputs, even those that could be read in parts."""
    if not is_lazy(X):
        return np.asarray(X)
    n, width = (int(size) for size in X.shape)
    require(
        8.0 * n * width,
        f"X of shape {n, width}, read at once",
        "inducing=200 reads it in parts, as does the default where kernel, solver, method, "
        "correction, and in optimize= objective and restarts, are left as they are",
    )
    return read(X, slice(0, n))


def _trained(
    processes: Sequence[Data],
    begins: Sequence[Start],
    settings: Settings,
    rng: np.random.Generator,
) -> list[Fit]:
    by_process = numbered(settings, len(processes))
    cases = zip(processes, begins, by_process, strict=True)
    fits = [train(data, begin, process_settings, rng) for data, begin, process_settings in cases]
    remove_checkpoints(by_process)
    return fits


def _unscaled(fit: Fit, X: Any, units: Units) -> Fit:
    def change(kernel: Kernel, posterior: Any) -> tuple[Kernel, Any]:
        unscaled_kernel = units.kernel_of_features(kernel)
        return unscaled_kernel, moved_to(posterior, unscaled_kernel, X, units.unscaled)

    return fit.moved(change)


def _units(X: Any, weights: Array | None, rng: np.random.Generator, levels: Sequence[int]) -> Units:
    """Return the units of features, from a sample if rows are read in parts."""
    if not is_lazy(X):
        return Units.of(X, weights, levels)
    sampled = sample(int(X.shape[0]), SAMPLE, rng)
    return Units.of(rows_at(X, sampled), None if weights is None else weights[sampled], levels)
