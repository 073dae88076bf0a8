"""Regression of counts over `infer`: rates, counts, quantiles and probabilities out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin
from sklearn.gaussian_process.kernels import Kernel
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted, column_or_1d

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.estimators.atomic import commit, draft_of, renewed
from qpruntime.estimators.base import GPEstimator, settings_to_fit
from qpruntime.estimators.cross_fitted import Target, given_mean
from qpruntime.estimators.data import fit_data, weighed
from qpruntime.estimators.fitted_table import table_to_fit
from qpruntime.estimators.mean_choice import boosted_rates
from qpruntime.estimators.old_options import with_old_options
from qpruntime.estimators.over_nodes import (
    averaged,
    densities,
    deviations,
    drawn,
    is_integrated,
    nodes_of,
    only_mode,
)
from qpruntime.estimators.overdispersion import BOUNDS, asked, judged
from qpruntime.estimators.parts import begun, extended, with_inducing
from qpruntime.estimators.predictive import density as distribution
from qpruntime.estimators.predictive.draws import observed
from qpruntime.estimators.predictive.grid import counts_by_grid, rates_by_grid
from qpruntime.estimators.predictive.links import LINKS, exposures
from qpruntime.estimators.predictive.mixed_quantiles import mixed_quantiles
from qpruntime.estimators.prior_mean import prior_mean
from qpruntime.estimators.process import Process
from qpruntime.estimators.scores import OfRates
from qpruntime.estimators.tables import kernel_of_table, levels_of
from qpruntime.estimators.tails import largest_rate, warn_of_tails
from qpruntime.inference.corrections.marginals import Marginals
from qpruntime.inference.posterior import Posterior
from qpruntime.learning.data import Data
from qpruntime.learning.maximise import Optimum
from qpruntime.learning.options_integrate import Integrate
from qpruntime.likelihoods import Likelihood
from qpruntime.likelihoods.observations import counts
from qpruntime.projection.projector import Projector
from qpruntime.validation import choice, flag, generator, levels, whole

__all__ = ["GPPoissonRegressor"]

Counts = NDArray[np.int64]


class _Fitted(GPEstimator):
    """What `fit` sets; a dataclass takes annotations of its own class for parameters."""

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


@with_old_options
@dataclass(kw_only=True, eq=False, repr=False, match_args=False)
class GPPoissonRegressor(RegressorMixin, _Fitted):
    """Regression of counts by QP or EP: Poisson, or negative binomial where they vary more.

    y ~ Poisson(exposure f(x)^2), or Poisson(exposure e^f(x)); the latent function f has a
    Gaussian-process prior. The rate f^2 does not know the sign of f: a prior mean away from zero
    settles it. The rate e^f makes effects multiply; its predictions grow fast where f is uncertain.
    Counts that vary more than Poisson ones are negative binomial of mean m = exposure e^f and
    variance m + m^2/dispersion: told to be Poisson, the model would take noise for a rough rate.

    Parameters
    ----------
    kernel : scikit-learn kernel, "auto" or None
        By default a constant plus Matérn 5/2, in units of each feature's spread, as for
        `GPClassifier`. To a kernel that is given features are not scaled: where its length-scale
        starts decides which maximum of the evidence is found.
    link : {"auto", "square", "exp"}
        Whether the rate is f^2 or e^f. "auto" is "exp" for counts that are negative binomial, and
        "square" otherwise; "square" also where `kernel` or `mean` are given, in units of such an f.
    dispersion : float or "auto"
        Of negative binomial counts, from 1e-3 to 1e9; ``numpy.inf`` for Poisson ones. "auto" finds
        out, where the link is "exp" or can be: if counts differ from those of the nearest rows by
        more than Poisson counts do, both are fitted to 500 rows at most, and where the evidence of
        the negative binomial is higher by 3, its dispersion is learnt. Counts are Poisson in the
        square link, with a `table`, and where nothing is learnt.
    method : {"qp", "ep", "vb"}
        How the final posterior is computed. Hyper-parameters come from EP's evidence; those of
        "vb" from its own bound.
    table : None, "exact", path, name or Table
        Where QP finds sigma*; see `qpruntime.infer`.
    mean : float, optional
        Prior mean of f. By default the f of the mean rate, sum(y) / sum(exposure), weighted if
        rows are, with half an event added if there is none. 0 leaves the sign of f open in the
        square link, and warns; predictions with a correction are then those of ``|f|``.
    monotone : mapping, optional
        Features along which the rate rises, +1, or falls, -1: ``{"age": +1}``, or numbers of
        columns, as for `GPClassifier`. In the link "exp", which "auto" is then.
    optimize, tol, max_sweeps, correction, inducing, solver
        As for `GPClassifier`.
    n_jobs, random_state, verbose
        As for `GPClassifier`.
    hyperparameters : {"mode", "integrate"} or Integrate
        As for `GPClassifier`, with a dispersion that is learnt among them; `predict_count` is of
        one set alone, and refused.
    prior_mean : estimator, "auto" or None
        As for `GPClassifier`, any regressor of rates, counts over exposures, with exposures as
        weights; not beside `mean`.

    Attributes
    ----------
    kernel_ : scikit-learn kernel
        With the fitted parameters.
    mean_ : float
        The prior mean used.
    link_ : str
        The link used.
    dispersion_ : float
        Of the counts; infinite if they are Poisson.
    likelihood_ : Likelihood
        With its dispersion, if it has one.
    integrated_ : Integrated or None
        As of `GPClassifier`.
    posterior_ : Posterior
        Posterior of sqrt(exposure) f, or of f + log(exposure) for the link "exp", at the training
        points. `Posterior.n_negative` counts observations that widen it because they see two peaks.
        With inducing points a `SparsePosterior`, in the square link of f itself.
    optimum_ : Optimum or None
        The best optimiser run.
    optima_ : tuple of Optimum
        Every optimiser run, best first.
    log_marginal_likelihood_value_ : float
        Log evidence of the posterior, or its bound for "vb".
    n_iter_ : int
        Optimiser iterations, at least 1.
    table_sha256_ : str or None
        Hash of the data of the table given or shipped, None if there is none. A model that was
        given a path or a name refits with this very table: `TableError` if it is not to be found.
        Predictions need no table.
    inducing_points_ : ndarray, shape (M, d)
        Where there are any.
    engine_, stages_, nearest_, warp_, prior_mean_
        As of `GPClassifier`.
    X_train_ : ndarray, shape (N, d)
        Without rows of weight 0, like all that is at the training points. Empty with inducing
        points, like `exposure_`.
    exposure_ : ndarray, shape (N,)

    Examples
    --------
    >>> from qpruntime import GPPoissonRegressor
    >>> X = [[0.0], [1.0], [2.0], [3.0], [4.0], [5.0]]
    >>> model = GPPoissonRegressor().fit(X, [0, 1, 1, 3, 6, 8])
    >>> model.predict_count([[1.0], [4.0]]).tolist()
    [0, 5]
    >>> model.predict_quantiles([[4.0]], [0.05, 0.95]).tolist()
    [[2, 10]]

    Counts that vary more than Poisson ones:

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> t = np.linspace(0.0, 6.0, 60)[:, None]
    >>> y = rng.poisson(5.0 * np.exp(np.sin(t[:, 0])) * rng.gamma(2.0, 0.5, 60))
    >>> model = GPPoissonRegressor().fit(t, y)
    >>> model.link_, 1.0 < model.dispersion_ < 4.0
    ('exp', True)
    """

    link: Literal["auto", "square", "exp"] = "auto"
    dispersion: float | Literal["auto"] = "auto"
    method: Literal["qp", "ep", "vb"] = "qp"
    mean: float | None = None
    monotone: Mapping[str | int, int] | None = None
    hyperparameters: Literal["mode", "integrate"] | Integrate = "mode"

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        exposure: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> GPPoissonRegressor:
        """Fit hyper-parameters and posterior.

        Parameters
        ----------
        X : array-like, shape (N, d)
        y : array-like, shape (N,)
            Counts; floats if they are whole.
        exposure : float or array-like, shape (N,), optional
            What the rate is multiplied with: time, area, population. Default 1.
        sample_weight : array-like, shape (N,), optional
            Powers of the single likelihoods, as in `GPClassifier.fit`; rows of weight 0 are
            dropped. The default prior mean is that of the weighted mean rate. Weights other than 0
            and 1 are not for method "vb".

        Raises
        ------
        TableError
            If the table is missing, or not the one that the model was fitted with before.
        ValueError
            If X, y, exposure or weights are not usable; a subclass, `InputError`, where the check
            is ours.

        Warns
        -----
        ConvergenceWarning
            As for `GPClassifier.fit`.
        UserWarning
            If ``mean=0`` in the square link.
        """
        settings = settings_to_fit(self)
        draft = draft_of(self)
        name = choice(self.link, "link", ("auto", *LINKS))
        choice(self.method, "method", ("qp", "ep", "vb"))
        table = table_to_fit(self)
        tabled = not (table is None or (isinstance(table, str) and table == "exact"))
        fixed = isinstance(settings.kernel, Kernel) and settings.kernel.n_dims == 0
        settled = tabled or fixed or not settings.optimize
        if self.monotone and name == "auto":
            name = "exp"
        noise = asked(name, self.dispersion, settled, settings.given or self.mean is not None)
        points, given = fit_data(draft, X, y, y_numeric=True)
        events = counts(column_or_1d(given, warn=True))
        exposed = exposures(exposure, len(events))
        weights, points, events, draft.exposure_ = weighed(sample_weight, points, events, exposed)
        if noise is None:
            about = prior_mean(self.mean, LINKS["exp"], events, draft.exposure_, weights)
            seen = points, events, draft.exposure_, weights
            plain = replace(kernel_of_table(draft, settings), integrate=None)
            noise = judged(name, about, *seen, plain, self.method, levels_of(draft))
        projector = Projector(noise.spelt, self.method, table)
        projector.check_outcomes(events)
        draft.link_, link = noise.link, LINKS[noise.link]
        if self.mean is not None and given_mean(self.prior_mean) is not None:
            raise InputError("mean= and prior_mean= are the same: give one of the two")
        draft.mean_ = prior_mean(self.mean, link, events, draft.exposure_, weights)
        # With an exposure f is another Gaussian process under no other model.
        slope, shift = link.exposed(draft.exposure_)
        scale = None if (slope == 1.0).all() else slope
        learn = {"dispersion": BOUNDS} if noise.learnt else {}
        data = Data(points, events, projector, draft.mean_ + shift, weights, scale, learn)
        draft._exposed_ = bool((draft.exposure_ != 1.0).any())
        draft._largest_rate_ = largest_rate(events, draft.exposure_)

        def target() -> Target:
            exposed = draft.exposure_
            looked = exposed if weights is None else weights * exposed
            shared = None if (looked == 1.0).all() else looked
            score = OfRates(link, 0.5 / float(exposed.sum()))
            return Target(events / exposed, shared, score, False, boosted_rates)

        spread = link.spread(draft.mean_)
        fit = draft._train([data], settings, target, spread, noise.theta, shift)[0]
        for attribute, value in draft._with_likelihood(fit.likelihood).items():
            setattr(draft, attribute, value)
        if not len(draft.X_train_):
            draft.exposure_ = draft.exposure_[:0]
        return commit(self, draft)

    @with_inducing
    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        exposure: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> GPPoissonRegressor:
        """Fit to the first part of the rows; add later parts to the posterior, with `inducing`.

        As of `GPClassifier.partial_fit`: kernel, prior mean and inducing points are learnt from the
        rows of the first call. Arguments are those of `fit`.
        """
        if not begun(self):
            return self.fit(X, y, exposure, sample_weight)
        points, given = fit_data(self, X, y, y_numeric=True, reset=False)
        events = counts(column_or_1d(given, warn=True))
        exposed = exposures(exposure, len(events))
        weights, points, events, exposed = weighed(sample_weight, points, events, exposed)
        slope, shift = LINKS[self.link_].exposed(exposed)
        means = [prior + shift for prior in self._prior_at(points)]
        changed = extended(self, points, [events], weights, means, slope)
        some = self._exposed_ or bool((exposed != 1.0).any())
        most = max(self._largest_rate_, largest_rate(events, exposed))
        return renewed(self, changed | {"_exposed_": some, "_largest_rate_": most})

    def latent(self, X: ArrayLike, full_covariance: bool = False) -> tuple[Array, Array]:
        """Mean and variance of the latent function f at `X`, each of shape (T,).

        With `full_covariance` covariances, shape (T, T), in place of variances.
        """
        whole = flag(full_covariance, "full_covariance")
        return self._jointly(X) if whole else self._latent_at(X)

    @overload
    def predict(
        self, X: ArrayLike, return_std: Literal[False] = False, exposure: ArrayLike | None = None
    ) -> Array: ...
    @overload
    def predict(
        self, X: ArrayLike, return_std: Literal[True], exposure: ArrayLike | None = None
    ) -> tuple[Array, Array]: ...
    @averaged(deviations)
    def predict(
        self, X: ArrayLike, return_std: bool = False, exposure: ArrayLike | None = None
    ) -> Array | tuple[Array, Array]:
        """Mean count, shape (T,), and how well it is known.

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
        link = self._link()
        if not wanted and self.correction is None:
            only: Array = self._counted(X, exposure, LINKS[link].mean_rate)
            warn_of_tails(only, exposure, self._largest_rate_)
            return only

        def finish(mean: Array, variance: Array, spread: Array) -> tuple[Array, Array]:
            rate = LINKS[link].mean_rate(mean, variance)
            return rate, distribution.rate_std(mean, variance + spread, link)

        def by_grid(found: Marginals, spread: Array) -> tuple[Array, Array]:
            return rates_by_grid(found, link=link)

        points = self._new_data(X)
        slope, _ = LINKS[link].exposed(exposures(exposure, len(points)))
        spread = slope**2 * self._spread_at(points)
        rate, std = self._counted_at(points, exposure, finish, spread, by_grid=by_grid)
        warn_of_tails(rate, exposure, self._largest_rate_)
        return (rate, std) if wanted else rate

    def sample(
        self,
        X: ArrayLike,
        n: int = 1,
        random_state: Any = None,
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
            counted: Counts = drawn(
                GPPoissonRegressor.sample, self, X, whole(n, "n", 1), rng, exposure
            ).astype(np.int64)
            return counted
        f = self.sample_latent(X, n, rng)
        slope, shift = LINKS[self._link()].exposed(exposures(exposure, f.shape[1]))
        return observed(self.likelihood_, slope * f + shift, rng).astype(np.int64)

    def score(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        exposure: ArrayLike | None = None,
    ) -> float:
        """Coefficient of determination R^2 of the mean counts of `predict`.

        Parameters
        ----------
        X : array-like, shape (T, d)
        y : array-like, shape (T,)
            Counts.
        sample_weight : array-like, shape (T,), optional
        exposure : float or array-like, shape (T,), optional
            Of the counts `y`; needed if the model was fitted with exposures other than 1.
            For cross-validation scikit-learn hands it over where it is told to::

                sklearn.set_config(enable_metadata_routing=True)
                model.set_fit_request(exposure=True).set_score_request(exposure=True)
                cross_val_score(model, X, y, params={"exposure": exposure})

        Raises
        ------
        InputError
            If `exposure` is missing.
        """
        check_is_fitted(self)
        if exposure is None and self._exposed_:
            raise InputError(
                "the model was fitted with exposures, and counts cannot be scored without theirs: "
                "score(X, y, exposure=...), with exposure=1 for counts of one unit; in "
                "cross-validation sklearn.set_config(enable_metadata_routing=True) and "
                "model.set_fit_request(exposure=True).set_score_request(exposure=True)"
            )
        found = self.predict(X, exposure=exposure)
        return float(r2_score(y, found, sample_weight=sample_weight))

    def predict_count(self, X: ArrayLike, exposure: ArrayLike | None = None) -> Counts:
        """Most probable count, shape (T,).

        For the square link under the negative binomial predictive, the paper's point prediction:
        floor(c (k - 1)) for k > 1, else 0 (Appendix H). For the link "exp" under the exact one.
        """
        only_mode(self, "the most probable count is")
        return self._counted(X, exposure, partial(distribution.mode, **self._noise()))

    def predict_quantiles(
        self,
        X: ArrayLike,
        q: ArrayLike = (0.05, 0.5, 0.95),
        exposure: ArrayLike | None = None,
        *,
        predictive: Literal["exact", "gamma"] = "exact",
    ) -> Counts:
        """Quantiles of the count, the smallest y with P(Y <= y) >= q.

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
        found = self._counted(X, exposure, finish, by_grid=by_grid, width=8 * at.size)
        return found.reshape(len(found), *at.shape)

    @averaged(densities)
    def predict_log_pmf(
        self,
        X: ArrayLike,
        y: ArrayLike,
        exposure: ArrayLike | None = None,
        *,
        predictive: Literal["exact", "gamma"] = "exact",
    ) -> Array:
        """Log probability of the counts `y`.

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
        points = self._new_data(X)
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

        def finish(mean: Array, variance: Array, seen: Array) -> Array:
            if seen.ndim == 2:
                mean, variance = mean[:, None], variance[:, None]
            return distribution.log_pmf(mean, variance, seen, predictive, **noise)

        by_grid = Marginals.log_probability if exact else None
        return self._counted_at(
            points, exposure, finish, columns, by_grid=by_grid, width=8 * columns[:1].size
        )

    def _mixed_quantiles(
        self, X: ArrayLike, q: Array, exposure: ArrayLike | None, predictive: str
    ) -> Counts:
        """Quantiles (T, Q) of the count, averaged over hyper-parameters."""
        ((weights, models),) = nodes_of(self)
        tails = []
        for one in models:
            mean, variance = one._counted(X, exposure, lambda m, v: (m, v))
            asked = {"predictive": predictive, **one._noise()}
            tails.append(partial(distribution.below, mean, variance, **asked))
        each = [one.predict_quantiles(X, q, exposure, predictive=predictive) for one in models]
        found: Counts = mixed_quantiles(each, tails, weights, q, True).astype(np.int64)
        return found

    def _with_likelihood(self, likelihood: Likelihood) -> dict[str, Any]:
        found = likelihood.parameters.get("dispersion", math.inf)
        return {"likelihood_": likelihood, "dispersion_": found}

    def _link(self) -> str:
        """Return the name of the link of the fit; `NotFittedError` if there was none."""
        check_is_fitted(self)
        return self.link_

    def _noise(self) -> dict[str, Any]:
        """Link and dispersion of the fit, as distributions take them."""
        return {"link": self._link(), "dispersion": self.dispersion_}

    def _processes(self) -> list[Process]:
        slope, _ = LINKS[self.link_].exposed(self.exposure_)
        return [replace(one, slope=slope) for one in super()._processes()]

    def _constant(self) -> float:
        return self.mean_

    def _counted(self, X: ArrayLike, *arguments: Any, **options: Any) -> Any:
        """`_counted_at` of points that are not validated yet."""
        return self._counted_at(self._new_data(X), *arguments, **options)

    def _counted_at(
        self,
        points: Array,
        exposure: ArrayLike | None,
        finish: Callable[..., Any],
        *columns: Array,
        by_grid: Callable[..., Any] | None = None,
        width: int = 0,
    ) -> Any:
        """Join ``finish(mean, variance, *rows)`` of latent values that have taken in the exposure.

        With a correction ``by_grid(marginals, *rows)`` of their marginals, if there is such.
        """
        slope, shift = LINKS[self.link_].exposed(exposures(exposure, len(points)))

        def of_moments(
            mean: Array, variance: Array, slope: Array, shift: Array, *rows: Array
        ) -> Any:
            return finish(slope * mean + shift, slope**2 * variance, *rows)

        def of_marginals(found: list[Marginals], slope: Array, shift: Array, *rows: Array) -> Any:
            assert by_grid is not None
            return by_grid(found[0].scaled(slope, shift), *rows)

        if by_grid is not None and self.correction is not None:
            return self._corrected(points, of_marginals, slope, shift, *columns)
        return self._predicted(points, of_moments, slope, shift, *columns, width=width)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        # Counts only: scikit-learn's generic targets are refused, however good the fit would be.
        tags.regressor_tags.poor_score = True
        return tags
