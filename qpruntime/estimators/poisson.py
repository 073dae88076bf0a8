"""Regression of counts over `infer`: rates, counts, quantiles and probabilities out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.spatial.distance import cdist
from sklearn.base import RegressorMixin
from sklearn.gaussian_process.kernels import Kernel
from sklearn.metrics import r2_score
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, column_or_1d

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import choice, number, shown
from qpruntime.errors import InputError, NumericalError, warn
from qpruntime.estimators.base import begun, extended, settings_to_fit, table_to_fit, with_inducing
from qpruntime.estimators.count_predictions import CountPredictions, largest_rate
from qpruntime.estimators.input_data import fit_data, kernel_of_columns, weighed
from qpruntime.estimators.prior_mean import OfRates, Target, given_estimator
from qpruntime.estimators.prior_mean_selection import boosted_rates
from qpruntime.estimators.process import Process, commit, draft_of, renewed
from qpruntime.learning.inducing_points import sample
from qpruntime.learning.initialisation import Start, default_start
from qpruntime.learning.inputs import Data, Inputs
from qpruntime.learning.optimise import Optimum, optimise
from qpruntime.learning.options import Integrate, Settings
from qpruntime.learning.scaling import Units
from qpruntime.learning.solvers import solvers
from qpruntime.likelihoods import Likelihood, get
from qpruntime.likelihoods.base import RateLink
from qpruntime.likelihoods.responses import counts
from qpruntime.predictive.counts import COUNTS, DISPERSED, LINKS, exposures
from qpruntime.projection.projector import Projector

__all__ = ["BOUNDS", "GPPoissonRegressor", "Noise", "noise_given", "noise_tested"]


@restorable("gp-poisson-regressor/1", root=True)
@dataclass(kw_only=True, eq=False, repr=False, match_args=False)
class GPPoissonRegressor(RegressorMixin, CountPredictions):
    """Regression of counts by QP or EP, with a Poisson or a negative binomial likelihood.

    y ~ Poisson(exposure f(x)^2), or Poisson(exposure e^f(x)); the latent function f has a
    Gaussian-process prior. The rate f^2 leaves the sign of f open, so the prior mean is away from
    zero. The rate e^f makes effects multiply; its predictions grow fast if f is uncertain.
    Overdispersed counts are negative binomial with mean m = exposure e^f and variance
    m + m^2/dispersion. A Poisson model of such counts would take noise for a rough rate.

    Parameters
    ----------
    kernel : scikit-learn kernel, "auto" or None
        By default a constant plus Matérn 5/2, in units of each feature's spread, as for
        `GPClassifier`. Features are not scaled for a kernel object, so the start of its
        length-scale decides which maximum of the evidence is found.
    link : {"auto", "square", "exp"}
        The rate is f^2 or e^f. "auto" is "exp" for negative binomial counts and "square" otherwise.
        It is also "square" if `kernel` or `mean` is given, which are in units of such an f.
    dispersion : float or "auto"
        Dispersion of negative binomial counts, from 1e-3 to 1e9; ``numpy.inf`` for Poisson counts.
        "auto" needs the link "exp" or "auto". It compares counts with those of their nearest rows.
        If they differ by more than Poisson counts do, both likelihoods are fitted to at most 500
        rows, and a dispersion is learnt if the log evidence of the negative binomial is higher by
        3. Counts are Poisson in the square link, with a `table`, and if nothing is learnt.
    method : {"qp", "ep", "vb"}
        Inference of the final posterior. Hyper-parameters maximise EP's evidence; those of "vb"
        maximise its own bound.
    table : None, "exact", path, name or Table
        Source of sigma* for QP; see `qpruntime.infer`.
    mean : float, optional
        Prior mean of f. By default f of the mean rate, sum(y) / sum(exposure), with sample weights
        if there are any and half an event if there is none. 0 leaves the sign of f open in the
        square link, and warns; corrected predictions then are those of ``|f|``.
    monotone : mapping, optional
        Features along which the rate rises, +1, or falls, -1, as for `GPClassifier`. It needs the
        link "exp", which "auto" then is.
    optimize, tol, max_sweeps, correction, inducing, solver
        As for `GPClassifier`.
    n_jobs, random_state, verbose
        As for `GPClassifier`.
    hyperparameters : {"mode", "integrate"} or Integrate
        As for `GPClassifier`; a learnt dispersion is integrated as well. `predict_count` is then
        refused, because it needs one set of hyper-parameters.
    prior_mean : estimator, "auto" or None
        As for `GPClassifier`: any regressor of rates, counts over exposures, with exposures as
        weights. It excludes `mean`.

    Attributes
    ----------
    kernel_ : scikit-learn kernel
        Kernel with the fitted parameters.
    mean_ : float
        The prior mean used.
    link_ : str
        The link used.
    dispersion_ : float
        Dispersion of the counts; infinite if they are Poisson.
    likelihood_ : Likelihood
        Likelihood with its dispersion, if it has one.
    integrated_ : Integrated or None
        As in `GPClassifier`.
    posterior_ : Posterior
        Posterior of sqrt(exposure) f, or of f + log(exposure) for the link "exp", at the training
        points. `Posterior.n_negative` counts observations that widen it because they see two peaks.
        With inducing points it is a `SparsePosterior`, which has f itself in the square link.
    optimum_ : Optimum or None
        The best optimiser run.
    optima_ : tuple of Optimum
        Every optimiser run, best first.
    log_marginal_likelihood_value_ : float
        Log evidence of the posterior, or its bound for "vb".
    n_iter_ : int
        Optimiser iterations, at least 1.
    table_sha256_ : str or None
        Hash of the table's data, None without a table. A model with a path or a name refits with
        this very table, and raises `TableError` if it is missing. Predictions need no table.
    inducing_points_ : ndarray, shape (M, d)
        Inducing points, if there are any.
    engine_, stages_, nearest_, warp_, prior_mean_
        As in `GPClassifier`.
    X_train_ : ndarray, shape (N, d)
        Training points without rows of weight 0. Empty with inducing points, like `exposure_`.
    exposure_ : ndarray, shape (N,)

    See Also
    --------
    qpruntime.count_bins, qpruntime.GPRegressor, qpruntime.effects.EffectsModel

    Examples
    --------
    >>> from qpruntime import GPPoissonRegressor
    >>> X = [[0.0], [1.0], [2.0], [3.0], [4.0], [5.0]]
    >>> model = GPPoissonRegressor().fit(X, [0, 1, 1, 3, 6, 8])
    >>> model.predict_count([[1.0], [4.0]]).tolist()
    [0, 5]
    >>> model.predict_quantiles([[4.0]], [0.05, 0.95]).tolist()
    [[2, 10]]

    Overdispersed counts:

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
        groups: ArrayLike | None = None,
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
        groups : array-like, shape (N,), optional
            Labels of groups, as in `GPClassifier.fit`.

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
        noise = noise_given(name, self.dispersion, settled, settings.given or self.mean is not None)
        points, targets = fit_data(draft, X, y, sample_weight, y_numeric=True)
        events = counts(column_or_1d(targets, warn=True))
        exposed = exposures(exposure, len(events))
        weights, points, events, draft.exposure_ = weighed(
            sample_weight, points, events, exposed, groups=groups
        )
        if noise is None:
            about = _prior_mean(self.mean, LINKS["exp"], events, draft.exposure_, weights)
            judged_data = points, events, draft.exposure_, weights
            plain = replace(kernel_of_columns(points, settings), integrate=None)
            noise = noise_tested(name, about, *judged_data, plain, self.method)
        projector = Projector(noise.spelt, self.method, table)
        projector.check_outcomes(events)
        draft.link_, link = noise.link, LINKS[noise.link]
        if self.mean is not None and given_estimator(self.prior_mean) is not None:
            raise InputError("mean= and prior_mean= exclude each other: give one of the two")
        draft.mean_ = _prior_mean(self.mean, link, events, draft.exposure_, weights)
        # The likelihood takes slope * f + shift if there are exposures: a Gaussian process again.
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
            score = OfRates(draft.link_, 0.5 / float(exposed.sum()))
            return Target(events / exposed, shared, score, False, boosted_rates)

        spread = link.spread(draft.mean_)
        learner = target if self.mean is None else None
        fit = draft._train([data], settings, learner, spread, noise.theta, shift)[0]
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

        The first call learns kernel, prior mean and inducing points, as in
        `GPClassifier.partial_fit`. Arguments are those of `fit`.
        """
        if not begun(self):
            return self.fit(X, y, exposure, sample_weight)
        points, targets = fit_data(self, X, y, y_numeric=True, reset=False)
        events = counts(column_or_1d(targets, warn=True))
        exposed = exposures(exposure, len(events))
        weights, points, events, exposed = weighed(sample_weight, points, events, exposed)
        slope, shift = LINKS[self.link_].exposed(exposed)
        means = [prior + shift for prior in self.prior_means(points.rows)]
        changed = extended(self, points, [events], weights, means, slope)
        any_exposed = self._exposed_ or bool((exposed != 1.0).any())
        most = max(self._largest_rate_, largest_rate(events, exposed))
        return renewed(self, changed | {"_exposed_": any_exposed, "_largest_rate_": most})

    def score(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        exposure: ArrayLike | None = None,
    ) -> float:
        """Return the coefficient of determination R^2 of the mean counts of `predict`.

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
                "the model was fitted with exposure, and these counts need theirs: use score(X, "
                "y, exposure=...), with 1 for one unit; in cross-validation "
                "sklearn.set_config(enable_metadata_routing=True) and "
                "model.set_fit_request(exposure=True).set_score_request(exposure=True)"
            )
        predicted = self.predict(X, exposure=exposure)
        return float(r2_score(y, predicted, sample_weight=sample_weight))

    def _with_likelihood(self, likelihood: Likelihood) -> dict[str, Any]:
        dispersion = likelihood.parameters.get("dispersion", math.inf)
        return {"likelihood_": likelihood, "dispersion_": dispersion}

    def processes(self) -> list[Process]:
        """Return the fitted process, whose latent values exposures multiply."""
        slope, _ = LINKS[self.link_].exposed(self.exposure_)
        return [replace(process, slope=slope) for process in super().processes()]

    def _constant(self) -> float:
        return self.mean_

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        # Counts only: scikit-learn's generic targets are refused, however good the fit would be.
        tags.regressor_tags.poor_score = True
        return tags


