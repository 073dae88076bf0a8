"""scikit-learn estimators over `infer`: data and labels in, class probabilities out."""

from __future__ import annotations

import os
import warnings
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri_exp
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Kernel
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from qpruntime.engine import Problem
from qpruntime.errors import ConvergenceWarning, InputError
from qpruntime.hyper import maximise, settle_fast
from qpruntime.inference import summarise, warn_unsettled
from qpruntime.projection import Projector, project_arrays
from qpruntime.table import Table

__all__ = ["GPClassifier"]

Array = NDArray[np.float64]

# A latent variance of 0 comes from rounding; a normal needs a width.
_LEAST_VARIANCE = 1e-30


class GPClassifier(ClassifierMixin, BaseEstimator):
    """Binary Gaussian-process classification by QP or EP.

    Parameters
    ----------
    kernel : scikit-learn kernel, optional
        Default ``ConstantKernel(1) * RBF(1)`` with bounds wide enough for separable data.
    likelihood : str
        ``"probit"``, or ``"heaviside"``: the sign of the latent function without any noise.
    method : {"qp", "ep"}
        How the final posterior is computed. Hyper-parameters come from EP's evidence either way.
    table : None, "exact", path, name or Table
        Where QP finds sigma*; see `qpruntime.infer`.
    optimize : bool
        Whether to maximise the evidence over the kernel's free parameters.
    max_iter : int
        Optimiser iterations at most.
    ftol : float
        Relative tolerance of the optimiser on the evidence.
    tol, max_sweeps
        Of every EP or QP run; see `qpruntime.infer`.

    Attributes
    ----------
    classes_ : ndarray, shape (2,)
        The labels; the second one is the positive class.
    kernel_ : scikit-learn kernel
        With the fitted parameters.
    posterior_ : Posterior
        Latent posterior at the training points.
    optimum_ : Optimum or None
        How the optimisation went.
    n_iter_ : int
        Optimiser iterations, at least 1.
    X_train_ : ndarray, shape (N, d)

    Examples
    --------
    >>> from qpruntime import GPClassifier
    >>> X = [[-2.0], [-1.0], [-0.5], [0.5], [1.0], [2.0]]
    >>> clf = GPClassifier().fit(X, ["no", "no", "no", "yes", "yes", "yes"])
    >>> clf.predict([[-1.5], [1.5]]).tolist()
    ['no', 'yes']
    """

    def __init__(
        self,
        kernel: Kernel | None = None,
        *,
        likelihood: str = "probit",
        method: str = "qp",
        table: Table | str | os.PathLike[str] | None = None,
        optimize: bool = True,
        max_iter: int = 1000,
        ftol: float = 1e-9,
        tol: float = 1e-6,
        max_sweeps: int = 100,
    ) -> None:
        self.kernel = kernel
        self.likelihood = likelihood
        self.method = method
        self.table = table
        self.optimize = optimize
        self.max_iter = max_iter
        self.ftol = ftol
        self.tol = tol
        self.max_sweeps = max_sweeps

    def fit(self, X: ArrayLike, y: ArrayLike) -> GPClassifier:
        """Fit hyper-parameters and posterior.

        Parameters
        ----------
        X : array-like, shape (N, d)
        y : array-like, shape (N,)
            Any two labels.

        Raises
        ------
        ValueError
            If X or y is not usable; a subclass, `InputError`, where the check is ours.
        """
        projector = Projector(self.likelihood, self.method, self.table)
        try:
            projector.likelihood.validate((-1.0, 1.0))
        except InputError as error:
            raise InputError(
                f"the likelihood {projector.likelihood.name!r} is not one of two classes: it takes "
                f"{projector.likelihood.outcomes}; GPClassifier needs 'probit' or 'heaviside'"
            ) from error
        data, labels = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        check_classification_targets(labels)
        self.classes_, encoded = np.unique(labels, return_inverse=True)
        if self.classes_.size != 2:
            raise InputError(
                "Only binary classification is supported. GPClassifier separates two classes, "
                f"got {self.classes_.size} class(es): "
                f"{self.classes_[:5].tolist()}; for more wrap it in "
                "sklearn.multiclass.OneVsRestClassifier"
            )
        signs = np.where(encoded == 1, 1.0, -1.0)
        prior = np.zeros(signs.size)
        self.kernel_ = default_kernel() if self.kernel is None else clone(self.kernel)
        self.optimum_, sites = None, None
        if self.optimize and self.kernel_.n_dims:
            self.optimum_, sites = maximise(
                self.kernel_,
                data,
                signs,
                Projector(projector.likelihood, "ep"),
                prior,
                max_iterations=self.max_iter,
                ftol=self.ftol,
                tol=self.tol,
                max_sweeps=self.max_sweeps,
            )
            if not self.optimum_.success:
                warnings.warn(
                    f"the evidence was not maximised: {self.optimum_.message}; raise max_iter "
                    "or widen the kernel's bounds",
                    ConvergenceWarning,
                    stacklevel=2,
                )
            self.kernel_ = self.kernel_.clone_with_theta(self.optimum_.theta)
        self.n_iter_ = max(1, self.optimum_.n_iterations if self.optimum_ else 1)
        self.X_train_ = data
        problem = Problem(self.kernel_(data), signs, projector, prior)
        end = settle_fast(problem, tol=self.tol, max_sweeps=self.max_sweeps, sites=sites)
        warn_unsettled(end, self.tol, stacklevel=3)
        self.posterior_ = summarise(problem, end)
        return self

    def latent(self, X: ArrayLike) -> tuple[Array, Array]:
        """Mean and variance of the latent function at `X`, each of shape (T,)."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return self.posterior_.predict(self.kernel_(X, self.X_train_), self.kernel_.diag(X))

    def decision_function(self, X: ArrayLike) -> Array:
        """Score whose normal CDF is p(second class), shape (T,).

        For the probit mean / sqrt(1 + variance), for the heaviside mean / sqrt(variance).
        """
        first, second = self.predict_log_proba(X).T
        # From the smaller of the two, which no probability near 1 has rounded.
        return np.where(second < first, ndtri_exp(second), -ndtri_exp(first))

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Most probable label at each point, shape (T,)."""
        first, second = self.predict_log_proba(X).T
        return self.classes_[(second > first).astype(int)]

    def predict_proba(self, X: ArrayLike) -> Array:
        """Class probabilities in the order of ``classes_``, shape (T, 2)."""
        return np.exp(self.predict_log_proba(X))

    def predict_log_proba(self, X: ArrayLike) -> Array:
        """Log class probabilities, exact where the probabilities underflow, shape (T, 2).

        The normaliser of the likelihood under the latent predictive density.
        """
        mean, variance = self.latent(X)
        std = np.sqrt(np.maximum(variance, _LEAST_VARIANCE))[:, None]
        return project_arrays(self.likelihood, mean[:, None], std, (-1.0, 1.0), "ep").log_z

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


def default_kernel() -> Kernel:
    """Return the paper's kernel: isotropic squared exponential, variance and length-scale 1.

    The evidence of separable data keeps rising with the variance, hence its wide bounds.
    """
    return ConstantKernel(1.0, (1e-6, 1e10)) * RBF(1.0, (1e-4, 1e5))
