"""Classification by deep Gaussian processes: probit, and each class against the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_ndtr, logsumexp
from sklearn.base import ClassifierMixin

from qpruntime._typing import Array
from qpruntime.deep.base import DeepGP
from qpruntime.estimators.input_data import check_labels, classes_of, fit_data, signs_of, weighed
from qpruntime.estimators.process import commit, draft_of
from qpruntime.likelihoods import get

__all__ = ["DeepGPClassifier"]


@dataclass(kw_only=True, eq=False, repr=False, match_args=False)
class DeepGPClassifier(ClassifierMixin, DeepGP):
    """Classification by layers of Gaussian processes, p(y | f) = Phi(y f) at the last.

    Two classes take one deep process; K > 2 take K of them, each class against the rest.

    Parameters
    ----------
    hidden, inducing, power, linear_mean, max_iter, batch_size, learning_rate
        As for `DeepGPRegressor`.
    least_gain, dtype
        As for `DeepGPRegressor`.
    verbose, callback, random_state, devices, polish
        As for `DeepGPRegressor`.

    Attributes
    ----------
    classes_ : ndarray, shape (K,)
        The labels; of two, the second is the positive class.
    layers_ : tuple of tuple of Layer
        Of every process the parameters of its layers.
    history_ : ndarray, shape (`n_iter_`,), or list of them
        The energy, estimated at each step; a list for K > 2 classes.
    n_iter_ : int
        Of the longest.
    converged_ : bool
        Whether no training diverged.

    See Also
    --------
    qpruntime.GPClassifier, qpruntime.deep.DeepGPRegressor

    Notes
    -----
    Weights count rows: one of 2 is the row twice.

    Examples
    --------
    >>> from qpruntime.deep import DeepGPClassifier
    >>> X = [[-2.0], [-1.0], [-0.5], [0.5], [1.0], [2.0]]
    >>> model = DeepGPClassifier((1,), inducing=4, max_iter=300, random_state=0)
    >>> model.fit(X, ["no", "no", "no", "yes", "yes", "yes"]).predict([[-1.5], [1.5]]).tolist()
    ['no', 'yes']
    """

    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> DeepGPClassifier:
        """Train on X (N, D) and labels y (N,), rows weighted (N,) if they are.

        X may be what `DeepGPRegressor` reads in windows.

        Raises
        ------
        ValueError
            If data, weights or parameters are not usable; a subclass, `InputError`, where the
            check is ours.

        Warns
        -----
        ConvergenceWarning
            If training diverged.
        """
        plan = self._plan(get("probit"))
        draft = draft_of(self)
        points, labels = fit_data(draft, X, y, sample_weight, ensure_min_samples=2)
        check_labels(labels)
        weights, points, labels = weighed(sample_weight, points, labels)
        draft.classes_ = classes_of(labels, "DeepGPClassifier")
        draft._train(points.rows, signs_of(labels, draft.classes_), weights, plan)
        return commit(self, draft)

    def latent(self, X: ArrayLike) -> tuple[Array, Array]:
        """Mean and variance of the latent function at `X`, (T,) for two classes, else (T, K)."""
        moments = self._last(self._new_data(X))
        mean, variance = (np.hstack([output[i] for output in moments]) for i in (0, 1))
        return (mean[:, 0], variance[:, 0]) if len(moments) == 1 else (mean, variance)

    def decision_function(self, X: ArrayLike) -> Array:
        """Score whose normal CDF is p(class), shape (T,) for two classes, else (T, K)."""
        mean, variance = self.latent(X)
        return np.asarray(mean / np.sqrt(1.0 + variance))

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Most probable label at each point, shape (T,)."""
        score = self.decision_function(X)
        best = np.argmax(score, axis=1) if score.ndim == 2 else (score > 0.0).astype(int)
        return np.asarray(self.classes_[best])

    def predict_proba(self, X: ArrayLike, n_samples: int | None = None) -> Array:
        """Class probabilities in the order of ``classes_``, shape (T, K)."""
        return np.exp(self.predict_log_proba(X, n_samples))

    def predict_log_proba(self, X: ArrayLike, n_samples: int | None = None) -> Array:
        """Log class probabilities, shape (T, K), exact where the probabilities underflow.

        `n_samples` draws through the hidden layers replace the one pass of normals. If K > 2, each
        class is predicted against all others, and the probabilities are scaled to sum to 1.
        """
        moments = self._last(self._new_data(X), n_samples)
        columns = []
        for mean, variance in moments:
            score = mean / np.sqrt(1.0 + variance)
            for sign in (-1.0, 1.0) if len(moments) == 1 else (1.0,):
                log_p = log_ndtr(sign * score)
                columns.append(logsumexp(log_p, axis=1) - np.log(score.shape[1]))
        joined = np.column_stack(columns)
        if len(moments) > 1:
            joined -= logsumexp(joined, axis=1, keepdims=True)
        return joined
