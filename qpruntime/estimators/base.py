"""What the three estimators have in common: parameters, checked data, trained processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.gaussian_process.kernels import Kernel
from sklearn.utils.validation import (
    _check_sample_weight,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from qpruntime.arrays import Array
from qpruntime.blocks import in_blocks
from qpruntime.errors import InputError, TableError
from qpruntime.estimators.parameters import Parameters
from qpruntime.inference.corrections.conditional import POINTS
from qpruntime.inference.corrections.corrected import CORRECTIONS, Correction
from qpruntime.inference.corrections.marginals import Marginals
from qpruntime.inference.posterior import Posterior
from qpruntime.inference.solver import Fitted
from qpruntime.inference.sparse.lazy import as_array, inputs_of, is_lazy
from qpruntime.learning.data import Data
from qpruntime.learning.default_kernel import Start, Units, automatic_start, default_start
from qpruntime.learning.inducing import SAMPLE, rows_at, sample
from qpruntime.learning.settings import Settings, generator, numbered
from qpruntime.learning.sparse_file import remove_checkpoints
from qpruntime.learning.training import Fit, train
from qpruntime.projection.opening import reopen
from qpruntime.projection.table import Table
from qpruntime.validation import choice

__all__ = [
    "GPEstimator",
    "check_correction",
    "checked",
    "fit_data",
    "moments_at",
    "one_or_columns",
    "weighed",
]

# Sums of squares of larger numbers overflow.
_LARGEST = 1e150


class GPEstimator(Parameters):
    """Base of the estimators, with parameters of `Settings` and ``random_state`` among theirs."""

    X_train_: Array
    posterior_: Any
    log_marginal_likelihood_value_: float
    inducing_points_: Any
    n_features_in_: int
    n_iter_: int
    table_sha256_: str | None

    def _draft(self) -> Self:
        """Return a copy with the parameters and nothing of a fit, for `fit` to work on.

        What ends a fit early, Ctrl-C included, leaves the model as it was.
        """
        draft = object.__new__(type(self))
        draft.__dict__ = _by_kind(self, fitted=False)
        return draft

    def _commit(self, draft: Self) -> Self:
        """Take over what was fitted, in place of all that an earlier fit has left."""
        whole = _by_kind(self, fitted=False) | _by_kind(draft, fitted=True)
        self.__dict__ = whole  # one instruction, which no signal divides
        return self

    def _resolved_table(self) -> Table | str | os.PathLike[str] | None:
        """Return the parameter ``table``, or the very table of the fit before if it names that one.

        A name may stand for another file by now, also after unpickling: a fitted model keeps to
        the table that it was fitted with, by its hash.

        Raises
        ------
        TableError
            If that is missing, or there is another one in its place.
        """
        given, known = getattr(self, "_table_reference_", (None, None))
        if known is None or given is None or given != _path_or_none(self.table):
            table: Table | str | os.PathLike[str] | None = self.table
            return table
        try:
            return self._fitted_table()
        except TableError as error:
            raise TableError(
                f"{error}; to fit with whatever table has that name now, fit a "
                "sklearn.base.clone of the model"
            ) from error

    def _fitted_table(self) -> Table:
        """Return the table of the fit; `TableError` if it is missing."""
        reference = self._table_reference_[1]
        assert reference is not None
        return reopen(*reference)

    def _remember(self, table: Table | None) -> None:
        """Keep the hash of the table, the path or name given, and how to find it by its hash."""
        self.table_sha256_ = None if table is None else table.sha256
        reference = None if table is None else table.reference()
        self._table_reference_ = _path_or_none(self.table), reference

    def _new_data(self, X: ArrayLike) -> Array:
        """Validate points to predict at."""
        check_is_fitted(self)
        return checked(validate_data, self, X, dtype=np.float64, reset=False)

    def _crossed(self, points: Array) -> Iterator[tuple[Posterior, tuple[Array, Array, float]]]:
        """Of every process its posterior, and prior covariances, variances and mean at points."""
        raise NotImplementedError

    def _covariances(self) -> list[Array]:
        """Prior covariance of every process at the training points."""
        raise NotImplementedError

    def _restore(self) -> None:
        """Give posteriors that were unpickled their prior covariances again."""
        own = self.posterior_ if isinstance(self.posterior_, tuple) else (self.posterior_,)
        if not all(post.corrects for post in own):
            raise InputError(
                "corrections take a covariance matrix, and this model was fitted by states or "
                'inducing points: fit it with solver="dense" and inducing=None'
            )
        if not all(post.knows_covariance for post in own):
            pairs = zip(own, self._covariances(), strict=True)
            self.posterior_ = _one_or_all([post.with_covariance(K) for post, K in pairs])

    def _latent(self, points: Array) -> tuple[Array, Array]:
        """Mean and variance of the latent function at validated points."""
        raise NotImplementedError

    def _corrected_moments(self, points: Array) -> tuple[Array, Array]:
        """`_latent` by corrected marginals."""
        moments = [(one.mean, one.variance) for one in self._marginals(points)]
        mean, variance = (one_or_columns([m[i] for m in moments]) for i in (0, 1))
        return mean, variance

    def _marginals(self, points: Array) -> list[Marginals]:
        """Corrected marginals of every process at validated points."""
        return self._corrected_by(self.correction, points)

    def _corrected_by(self, correction: Any, points: Array) -> list[Marginals]:
        choice(correction, "correction", CORRECTIONS)
        self._restore()
        # Of the same seed, so that blocks of points have the same chains.
        return [
            post.marginals(*new, correction=correction, random_state=0)
            for post, new in self._crossed(points)
        ]

    def _corrected(self, points: Array, finish: Callable[..., Any], *columns: Array) -> Any:
        """Join ``finish(marginals, *rows)`` of blocks of points, marginals being a list."""

        def one(some: slice) -> Any:
            return finish(self._marginals(points[some]), *(column[some] for column in columns))

        return in_blocks(one, len(points), max(len(self.X_train_), 4 * POINTS))

    def marginals(
        self, X: ArrayLike, correction: Correction = "blend"
    ) -> Marginals | tuple[Marginals, ...]:
        """Corrected marginal densities of the latent function at `X`; see `Posterior.marginals`.

        Those of `posterior_`: in its units, and for counts of f without exposure. Where there are
        several processes, a tuple.
        """
        points = self._new_data(X)
        found = self._corrected_by(correction, points)
        return found[0] if len(found) == 1 else tuple(found)

    def _predicted(
        self, points: Array, finish: Callable[..., Any], *columns: Array, width: int = 0
    ) -> Any:
        """Join ``finish(mean, variance, *rows)`` of blocks of points, and these rows of columns.

        `width` is how many numbers `finish` makes of a row, if more than there are training points.
        """
        own = self.posterior_ if isinstance(self.posterior_, tuple) else (self.posterior_,)
        if self.correction is None and not any(post.width for post in own):
            found = self._latent(points)

            def ready(some: slice) -> Any:
                return finish(
                    *(values[some] for values in found), *(column[some] for column in columns)
                )

            return in_blocks(ready, len(points), max(width, 1))

        def one(some: slice) -> Any:
            return finish(*self._latent(points[some]), *(column[some] for column in columns))

        return in_blocks(one, len(points), max(self._width, width))

    @property
    def _width(self) -> int:
        """Numbers that a prediction makes of a row: one for each that it is made from."""
        posts = self.posterior_ if isinstance(self.posterior_, tuple) else (self.posterior_,)
        return max(post.width for post in posts) or len(self.X_train_)

    def _train(
        self, processes: Sequence[Data], settings: Settings, latent_scale: float = 1.0
    ) -> list[Fit]:
        """Train one process after the other and store what every estimator has afterwards.

        All have the same X and weights; their latent functions vary by about `latent_scale`.
        """
        if self.correction is not None and settings.solver == "auto":
            settings = replace(settings, solver="dense")  # corrections take the covariance
        if self.correction is not None and settings.solver == "markov":
            raise InputError('corrections take a covariance matrix: use solver="dense" with them')
        if self.correction is not None and settings.sparse is not None:
            raise InputError("corrections take a covariance matrix: use inducing=None with them")
        rng = generator(self.random_state)
        X = processes[0].X
        units = None
        if isinstance(settings.kernel, Kernel):
            begin = Start(settings.kernel)
        else:
            units = _units(X, processes[0].weights, rng)
            scaled = units.of_any(X)
            processes = [replace(data, X=scaled) for data in processes]
            settings = settings.in_units(units)
            start = default_start if settings.kernel is None else automatic_start
            begin = start(units, latent_scale)
        each = numbered(settings, len(processes))
        fits = [train(data, begin, own, rng) for data, own in zip(processes, each, strict=True)]
        remove_checkpoints(each)
        self._remember(processes[0].projector.table)
        # A copy, for the caller may change the array; inducing points need no rows.
        self.X_train_ = X.copy() if settings.sparse is None else np.empty((0, X.shape[1]))
        kernels = [fit.kernel for fit in fits]
        if units is not None:
            kernels = [units.kernel_of_features(kernel) for kernel in kernels]
        self.kernel_ = _one_or_all(kernels)
        posteriors = [fit.posterior for fit in fits]
        if units is not None:
            pairs = zip(posteriors, kernels, strict=True)
            posteriors = [post.on(kernel, X, units.unscaled) for post, kernel in pairs]
        self.posterior_ = _one_or_all(posteriors)
        if settings.sparse is not None:
            self.inducing_points_ = _one_or_all([post.Z for post in posteriors])
        evidence = [fit.posterior.log_evidence for fit in fits]
        self.log_marginal_likelihood_value_ = float(np.mean(evidence))
        self.optima_ = _one_or_all([fit.optima for fit in fits])
        self.optimum_ = _one_or_all([fit.optimum for fit in fits])
        self.n_iter_ = max([1] + [fit.optimum.n_iterations for fit in fits if fit.optimum])
        return fits


def moments_at(
    posterior: Fitted,
    kernel: Kernel,
    points: Array,
    X_train: Array,
    *,
    slope: ArrayLike = 1.0,
    mean: float = 0.0,
) -> tuple[Array, Array]:
    """Latent mean and variance at points; those observed were `slope` times the latent ones."""

    def crossed() -> tuple[Array, Array]:
        K_star = kernel(points, X_train)
        K_star *= slope
        return K_star, kernel.diag(points)

    return posterior.at_inputs(points, mean, crossed)


def _by_kind(model: GPEstimator, fitted: bool) -> dict[str, Any]:
    """Attributes that a fit sets, whose names end in an underscore, or all the others."""
    return {name: value for name, value in vars(model).items() if name.endswith("_") == fitted}


def _units(X: Any, weights: Array | None, rng: np.random.Generator) -> Units:
    """Units of features; of rows that are read in parts, those of a sample."""
    if not is_lazy(X):
        return Units.of(X, weights)
    some = sample(int(X.shape[0]), SAMPLE, rng)
    return Units.of(rows_at(X, some), None if weights is None else weights[some])


def _path_or_none(table: Any) -> str | None:
    """Return the path or name a table is given by, None if it is given in another way."""
    if not isinstance(table, (str, os.PathLike)) or table == "exact":
        return None
    return str(os.fspath(table))


def check_correction(model: GPEstimator) -> None:
    """Raise `InputError` unless the model's correction is None or one there is."""
    if model.correction is not None:
        choice(model.correction, "correction", CORRECTIONS)


