"""Regression of counts over `infer`: rates, counts, quantiles and probabilities out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin
from sklearn.gaussian_process.kernels import Kernel
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted, column_or_1d

from qpruntime.errors import InputError
from qpruntime.estimators.atomic import commit, draft_of, renewed
from qpruntime.estimators.base import settings_to_fit
from qpruntime.estimators.counted import CountPredictions
from qpruntime.estimators.cross_fitted import Target, given_mean
from qpruntime.estimators.data import fit_data, weighed
from qpruntime.estimators.fitted_table import table_to_fit
from qpruntime.estimators.mean_choice import boosted_rates
from qpruntime.estimators.old_options import with_old_options
from qpruntime.estimators.overdispersion import BOUNDS, asked, judged
from qpruntime.estimators.partial_fit import begun, extended, with_inducing
from qpruntime.estimators.predictive.links import LINKS, exposures
from qpruntime.estimators.prior_mean import prior_mean
from qpruntime.estimators.process import Process
from qpruntime.estimators.scores import OfRates
from qpruntime.estimators.tables import kernel_of_table, levels_of
from qpruntime.estimators.tails import largest_rate
from qpruntime.learning.data import Data
from qpruntime.learning.options_integrate import Integrate
from qpruntime.likelihoods import Likelihood
from qpruntime.likelihoods.observations import counts
from qpruntime.projection.projector import Projector
from qpruntime.validation import choice

__all__ = ["GPPoissonRegressor"]

Counts = NDArray[np.int64]


@with_old_options
@dataclass(kw_only=True, eq=False, repr=False, match_args=False)
class GPPoissonRegressor(RegressorMixin, CountPredictions):
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

    def _with_likelihood(self, likelihood: Likelihood) -> dict[str, Any]:
        found = likelihood.parameters.get("dispersion", math.inf)
        return {"likelihood_": likelihood, "dispersion_": found}

    def _processes(self) -> list[Process]:
        slope, _ = LINKS[self.link_].exposed(self.exposure_)
        return [replace(one, slope=slope) for one in super()._processes()]

    def _constant(self) -> float:
        return self.mean_

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        # Counts only: scikit-learn's generic targets are refused, however good the fit would be.
        tags.regressor_tags.poor_score = True
        return tags
