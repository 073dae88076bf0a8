"""Classification with joint classes, and its temperature scaling."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp, ndtr
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._memory import in_blocks
from qpruntime._typing import Array
from qpruntime._validation import shown
from qpruntime.errors import InputError
from qpruntime.estimators.base import remember_table
from qpruntime.estimators.input_data import kernel_of_columns
from qpruntime.estimators.parameters import Parameters
from qpruntime.estimators.prior_mean import given_estimator
from qpruntime.execution.threads import sized
from qpruntime.inference.corrections.marginals import CorrectedMarginals
from qpruntime.inference.fixed_point.convergence import Limits
from qpruntime.inference.multiclass.linalg import Layout
from qpruntime.inference.multiclass.posterior import (
    RATIO,
    ClassPosterior,
    left_out_log_proba,
)
from qpruntime.inference.multiclass.probability_kernels import log_probabilities
from qpruntime.inference.multiclass.solution import CORRECTED
from qpruntime.inference.multiclass.sparse import SparseClassPosterior, settled_by_points
from qpruntime.inference.sparse.rows import InducingInputs as Points
from qpruntime.learning.inducing_points import clusters, levels_of, sample, units
from qpruntime.learning.initialisation import automatic_start, default_start, given_start
from qpruntime.learning.inputs import Data, Inputs, RowGroups
from qpruntime.learning.model_selection.budget import DENSE_ROW_LIMIT
from qpruntime.learning.options import (
    Inducing,
    Series,
    Settings,
    integrate_of,
    left_open,
    new_generator,
    settings_of,
)
from qpruntime.learning.scaling import Units
from qpruntime.learning.train import train
from qpruntime.projection.projector import Projector

__all__ = [
    "JointClasses",
    "exponent_of",
    "exponents",
    "fit_joint",
    "is_joint",
    "joint_settings",
    "near_best",
    "no_parts",
    "tempered",
]

# --- Temperature scaling -------------------------------------------------------------------------

#: Rows that are left out, at most: enough for one number.
_ROWS = 1000
#: Values of a, and the rate of the exponential prior of the distance of its logarithm from 0.
_GRID, _RATE = np.exp(np.linspace(np.log(0.5), np.log(5.0), 61)), 2.0


def tempered(log_p: Array, a: float) -> Array:
    """Return log probabilities (T, C) of the power `a` of probabilities, normalised."""
    if a == 1.0:
        return log_p
    return np.asarray(a * log_p - logsumexp(a * log_p, axis=1, keepdims=True))


def exponents(
    log_p: Array, codes: NDArray[np.intp], groups: NDArray[np.intp] | None = None
) -> tuple[float, float]:
    """Return the best exponent, and the one nearest to 1 within one standard error of it.

    Parameters
    ----------
    log_p : ndarray, shape (n, C)
        Log probabilities of rows left out.
    codes : ndarray of int, shape (n,)
        Class of each row.
    groups : ndarray of int, shape (n,), optional
        Rows of one group carry the same information, which the standard error allows for.
    """
    rows = np.arange(len(codes))
    # 1 itself is among them.
    grid = np.sort(np.append(_GRID, 1.0))
    lost = np.array([-tempered(log_p, a)[rows, codes] for a in grid])
    away = np.abs(np.log(grid))
    grouped = None if groups is None else RowGroups(None, groups)
    best, close = near_best(lost, _RATE * away, grouped)
    return float(grid[best]), float(grid[np.argmin(np.where(close, away, np.inf))])


def near_best(
    lost: Array,
    penalty: Array,
    groups: RowGroups | None,
    rows: NDArray[np.intp] | slice = slice(None),
) -> tuple[int, NDArray[np.bool_]]:
    """Return the index of the least loss, and which losses (G,) are within a standard error of it.

    Parameters
    ----------
    lost : ndarray, shape (G, n)
        Losses of the rows, for each of G values.
    penalty : ndarray, shape (G,)
        Added to the sums of losses.
    groups : RowGroups or None
        Those of all rows, of which `rows` (n,) are looked at: the standard error pools each.
    """
    total = lost.sum(axis=1) + penalty
    best = int(np.argmin(total))
    gain = lost - lost[best]
    if groups is not None:
        gain = groups.pooled(gain, rows)
    error = lost.shape[1] / np.sqrt(gain.shape[1]) * gain.std(axis=1)
    return best, total <= total[best] + error


def exponent_of(
    posterior: ClassPosterior, codes: NDArray[np.intp], groups: RowGroups | None = None
) -> float:
    """Return the exponent a by leave-one-out log probabilities of the labels.

    It is the value nearest to 1 within one standard error of the best, because hyper-parameters
    were learnt from the same rows. Groups of rows with equal features are left out as a whole. The
    posterior cannot leave out other groups, and a is 1.

    Parameters
    ----------
    posterior : ClassPosterior
    codes : ndarray of int, shape (N,)
        Class of each row.
    groups : RowGroups, optional
    """
    if groups is not None and not groups.coincide:
        return 1.0
    sampled = sample(len(codes), _ROWS, np.random.default_rng(0))
    together = groups is not None and groups.repeat
    labels = groups.codes if groups is not None and together else None
    log_p = left_out_log_proba(posterior, sampled, labels)
    sound = np.isfinite(log_p).all(axis=1)
    if not sound.any():
        return 1.0
    sampled = sampled[sound]
    return exponents(log_p[sound], codes[sampled], None if labels is None else labels[sampled])[1]


# --- Joint model of all classes ------------------------------------------------------------------

#: Draws of the latent values of a point for intervals, and their seed.
_DRAWS, _SEED = 2000, 0
# Noise is integrated by steps of .7/sqrt(C) over so many deviations about the largest value.
_STEP, _REACH = 0.7, 7.0


def is_joint(model: object) -> bool:
    """Decide whether a fitted model is one of all classes."""
    return isinstance(getattr(model, "posterior_", None), ClassPosterior)


def joint_settings(model: Parameters) -> Settings:
    """Return the settings of a joint fit.

    Raises
    ------
    InputError
        For an option that a joint fit does not have; the message names what does.
    """
    settings, apart = settings_of(model), 'or leave multi_class out, which is "one_vs_rest"'
    for conflicts, words in (
        (
            integrate_of(model.hyperparameters) is not None,
            f'hyperparameters={shown(model.hyperparameters)}: use hyperparameters="mode"',
        ),
        (model.method not in ("qp", "ep"), f'method={shown(model.method)}: use "qp" or "ep"'),
        (settings.search.objective == "loo", 'optimize="loo": use optimize="evidence"'),
        (
            left_open(model.inducing) and not _is_auto(model.inducing),
            f'inducing={shown(model.inducing)}: use inducing="auto", or a number of points',
        ),
        (
            settings.solver == "markov" or isinstance(model.solver, Series),
            f'solver={shown(model.solver)}: use solver="auto"',
        ),
        (given_estimator(model.prior_mean) is not None, "prior_mean: use prior_mean=None"),
        (
            model.correction not in (None, RATIO),
            f"correction={shown(model.correction)}, from which no probabilities follow: use "
            'correction="ratio" for few points, and `marginals` for latent values',
        ),
    ):
        if conflicts:
            raise InputError(f'multi_class="joint" does not have {words}; {apart}')
    return replace(settings, series=None)


def _is_auto(inducing: object) -> bool:
    points = inducing.points if isinstance(inducing, Inducing) else inducing
    return isinstance(points, str) and points == "auto"


def fit_joint(
    draft: Parameters,
    points: Inputs,
    codes: NDArray[np.intp],
    projector: Projector,
    settings: Settings,
) -> None:
    """Fit all classes at once, and store what every estimator has afterwards.

    Raises
    ------
    InputError
        If the likelihood is not the probit, or corrections are asked of too many sites.
    """
    if projector.likelihood.name != "probit":
        raise InputError(
            'multi_class="joint" takes the probit only, got '
            f"likelihood={projector.likelihood.spelt!r}: leave likelihood out, or use "
            'multi_class="one_vs_rest"'
        )
    layout = Layout(codes.astype(np.intp), int(codes.max()) + 1)
    if draft.correction is not None and layout.sites > CORRECTED:
        raise InputError(
            f"correction={draft.correction!r} is possible for at most {CORRECTED} sites, and "
            f"N (C - 1) = {layout.sites} here: use correction=None, or fit fewer rows"
        )
    settings = kernel_of_columns(points, settings)
    wanted = inducing_points_of(draft, settings, layout.n, layout.classes)
    settings = replace(settings, inducing=None)
    rng, units = new_generator(draft.random_state), None
    X = np.array(points.in_memory().X, dtype=float)
    if isinstance(settings.kernel, Kernel):
        begin, inputs = given_start(settings.kernel, settings.search.priors, {}), X
    else:
        units = Units.of(X, levels=points.levels)
        inputs = units.scaled(X)
        begin = (default_start if settings.kernel is None else automatic_start)(units)
    few = layout
    learning_rows: Any = slice(None)
    if wanted is not None:
        learning_rows = rows_to_learn(layout.n, layout.classes, rng)
        few = Layout(layout.own[learning_rows], layout.classes)
    learning = Inputs(inputs[learning_rows])
    data = Data(learning, np.ones(few.sites), projector, np.zeros(few.n), joint=few)
    fit = train(data, begin, settings, rng)
    kernel, posterior, optima = fit.kernel, fit.posterior, fit.optima
    if wanted is not None:
        scaled_points = wanted
        if isinstance(wanted, np.ndarray) and units is not None:
            scaled_points = units.scaled(same_columns(wanted, X))
        posterior = by_points(inputs, layout, kernel, scaled_points, projector, settings, rng)
    if units is not None:
        kernel = units.kernel_of_features(kernel)
        if wanted is not None:
            posterior = posterior.on((kernel,), units.unscaled)
    remember_table(draft, projector.table)
    draft.warp_, draft.stages_, draft.prior_mean_, draft.slopes_ = None, (), None, None
    draft.engine_, draft.nearest_, draft.X_train_ = "dense", 0, X
    if wanted is not None:
        draft.engine_, draft.X_train_ = "inducing", np.empty((0, X.shape[1]))
        draft.inducing_points_ = posterior.Z
    draft.kernel_, draft.posterior_, draft.optima_ = kernel, posterior, optima
    draft.exponent_ = exponent_of(posterior, layout.own, points.groups)
    draft.optimum_ = optima[0] if optima else None
    draft.log_marginal_likelihood_value_ = float(posterior.log_evidence)
    draft.n_iter_ = max(1, optima[0].n_iterations if optima else 1)


def _rows(joint: JointClasses, *_: object) -> int:
    if isinstance(joint.posterior, SparseClassPosterior):
        return len(joint.posterior.Z)
    return joint.posterior.n


class JointClasses:
    """Predictions of a fitted joint model at points.

    Parameters
    ----------
    model : GPClassifier
    """

    def __init__(self, model: Parameters) -> None:
        assert isinstance(model.posterior_, ClassPosterior)
        assert isinstance(model.kernel_, Kernel)
        self.model, self.posterior = model, model.posterior_
        self.kernel, self.X = model.kernel_, model.X_train_

    def crossed(self, points: Array) -> tuple[Array, Array]:
        """Return prior covariances with the rows (T, N), and prior variances (T,)."""
        return np.asarray(self.kernel(points, self.X)), np.asarray(self.kernel.diag(points))

    @sized(_rows)
    def latent(self, points: Array) -> tuple[Array, Array]:
        """Return the latent means (T, C) and covariances (T, C, C)."""
        if isinstance(self.posterior, SparseClassPosterior):
            return self.posterior.predict(points)

        def predict_block(block: slice) -> tuple[Array, Array]:
            return self.posterior.predict(*self.crossed(points[block]))

        mean, covariance = in_blocks(predict_block, len(points), self.posterior.n)
        return mean, covariance

    def log_probabilities(self, points: Array, correction: Any) -> Array:
        """Return the log class probabilities, shape (T, C)."""
        if correction is None:
            return tempered(log_probabilities(*self.latent(points)), self.model.exponent_)
        return self._whole().predict_log_proba(*self.crossed(points), correction=correction)

    def marginals(self, points: Array, correction: Any) -> tuple[CorrectedMarginals, ...]:
        """Return the corrected marginals of the latent values of each class."""
        if isinstance(self.posterior, SparseClassPosterior):
            raise InputError(
                "corrections need a covariance matrix, and this model was fitted with inducing "
                "points: fit it with inducing=None"
            )
        return self._whole().marginals(*self.crossed(points), correction=correction)

    def intervals(self, points: Array, tails: Array, p: Array) -> Array:
        """Return quantiles of class probabilities, (T, C, 2), extended to `p` (T, C)."""
        mean, covariance = self.latent(points)
        rng = np.random.default_rng(_SEED)
        normal = rng.standard_normal((_DRAWS, mean.shape[1]))
        out = np.empty((*mean.shape, 2))
        for t in range(len(mean)):
            values, vectors = np.linalg.eigh(covariance[t])
            f = mean[t] + (normal * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
            out[t] = np.quantile(given_latent(f), tails, axis=0).T
        out[..., 0] = np.minimum(out[..., 0], p)
        out[..., 1] = np.maximum(out[..., 1], p)
        return out

    def _whole(self) -> ClassPosterior:
        """Return the posterior with its prior covariances, which a pickle leaves out."""
        if not self.posterior.knows_covariance:
            self.posterior = self.posterior.with_covariance(self.kernel(self.X))
            self.model.posterior_ = self.posterior
        return self.posterior


def given_latent(f: Array) -> Array:
    """Return class probabilities given latent values, both (n, C), with unit noise integrated."""
    C = f.shape[1]
    count = int(np.ceil(2.0 * _REACH * np.sqrt(C) / _STEP)) + 1
    at = f.max(axis=1, keepdims=True) + np.linspace(-_REACH, _REACH, count)
    gaps = at[:, :, None] - f[:, None, :]
    below = ndtr(gaps)
    density = np.exp(-0.5 * gaps**2)
    # The others are below: all are, but the one itself, which is not below 1e-12 there.
    share = below.prod(axis=2)[:, :, None] / np.maximum(below, 1e-300) * density
    probabilities: Array = share.sum(axis=1)
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    return probabilities


# --- Joint model with inducing points ------------------------------------------------------------

# Points of each class by default: of all classes together so many, within these bounds.
_TOGETHER, _FEWEST, _MOST = 1000, 50, 200
# A kernel is learnt from so many rows that C N^3 is this: a few seconds for ten classes.
_WORK = 1.25e9


def inducing_points_of(
    model: Parameters, settings: Settings, n: int, classes: int
) -> int | Array | None:
    """Return how many inducing points a joint fit is to have, or which; None for none.

    Raises
    ------
    InputError
        If a joint fit does not have the options that are given.
    """
    inducing = model.inducing
    if isinstance(inducing, Inducing) and (
        more := [k for k in inducing.changed() if k != "points"]
    ):
        raise InputError(
            f'{more[0]} of inducing={shown(inducing)} cannot act with multi_class="joint", which '
            "takes a number of points or points: use inducing=200"
        )
    if settings.sparse is None:
        few = n <= DENSE_ROW_LIMIT or settings.auto is None or model.correction is not None
        return None if few else int(np.clip(_TOGETHER // classes, _FEWEST, _MOST))
    wanted = settings.sparse.points
    if isinstance(wanted, str):
        raise InputError(
            f'inducing={shown(inducing)} cannot be used with multi_class="joint": give a number, '
            "inducing=100, or points"
        )
    if model.correction is not None:
        raise InputError(
            f"correction={model.correction!r} needs a covariance matrix: use inducing=None"
        )
    return cast("int | Array", wanted)  # `settings_of` has converted points


def no_parts(multi_class: str, y: ArrayLike) -> None:
    """Raise `InputError` if rows in parts are asked of more than two classes jointly."""
    if multi_class == "joint" and np.unique(np.asarray(y)).size > 2:
        raise InputError(
            'multi_class="joint" is fitted to all rows at once: use fit, or '
            'multi_class="one_vs_rest"'
        )


def same_columns(points: Array, X: Array) -> Array:
    """Return inducing points that have the columns of X, or raise `InputError`."""
    if points.shape[1] != X.shape[1]:
        raise InputError(f"inducing must have {X.shape[1]} columns like X, got {points.shape[1]}")
    return points


def rows_to_learn(n: int, classes: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Return the rows from which a kernel is learnt."""
    return sample(n, int((_WORK / classes) ** (1.0 / 3.0)), rng)


def by_points(
    X: Array,
    layout: Layout,
    kernel: Kernel,
    points: int | Array,
    projector: Projector,
    settings: Settings,
    rng: np.random.Generator,
) -> SparseClassPosterior:
    """Return the posterior of all rows under a kernel as it is; X and points in their units."""
    if isinstance(points, np.ndarray):
        Z = same_columns(points, X)
    else:
        measured = units(kernel, X.std(axis=0))
        Z = clusters(X, min(points, len(X)), rng, measured, levels_of(kernel))
    limits = Limits(settings.tol, settings.max_sweeps, 1.0)
    return settled_by_points(X, layout, (Points(kernel, Z),), projector, limits, of_estimator=True)
