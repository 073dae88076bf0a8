"""`multi_class="joint"` of the classifier: one model of all classes, fitted and asked."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from sklearn.gaussian_process.kernels import Kernel

from qpruntime.arrays import Array
from qpruntime.blocks import in_blocks
from qpruntime.errors import InputError
from qpruntime.estimators.fitted_table import remember
from qpruntime.estimators.joint_points import by_points, points_asked, rows_to_learn, same_columns
from qpruntime.estimators.process import all_of
from qpruntime.estimators.tables import kernel_of_table, levels_of
from qpruntime.estimators.temperature import exponent_of, tempered
from qpruntime.execution.blas_threads import sized
from qpruntime.inference.classes.layout import Layout
from qpruntime.inference.classes.posterior import ClassPosterior
from qpruntime.inference.classes.probabilities import log_probabilities
from qpruntime.inference.classes.ratio import RATIO
from qpruntime.inference.classes.solution import CORRECTED
from qpruntime.inference.classes.sparse.posterior import SparseClassPosterior
from qpruntime.kernels.default import LogNormal
from qpruntime.kernels.units import Units
from qpruntime.learning.data import Data
from qpruntime.learning.default_kernel import Start, automatic_start, default_start, given_start
from qpruntime.learning.joint import Joint, each_its_own
from qpruntime.learning.options import Series
from qpruntime.learning.options_inducing import Inducing
from qpruntime.learning.options_integrate import integrate_of
from qpruntime.learning.options_joint import joint_of
from qpruntime.learning.settings import Settings, generator, left_open, settings_of
from qpruntime.learning.training import train
from qpruntime.projection.projector import Projector
from qpruntime.validation import shown

__all__ = ["JointClasses", "fit_joint", "is_joint", "joint_settings"]

#: Draws of the latent values of a point for intervals, and their seed.
_DRAWS, _SEED = 2000, 0
# Noise is integrated by steps of .7/sqrt(C) over so many deviations about the largest value.
_STEP, _REACH = 0.7, 7.0


def is_joint(model: Any) -> bool:
    """Whether a fitted model is one of all classes."""
    return isinstance(getattr(model, "posterior_", None), ClassPosterior)


def joint_settings(model: Any) -> Settings:
    """Return the settings of a joint fit.

    Raises
    ------
    InputError
        For an option that a joint fit does not have; the message names what does.
    """
    settings, apart = settings_of(model), 'or leave multi_class out, which is "one_vs_rest"'
    for given, words in (
        (
            integrate_of(model.hyperparameters) is not None,
            f'hyperparameters={shown(model.hyperparameters)}: use hyperparameters="mode"',
        ),
        (model.method not in ("qp", "ep"), f'method={shown(model.method)}: use "qp" or "ep"'),
        (settings.objective == "loo", 'optimize="loo": use optimize="evidence"'),
        (
            left_open(model.inducing) and not _is_auto(model.inducing),
            f'inducing={shown(model.inducing)}: use inducing="auto", or a number of points',
        ),
        (
            settings.solver == "markov" or isinstance(model.solver, Series),
            f'solver={shown(model.solver)}: use solver="auto"',
        ),
        (model.prior_mean is not None, "prior_mean: use prior_mean=None"),
        (
            model.correction not in (None, RATIO),
            f"correction={shown(model.correction)}, from which no probabilities follow: use "
            'correction="ratio" for few points, and `marginals` for latent values',
        ),
    ):
        if given:
            raise InputError(f'multi_class="joint" does not have {words}; {apart}')
    return replace(settings, solver="dense")


def _is_auto(inducing: Any) -> bool:
    points = inducing.points if isinstance(inducing, Inducing) else inducing
    return isinstance(points, str) and points == "auto"


def fit_joint(
    draft: Any, points: Array, codes: NDArray[np.intp], projector: Projector, settings: Settings
) -> None:
    """Fit all classes at once, and store what every estimator has afterwards.

    Raises
    ------
    InputError
        If the likelihood is not the probit, or corrections are asked of too many sites.
    """
    if projector.likelihood.name != "probit":
        raise InputError(
            f'multi_class="joint" has the probit, got likelihood={projector.likelihood.spelt!r}: '
            'leave likelihood out, or use multi_class="one_vs_rest"'
        )
    layout = Layout(codes.astype(np.intp), int(codes.max()) + 1)
    if draft.correction is not None and layout.sites > CORRECTED:
        raise InputError(
            f"correction={draft.correction!r} is for {CORRECTED} sites at most, N (C - 1) = "
            f"{layout.sites} here: use correction=None, or fit fewer rows"
        )
    settings = kernel_of_table(draft, settings)
    wanted = points_asked(draft, settings, layout.n, layout.classes)
    settings = replace(settings, auto=None, sparse=None)
    rng, X, units = generator(draft.random_state), np.array(points, dtype=float), None
    if isinstance(settings.kernel, Kernel):
        begin, own = given_start(settings.kernel, settings.priors, {}), X
    else:
        units = Units.of(X, levels=levels_of(draft))
        own = units.scaled(X)
        begin = (default_start if settings.kernel is None else automatic_start)(units)
    few = layout
    some: Any = slice(None)
    if wanted is not None:
        some = rows_to_learn(layout.n, layout.classes, rng)
        few = Layout(layout.own[some], layout.classes)
    data = Data(own[some], np.ones(few.sites), projector, np.zeros(few.n), joint=few)
    fit = train(data, begin, settings, rng)
    kernels, posterior, optima = (fit.kernel,), fit.posterior, fit.optima
    jointly = joint_of(draft.multi_class)
    each = jointly is not None and jointly.kernel_per_class
    if each:
        prior = _prior_of(begin, fit.kernel)
        joint = Joint(settings, few)
        kernels, posterior, last = each_its_own(joint, data, prior, fit.kernel)
        optima = last + optima
    if wanted is not None:
        asked = wanted
        if isinstance(wanted, np.ndarray) and units is not None:
            asked = units.scaled(same_columns(wanted, X))
        posterior = by_points(own, layout, kernels, asked, projector, settings, rng)
    if units is not None:
        kernels = tuple(units.kernel_of_features(kernel) for kernel in kernels)
        if wanted is not None:
            posterior = posterior.on(kernels, units.unscaled)
    remember(draft, projector.table)
    draft.warp_, draft.stages_, draft.prior_mean_ = None, (), None
    draft.engine_, draft.nearest_, draft.X_train_ = "dense", 0, X
    if wanted is not None:
        draft.engine_, draft.X_train_ = "inducing", np.empty((0, X.shape[1]))
        draft.inducing_points_ = posterior.Z
    draft.kernel_ = kernels if each else kernels[0]
    draft.posterior_, draft.optima_ = posterior, optima
    draft.exponent_ = exponent_of(posterior, layout.own)
    draft.optimum_ = optima[0] if optima else None
    draft.log_marginal_likelihood_value_ = float(posterior.log_evidence)
    draft.n_iter_ = max(1, optima[0].n_iterations if optima else 1)


def _prior_of(begin: Start, kernel: Kernel) -> Any:
    """The log prior of a kernel that has come of this start; length-scales by feature have none."""
    prior = begin.log_prior
    if not isinstance(prior, LogNormal) or kernel.n_dims == prior.mean.size:
        return prior
    return LogNormal(prior.mean[:-1], prior.deviation[:-1])


def _rows(asked: JointClasses, *_: Any) -> int:
    if isinstance(asked.posterior, SparseClassPosterior):
        return len(asked.posterior.Z)
    return asked.posterior.n


class JointClasses:
    """A fitted joint model, asked at points.

    Parameters
    ----------
    model : GPClassifier
    """

    def __init__(self, model: Any) -> None:
        self.model, self.posterior = model, model.posterior_
        self.kernels, self.X = all_of(model.kernel_), model.X_train_

    def crossed(self, points: Array) -> tuple[Array, Array]:
        """Prior covariances with the rows, (C, T, N) or (1, T, N), and prior variances."""
        K_star = np.array([kernel(points, self.X) for kernel in self.kernels])
        diagonal = np.array([kernel.diag(points) for kernel in self.kernels])
        return (K_star, diagonal) if len(K_star) > 1 else (K_star[0], diagonal[0])

    @sized(_rows)
    def latent(self, points: Array) -> tuple[Array, Array]:
        """Latent means (T, C) and covariances (T, C, C)."""
        if isinstance(self.posterior, SparseClassPosterior):
            return self.posterior.predict(points)

        def one(some: slice) -> tuple[Array, Array]:
            found: tuple[Array, Array] = self.posterior.predict(*self.crossed(points[some]))
            return found

        mean, covariance = in_blocks(one, len(points), self.posterior.n * len(self.kernels))
        return mean, covariance

    def log_probabilities(self, points: Array, correction: Any) -> Array:
        """Log class probabilities, shape (T, C)."""
        if correction is None:
            # Models of before, unpickled, have no exponent.
            a = getattr(self.model, "exponent_", 1.0)
            return tempered(log_probabilities(*self.latent(points)), a)
        found: Array = self._whole().predict_log_proba(*self.crossed(points), correction=correction)
        return found

    def marginals(self, points: Array, correction: Any) -> Any:
        """Corrected marginals of the latent values of each class."""
        if isinstance(self.posterior, SparseClassPosterior):
            raise InputError(
                "corrections take a covariance matrix, and this model was fitted by inducing "
                "points: fit it with inducing=None"
            )
        return self._whole().marginals(*self.crossed(points), correction=correction)

    def intervals(self, points: Array, level: float, p: Array) -> Array:
        """Central intervals of class probabilities, (T, C, 2), which have `p` (T, C) in them."""
        mean, covariance = self.latent(points)
        rng = np.random.default_rng(_SEED)
        normal = rng.standard_normal((_DRAWS, mean.shape[1]))
        out, tail = np.empty((*mean.shape, 2)), 0.5 * (1.0 - level)
        for t in range(len(mean)):
            values, vectors = np.linalg.eigh(covariance[t])
            f = mean[t] + (normal * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
            out[t] = np.quantile(given_latent(f), [tail, 1.0 - tail], axis=0).T
        out[..., 0] = np.minimum(out[..., 0], p)
        out[..., 1] = np.maximum(out[..., 1], p)
        return out

    def _whole(self) -> ClassPosterior:
        """The posterior with its prior covariances, which a pickle leaves out."""
        if not self.posterior.knows_covariance:
            K = np.array([kernel(self.X) for kernel in self.kernels])
            self.posterior = self.posterior.with_covariance(K if len(K) > 1 else K[0])
            self.model.posterior_ = self.posterior
        found: ClassPosterior = self.posterior
        return found


def given_latent(f: Array) -> Array:
    """Class probabilities given latent values, both of shape (n, C): unit noise is integrated."""
    C = f.shape[1]
    count = int(np.ceil(2.0 * _REACH * np.sqrt(C) / _STEP)) + 1
    at = f.max(axis=1, keepdims=True) + np.linspace(-_REACH, _REACH, count)
    gaps = at[:, :, None] - f[:, None, :]
    below = ndtr(gaps)
    density = np.exp(-0.5 * gaps**2)
    # The others are below: all are, but the one itself, which is not below 1e-12 there.
    share = below.prod(axis=2)[:, :, None] / np.maximum(below, 1e-300) * density
    found: Array = share.sum(axis=1)
    found /= found.sum(axis=1, keepdims=True)
    return found