# --- Prior mean of a rate ------------------------------------------------------------------------


def _prior_mean(
    value: float | None, link: RateLink, events: Array, exposure: Array, weights: Array | None
) -> float:
    """Return `value` if it is a number, for None the f of the mean rate of the events.

    Raises
    ------
    InputError
        If it is neither.

    Warns
    -----
    UserWarning
        If it leaves the sign of f open.
    """
    return _of_rate(link, events, exposure, weights) if value is None else _given(value, link)


def _of_rate(link: RateLink, events: Array, exposure: Array, weights: Array | None) -> float:
    """Return f of the mean rate, with half an event added if there is none."""
    total, looked = events, exposure
    if weights is not None:
        # Weights of mean 1: their sums do not overflow, and half an event is one of as many as
        # there are.
        share = weights / weights.max()
        share /= share.mean()
        total, looked = share * total, share * looked
    rate = max(float(total.sum()), 0.5) / float(looked.sum())
    return link.latent(rate)


def _given(value: float, link: RateLink) -> float:
    try:
        mean = number(value, "mean", above=-1e100, most=1e100)
    except InputError as error:
        raise InputError(f"mean must be a finite number or None, got {shown(value)}") from error
    if mean == 0.0 and link.two_signs:
        warn(
            "mean=0 does not determine the sign of f: the posterior is symmetric under f <-> "
            "-f and has two peaks, which one normal represents badly; leave mean=None, or "
            "give the square root of the expected rate",
            UserWarning,
        )
    return mean


