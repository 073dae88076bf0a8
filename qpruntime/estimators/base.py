"""Base of the estimators: training processes, and predicting in blocks."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import Tags
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from qpruntime._memory import in_blocks, require, squares
from qpruntime._typing import Array
from qpruntime._validation import choice, flag, generator as seeded, whole as whole_number
from qpruntime.dataframes.encoding import EncodedTable
from qpruntime.dataframes.lazy_rows import LazyInputs
from qpruntime.errors import InputError, TableError
from qpruntime.estimators.averaging import (
    averaged,
    is_integrated,
    mixed_draws,
    moments,
    only_mode,
    remembered,
    to_integrate,
)
from qpruntime.estimators.input_data import (
    checked,
    kernel_of_columns,
    on_columns,
    refuse_levels,
    rows_of_model,
)
from qpruntime.estimators.latent_functions import Components, LatentPaths, components_of
from qpruntime.estimators.monotone import monotone_data
from qpruntime.estimators.parameters import Parameters, refuse_idle
from qpruntime.estimators.prior_mean import CrossFitted, Target
from qpruntime.estimators.prior_mean_selection import with_mean
from qpruntime.estimators.process import Process, all_of, one_or_all, one_or_columns
from qpruntime.execution.threads import sized
from qpruntime.inference.corrections.corrected import CORRECTIONS, Correction
from qpruntime.inference.corrections.ep_fact import POINTS
from qpruntime.inference.corrections.marginals import CorrectedMarginals
from qpruntime.inference.local.posterior import LocalPosterior
from qpruntime.inference.posterior import solution_of
from qpruntime.inference.sparse.posterior import SparsePosterior
from qpruntime.learning.fit import fit_processes
from qpruntime.learning.hyper_integration.density import Integrated
from qpruntime.learning.inputs import Data, Inputs, Slopes
from qpruntime.learning.model_selection.budget import Stage
from qpruntime.learning.options import Settings, left_open, new_generator, settings_of
from qpruntime.learning.scaling import Warp
from qpruntime.learning.train import Fit
from qpruntime.likelihoods import Likelihood
from qpruntime.projection.open import reopen
from qpruntime.projection.table import Table

__all__ = [
    "GPEstimator",
    "NoParts",
    "Predicted",
    "begun",
    "extended",
    "fitted_table",
    "remember_table",
    "settings_to_fit",
    "table_to_fit",
    "with_inducing",
]

#: Predictions of points: an array, or a tuple of arrays, with a row for each.
Predicted = TypeVar("Predicted")


def _rows(model: GPEstimator, *_: object, **__: object) -> int:
    """Return the number of rows that predictions multiply by, which sizes threads."""
    return max((solution_of(posterior).width for posterior in all_of(model.posterior_)), default=0)


class GPEstimator(Parameters):
    """Base of the estimators, with parameters of `Settings` and ``random_state`` among theirs."""

    method: str
    X_train_: Array
    kernel_: Any
    posterior_: Any
    log_marginal_likelihood_value_: float
    inducing_points_: Any
    engine_: str
    stages_: tuple[Stage, ...]
    nearest_: int
    warp_: Warp | None
    slopes_: Slopes | None
    prior_mean_: CrossFitted | None
    integrated_: Integrated | tuple[Integrated, ...] | None
    n_features_in_: int
    n_iter_: int
    table_sha256_: str | None
    columns_: EncodedTable | None
    #: Data frames may have columns of levels, and missing values.
    takes_levels = True

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def validate_points(self, X: ArrayLike) -> Array:
        """Validate points to predict at."""
        check_is_fitted(self)
        rows = rows_of_model(self, X, False)
        if (points := rows.points()) is not None:
            return np.asarray(checked(check_array, points, dtype=np.float64))
        return np.asarray(checked(validate_data, self, rows.source, dtype=np.float64, reset=False))

    def _predict_once(self) -> tuple[Array, ...]:
        table, model = self.columns_, copy.copy(self)
        model.correction = None  # corrections bring back the prior covariance of all rows
        rows: Any = np.zeros((2, self.n_features_in_ if table is None else len(table.middle)))
        if table is not None and not table.plain:
            rows = rows.astype(object)
            for k, levels in enumerate(table.levels):
                rows[:, k] = 0.0 if levels is None else levels[0]
        for name in ("predict", "predict_proba"):
            if hasattr(model, name):
                getattr(model, name)(rows)
        return model.latent(rows)

    def kernel_inputs(self, points: Array) -> Array:
        """Return the points as the kernel takes them."""
        return points if self.warp_ is None else self.warp_(points)

    def _constant(self) -> float:
        """Return the prior mean of the latent functions without `prior_mean`."""
        return 0.0

    def prior_means(self, points: Array | LazyInputs) -> Sequence[Array | float]:
        """Return the prior means of all processes at points, each a number or (T,)."""
        count = len(all_of(self.posterior_))
        mean = self.prior_mean_
        if mean is None:
            return [self._constant()] * count
        return list(mean.at(Inputs(points).in_memory().X).T)

    def _spread_at(self, points: Array) -> Array:
        """Return variances of the prior means at points, (T,) or (T, K); 0 if they are constant."""
        mean = self.prior_mean_
        if mean is None:
            count = len(all_of(self.posterior_))
            return np.zeros(len(points) if count == 1 else (len(points), count))
        variances = mean.spread(points)
        return variances if variances.shape[1] > 1 else variances[:, 0]

    @averaged(moments)
    def _latent_at(self, X: ArrayLike) -> tuple[Array, Array]:
        """Return latent mean and variance at `X`, with the variance of the prior mean."""
        points = self.validate_points(X)
        mean, variance = self._predicted(
            points,
            lambda mean, variance, spread: (mean, variance + spread),
            self._spread_at(points),
        )
        return mean, variance

    @averaged(moments)
    def _jointly(self, X: ArrayLike) -> tuple[Array, Array]:
        """Return latent mean and covariance at `X`, with the variance of the prior mean.

        Shapes are (T, K) and (K, T, T) for K processes. The variance of the prior mean is added to
        the diagonal only.
        """
        points = self.validate_points(X)
        inputs, priors = self.kernel_inputs(points), self.prior_means(points)
        spread = np.atleast_2d(self._spread_at(points).T)
        pairs = zip(self._separate(), priors, strict=True)
        joint = [process.jointly(inputs, prior) for process, prior in pairs]
        for (_, covariance), variances in zip(joint, spread, strict=True):
            covariance.flat[:: len(points) + 1] += variances
        mean = one_or_columns([part[0] for part in joint])
        return mean, joint[0][1] if len(joint) == 1 else np.array([part[1] for part in joint])

    def latent(self, X: ArrayLike, full_covariance: bool = False) -> tuple[Array, Array]:
        """Return the mean and variance of the latent function at `X`, each of shape (T,).

        If y is f and noise, f is without it and in units of y; otherwise f is on its own scale.
        If `full_covariance` is True, the second is the covariance, shape (T, T).
        """
        whole = flag(full_covariance, "full_covariance")
        mean, variance = (self._jointly if whole else self._latent_at)(X)
        centre, unit = self.latent_units()
        return centre + unit * mean, unit**2 * variance

    def sample_latent(
        self, X: ArrayLike, n: int = 1, random_state: int | np.random.Generator | None = None
    ) -> Array:
        """Draw the latent function at `X` jointly, in the units of `latent`.

        Draws are from the normal posterior, even if the model has a correction.

        Parameters
        ----------
        X : array-like, shape (T, d)
        n : int
        random_state : int, Generator or None

        Returns
        -------
        ndarray, shape (n, T), or (n, T, K) of K processes

        Raises
        ------
        InputError
            If the engine has no joint draws: nearest rows, or classes fitted jointly.
        """
        count, rng = whole_number(n, "n", 1), seeded(random_state)
        points = self.validate_points(X)
        if is_integrated(self):
            return mixed_draws(GPEstimator.sample_latent, self, X, count, rng)
        inputs, priors = self.kernel_inputs(points), self.prior_means(points)
        spread = np.atleast_2d(self._spread_at(points).T)
        centre, unit = self.latent_units()
        draws = []
        for process, prior, variances in zip(self._separate(), priors, spread, strict=True):
            f = process.draws(inputs, prior, count, rng)
            if variances.any():
                f = f + np.sqrt(variances) * rng.standard_normal(f.shape)
            draws.append(centre + unit * f)
        return draws[0] if len(draws) == 1 else np.stack(draws, axis=2)

    def sample_paths(
        self, n: int = 1, random_state: int | np.random.Generator | None = None
    ) -> LatentPaths:
        """Draw functions from the posterior of the latent function, to be evaluated anywhere.

        Functions are from the normal posterior, without the uncertainty of a `prior_mean` that is
        an estimator.

        Parameters
        ----------
        n : int
        random_state : int, Generator or None

        Returns
        -------
        LatentPaths
            Call it with points (T, d): shape (n, T), or (n, T, K) of K processes.

        Raises
        ------
        InputError
            If the model was fitted by states or jointly, has nearest rows or slopes, or a kernel
            of which functions cannot be drawn.

        See Also
        --------
        sample_latent
        """
        check_is_fitted(self)
        return LatentPaths(self, whole_number(n, "n", 1), seeded(random_state))

    def _separate(self) -> list[Process]:
        """Return the processes, if each has a posterior."""
        if not hasattr(all_of(self.posterior_)[0], "joint"):
            raise InputError(
                'multi_class="joint" has no joint draws of several rows: use '
                'multi_class="one_vs_rest"'
            )
        return self.processes()

    def processes(self) -> list[Process]:
        """Return the fitted processes."""
        pairs = zip(all_of(self.posterior_), all_of(self.kernel_), strict=True)
        return [
            Process(posterior, kernel, self.X_train_, slopes=self.slopes_)
            for posterior, kernel in pairs
        ]

    def restore_covariances(self) -> list[Process]:
        """Return the processes for corrections, with prior covariances that a pickle left out."""
        processes = self.processes()
        if not all(solution_of(process.posterior).corrects for process in processes):
            raise InputError(
                "corrections need a covariance matrix, and this model was fitted as a series or "
                'with inducing points: fit it with solver="dense" and inducing=None'
            )
        if not all(process.posterior.knows_covariance for process in processes):
            n = len(self.X_train_)
            what = f"the prior covariance of N = {n} rows, which corrections take,"
            remedy = "use correction=None, or fit fewer rows"
            require(squares(n, 1.0 + len(processes)), what, remedy)
            known = [
                process.posterior.with_covariance(process.covariance()) for process in processes
            ]
            self.posterior_ = one_or_all(known)
        return self.processes()

    def _latent(self, points: Array) -> tuple[Array, Array]:
        """Return latent mean and variance at validated points, in units of the posterior.

        If there is a correction, moments are those of corrected marginals.
        """
        if self.correction is None:
            processes, inputs = self.processes(), self.kernel_inputs(points)
            priors = self.prior_means(points)
            moments = [
                process.at(inputs, prior) for process, prior in zip(processes, priors, strict=True)
            ]
        else:
            moments = [
                (marginal.mean, marginal.variance)
                for marginal in self._marginals(points, self.correction)
            ]
        mean, variance = (one_or_columns([m[i] for m in moments]) for i in (0, 1))
        return mean, variance

    @sized(_rows)
    def _marginals(self, points: Array, correction: Correction) -> list[CorrectedMarginals]:
        """Return the corrected marginals of every process at validated points."""
        choice(correction, "correction", CORRECTIONS)
        inputs = self.kernel_inputs(points)
        pairs = zip(self.restore_covariances(), self.prior_means(points), strict=True)
        return [process.corrected(inputs, prior, correction) for process, prior in pairs]

    def marginals(
        self, X: ArrayLike, correction: Correction = "blend"
    ) -> CorrectedMarginals | tuple[CorrectedMarginals, ...]:
        """Return corrected marginals of the latent function at `X`; see `Posterior.marginals`.

        They are in the units of `posterior_`, and for counts those of f without exposure. Several
        processes have a tuple of them.
        """
        only_mode(self, "marginals are")
        return one_or_all(self._marginals(self.validate_points(X), correction))

    @sized(_rows)
    def components(
        self, X: ArrayLike, *, centred: bool = False
    ) -> Components | tuple[Components, ...]:
        """Return parts of the latent function at `X`, one for each kernel in the sum ``kernel_``.

        Each has its mean and its variance; means and `Components.offset` add up to those of
        ``latent``. The model must have been fitted by covariance matrices; a correction is ignored.
        Several processes have a tuple of them.

        Parameters
        ----------
        X : array-like, shape (T, d)
        centred : bool
            Take each part's mean over the rows of the fit off, and add it to the offset: two smooth
            parts may share a level in any way, which makes the band of each wide otherwise.

        Raises
        ------
        InputError
            If the model was fitted by states or by inducing points.
        """
        flag(centred, "centred")
        only_mode(self, "components are")
        points = self.validate_points(X)
        inputs, priors = self.kernel_inputs(points), self.prior_means(points)
        centre, unit = self.latent_units()
        parts = [
            components_of(process, inputs, prior, centred)
            for process, prior in zip(self.processes(), priors, strict=True)
        ]
        return one_or_all(
            [
                Components(p.names, unit * p.mean, unit**2 * p.variance, centre + unit * p.offset)
                for p in parts
            ]
        )

    @property
    def fitted_likelihood(self) -> Likelihood | None:
        """Likelihood with its fitted parameters; None if it is known from a table alone."""
        return getattr(self, "likelihood_", None)

    def _with_likelihood(self, likelihood: Likelihood) -> dict[str, Any]:
        """Return the attributes that a fit sets for a likelihood whose parameters were learnt."""
        return {}

    def latent_units(self) -> tuple[float, float]:
        """Return the shift and the unit between ``latent`` and the posterior's latent function."""
        return 0.0, 1.0

    @sized(_rows)
    def _predicted(
        self,
        points: Array,
        finish: Callable[..., Predicted],
        *columns: Array,
        by_grid: Callable[..., Predicted] | None = None,
        width: int = 0,
    ) -> Predicted:
        """Join ``finish(mean, variance, *rows)`` over blocks of points and of `columns`.

        If there is a correction and ``by_grid(marginals, *rows)``, that is joined instead;
        `marginals` is a list. `width` is the number of values that `finish` makes for a row, if
        that exceeds the number of training points.
        """
        if by_grid is not None and (correction := self.correction) is not None:

            def on_grid(rows: slice) -> Predicted:
                marginals = self._marginals(points[rows], correction)
                return by_grid(marginals, *(column[rows] for column in columns))

            return in_blocks(on_grid, len(points), max(len(self.X_train_), 4 * POINTS))
        posterior_width = max(solution_of(p.posterior).width for p in self.processes())
        # An engine without a width is fastest with all points at once; only `finish` needs blocks.
        known = None if posterior_width or self.correction is not None else self._latent(points)

        def finish_block(rows: slice) -> Predicted:
            moments = self._latent(points[rows]) if known is None else [v[rows] for v in known]
            return finish(*moments, *(column[rows] for column in columns))

        return in_blocks(finish_block, len(points), max(posterior_width, width))

    def _train(
        self,
        processes: Sequence[Data],
        settings: Settings,
        target: Callable[[], Target] | None,
        latent_scale: float = 1.0,
        theta: Array | None = None,
        offset: Array | float = 0.0,
    ) -> list[Fit]:
        """Train one process after the other, and store the attributes that all estimators have.

        All have the same inputs and weights; their latent functions vary by about `latent_scale`.
        The default kernel may begin at `theta`. Observed is `scale` times the latent function plus
        the known `offset`, and ``target()`` is what another estimator learns of it, if one can.
        """
        settings = kernel_of_columns(processes[0].inputs, settings)
        refuse_levels(self, processes[0].inputs.table, settings)
        processes, settings, slopes = monotone_data(self, processes, settings)
        inputs = processes[0].inputs
        refuse_idle(self, settings, processes)
        rng = new_generator(self.random_state)

        train = partial(fit_processes, latent_scale=latent_scale, theta=theta)
        fits, choice, self.prior_mean_ = with_mean(
            on_columns(inputs, self.prior_mean), processes, target, offset, settings, rng, train
        )
        remember_table(self, processes[0].projector.table)
        sparse = settings.sparse is not None or (choice is not None and choice.engine != "dense")
        self.slopes_ = slopes if fits[0].slopes is None else fits[0].slopes
        self.warp_ = None if choice is None else choice.warp
        self.stages_ = () if choice is None else choice.stages
        self.engine_ = str(solution_of(fits[0].posterior).name) if choice is None else choice.engine
        self.nearest_ = 0 if choice is None else choice.nearest
        # A copy, for the caller may change the array; inducing points need no rows.
        self.X_train_ = np.empty((0, inputs.width))
        if not sparse:
            self.X_train_ = self.kernel_inputs(np.array(inputs.in_memory().X, dtype=float))
        self.kernel_ = one_or_all([fit.kernel for fit in fits])
        self.posterior_ = one_or_all([fit.posterior for fit in fits])
        self.integrated_ = remembered(fits)
        if sparse:
            self.inducing_points_ = one_or_all([fit.posterior.Z for fit in fits])
        evidence = [fit.posterior.log_evidence for fit in fits]
        self.log_marginal_likelihood_value_ = float(np.mean(evidence))
        self.optima_ = one_or_all([fit.optima for fit in fits])
        self.optimum_ = one_or_all([fit.optimum for fit in fits])
        self.n_iter_ = max([1] + [fit.optimum.n_iterations for fit in fits if fit.optimum])
        return fits


def settings_to_fit(model: GPEstimator) -> Settings:
    """Return the settings of an estimator, with a solver that its correction can be had of.

    Raises
    ------
    InputError
        If a parameter is of no use to any fit, or not to one with this correction.
    """
    settings = to_integrate(model, settings_of(model))
    if model.correction is None:
        return settings
    choice(model.correction, "correction", CORRECTIONS)
    if settings.solver == "markov":
        raise InputError('corrections need a covariance matrix: use solver="dense"')
    if settings.sparse is not None:
        raise InputError("corrections need a covariance matrix: use inducing=None")
    return replace(settings, series=None, inducing=None)


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


def remember_table(model: GPEstimator, table: Table | None) -> None:
    """Keep the hash of the table, the path or name given, and how to find it by its hash."""
    model.table_sha256_ = None if table is None else table.sha256
    reference = None if table is None else table.reference()
    model._table_reference_ = _path_or_none(model.table), reference


def _path_or_none(table: object) -> str | None:
    """Return the path or name a table is given by, None if it is given in another way."""
    if not isinstance(table, (str, os.PathLike)) or table == "exact":
        return None
    return str(os.fspath(table))
