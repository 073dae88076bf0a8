"""Observations of more than one unit: exposures of counts and positive numbers, trials."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.estimators.predictive.by_likelihood import Rows
from qpruntime.estimators.predictive.links import exposures
from qpruntime.estimators.with_likelihood import LikelihoodRegressor, ends_of
from qpruntime.likelihoods import Likelihood
from qpruntime.likelihoods.binomial import MOST_TRIALS
from qpruntime.validation import real

__all__ = ["ExposedRegressor", "log_exposures"]


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
        """Quantiles of an observation at `X`, noise and all; of counts the least that suffices.

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
        points = self._new_data(X)
        return self._quantiles_at(points, q, self._rows(len(points), exposure, trials))

    def predict_interval(
        self,
        X: ArrayLike,
        level: float = 0.9,
        exposure: ArrayLike | None = None,
        trials: ArrayLike | None = None,
    ) -> Array:
        """Central interval of an observation at `X`, shape (T, 2), with this probability.

        `exposure` and `trials` as for `predict_quantiles`.
        """
        return self.predict_quantiles(X, ends_of(level), exposure, trials)

    def predict_log_density(
        self, X: ArrayLike, y: ArrayLike, exposure: ArrayLike | None = None
    ) -> Array:
        """Log predictive density, or probability, of observations `y` (T, ...), one a row of `X`.

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
        points = self._new_data(X)
        self._named(exposure)
        shift = log_exposures(self.likelihood_, exposure, len(points))
        return self._log_density_at(points, self._observations(y), shift)

    def sample(
        self,
        X: ArrayLike,
        n: int = 1,
        random_state: Any = None,
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
        rows = self._rows(len(self._new_data(X)), exposure, trials)
        return self._sample_at(X, n, random_state, rows)

    def _rows(self, count: int, exposure: ArrayLike | None, trials: ArrayLike | None) -> Rows:
        own = self.likelihood_
        return Rows(log_exposures(own, exposure, count), _trials(own, trials, count))

    def _named(self, exposure: ArrayLike | None) -> None:
        """Raise if observations are to be judged whose exposures are not said."""
        if exposure is None and self._exposed_:
            raise InputError(
                "the model was fitted with exposures, and observations cannot be judged without "
                "theirs: exposure=..., with exposure=1 for those of one unit"
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
            f"exposure multiplies a mean e^f, and that of {likelihood.name!r} is no such: {remedy}"
        )
    found: Array = np.log(exposures(exposure, count))
    return found


def _trials(likelihood: Likelihood, trials: ArrayLike | None, count: int) -> Array | None:
    if trials is None:
        return None
    if likelihood.name != "binomial" or likelihood.recipe is not None:
        raise InputError(f"trials are for successes of trials, not for {likelihood.name!r}")
    given = real(trials, "trials")
    if given.shape not in ((), (count,)):
        raise InputError(
            f"trials must be a number or have shape ({count},), one per point; got {given.shape}"
        )
    wrong = ~((given >= 1.0) & (given <= MOST_TRIALS) & (given == np.floor(given)))
    if wrong.any():
        raise InputError(
            f"trials must be whole numbers from 1 to {MOST_TRIALS}, got {given[wrong].flat[0]:g}"
        )
    return np.full(count, given) if given.ndim == 0 else given