# --- Test for overdispersion ---------------------------------------------------------------------

#: Between what a dispersion is learnt. The lower end has counts with a million of zeros for every
#: other; at the upper one a count of 1000 is Poisson but for .05 % of its variance.
BOUNDS = (1e-2, 1e6)
# Number of rows that are fitted to, and number of rows among which neighbours are sought.
_ROWS, _POOL = 500, 5000
# Standard deviations that 500 neighbours differ by beyond Poisson counts. Fewer rows tell less, and
# fits to them cost less, so that they are judged for a share of it: with 50 counts of dispersion 5
# neighbours differ by 2.5 to 18 at a mean of 8, and by less than 1 in a fifth of sets of mean 3.
_ODD = 3.0
# The log evidence has to rise by this much, which is strong evidence and pays for a parameter.
_BETTER = 3.0
# The judges' fits end early.
_EARLY, _STEPS = 1e-5, 50
_SEED = 0


@dataclass(frozen=True)
class Noise:
    """Link and dispersion of counts, and where a fit may begin.

    `dispersion` is infinite for Poisson counts; `learnt` says that it is only where a fit begins.
    `theta` has log parameters of the default kernel, in units of the features' spread.
    """

    link: str
    dispersion: float = math.inf
    learnt: bool = False
    theta: Array | None = None

    @property
    def spelt(self) -> str:
        """Name of the likelihood, with its dispersion."""
        if self.dispersion == math.inf:
            return COUNTS[self.link].name
        return get(DISPERSED[self.link], dispersion=self.dispersion).spelt


