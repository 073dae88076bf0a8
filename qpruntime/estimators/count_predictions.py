"""Predicted rates and counts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.gaussian_process.kernels import Kernel
from sklearn.utils.validation import check_is_fitted

from qpruntime._typing import Array
from qpruntime._validation import central_levels, choice, flag, generator, levels, whole
from qpruntime.errors import InputError, warn
from qpruntime.estimators.averaging import (
    averaged,
    densities,
    deviations,
    is_integrated,
    mixed_draws,
    nodes_of,
    only_mode,
)
from qpruntime.estimators.base import GPEstimator, Predicted
from qpruntime.inference.corrections.marginals import CorrectedMarginals
from qpruntime.inference.posterior import Posterior
from qpruntime.learning.optimise import Optimum
from qpruntime.likelihoods import Likelihood
from qpruntime.likelihoods.responses import counts
from qpruntime.predictive import density as distribution
from qpruntime.predictive.corrected import counts_by_grid, rates_by_grid
from qpruntime.predictive.counts import LINKS, exposures
from qpruntime.predictive.distribution import observed
from qpruntime.predictive.inversion import mixture_quantiles

__all__ = ["CountPredictions", "largest_rate", "warn_of_tails"]


Counts = NDArray[np.int64]


class CountPredictions(GPEstimator):
    """Predictions of counts from what `fit` sets.

    A dataclass takes annotations of its own class for parameters: here they are none.
    """

    kernel_: Kernel
    posterior_: Posterior
    optimum_: Optimum | None
    optima_: tuple[Optimum, ...]
    mean_: float
    exposure_: Array
    link_: str
    likelihood_: Likelihood
    dispersion_: float
    _exposed_: bool
    _largest_rate_: float

    @overload
    def predict(
        self, X: ArrayLike, return_std: Literal[False] = False, exposure: ArrayLike | None = None
    ) -> Array: ...

    @overload
    def predict(
        self, X: ArrayLike, return_std: Literal[True], exposure: ArrayLike | None = None
    ) -> tuple[Array, Array]: ...

    def predict(
        self, X: ArrayLike, return_std: bool = False, exposure: ArrayLike | None = None
    ) -> Array | tuple[Array, Array]:
        """Predict the mean count, shape (T,), and its standard deviation.

        The mean of exposure times the rate: for mean and variance of the latent function
        exposure (mean^2 + variance), or exposure exp(mean + variance/2).

        Parameters
        ----------
        X : array-like, shape (T, d)
        return_std : bool
            Whether to return the standard deviation, shape (T,), of exposure times the rate as
            well, without the noise of a count: that of a count is
            ``sqrt(std^2 + mean + (std^2 + mean^2)/dispersion_)``.
        exposure : float or array-like, shape (T,), optional
            Default 1, the rate itself, whatever the exposures of the training counts. Scorers of
            scikit-learn other than `score` cannot hand it over.

        Raises
        ------
        NumericalError
            If the mean, or with `return_std` the variance, of e^f is beyond double precision.

        Warns
        -----
        UserWarning
            If a mean of e^f is more than 1000 times every rate that was observed: exp(variance/2)
            makes it then, that is the tail of a latent function that is hardly known.
        """
        wanted = flag(return_std, "return_std", "exposures are handed over by name, exposure=...")
        self._link()
        expected = self._expected(X, wanted, exposure)
        # Once, and of the average over hyper-parameters.
        rate = expected[0] if isinstance(expected, tuple) else expected
        warn_of_tails(rate, exposure, self._largest_rate_)
        return expected

    @averaged(deviations)
    def _expected(
        self, X: ArrayLike, wanted: bool, exposure: ArrayLike | None
    ) -> Array | tuple[Array, Array]:
        """Return mean counts, and if they are wanted the standard deviations of the rates."""
        link = self._link()
        if not wanted and self.correction is None:
            return self._counted_at(self.validate_points(X), exposure, LINKS[link].mean_rate)

        def finish(mean: Array, variance: Array, spread: Array) -> tuple[Array, Array]:
            rate = LINKS[link].mean_rate(mean, variance)
            return rate, distribution.rate_std(mean, variance + spread, link)

        def by_grid(marginals: CorrectedMarginals, spread: Array) -> tuple[Array, Array]:
            return rates_by_grid(marginals, link=link)

        points = self.validate_points(X)
        slope, _ = LINKS[link].exposed(exposures(exposure, len(points)))
        spread = slope**2 * self._spread_at(points)
        rate, std = self._counted_at(points, exposure, finish, spread, by_grid=by_grid)
        return (rate, std) if wanted else rate

    def sample(
        self,
        X: ArrayLike,
        n: int = 1,
        random_state: int | np.random.Generator | None = None,
        exposure: ArrayLike | None = None,
    ) -> Counts:
        """Draw counts at `X` jointly, shape (n, T): of the rates that `sample_latent` draws.

        Parameters
        ----------
        X : array-like, shape (T, d)
        n : int
        random_state : int, Generator or None
        exposure : float or array-like, shape (T,), optional
        """
        rng = generator(random_state)
        if is_integrated(self):
            return mixed_draws(
                CountPredictions.sample, self, X, whole(n, "n", 1), rng, exposure
            ).astype(np.int64)
        f = self.sample_latent(X, n, rng)
        slope, shift = LINKS[self._link()].exposed(exposures(exposure, f.shape[1]))
        return observed(self.likelihood_, slope * f + shift, rng).astype(np.int64)

    def predict_count(self, X: ArrayLike, exposure: ArrayLike | None = None) -> Counts:
        """Return the most probable count, shape (T,).

        The square link has the paper's point prediction under the negative binomial predictive:
        floor(c (k - 1)) for k > 1, else 0 (Appendix H). The link "exp" has the mode of the exact
        predictive.
        """
        only_mode(self, "the most probable count is")
        mode = partial(distribution.mode, **self._noise())
        return self._counted_at(self.validate_points(X), exposure, mode)

    def predict_quantiles(
        self,
        X: ArrayLike,
        q: ArrayLike = (0.05, 0.5, 0.95),
        exposure: ArrayLike | None = None,
        *,
        predictive: Literal["exact", "gamma"] = "exact",
    ) -> Counts:
        """Return the quantiles of the count, the smallest y with P(Y <= y) >= q.

        Parameters
        ----------
        X : array-like, shape (T, d)
        q : float or array-like, shape (Q,)
            Strictly between 0 and 1.
        exposure : float or array-like, shape (T,), optional
        predictive : {"exact", "gamma"}
            The predictive distribution itself, or the paper's negative binomial: a gamma variable
            of its mean and variance for the rate, with the noise of negative binomial counts in it.

        Returns
        -------
        ndarray of int, shape (T,) for a number q, else (T, Q)

        Raises
        ------
        NumericalError
            If a quantile is above a million.
        """
        at = levels(q, "q")
        exact = choice(predictive, "predictive", distribution.PREDICTIVES) == "exact"
        noise, flat = self._noise(), at.reshape(-1)
        if is_integrated(self):
            mixed: Counts = self._mixed_quantiles(X, flat, exposure, predictive)
            return mixed.reshape(len(mixed), *at.shape)
        finish = partial(distribution.quantiles, q=flat, predictive=predictive, **noise)
        by_grid = partial(counts_by_grid, q=flat, **noise) if exact else None
        points = self.validate_points(X)
        quantiles = self._counted_at(points, exposure, finish, by_grid=by_grid, width=8 * at.size)
        return quantiles.reshape(len(quantiles), *at.shape)

    def predict_interval(
        self, X: ArrayLike, level: float = 0.9, exposure: ArrayLike | None = None
    ) -> Counts:
        """Return central intervals of the count, shape (T, 2), of at least this probability.

        The ends are counts, the quantiles of `predict_quantiles`.
        """
        return self.predict_quantiles(X, central_levels(level), exposure)

    @averaged(densities)
    def predict_log_pmf(
        self,
        X: ArrayLike,
        y: ArrayLike,
        exposure: ArrayLike | None = None,
        *,
        predictive: Literal["exact", "gamma"] = "exact",
    ) -> Array:
        """Return the log probability of the counts `y`.

        Parameters
        ----------
        X : array-like, shape (T, d)
        y : int or array-like, shape (T,) or (T, C)
            One count, or C of them, for every point.
        exposure : float or array-like, shape (T,), optional
        predictive : {"exact", "gamma"}

        Returns
        -------
        ndarray, shape (T,) or (T, C)
        """
        points = self.validate_points(X)
        n = len(points)
        events = counts(y)
        if events.ndim > 2 or events.shape[:1] not in ((), (n,)):
            raise InputError(
                f"y must be a count or have shape ({n},) or ({n}, C), one row per point; got "
                f"{events.shape}"
            )
        columns = np.broadcast_to(events, (n,)) if events.ndim == 0 else events
        exact = choice(predictive, "predictive", distribution.PREDICTIVES) == "exact"

        noise = self._noise()

        def finish(mean: Array, variance: Array, rows: Array) -> Array:
            if rows.ndim == 2:
                mean, variance = mean[:, None], variance[:, None]
            return distribution.log_pmf(mean, variance, rows, predictive, **noise)

        by_grid = CorrectedMarginals.log_probability if exact else None
        return self._counted_at(
            points, exposure, finish, columns, by_grid=by_grid, width=8 * columns[:1].size
        )

    def _mixed_quantiles(
        self, X: ArrayLike, q: Array, exposure: ArrayLike | None, predictive: str
    ) -> Counts:
        """Return the quantiles (T, Q) of the count, averaged over hyper-parameters."""
        ((weights, models),) = nodes_of(self)
        points = self.validate_points(X)
        moments = [member._counted_at(points, exposure, lambda m, v: (m, v)) for member in models]
        parts = [
            distribution.count_distribution(m, v, q, predictive, **member._noise())
            for member, (m, v) in zip(models, moments, strict=True)
        ]
        return distribution.whole_counts(mixture_quantiles(parts, weights, q, True), *moments[0])

    def _link(self) -> str:
        """Return the name of the link of the fit; `NotFittedError` if there was none."""
        check_is_fitted(self)
        return self.link_

    def _noise(self) -> dict[str, Any]:
        """Return link and dispersion of the fit as arguments of distributions."""
        return {"link": self._link(), "dispersion": self.dispersion_}

    def _counted_at(
        self,
        points: Array,
        exposure: ArrayLike | None,
        finish: Callable[..., Predicted],
        *columns: Array,
        by_grid: Callable[..., Predicted] | None = None,
        width: int = 0,
    ) -> Predicted:
        """Join ``finish(mean, variance, *rows)`` of latent values that include the exposure.

        If the model has a correction, ``by_grid(marginals, *rows)`` is used if it is given.
        """
        slope, shift = LINKS[self.link_].exposed(exposures(exposure, len(points)))

        def of_moments(
            mean: Array, variance: Array, slope: Array, shift: Array, *rows: Array
        ) -> Predicted:
            return finish(slope * mean + shift, slope**2 * variance, *rows)

        of_marginals = None
        if by_grid is not None:

            def of_marginals(
                marginals: list[CorrectedMarginals], slope: Array, shift: Array, *rows: Array
            ) -> Predicted:
                return by_grid(marginals[0].scaled(slope, shift), *rows)

        return self._predicted(
            points, of_moments, slope, shift, *columns, by_grid=of_marginals, width=width
        )


# --- Mean rates that the tail of f makes, and not the data ---------------------------------------

# Means so many times above every rate observed are no extrapolation that anyone means.
_BEYOND = 1000.0


def largest_rate(events: Array, exposure: Array) -> float:
    """Return the largest rate observed; no event is taken for one."""
    return float((np.maximum(events, 1.0) / exposure).max())


def warn_of_tails(mean: Array, exposure: ArrayLike | None, largest: float) -> None:
    """Warn if means of counts (T,) with these exposures are far beyond the largest rate observed.

    Only where they are left to the exponential link can they be: squares follow the data.
    """
    rate = mean if exposure is None else mean / np.asarray(exposure, dtype=float)
    if not (beyond := rate > _BEYOND * largest).any():
        return
    worst = int(np.argmax(rate))
    warn(
        f"the predicted mean rate of point {worst} is {rate[worst]:.3g}, and at "
        f"{int(beyond.sum())} points it is more than {_BEYOND:g} times the largest "
        f"observed rate, {largest:.3g}: the mean of e^f is exp(mean + variance/2), and "
        "the variance is large there. Use the median of predict_quantiles, "
        'link="square", or a smaller upper bound of the variance of the kernel',
        UserWarning,
    )