def one_or_columns(items: list[Array]) -> Array:
    return items[0] if len(items) == 1 else np.column_stack(items)


def _one_or_all(items: list[Any]) -> Any:
    """Return the items as a tuple, or the one item itself."""
    return items[0] if len(items) == 1 else tuple(items)


def checked(validate: Callable[..., Any], *arrays: Any, **options: Any) -> Any:
    """Call a validator of scikit-learn on data that may be anything.

    Its own exceptions are `ValueError`, and `TypeError` for sparse matrices; what foreign objects
    raise on the way becomes an `InputError`, as do masked entries, which it would take for data.
    """
    for array in arrays:
        if np.ma.is_masked(array):
            raise InputError("masked entries cannot be fitted or predicted; leave them out")
    try:
        with np.errstate(all="ignore"):
            found = validate(*arrays, **options)
    except (TypeError, ValueError):
        raise
    except Exception as error:
        raise InputError(f"the data cannot be converted to numbers: {error}") from error
    for array in found if isinstance(found, tuple) else (found,):
        if isinstance(array, np.ndarray) and array.dtype.kind == "f" and array.size:
            reach = float(np.abs(array).max())
            if reach > _LARGEST:
                raise InputError(
                    f"the data reach {reach:.3g}, and squared distances leave double precision "
                    f"beyond {_LARGEST:g}: use other units, or a StandardScaler"
                )
    return found


