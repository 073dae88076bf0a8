"""Regression with any likelihood over `infer`: its parameters are learnt with the kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, overload

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score

from qpruntime._restorable import restorable
from qpruntime._typing import Array, Bounds
from qpruntime._validation import finite, flag, shown
from qpruntime.errors import InputError
from qpruntime.estimators.averaging import averaged, deviations
from qpruntime.estimators.input_data import fit_data, weighed
from qpruntime.estimators.likelihood_regressor import NODES, ExposedRegressor, log_exposures
from qpruntime.estimators.process import draft_of
from qpruntime.inference.corrections.marginals import CorrectedMarginals
from qpruntime.learning.options import Integrate
from qpruntime.likelihoods import Likelihood, get
from qpruntime.likelihoods.responses import spans
from qpruntime.predictive.distribution import RowOffsets

__all__ = ["GPRegressor"]


@restorable("gp-regressor/1", root=True)
@dataclass(kw_only=True, eq=False, repr=False, match_args=False)
class GPRegressor(RegressorMixin, ExposedRegressor):
    """Regression by EP or QP with any likelihood, whose parameters are learnt with the kernel.

    y ~ p(y | f(x)), where f is a Gaussian process. The parameters of kernel and likelihood maximise
    EP's evidence together. The gradient in the likelihood's parameters is a sum over rows of slopes
    of log Z. EP is exact for normal noise, the default.

    Parameters
    ----------
    kernel : scikit-learn kernel, "auto" or None
        By default a constant plus Matérn 5/2, in units of each feature's spread, as for
        `GPClassifier`. Features are not scaled for a kernel object.
    likelihood : str or Likelihood
        A name such as "gaussian", "gamma", "beta", "student-t(nu=4)", "zero-inflated" or
        "negative-binomial", with starting values of parameters; or your own by
        `Likelihood.from_log_prob`.
    parameter_bounds : dict, optional
        Bounds of the likelihood's parameters by name: a pair, or "fixed". By default all positive
        parameters are learnt within a factor of 10000.
    normalize_y : bool
        Subtract the median of y and divide by its robust standard deviation, if the likelihood is
        noise about f with a parameter "scale". The kernel then models the result.
    method : {"qp", "ep"}
        Inference of the final posterior.
    table : None, "exact", path, name or Table
        Source of sigma* for QP; see `qpruntime.infer`.
    optimize, tol, max_sweeps, correction, inducing, solver
        As for `GPClassifier`.
    n_jobs, random_state, verbose
        As for `GPClassifier`.
    prior_mean : estimator, "auto" or None
        As for `GPClassifier`: any regressor of y, if the likelihood is noise about f.
    hyperparameters : {"mode", "integrate"} or Integrate
        As for `GPClassifier`; the likelihood's parameters are integrated as well. A likelihood that
        is known by its density alone has no quantiles then.

    Attributes
    ----------
    kernel_ : scikit-learn kernel
        Kernel with the fitted parameters.
    parameters_ : dict
        Parameters of the likelihood by name; a scale is in units of y.
    likelihood_ : Likelihood
        Likelihood with these parameters; noise about f is that of normalised targets.
    mean_ : float
        Prior mean of f: 0 for normalised targets, otherwise the mean that fits observations alone.
    integrated_ : Integrated or None
        As in `GPClassifier`.
    posterior_ : Posterior
        Posterior of the latent function at the training points; normalised for noise about f.
    converged_ : bool
        True if the sites and the optimiser have converged.
    optimum_ : Optimum or None
        The best optimiser run.
    optima_ : tuple of Optimum
        Every optimiser run, best first.
    log_marginal_likelihood_value_ : float
        Log evidence of the posterior; for noise about f that of the normalised targets.
    n_iter_ : int
        Optimiser iterations, at least 1.
    table_sha256_ : str or None
        Hash of the table's data, None without a table.
    inducing_points_ : ndarray, shape (M, d)
        Inducing points, if there are any.
    engine_, stages_, nearest_, warp_, prior_mean_
        As in `GPClassifier`.
    X_train_ : ndarray, shape (N, d)
        Training points; empty with inducing points.

    See Also
    --------
    qpruntime.GPRobustRegressor, qpruntime.GPSurvival, qpruntime.Likelihood

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime import GPRegressor
    >>> X = np.linspace(0.0, 6.0, 40)[:, None]
    >>> y = np.random.default_rng(1).gamma(20.0, np.exp(np.sin(X[:, 0])) / 20.0)
    >>> model = GPRegressor(likelihood="gamma", method="ep").fit(X, y)
    >>> model.predict([[1.5], [4.5]]).round(1).tolist()
    [2.5, 0.4]
    >>> 10.0 < model.parameters_["shape"] < 40.0
    True
    """

    likelihood: str | Likelihood = "gaussian"
    parameter_bounds: Mapping[str, Bounds] | None = None
    normalize_y: bool = True
    method: Literal["qp", "ep"] = "qp"
    hyperparameters: Literal["mode", "integrate"] | Integrate = "mode"

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        exposure: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> GPRegressor:
        """Fit hyper-parameters, those of the likelihood, and the posterior.

        Parameters
        ----------
        X : array-like, shape (N, d)
        y : array-like, shape (N,)
            As the likelihood takes it; of several numbers an observation, shape (N, C).
        sample_weight : array-like, shape (N,), optional
            Powers of the single likelihoods, as in `GPClassifier.fit`; rows of weight 0 are
            dropped.
        exposure : float or array-like, shape (N,), optional
            Of counts and positive numbers of mean e^f, what multiplies that: hours, area, persons.
            Default 1. Predictions are for one unit, unless they are given theirs.
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
            If the optimiser or the sites have not settled.
        """
        likelihood = _likelihood_of(self.likelihood)
        if likelihood.validate is spans:
            raise InputError(f"likelihood {likelihood.name!r} is for times: use GPSurvival")
        draft = draft_of(self)
        several = {"multi_output": True} if likelihood.columns > 1 else {}
        points, targets = fit_data(draft, X, y, sample_weight, y_numeric=True, **several)
        targets = likelihood.validate(targets.astype(float))
        shift = np.broadcast_to(log_exposures(likelihood, exposure, len(targets)), (len(targets),))
        weights, points, targets, shift = weighed(
            sample_weight, points, targets, shift, groups=groups
        )
        draft._exposed_ = bool(shift.any())
        besides = shift if draft._exposed_ else 0.0
        observed = points, targets, weights, likelihood
        return self._fit_observed(draft, *observed, shift=besides)

    @overload
    def predict(
        self,
        X: ArrayLike,
        return_std: Literal[False] = False,
        exposure: ArrayLike | None = None,
        trials: ArrayLike | None = None,
    ) -> Array: ...
    @overload
    def predict(
        self,
        X: ArrayLike,
        return_std: Literal[True],
        exposure: ArrayLike | None = None,
        trials: ArrayLike | None = None,
    ) -> tuple[Array, Array]: ...
    @averaged(deviations)
    def predict(
        self,
        X: ArrayLike,
        return_std: bool = False,
        exposure: ArrayLike | None = None,
        trials: ArrayLike | None = None,
    ) -> Array | tuple[Array, Array]:
        """Predict the mean of an observation at `X`, shape (T,), for unit exposure and one trial.

        Parameters
        ----------
        X : array-like, shape (T, d)
        return_std : bool
            Whether to return the standard deviation of an observation, shape (T,), as well, with
            its noise. Either is infinite, or NaN, where y has none.
        exposure, trials
            As for `predict_quantiles`.
        """
        wanted = flag(return_std, "return_std", "exposures are handed over by name, exposure=...")
        points, predicted = self.validate_points(X), self._predicted_
        columns = self._rows(len(points), exposure, trials).columns(len(points))

        def finish(mean: Array, variance: Array, *rows: Array) -> Array:
            return np.column_stack(
                predicted.mean_and_variance(mean, variance, RowOffsets.of(*rows))
            )

        def by_grid(marginals: list[CorrectedMarginals], *rows: Array) -> Array:
            return predicted.corrected_moments(marginals, RowOffsets.of(*rows))

        moments = self._predicted(points, finish, *columns, by_grid=by_grid, width=NODES)
        mean = self._centre_ + self._unit_ * moments[:, 0]
        return (mean, self._unit_ * np.sqrt(moments[:, 1])) if wanted else mean

    def score(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        exposure: ArrayLike | None = None,
    ) -> float:
        """Return the R^2 of `predict`; for shares of trials if y has trials.

        If the model was fitted with exposures, `exposure` is needed and predictions scale with it.
        """
        self._named(exposure)
        if exposure is not None:
            return float(
                r2_score(y, self.predict(X, exposure=exposure), sample_weight=sample_weight)
            )
        if self.likelihood_.columns == 1:
            return float(super().score(X, y, sample_weight))
        pairs = self._observations(y)
        weights = pairs[:, 1]
        if sample_weight is not None:
            weights = weights * finite(sample_weight, "sample_weight", (len(pairs),))
        return float(super().score(X, pairs[:, 0] / pairs[:, 1], weights))


def _likelihood_of(option: object) -> Likelihood:
    """Return the likelihood of a regression.

    Raises
    ------
    InputError
        If it is none, or one of labels.
    """
    if not isinstance(option, (str, Likelihood)):
        raise InputError(
            "likelihood must be a name or a Likelihood; make one of a log density by "
            f"Likelihood.from_log_prob, got {shown(option)}"
        )
    likelihood = get(option)
    if likelihood.recipe is None and likelihood.given is None:
        raise InputError(
            f"likelihood {likelihood.name!r} has no numbers y: use GPClassifier for classes, "
            "GPOrdinal for ordered levels, GPSurvival for times"
        )
    return replace(likelihood, rows=None) if likelihood.rows is not None else likelihood