def noise_given(link: str, dispersion: float | str, settled: bool, units: bool) -> Noise | None:
    """Return the noise that an estimator's parameters fix; None if the data decide.

    Parameters
    ----------
    link : str
        A name of `LINKS`, or "auto".
    dispersion : float or "auto"
    settled : bool
        True if nothing is learnt or a table is given. Counts are Poisson then.
    units : bool
        True if the kernel or the prior mean is given, in units of one link's f.

    Raises
    ------
    InputError
        If the dispersion is no positive number and not "auto", or the link has none.
    """
    default = "square" if link == "auto" else link
    if isinstance(dispersion, str) and dispersion == "auto":
        open_ = link in DISPERSED or (link == "auto" and not units)
        return None if open_ and not settled else Noise(default)
    try:
        value = float(dispersion)
    except (TypeError, ValueError):
        value = math.nan
    if value == math.inf:
        return Noise(default)
    if math.isnan(value):
        raise InputError(f"dispersion must be a positive number or 'auto', got {shown(dispersion)}")
    name = DISPERSED.get("exp" if link == "auto" else link)
    if name is None:
        raise InputError(
            f"link {link!r} has Poisson counts only, got dispersion={value:g}: use link='exp'"
        )
    low, high = get(name).limits["dispersion"]
    number(value, "dispersion", above=0.0)
    if not low <= value <= high:
        raise InputError(f"dispersion must be from {low:g} to {high:g} or inf, got {value:g}")
    return Noise("exp" if link == "auto" else link, value)


