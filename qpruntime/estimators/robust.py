"""Robust regression over `infer`: targets with outliers in; means, densities, quantiles out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin

from qpruntime._restorable import restorable
from qpruntime._typing import Array, Bounds
from qpruntime._validation import choice, flag, levels
from qpruntime.errors import InputError
from qpruntime.estimators.averaging import is_integrated
from qpruntime.estimators.base import begun, extended, settings_to_fit, table_to_fit, with_inducing
from qpruntime.estimators.input_data import fit_data, weighed
from qpruntime.estimators.likelihood_parameters import median, noise_of, robust_std
from qpruntime.estimators.likelihood_regressor import LikelihoodRegressor
from qpruntime.estimators.prior_mean import OfNumbers, Target
from qpruntime.estimators.prior_mean_selection import boosted_numbers
from qpruntime.estimators.process import draft_of, renewed
from qpruntime.learning.inputs import Data
from qpruntime.learning.options import Integrate
from qpruntime.likelihoods import Likelihood, get
from qpruntime.predictive.distribution import Predicted, RowOffsets
from qpruntime.projection.projector import Projector

__all__ = ["GPRobustRegressor"]


# Normals that a predictive quantile is bisected with; the rule has up to so many nodes.
_NODES = 1000


class _RobustAttributes(LikelihoodRegressor):
    """Attributes that `fit` sets; a dataclass takes annotations of its own class for parameters."""

    nu_: float
    scale_: float
    # The posterior's units are those of the centred targets, so that the prior mean is 0.
    mean_ = 0.0


@restorable("gp-robust-regressor/1", root=True)
@dataclass(kw_only=True, eq=False, repr=False, match_args=False)
class GPRobustRegressor(RegressorMixin, _RobustAttributes):
    """Regression with Student-t noise by EP or QP: outliers lose their pull.

    y = f(x) + scale t, where t has nu degrees of freedom and f is a Gaussian process. The kernel's
    parameters, the scale and, if `noise_bounds` has it, nu maximise EP's evidence together.

    Parameters
    ----------
    kernel : scikit-learn kernel, "auto" or None
        By default a constant plus Matérn 5/2, in units of each feature's spread, as for
        `GPClassifier`. Features are not scaled for a kernel object.
    nu : float
        Degrees of freedom, or their starting value if they are learnt.
    noise_bounds : dict, optional
        Bounds of "nu" and "scale", each a pair or "fixed". By default nu is fixed, and the scale,
        in units of y, is between 0.002 and 100 robust standard deviations of y. "start" is the
        starting value of the scale, or its value if it is not learnt; by default 0.3 of these.
    normalize_y : bool
        Subtract the median of y and divide by its robust standard deviation, 1.48 median absolute
        deviations, both with sample weights if there are any. The kernel then models the result.
    method : {"qp", "ep"}
        Inference of the final posterior.
    table : None, "exact", path, name or Table
        Source of sigma* for QP; see `qpruntime.infer`. A table holds for one nu and one scale.
        If either is learnt, QP integrates instead.
    monotone : mapping, optional
        Features along which the function rises, +1, or falls, -1: ``{"age": +1}``, or numbers of
        columns, as for `GPClassifier`.
    optimize, tol, max_sweeps, correction, inducing, solver
        As for `GPClassifier`.
    n_jobs, random_state, verbose
        As for `GPClassifier`.
    prior_mean : estimator, "auto" or None
        As for `GPClassifier`: cross-fitted predictions of any regressor.
    hyperparameters : {"mode", "integrate"} or Integrate
        As for `GPClassifier`; learnt parameters of the noise are integrated as well.

    Attributes
    ----------
    kernel_ : scikit-learn kernel
        Kernel with the fitted parameters.
    nu_, scale_ : float
        Parameters of the noise; the scale is in units of y.
    likelihood_ : Likelihood
        Likelihood of the normalised targets.
    integrated_ : Integrated or None
        As in `GPClassifier`; `nu_`, `scale_` and `likelihood_` stay those of the mode.
    posterior_ : Posterior
        Posterior of the normalised latent function at the training points. Observations that look
        like outliers have small or negative site precisions; `Posterior.n_negative` counts the
        latter.
    converged_ : bool
        True if the sites and the optimiser have converged.
    optimum_ : Optimum or None
        The best optimiser run.
    optima_ : tuple of Optimum
        Every optimiser run, best first.
    log_marginal_likelihood_value_ : float
        Log evidence of the posterior, of the normalised targets, as in scikit-learn.
    n_iter_ : int
        Optimiser iterations, at least 1.
    table_sha256_ : str or None
        Hash of the table's data, None without a table. A model with a path or a name refits with
        this very table, and raises `TableError` if it is missing. Predictions need no table.
    inducing_points_ : ndarray, shape (M, d)
        Inducing points, if there are any.
    engine_, stages_, nearest_, warp_, prior_mean_
        As in `GPClassifier`.
    X_train_ : ndarray, shape (N, d)
        Empty with inducing points.

    See Also
    --------
    qpruntime.GPRegressor

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime import GPRobustRegressor
    >>> X = np.linspace(0.0, 6.0, 30)[:, None]
    >>> y = np.sin(X[:, 0]) + 0.1 * np.random.default_rng(1).standard_normal(30)
    >>> y[[4, 20]] += 9.0
    >>> model = GPRobustRegressor(method="ep").fit(X, y)
    >>> model.predict([[1.5], [4.5]]).round(1).tolist()
    [1.0, -1.0]
    >>> round(model.likelihood_.parameters["scale"], 2)
    0.08
    """

    nu: float = 4.0
    noise_bounds: Mapping[Literal["nu", "scale", "start"], Bounds | float] | None = None
    normalize_y: bool = True
    method: Literal["qp", "ep"] = "qp"
    monotone: Mapping[str | int, int] | None = None
    hyperparameters: Literal["mode", "integrate"] | Integrate = "mode"

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> GPRobustRegressor:
        """Fit hyper-parameters, noise and posterior.

        Parameters
        ----------
        X : array-like, shape (N, d)
        y : array-like, shape (N,)
        sample_weight : array-like, shape (N,), optional
            Powers of the single likelihoods, as in `GPClassifier.fit`; rows of weight 0 are
            dropped. Noise is learnt under them, and y is normalised by its weighted median and
            median absolute deviation.
        groups : array-like, shape (N,), optional
            Labels of groups, as in `GPClassifier.fit`.

        Raises
        ------
        TableError
            If the table is missing, or not the one that the model was fitted with before.
        ValueError
            If X, y or weights are not usable; a subclass, `InputError`, where the check is ours.

        Warns
        -----
        ConvergenceWarning
            If the optimiser or the sites have not settled. Student-t noise leaves the posterior
            several peaks where outliers cluster, and EP need not have a fixed point there.
        """
        settings = settings_to_fit(self)
        choice(self.method, "method", ("qp", "ep"))
        draft = draft_of(self)
        points, targets = fit_data(draft, X, y, sample_weight, y_numeric=True)
        targets = get("student-t").validate(targets.astype(float))
        weights, points, targets = weighed(sample_weight, points, targets, groups=groups)
        spread = robust_std(targets, weights)
        centre, unit, middle = 0.0, 1.0, median(targets, weights)
        if self.normalize_y:
            centre, unit, middle = middle, spread, 0.0
        likelihood, learn = noise_of(self, spread, unit)
        data = Data(
            points,
            (targets - centre) / unit,
            Projector(likelihood, self.method, table_to_fit(self)),
            prior=np.zeros(len(targets)),
            weights=weights,
            learn=learn,
            discrete=False,
        )

        def target() -> Target:
            return Target(targets, weights, OfNumbers(centre, unit), False, boosted_numbers)

        fit = draft._train([data], settings, target, max(spread, abs(middle)) / unit)[0]
        return self._concluded(draft, fit, centre, unit)

    @with_inducing
    def partial_fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> GPRobustRegressor:
        """Fit to the first part of the rows; add later parts to the posterior, with `inducing`.

        The first call learns kernel, noise, inducing points and the units of y, as in
        `GPClassifier.partial_fit`.
        """
        if not begun(self):
            return self.fit(X, y, sample_weight)
        points, targets = fit_data(self, X, y, y_numeric=True, reset=False)
        targets = get("student-t").validate(targets.astype(float))
        weights, points, targets = weighed(sample_weight, points, targets)
        scaled = (targets - self._centre_) / self._unit_
        changed = extended(self, points, [scaled], weights, self.prior_means(points.rows))
        settled = self.converged_ and changed["posterior_"].converged
        return renewed(self, changed | {"converged_": settled})

    def _with_likelihood(self, likelihood: Likelihood) -> dict[str, Any]:
        parameters = likelihood.parameters
        return {
            "likelihood_": likelihood,
            "nu_": parameters["nu"],
            "scale_": parameters["scale"] * self._unit_,
            "_predicted_": Predicted(likelihood, None),
        }

    @overload
    def predict(self, X: ArrayLike, return_std: Literal[False] = False) -> Array: ...
    @overload
    def predict(self, X: ArrayLike, return_std: Literal[True]) -> tuple[Array, Array]: ...
    def predict(self, X: ArrayLike, return_std: bool = False) -> Array | tuple[Array, Array]:
        """Predict the mean of the function without noise, shape (T,), which is the median of y.

        If hyper-parameters were integrated and the posterior is skew, the median differs from it:
        see `predict_quantiles`.

        Parameters
        ----------
        X : array-like, shape (T, d)
        return_std : bool
            Whether to return its standard deviation, shape (T,), as well, without the noise of an
            observation: for that see `predict_quantiles`.
        """
        wanted = flag(return_std, "return_std")
        mean, variance = self.latent(X)
        return (mean, np.sqrt(variance)) if wanted else mean

    def _observations(self, y: ArrayLike) -> Array:
        targets = super()._observations(y)
        if targets.ndim != 1:
            raise InputError(f"y must have shape (T,), one number a row, got {targets.shape}")
        return targets

    def _quantiles_at(self, points: Array, q: ArrayLike, rows: RowOffsets) -> Array:
        if self.correction is not None or is_integrated(self):
            return super()._quantiles_at(points, q, rows)
        at = levels(q, "q")
        flat = at.reshape(-1)
        tail, side = np.minimum(flat, 1.0 - flat), np.sign(flat - 0.5)

        def finish(mean: Array, variance: Array) -> Array:
            likelihood = self.likelihood_
            assert likelihood.reach is not None
            reach = likelihood.reach(variance, tail, likelihood.theta)
            return self._centre_ + self._unit_ * (mean[:, None] + side * reach)

        quantiles = self._predicted(points, finish, width=_NODES)
        return np.reshape(quantiles, (len(points), *at.shape))
