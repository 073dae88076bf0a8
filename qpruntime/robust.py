"""Robust regression over `infer`: targets with outliers in; means, densities, quantiles out."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln, ndtr
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.gaussian_process.kernels import Kernel
from sklearn.utils.validation import check_is_fitted, validate_data

from qpruntime.errors import InputError
from qpruntime.likelihoods import get
from qpruntime.projection import Projector, project_arrays
from qpruntime.table import Table
from qpruntime.training import (
    Callback,
    check_parameters,
    checked,
    default_kernel,
    generator,
    settings_of,
    train,
)
from qpruntime.validation import choice, number, real, shown

__all__ = ["GPRobustRegressor"]

Array = NDArray[np.float64]
Bounds = tuple[float, float] | str

# A latent variance of 0 comes from rounding; a normal needs a width.
_LEAST_VARIANCE = 1e-30
# The median absolute deviation of a normal is its standard deviation over this.
_MAD = 1.4826022185056018
# Where the scale starts and how far it may go, in robust standard deviations of y.
_START, _NARROWEST, _WIDEST = 0.3, 1e-5, 1e2


class GPRobustRegressor(RegressorMixin, BaseEstimator):
    """Regression with Student-t noise by EP or QP: outliers lose their pull.

    y = f(x) + scale t, t with nu degrees of freedom, f a Gaussian process. The kernel's parameters,
    the scale and, if asked for, nu maximise EP's evidence together.

    Parameters
    ----------
    kernel : scikit-learn kernel, optional
        Default ``ConstantKernel(1) * RBF(1)``. Features are not scaled.
    nu : float
        Degrees of freedom; where they start if they are learnt.
    nu_bounds : (float, float) or "fixed"
        Between what nu is learnt.
    scale : float, optional
        Of the noise, in units of y; where it starts if it is learnt. By default 0.3 of the robust
        standard deviation of y.
    scale_bounds : (float, float), "fixed" or None
        In units of y; None is 1e-5 to 100 robust standard deviations of y.
    normalize_y : bool
        Subtract the median of y and divide by its robust standard deviation, 1.48 median absolute
        deviations: the kernel's parameters are then those of the result.
    method : {"qp", "ep"}
        How the final posterior is computed.
    table : None, "exact", path, name or Table
        Where QP finds sigma*; see `qpruntime.infer`.
    objective, optimize, n_restarts, max_iter, ftol, tol, max_sweeps
        As for `GPClassifier`.
    n_jobs, verbose, callback, random_state
        As for `GPClassifier`.

    Attributes
    ----------
    kernel_ : scikit-learn kernel
        With the fitted parameters.
    nu_, scale_ : float
        Of the noise; the scale in units of y.
    likelihood_ : Likelihood
        Of the normalised targets.
    posterior_ : Posterior
        Of the normalised latent function at the training points. Observations that look like
        outliers have small or negative site precisions; `Posterior.n_negative` counts the latter.
    converged_ : bool
        Whether the sites and the optimiser have settled.
    optimum_ : Optimum or None
        The best optimiser run.
    optima_ : tuple of Optimum
        Every optimiser run, best first.
    n_iter_ : int
        Optimiser iterations, at least 1.
    X_train_ : ndarray, shape (N, d)

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
    >>> model.likelihood_
    <Likelihood student-t(nu=4, scale=0.0835)>
    """

    def __init__(
        self,
        kernel: Kernel | None = None,
        *,
        nu: float = 4.0,
        nu_bounds: Bounds = "fixed",
        scale: float | None = None,
        scale_bounds: Bounds | None = None,
        normalize_y: bool = True,
        method: str = "qp",
        table: Table | str | os.PathLike[str] | None = None,
        objective: str = "evidence",
        optimize: bool = True,
        n_restarts: int = 0,
        max_iter: int = 1000,
        ftol: float = 1e-9,
        tol: float = 1e-6,
        max_sweeps: int = 100,
        n_jobs: int | None = None,
        verbose: int = 0,
        callback: Callback | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.kernel = kernel
        self.nu = nu
        self.nu_bounds = nu_bounds
        self.scale = scale
        self.scale_bounds = scale_bounds
        self.normalize_y = normalize_y
        self.method = method
        self.table = table
        self.objective = objective
        self.optimize = optimize
        self.n_restarts = n_restarts
        self.max_iter = max_iter
        self.ftol = ftol
        self.tol = tol
        self.max_sweeps = max_sweeps
        self.n_jobs = n_jobs
        self.verbose = verbose
        self.callback = callback
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike) -> GPRobustRegressor:
        """Fit hyper-parameters, noise and posterior.

        Parameters
        ----------
        X : array-like, shape (N, d)
        y : array-like, shape (N,)

        Raises
        ------
        ValueError
            If X or y is not usable; a subclass, `InputError`, where the check is ours.

        Warns
        -----
        ConvergenceWarning
            If the optimiser or the sites have not settled. Student-t noise leaves the posterior
            several peaks where outliers cluster, and EP need not have a fixed point there.
        """
        check_parameters(self)
        choice(self.method, "method", ("qp", "ep"))
        data, targets = checked(validate_data, self, X, y, dtype=np.float64, y_numeric=True)
        targets = get("student-t").validate(targets.astype(float))
        spread = _robust_std(targets)
        self._centre, self._unit = (
            (float(np.median(targets)), spread)
            if self.normalize_y
            else (
                0.0,
                1.0,
            )
        )
        scale = _START * spread if self.scale is None else self.scale
        widths = (_NARROWEST * spread, _WIDEST * spread)
        learn = {}
        for name, start, bounds, unit in (
            ("nu", self.nu, self.nu_bounds, 1.0),
            ("scale", scale, self.scale_bounds or widths, self._unit),
        ):
            if not (isinstance(bounds, str) and bounds == "fixed"):
                learn[name] = _bounds(name, start, bounds, unit)
        likelihood = get("student-t", nu=self.nu, scale=_number(scale, "scale") / self._unit)
        fit = train(
            default_kernel() if self.kernel is None else clone(self.kernel),
            data,
            (targets - self._centre) / self._unit,
            Projector(likelihood, self.method, self.table),
            np.zeros(len(data)),
            settings_of(self),
            generator(self.random_state),
            learn=learn,
        )
        self.kernel_, self.posterior_, self.optima_ = fit.kernel, fit.posterior, fit.optima
        self.likelihood_ = fit.projector.likelihood
        self.nu_ = self.likelihood_.parameters["nu"]
        self.scale_ = self.likelihood_.parameters["scale"] * self._unit
        self.optimum_ = fit.optima[0] if fit.optima else None
        self.n_iter_ = max(1, self.optimum_.n_iterations if self.optimum_ else 1)
        self.converged_ = fit.posterior.converged and (
            self.optimum_ is None or self.optimum_.success
        )
        self.X_train_ = data
        return self

    def latent(self, X: ArrayLike) -> tuple[Array, Array]:
        """Mean and variance of the function without noise at `X`, each of shape (T,)."""
        mean, variance = self._normalised(X)
        return self._centre + self._unit * mean, self._unit**2 * variance

    def predict(self, X: ArrayLike, return_std: bool = False) -> Any:
        """Mean of the function without noise, shape (T,), which is the median of y.

        Parameters
        ----------
        X : array-like, shape (T, d)
        return_std : bool
            Whether to return its standard deviation as well; that of an observation is larger.
        """
        mean, variance = self.latent(X)
        return (mean, np.sqrt(variance)) if return_std else mean

    def predict_log_density(self, X: ArrayLike, y: ArrayLike) -> Array:
        """Log predictive density of observations `y`, shape (T,), one for each row of `X`."""
        mean, variance = self._normalised(X)
        targets = get("student-t").validate(y)
        if targets.shape != mean.shape:
            raise InputError(f"y must have shape {mean.shape} like X, got {targets.shape}")
        std = np.sqrt(np.maximum(variance, _LEAST_VARIANCE))
        scaled = (targets - self._centre) / self._unit
        log_z = project_arrays(self.likelihood_, mean, std, scaled, "ep").log_z
        return np.asarray(log_z - np.log(self._unit))

    def predict_quantiles(self, X: ArrayLike, q: ArrayLike = (0.05, 0.5, 0.95)) -> Array:
        """Quantiles of an observation at `X`, noise and all.

        Parameters
        ----------
        X : array-like, shape (T, d)
        q : float or array-like, shape (Q,)
            Strictly between 0 and 1.

        Returns
        -------
        ndarray, shape (T,) for a number q, else (T, Q)
        """
        levels = real(q, "q")
        if levels.ndim > 1 or not ((levels > 0.0) & (levels < 1.0)).all():
            raise InputError(f"q must be numbers strictly between 0 and 1, got {shown(q)}")
        mean, variance = self._normalised(X)
        flat = levels.reshape(-1)
        tail = np.minimum(flat, 1.0 - flat)
        reach = _reach(variance, self.nu_, self.likelihood_.parameters["scale"], tail)
        found = self._centre + self._unit * (mean[:, None] + np.sign(flat - 0.5) * reach)
        return found[:, 0] if levels.ndim == 0 else found

    def _normalised(self, X: ArrayLike) -> tuple[Array, Array]:
        """Latent mean and variance in the units of the posterior."""
        check_is_fitted(self)
        X = checked(validate_data, self, X, dtype=np.float64, reset=False)
        return self.posterior_.predict(self.kernel_(X, self.X_train_), self.kernel_.diag(X))


def _robust_std(y: Array) -> float:
    """1.48 median absolute deviations; the standard deviation, or 1, where that is 0."""
    spread = _MAD * float(np.median(np.abs(y - np.median(y))))
    if not spread > 0.0:
        spread = float(y.std())
    return spread if spread > 0.0 else 1.0


def _number(value: Any, name: str) -> float:
    return number(value, name, above=0.0)


def _bounds(name: str, start: Any, bounds: Any, unit: float) -> tuple[float, float]:
    """Check bounds of a parameter; they are returned in `unit`."""
    try:
        low, high = (_number(v, f"{name}_bounds") for v in bounds)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{name}_bounds must be two positive numbers or 'fixed', got {bounds!r}"
        ) from error
    if not low <= _number(start, name) <= high:
        raise InputError(f"{name} is {start:g}, outside {name}_bounds {low:g} to {high:g}")
    limits = get("student-t").limits[name]
    return max(low / unit, limits[0]), min(high / unit, limits[1])


def _reach(variance: Array, nu: float, scale: float, tail: Array) -> Array:
    """Distance r with P(|normal + scale t| > r) = 2 tail, shape (T, Q), by bisection.

    The t is a normal whose log precision has the weights below: the trapezoid rule, as for the
    moments of the likelihood.
    """
    h = min(0.26, 0.7 / np.sqrt(nu))
    u = np.arange(-90.0 / nu - 12.0 / np.sqrt(nu), 5.0 + 12.0 / np.sqrt(nu), h)
    weight = np.exp(0.5 * nu * (u - np.expm1(u)) + 0.5 * nu * np.log(0.5 * nu) - 0.5 * nu)
    weight *= h * np.exp(-gammaln(0.5 * nu))
    keep = weight > 1e-18 * weight.max()
    u, weight = u[keep], weight[keep] / weight[keep].sum()
    spread = np.sqrt(np.maximum(variance, 0.0)[:, None] + scale**2 * np.exp(-u))
    out = np.empty((variance.size, tail.size))
    for k, p in enumerate(tail.tolist()):
        low, high = np.full(variance.size, -1000.0), np.full(variance.size, 300.0)
        for _ in range(70):
            middle = 0.5 * (low + high)
            beyond = ndtr(-np.exp(middle)[:, None] / spread) @ weight > p
            low, high = np.where(beyond, middle, low), np.where(beyond, high, middle)
        out[:, k] = np.exp(low) if p < 0.5 else 0.0
    return out