def noise_tested(
    link: str,
    mean: float,
    inputs: Inputs,
    y: Array,
    exposure: Array,
    weights: Array | None,
    settings: Settings,
    method: str,
) -> Noise:
    """Return the noise that the data have: Poisson, or negative binomial if its evidence is higher.

    Parameters
    ----------
    link : str
        What Poisson counts are to have: one of `DISPERSED`, or "auto".
    mean : float
        Prior mean of log rates.
    inputs : Inputs
    y, exposure : ndarray, shape (N,)
    weights : ndarray, shape (N,), or None
    settings : Settings
    method : str
        That of the fit; "vb" is judged by its own bound.
    """
    poisson = Noise("square" if link == "auto" else link)
    rng = np.random.default_rng(_SEED)
    pool = sample(len(y), _POOL, rng)
    points, counts, exposed = inputs.at(pool), y[pool], exposure[pool]
    units = Units.of(points, None if weights is None else weights[pool], inputs.levels)
    excess = _excess(units.scaled(points), counts, exposed, rng)
    if excess is None:
        return poisson
    sampled = sample(len(pool), _ROWS, rng)
    shares = None if weights is None else weights[pool][sampled]
    begin = _begin(points[sampled], units, settings)
    data = Data(
        Inputs(points[sampled] if settings.given else units.scaled(points[sampled])),
        counts[sampled],
        Projector("poisson-exp", method if method == "vb" else "ep"),
        mean + np.log(exposed[sampled]),
        shares,
    )
    short = settings.shortened(_EARLY, _STEPS, callback=None)
    judge_settings = replace(short, series=None, n_jobs=None, verbose=0, inducing=None)
    start = float(np.clip(excess, BOUNDS[0], 1e-3 * BOUNDS[1]))
    noisy = get(DISPERSED["exp"], dispersion=start)
    wide = replace(
        data, projector=Projector(noisy, data.projector.method), learn={"dispersion": BOUNDS}
    )
    try:
        first = _best(wide, begin, judge_settings)
        kernel = first.theta[:-1]
        narrow = _best(data, replace(begin, thetas=(kernel, *begin.thetas)), judge_settings)
    except NumericalError as error:
        if error.__cause__ is not None:  # a user's own exception
            raise
        return poisson
    if not first.value > narrow.value + _BETTER:
        return poisson
    return Noise("exp", float(np.exp(first.theta[-1])), True, None if settings.given else kernel)


def _begin(X: Array, units: Units, settings: Settings) -> Start:
    """Return the start of the judges' fits: one length-scale, of the first kernel that there is."""
    if settings.given:
        return Start(settings.kernel)
    return replace(default_start(units), by_feature=0)


def _best(data: Data, begin: Start, settings: Settings) -> Optimum:
    solver = solvers(data, begin.kernel, settings)(begin.kernel)
    return optimise(data, begin, settings, np.random.default_rng(_SEED), None, solver)[0][0]


def _excess(X: Array, y: Array, exposure: Array, rng: np.random.Generator) -> float | None:
    """Estimate the dispersion from counts of nearest rows; None if they vary as Poisson counts do.

    Given their sum, two Poisson counts of one rate are binomial. If pairs differ by more than that,
    return the dispersion that explains it. It is biased downwards, because rates differ as well.
    """
    n = len(y)
    if n < 2:
        return None
    rows = rng.permutation(n)[:_ROWS]
    distance = cdist(X[rows], X)
    # Any of several equally near rows will do.
    distance += 1e-9 * (distance.max() or 1.0) * rng.random(distance.shape)
    distance[np.arange(len(rows)), rows] = np.inf
    near = distance.argmin(axis=1)
    pairs = np.unique(np.sort(np.column_stack([rows, near]), axis=1), axis=0)
    (first, second), (a, b) = y[pairs].T, exposure[pairs].T
    share, total = a / (a + b), first + second
    mass = share * (1.0 - share)
    expected = total * mass
    square = (first - share * total) ** 2
    # The fourth moment of a binomial variable less the square of the second.
    spread = math.sqrt(float((expected * (1.0 + (2.0 * total - 6.0) * mass)).sum()))
    beyond = float((square - expected).sum())
    if not beyond > _ODD * len(rows) / _ROWS * spread:
        return None
    # The excess over Poisson counts has the variances of two rates m/sqrt(r).
    rate = (total / (a + b))[:, None] * np.column_stack([a, b])
    more = float((rate[:, 0] ** 2 * (1.0 - share) ** 2 + rate[:, 1] ** 2 * share**2).sum())
    return more / beyond