def fit_data(model: GPEstimator, X: Any, y: Any, **options: Any) -> tuple[Any, Any]:
    """Validate training data; rows to be read in parts stay where they are with inducing points.

    Those are zarr arrays, memory maps, dask arrays and data frames: `qpruntime.infer_sparse`.
    """
    if model.inducing is None or not is_lazy(X):
        points, targets = checked(validate_data, model, X, y, dtype=np.float64, **options)
        return points, targets
    points = inputs_of(X, "X")
    targets = checked(column_or_1d, as_array(y, "y"))
    if len(targets) != points.shape[0]:
        raise InputError(f"y must have {points.shape[0]} rows like X, got {len(targets)}")
    width = int(points.shape[1])
    if options.get("reset", True):
        model.n_features_in_ = width
    elif width != model.n_features_in_:
        raise InputError(f"X must have {model.n_features_in_} columns as before, got {width}")
    return points, targets


def weighed(sample_weight: ArrayLike | None, points: Array, *others: Any) -> tuple[Any, ...]:
    """Check sample weights and drop the rows of weight 0.

    Parameters
    ----------
    sample_weight : array-like, shape (N,), or None
        Powers of the single likelihoods.
    points : ndarray, shape (N, d)
    others : ndarray, shape (N,)
        What else has a row per point.

    Returns
    -------
    weights : ndarray, shape (M,), or None
        Those above 0; None if all of these are 1.
    points, *others : ndarray
        Their M rows.

    Raises
    ------
    ValueError
        If the weights are no finite numbers of 0 or more for each row; `InputError` if none is
        above 0.
    """
    if sample_weight is None:
        return None, points, *others
    given: Array = checked(_check_sample_weight, sample_weight, points, ensure_non_negative=True)
    kept = given > 0.0
    if not kept.any():
        raise InputError("every sample weight is zero: nothing is left to fit")
    weights = None if (given[kept] == 1.0).all() else given[kept]
    if is_lazy(points):
        if not kept.all():
            raise InputError("rows of weight 0 cannot be left out of what is read in parts: do so")
        return weights, points, *others
    return weights, *(rows[kept] for rows in (points, *others))
