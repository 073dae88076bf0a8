"""Base class of the regressors with a choice of likelihood."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._typing import Array
from qpruntime._validation import central_levels, choice, generator, levels, real, shown, whole
from qpruntime.errors import InputError
from qpruntime.estimators.averaging import (
    averaged,
    densities,
    is_integrated,
    left_out,
    mixed_at,
    mixed_draws,
)
from qpruntime.estimators.base import GPEstimator, settings_to_fit, table_to_fit
from qpruntime.estimators.likelihood_parameters import (
    learnt_between,
    mean_and_spread,
    median,
    robust_std,
)
from qpruntime.estimators.prior_mean import OfNumbers, Target, given_estimator
from qpruntime.estimators.prior_mean_selection import boosted_numbers
from qpruntime.estimators.process import commit
from qpruntime.inference.corrections.marginals import CorrectedMarginals
from qpruntime.inference.posterior import Posterior
from qpruntime.learning.inputs import Data, Inputs
from qpruntime.learning.optimise import Optimum
from qpruntime.learning.train import Fit
from qpruntime.likelihoods import Likelihood, get
from qpruntime.likelihoods.binomial import MOST_TRIALS
from qpruntime.predictive.counts import exposures
from qpruntime.predictive.density import log_density
from qpruntime.predictive.distribution import PLAIN, Predicted, RowOffsets
from qpruntime.projection.projector import Projector

__all__ = ["NODES", "ExposedRegressor", "LikelihoodRegressor", "log_exposures"]


#: Nodes over f of a prediction, about.
NODES = 64


class LikelihoodRegressor(GPEstimator):
    """Base of regressors whose likelihood has parameters to learn; observations are as fitted."""

    #: True if the default kernel has a linear part, whose share is learnt.
    _has_linear_part: ClassVar[bool] = False

    kernel_: Kernel
    posterior_: Posterior
    optimum_: Optimum | None
    optima_: tuple[Optimum, ...]
    likelihood_: Likelihood
    parameters_: dict[str, float]
    mean_: float
    converged_: bool
    _predicted_: Predicted
    _likelihood_units_: dict[str, float]
    _centre_: float
    _unit_: float

    def _fit_observed(
        self,
        draft: Self,
        points: Inputs,
        targets: Array,
        weights: Array | None,
        likelihood: Likelihood,
        begin: tuple[float, float] | None = None,
        shift: Array | float = 0.0,
    ) -> Self:
        """Learn kernel and parameters for validated rows; return what `fit` does.

        `begin` are mean and spread of the latent function, if they are known; `shift` is added to
        it, by rows.
        """
        settings = settings_to_fit(self)
        linear = self._has_linear_part and settings.sparse is None and settings.optimize
        settings = replace(settings, linear=linear)
        choice(self.method, "method", ("qp", "ep"))
        centre, unit, prior = 0.0, 1.0, None
        scaled = (
            likelihood.location and "scale" in likelihood.parameters and likelihood.recipe is None
        )
        normalised = scaled and getattr(self, "normalize_y", True)
        units: dict[str, float] = {}
        spread = 1.0
        if scaled:
            spread = robust_std(targets, weights)
            if normalised:
                centre, unit, spread = median(targets, weights), spread, 1.0
            default = likelihood.parameters["scale"] == get(likelihood.name).parameters["scale"]
            first = likelihood.parameters["scale"] / unit
            if default:
                first = likelihood.default_start("scale", spread)
            likelihood, units, prior = likelihood.with_parameters(scale=first), {"scale": unit}, 0.0
        elif given_estimator(self.prior_mean) is not None:
            raise InputError(
                f"prior_mean={shown(self.prior_mean)} needs a likelihood of y = f + noise, got "
                f"{likelihood.name!r}: leave it out"
            )
        learn = draft._learnt(likelihood, units)
        is_default = "scale" in learn and "scale" not in (self.parameter_bounds or {})
        if is_default and (scaled or likelihood.scale_family):
            noise_spread = spread if scaled else _spread_of_log_times(targets, weights)
            learn["scale"] = likelihood.default_bounds("scale", noise_spread)
        table = table_to_fit(self)
        projector = Projector(likelihood, self.method, table)
        holding, observed = projector.observing((targets - centre) / unit if scaled else targets)
        if begin is not None:
            prior, spread = begin
        elif prior is None:
            judge, again = projector.for_evidence().observing(targets)
            prior, spread = mean_and_spread(judge, again, weights, shift)
        if scaled and not normalised:
            spread = max(spread, abs(median(targets, weights)))
        data = Data(
            points,
            observed,
            holding,
            prior=np.full(len(observed), prior) + shift,
            weights=weights,
            learn=learn,
            discrete=Predicted.discrete(likelihood),
        )

        def target() -> Target:
            return Target(targets, weights, OfNumbers(centre, unit), False, boosted_numbers)

        draft.mean_, draft._likelihood_units_ = prior, units
        learner = target if scaled else None
        fit = draft._train([data], settings, learner, spread, None, shift)[0]
        # This likelihood holds no rows, so that the model can be saved.
        draft._predicted_ = Predicted.of(fit.likelihood, targets)
        return self._concluded(draft, fit, centre, unit)

    def _concluded(self, draft: Self, fit: Fit, centre: float, unit: float) -> Self:
        """Store what a fit in these units has learnt, and take over the draft."""
        draft._centre_, draft._unit_ = centre, unit
        for name, value in draft._with_likelihood(fit.likelihood).items():
            setattr(draft, name, value)
        settled = fit.optimum is None or fit.optimum.success
        draft.converged_ = fit.posterior.converged and settled
        return commit(self, draft)

    _learnt = learnt_between

    def _with_likelihood(self, likelihood: Likelihood) -> dict[str, Any]:
        learnt, units = likelihood, self._likelihood_units_
        plain = learnt if learnt.rows is None else get(learnt.name, **learnt.parameters)
        return {
            "likelihood_": plain,
            "parameters_": {name: v * units.get(name, 1.0) for name, v in plain.parameters.items()},
            "_predicted_": replace(self._predicted_, likelihood=plain),
        }

    def _constant(self) -> float:
        return self.mean_

    def latent_units(self) -> tuple[float, float]:
        """Return the centre and the unit of the observations."""
        return self._centre_, self._unit_

    def predict_quantiles(self, X: ArrayLike, q: ArrayLike = (0.05, 0.5, 0.95)) -> Array:
        """Return quantiles of an observation at `X`; of counts the least that suffices.

        Parameters
        ----------
        X : array-like, shape (T, d)
        q : float or array-like, shape (Q,)
            Strictly between 0 and 1.

        Returns
        -------
        ndarray, shape (T,) for a number q, else (T, Q)
        """
        return self._quantiles_at(self.validate_points(X), q, PLAIN)

    def _quantiles_at(self, points: Array, q: ArrayLike, rows: RowOffsets) -> Array:
        at = levels(q, "q")
        if is_integrated(self):
            mixed = mixed_at(self, points, at.reshape(-1), rows)
            return mixed.reshape(len(points), *at.shape)
        flat, predicted = at.reshape(-1), self._predicted_
        columns = rows.columns(len(points))

        def finish(mean: Array, variance: Array, *offsets: Array) -> Array:
            return predicted.quantiles(mean, variance, flat, RowOffsets.of(*offsets))

        def by_grid(marginals: list[CorrectedMarginals], *offsets: Array) -> Array:
            return predicted.corrected_quantiles(marginals, flat, RowOffsets.of(*offsets))

        inside = self._predicted(points, finish, *columns, by_grid=by_grid, width=NODES)
        return np.reshape(self._centre_ + self._unit_ * inside, (len(points), *at.shape))

    def predict_interval(self, X: ArrayLike, level: float = 0.9) -> Array:
        """Return central intervals of an observation at `X`, shape (T, 2), of this probability."""
        return self.predict_quantiles(X, central_levels(level))

    def predict_log_density(self, X: ArrayLike, y: ArrayLike) -> Array:
        """Return the log density, or log probability, of observations `y` (T, ...) at rows of `X`.

        Returns
        -------
        ndarray, shape (T,)
        """
        return self._log_density_at(self.validate_points(X), self._observations(y))

    def _observations(self, y: ArrayLike) -> Array:
        """Validate observations as the likelihood takes them, before units."""
        return self.likelihood_.validate(y)

    @averaged(densities)
    def _log_density_at(self, points: Array, targets: Array, shift: Array | float = 0.0) -> Array:
        if targets.shape[:1] != (len(points),):
            raise InputError(f"y must have {len(points)} rows like X, got shape {targets.shape}")
        inside = (targets - self._centre_) / self._unit_
        observing, numbers = self.likelihood_.observing(inside)
        if self.correction is not None and np.any(shift):
            raise InputError(
                "exposure cannot be used with corrected densities: use correction=None, or the "
                "exposure 1"
            )

        def finish(mean: Array, variance: Array, y: Array, more: Array, _: Array) -> Array:
            return log_density(observing, mean + more, variance, y)

        def by_grid(marginals: list[CorrectedMarginals], _: Array, __: Array, y: Array) -> Array:
            return marginals[0].log_probability(y)

        columns = numbers, np.broadcast_to(shift, (len(points),)), inside
        log_densities = self._predicted(points, finish, *columns, by_grid=by_grid)
        return np.asarray(log_densities - np.log(self._unit_))

    @averaged(left_out)
    def loo(self) -> Array:
        """Return the leave-one-out log density of each training row, shape (N,), in units of y.

        Rows of weight 0 have none.
        """
        self.validate_points(np.zeros((1, self.n_features_in_)))
        return np.asarray(self.posterior_.loo() - np.log(self._unit_))

    def sample(
        self, X: ArrayLike, n: int = 1, random_state: int | np.random.Generator | None = None
    ) -> Array:
        """Draw observations at `X` jointly, shape (n, T): noise about draws of the latent function.

        Parameters
        ----------
        X : array-like, shape (T, d)
        n : int
        random_state : int, Generator or None

        See Also
        --------
        sample_latent
        """
        return self._sample_at(X, n, random_state, PLAIN)

    def _sample_at(
        self, X: ArrayLike, n: int, random_state: int | np.random.Generator | None, rows: RowOffsets
    ) -> Array:
        rng = generator(random_state)
        if is_integrated(self):
            return mixed_draws(LikelihoodRegressor._sample_at, self, X, whole(n, "n", 1), rng, rows)
        f = (self.sample_latent(X, n, rng) - self._centre_) / self._unit_
        return self._centre_ + self._unit_ * self._predicted_.draw(f, rng, rows)


class ExposedRegressor(LikelihoodRegressor):
    """Predictions of observations whose mean an exposure multiplies, or that are of trials."""

    _exposed_ = False

    def predict_quantiles(
        self,
        X: ArrayLike,
        q: ArrayLike = (0.05, 0.5, 0.95),
        exposure: ArrayLike | None = None,
        trials: ArrayLike | None = None,
    ) -> Array:
        """Return quantiles of an observation at `X`; of counts the least that suffices.

        Parameters
        ----------
        X : array-like, shape (T, d)
        q : float or array-like, shape (Q,)
            Strictly between 0 and 1.
        exposure : float or array-like, shape (T,), optional
            Of counts and positive numbers, what multiplies e^f; default 1.
        trials : int or array-like, shape (T,), optional
            Of successes, how many trials there are; default 1.

        Returns
        -------
        ndarray, shape (T,) for a number q, else (T, Q)
        """
        points = self.validate_points(X)
        return self._quantiles_at(points, q, self._rows(len(points), exposure, trials))

    def predict_interval(
        self,
        X: ArrayLike,
        level: float = 0.9,
        exposure: ArrayLike | None = None,
        trials: ArrayLike | None = None,
    ) -> Array:
        """Return central intervals of an observation at `X`, shape (T, 2), of this probability.

        `exposure` and `trials` as for `predict_quantiles`.
        """
        return self.predict_quantiles(X, central_levels(level), exposure, trials)

    def predict_log_density(
        self, X: ArrayLike, y: ArrayLike, exposure: ArrayLike | None = None
    ) -> Array:
        """Return the log density, or log probability, of observations `y` (T, ...) at rows of `X`.

        Parameters
        ----------
        X : array-like, shape (T, d)
        y : array-like, shape (T, ...)
            As for ``fit``.
        exposure : float or array-like, shape (T,), optional
            Of `y`; needed if the model was fitted with exposures other than 1.

        Returns
        -------
        ndarray, shape (T,)
        """
        points = self.validate_points(X)
        self._named(exposure)
        shift = log_exposures(self.likelihood_, exposure, len(points))
        return self._log_density_at(points, self._observations(y), shift)

    def sample(
        self,
        X: ArrayLike,
        n: int = 1,
        random_state: int | np.random.Generator | None = None,
        exposure: ArrayLike | None = None,
        trials: ArrayLike | None = None,
    ) -> Array:
        """Draw observations at `X` jointly, shape (n, T): noise about draws of the latent function.

        Parameters
        ----------
        X : array-like, shape (T, d)
        n : int
        random_state : int, Generator or None
        exposure, trials
            As for `predict_quantiles`.

        See Also
        --------
        sample_latent
        """
        rows = self._rows(len(self.validate_points(X)), exposure, trials)
        return self._sample_at(X, n, random_state, rows)

    def _rows(self, count: int, exposure: ArrayLike | None, trials: ArrayLike | None) -> RowOffsets:
        likelihood = self.likelihood_
        return RowOffsets(
            log_exposures(likelihood, exposure, count), _trials(likelihood, trials, count)
        )

    def _named(self, exposure: ArrayLike | None) -> None:
        """Raise if observations are to be judged whose exposures are not said."""
        if exposure is None and self._exposed_:
            raise InputError(
                "the model was fitted with exposure, and these observations need theirs: give "
                "exposure=, with 1 for one unit"
            )


def log_exposures(likelihood: Likelihood, exposure: ArrayLike | None, count: int) -> Array | float:
    """Return what exposures add to latent values, (count,), or 0 without any.

    Raises
    ------
    InputError
        If they are no positive numbers, or multiply nothing under this likelihood.
    """
    if exposure is None:
        return 0.0
    if not likelihood.log_link:
        instead = {
            "binomial": "give the trials in y, and trials= for predictions",
            "poisson": "use GPPoissonRegressor",
        }
        remedy = instead.get(likelihood.name, "leave it out, or rescale y")
        raise InputError(
            f"exposure multiplies a mean e^f, and likelihood {likelihood.name!r} has none: {remedy}"
        )
    return np.log(exposures(exposure, count))


def _spread_of_log_times(spans: Array, weights: Array | None) -> float:
    """Return the robust standard deviation of log times, known by spans of shape (N, 2)."""
    times = np.where(spans[:, 0] > 0.0, spans[:, 0], spans[:, 1])
    known = np.isfinite(times)
    return robust_std(np.log(times[known]), None if weights is None else weights[known])


def _trials(likelihood: Likelihood, trials: ArrayLike | None, count: int) -> Array | None:
    if trials is None:
        return None
    if likelihood.name != "binomial" or likelihood.recipe is not None:
        raise InputError(
            f"trials are for the binomial likelihood, not for {likelihood.name!r}: leave them out"
        )
    numbers = real(trials, "trials")
    if numbers.shape not in ((), (count,)):
        raise InputError(
            f"trials must be a number or have shape ({count},), one per point; got {numbers.shape}"
        )
    wrong = ~((numbers >= 1.0) & (numbers <= MOST_TRIALS) & (numbers == np.floor(numbers)))
    if wrong.any():
        raise InputError(
            f"trials must be whole numbers from 1 to {MOST_TRIALS}, got {numbers[wrong].flat[0]:g}"
        )
    return np.full(count, numbers) if numbers.ndim == 0 else numbers
