"""Times until an event over `infer`, of which some are censored: survival curves and quantiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike

from qpruntime._formatting import read
from qpruntime._restorable import restorable
from qpruntime._typing import Array, Bounds
from qpruntime._validation import choice, finite, real, unmasked
from qpruntime.errors import InputError
from qpruntime.estimators.averaging import averaged, shares
from qpruntime.estimators.input_data import fit_data, weighed
from qpruntime.estimators.likelihood_regressor import LikelihoodRegressor
from qpruntime.estimators.process import draft_of
from qpruntime.inference.corrections.marginals import CorrectedMarginals
from qpruntime.learning.options import Integrate
from qpruntime.likelihoods import get
from qpruntime.likelihoods.responses import spans
from qpruntime.predictive.density import wide
from qpruntime.predictive.expectation import cdf

__all__ = ["GPSurvival", "concordance", "spans_of"]


TIMES = ("weibull", "log-logistic", "log-normal")


@restorable("gp-survival/1", root=True)
@dataclass(kw_only=True, eq=False, repr=False, match_args=False)
class GPSurvival(LikelihoodRegressor):
    """Times until an event, censored or not: accelerated failure by EP or QP.

    log T = f(x) + scale e, where f is a Gaussian process, so that e^f stretches time. A time may be
    exact, or censored on the right, on the left or in an interval. The kernel's parameters and the
    scale maximise EP's evidence together.

    Parameters
    ----------
    kernel : scikit-learn kernel, "auto" or None
        By default a constant, a nearly linear part and Matérn 5/2, in units of each feature's
        standard deviation, with priors. One feature, fits with inducing points and fits without
        optimisation have the kernel of `GPClassifier`.
    likelihood : {"weibull", "log-logistic", "log-normal"}
        Distribution of T given f, perhaps with a starting value of the scale, "weibull(scale=1)".
        Hazards are proportional under "weibull". To choose one, compare
        `log_marginal_likelihood_value_`.
    parameter_bounds : dict, optional
        Bounds of the scale, {"scale": (low, high)}, or {"scale": "fixed"}.
    method : {"qp", "ep"}
        Inference of the final posterior.
    table : None or "exact"
        See `qpruntime.infer`; these likelihoods have no tables.
    optimize, tol, max_sweeps, correction, inducing, solver
        As for `GPClassifier`.
    n_jobs, random_state, verbose
        As for `GPClassifier`.
    prior_mean : "auto" or None
        No prior mean is fitted, because that needs y = f + noise.
    hyperparameters : {"mode", "integrate"} or Integrate
        As for `GPClassifier`; the likelihood's parameters are integrated as well.

    Attributes
    ----------
    kernel_ : scikit-learn kernel
        Kernel with the fitted parameters.
    parameters_ : dict
        The scale of log T.
    likelihood_ : Likelihood
        Likelihood with the learnt scale.
    mean_ : float
        Prior mean of f, about the logarithm of a usual time.
    integrated_ : Integrated or None
        As in `GPClassifier`.
    posterior_ : Posterior
        Posterior of the latent function at the training points.
    converged_ : bool
        True if the sites and the optimiser have converged.
    optimum_, optima_, log_marginal_likelihood_value_, n_iter_, table_sha256_
        As in `GPRegressor`.
    engine_, inducing_points_, stages_, nearest_, warp_, X_train_
        As in `GPRegressor`.

    See Also
    --------
    qpruntime.GPRegressor

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime import GPSurvival
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(0.0, 4.0, (80, 1))
    >>> T = np.exp(1.0 + np.sin(X[:, 0]) + 0.3 * np.log(rng.exponential(size=80)))
    >>> end = rng.uniform(1.0, 8.0, 80)
    >>> model = GPSurvival(method="ep").fit(X, np.minimum(T, end), event=T <= end)
    >>> model.predict([[1.5], [4.0]]).round().tolist()
    [6.0, 1.0]
    >>> model.predict_survival([[1.5], [4.0]], [1.0, 5.0]).round(1).tolist()
    [[1.0, 0.7], [0.7, 0.0]]
    """

    likelihood: str = "weibull"
    parameter_bounds: Mapping[str, Bounds] | None = None
    method: Literal["qp", "ep"] = "qp"
    hyperparameters: Literal["mode", "integrate"] | Integrate = "mode"

    _has_linear_part: ClassVar[bool] = True

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        event: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> GPSurvival:
        """Fit hyper-parameters, the scale, and the posterior.

        Parameters
        ----------
        X : array-like, shape (N, d)
        y : array-like
            Times (N,), beside `event`; or a structured array (N,) of a boolean field, whether there
            was an event, and one of times; or the first and the last time (N, 2) at which the event
            can have been, which are the same if it was seen, infinity if there was none so far,
            and 0 if it was before.
        event : array-like of bool, shape (N,), optional
            Whether a time is that of an event, or censored on the right. By default all are events.
        sample_weight : array-like, shape (N,), optional
            Powers of the single likelihoods, as in `GPClassifier.fit`.
        groups : array-like, shape (N,), optional
            Labels of groups, as in `GPClassifier.fit`.

        Raises
        ------
        ValueError
            If X, y, events or weights are not usable; a subclass, `InputError`, where the check is
            ours.

        Warns
        -----
        ConvergenceWarning
            If the optimiser or the sites have not settled.
        """
        named = read(self.likelihood)[0] if isinstance(self.likelihood, str) else self.likelihood
        choice(named, "likelihood", TIMES)
        likelihood = get(self.likelihood)
        draft = draft_of(self)
        known = spans_of(y, event)
        # Numbers of rows stand for what scikit-learn does not take for targets.
        points, rows = fit_data(draft, X, np.arange(len(known), dtype=float), sample_weight)
        known = known[rows.astype(int)]
        weights, points, known = weighed(sample_weight, points, known, groups=groups)
        return self._fit_observed(draft, points, known, weights, likelihood)

    def predict(self, X: ArrayLike) -> Array:
        """Predict the median time until the event, shape (T,)."""
        return self.predict_quantiles(X, 0.5)

    @averaged(shares)
    def predict_survival(self, X: ArrayLike, times: ArrayLike) -> Array:
        """Return survival curves: the probability of no event up to each time, shape (T, S).

        Parameters
        ----------
        X : array-like, shape (T, d)
        times : array-like, shape (S,)
            Not negative.
        """
        at = finite(times, "times")
        if at.ndim != 1 or at.size == 0 or (at < 0.0).any():
            raise InputError(f"times must have shape (S,) and not be negative, got {at.shape}")
        points, likelihood = self.validate_points(X), self.likelihood_

        def finish(mean: Array, variance: Array) -> Array:
            later = [cdf(likelihood, mean, wide(variance), np.full(mean.size, t), True) for t in at]
            return np.column_stack(later)

        def by_grid(marginals: list[CorrectedMarginals]) -> Array:
            return np.column_stack([marginals[0].expect(partial(self._later, t)) for t in at])

        return self._predicted(points, finish, by_grid=by_grid, width=64 * at.size)

    def _later(self, time: float, f: Array) -> Array:
        likelihood = self.likelihood_
        assert likelihood.given is not None
        return likelihood.given(f, likelihood.theta).sf(time)

    def predict_log_density(
        self, X: ArrayLike, y: ArrayLike, event: ArrayLike | None = None
    ) -> Array:
        """Return log densities of events, and log probabilities of censored times.

        Parameters
        ----------
        X : array-like, shape (T, d)
        y, event
            As for `fit`.

        Returns
        -------
        ndarray, shape (T,)
        """
        return self._log_density_at(self.validate_points(X), spans_of(y, event))

    def score(
        self,
        X: ArrayLike,
        y: ArrayLike,
        event: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> float:
        """Return the concordance of median times: the share of known pairs in the right order.

        Arguments are those of `fit`.
        """
        known, predicted = spans_of(y, event), self.predict(X)
        if len(predicted) != len(known):
            raise InputError(f"y must have {len(predicted)} rows like X, got {len(known)}")
        weights = None
        if sample_weight is not None:
            weights = finite(sample_weight, "sample_weight", (len(known),))
        return concordance(known, predicted, weights)


# Pairs at a time.
_BLOCK = 4_000_000


def concordance(spans: Array, predicted: Array, weights: Array | None = None) -> float:
    """Return the share of pairs in known order that predictions put in this order.

    One is known to be earlier than another where its last time is before the other's first one, or
    at it if the other is censored there. Equal predictions count half.

    Parameters
    ----------
    spans : ndarray, shape (T, 2)
        First and last time of each.
    predicted : ndarray, shape (T,)
        Larger for later ones.
    weights : ndarray, shape (T,), optional
        A pair has the product of theirs.

    Raises
    ------
    InputError
        If no order of any pair is known.
    """
    first, last = spans.T
    weight = np.ones(len(first)) if weights is None else weights
    right, total = 0.0, 0.0
    size = max(1, _BLOCK // max(1, len(first)))
    for start in range(0, len(first), size):
        block = slice(start, start + size)
        earlier = last[block, None] < first
        earlier |= (last[block, None] == first) & (last > first)
        pairs = earlier * (weight[block, None] * weight)
        agree = predicted[block, None] < predicted
        right += float((pairs * agree).sum())
        right += 0.5 * float((pairs * (predicted[block, None] == predicted)).sum())
        total += float(pairs.sum())
    if total == 0.0:
        raise InputError(
            "no two times have a known order, and concordance needs one: score rows with events"
        )
    return right / total


# --- Times and events as intervals ---------------------------------------------------------------


def spans_of(y: ArrayLike, event: ArrayLike | None) -> Array:
    """Return the first and the last time of each observation, shape (N, 2).

    Parameters
    ----------
    y : array-like
        Times (N,), beside `event`; or first and last times (N, 2); or a structured array of two
        fields, of which one is boolean and says whether the time of the other is that of an event.
    event : array-like of bool, shape (N,), or None
        Whether the time is that of an event, or the last at which there was none; all are by
        default.

    Raises
    ------
    InputError
        If that is not what was given.
    """
    if isinstance(y, np.ndarray) and y.dtype.names is not None:
        names = y.dtype.names
        kinds = [y.dtype[name].kind for name in names]
        if len(names) != 2 or sorted(kinds)[0] != "b" or sorted(kinds)[1] not in "fiu":
            raise InputError(
                f"a structured y has two fields, one of booleans and one of times, got {y.dtype}"
            )
        if event is not None:
            raise InputError(
                "event= cannot be given with a structured y, which has its own: leave one out"
            )
        event, y = y[names[kinds[0] != "b"]], y[names[kinds[0] == "b"]]
    times = real(unmasked(y, "y"), "y")
    if times.ndim == 2:
        if event is not None:
            raise InputError(
                "event= cannot be given with first and last times: give the same time twice for "
                "an event, infinity as the last for none"
            )
        return spans(times)
    if times.ndim != 1:
        raise InputError(f"y must have shape (N,) or (N, 2), got {times.shape}")
    happened = np.ones(times.size, dtype=bool) if event is None else _booleans(event, times.size)
    # A time of 0 at which there was no event says nothing, and spans refuse it by its row.
    return spans(np.column_stack([times, np.where(happened, times, np.inf)]))


def _booleans(event: ArrayLike, n: int) -> Array:
    values = np.asarray(unmasked(event, "event"))
    if values.shape != (n,) or values.dtype.kind not in "bfiu" or not np.isin(values, (0, 1)).all():
        raise InputError(f"event must be {n} booleans, one for each time")
    return values.astype(bool)
