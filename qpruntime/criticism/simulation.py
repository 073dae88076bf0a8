"""Calibration by simulation: fit data drawn from a model, and rank what they were drawn from."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri
from sklearn.base import clone

from qpruntime._typing import Array
from qpruntime._validation import flag, whole
from qpruntime.criticism.loo import one_process
from qpruntime.errors import ConvergenceWarning, InputError
from qpruntime.estimators.averaging import only_mode
from qpruntime.estimators.base import GPEstimator
from qpruntime.estimators.classifier import GPClassifier
from qpruntime.inference.infer import infer
from qpruntime.inference.solution_protocol import draws
from qpruntime.learning.options import new_generator
from qpruntime.predictive.counts import LINKS
from qpruntime.predictive.density import log_density
from qpruntime.predictive.distribution import observed

__all__ = ["Calibration", "Drawn", "check_calibration", "drawn_outcomes", "points_of"]


#: Rows of a simulation at most, and those whose ranks are kept.
_ROWS, _KEPT = 300, 30
_LEVEL = 0.9


@dataclass(frozen=True, eq=False, repr=False)
class Calibration:
    """Ranks of drawn latent values in the posteriors of the data drawn with them.

    Attributes
    ----------
    ranks : ndarray, shape (n, T)
        P(f <= f_drawn | y) at T rows of n simulations: uniform, if posteriors are right on average.
    bias, bias_se : float
        Mean of (f_drawn - mean)/std, and its standard error over simulations: right is 0.
    spread, spread_se : float
        Root mean square of the same: right is 1, above it posteriors are too narrow.
    coverage, coverage_se : float
        Share of drawn values inside central intervals of 90 %.
    learnt : bool
        Whether hyper-parameters were learnt anew from each simulation.

    See Also
    --------
    qpruntime.check_calibration, qpruntime.plotting.RanksDisplay

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime import GPPoissonRegressor
    >>> X = np.linspace(0.0, 10.0, 60)[:, None]
    >>> y = np.random.default_rng(0).poisson(np.exp(1.0 + np.sin(X[:, 0])))
    >>> model = GPPoissonRegressor().fit(X, y)
    >>> from qpruntime import check_calibration
    >>> result = check_calibration(model, 10, random_state=0)
    >>> bool(abs(result.bias) < 4.0 * result.bias_se), result.learnt
    (True, False)
    """

    ranks: Array
    bias: float
    bias_se: float
    spread: float
    spread_se: float
    coverage: float
    coverage_se: float
    learnt: bool

    @property
    def words(self) -> tuple[str, ...]:
        """Sentences about what is more than three standard errors from right."""
        said = []
        if abs(self.bias) > 3.0 * self.bias_se:
            way = "below" if self.bias > 0.0 else "above"
            said.append(f"posterior means are {way} what was drawn, by {abs(self.bias):.2f} std")
        if abs(self.spread - 1.0) > 3.0 * self.spread_se:
            way = "narrow" if self.spread > 1.0 else "wide"
            said.append(
                f"posteriors are too {way}: errors are {self.spread:.2f} standard deviations, and "
                f"intervals of 90 % hold {100.0 * self.coverage:.0f} %"
            )
        return tuple(said)

    def __repr__(self) -> str:
        return (
            f"<Calibration of {len(self.ranks)} simulations: bias {self.bias:.3f} "
            f"({self.bias_se:.3f}), spread {self.spread:.3f} ({self.spread_se:.3f}), intervals of "
            f"90 % hold {self.coverage:.3f} ({self.coverage_se:.3f})>"
        )


def check_calibration(
    model: GPEstimator,
    n: int = 100,
    *,
    X: ArrayLike | None = None,
    learn: bool = False,
    random_state: int | np.random.Generator | None = None,
) -> Calibration:
    """Draw data from a fitted model, fit each, and say how often posteriors hold what was drawn.

    A latent function of the fitted prior, then observations at the same rows; the model is fitted
    to them, and the drawn values at the rows are ranked in its posterior (Cook, Gelman & Rubin
    2006; Talts et al. 2018). The model keeps the hyper-parameters that the data were drawn with, so
    this checks the approximation alone. If ``learn=True``, a clone learns its units, kernel and
    hyper-parameters from each simulation; the check then also shows the effect of taking them for
    certain.

    Parameters
    ----------
    model : fitted GPClassifier of two classes, or estimator of counts or numbers
    n : int
        Simulations, at least 10, each a fit.
    X : array-like, shape (N, d), optional
        Rows to draw at, by default those of the fit: needed if the model did not keep them as they
        came. Of more than 300, 300 are drawn.
    learn : bool
    random_state : int, Generator or None

    Returns
    -------
    Calibration

    Raises
    ------
    InputError
        If the model is of several classes or of slopes, or `X` is needed; with `learn` if it has
        columns of levels; if 100 draws in a row had
        labels of one class.

    See Also
    --------
    qpruntime.criticism.pit, qpruntime.compare

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime import GPPoissonRegressor
    >>> X = np.linspace(0.0, 10.0, 60)[:, None]
    >>> y = np.random.default_rng(0).poisson(np.exp(1.0 + np.sin(X[:, 0])))
    >>> model = GPPoissonRegressor().fit(X, y)
    >>> from qpruntime import check_calibration
    >>> result = check_calibration(model, 10, random_state=0)
    >>> result.ranks.shape, bool(0.8 < result.coverage < 1.0)
    ((10, 30), True)
    """
    count, anew = whole(n, "n", 10), flag(learn, "learn")
    one_process(model, "simulations")
    if getattr(model, "slopes_", None) is not None:
        raise InputError("a model that was told to be monotone has no draws of its prior here")
    table = getattr(model, "columns_", None)
    if anew and table is not None and not table.plain:
        raise InputError(
            "learn=True fits rows of numbers again, and this model has columns of levels or "
            "missing values: use learn=False"
        )
    rng = new_generator(random_state)
    simulated = Drawn.at(model, X, rng)
    kept = rng.permutation(len(simulated.points))[:_KEPT]
    z = np.empty((count, kept.size))
    for i in range(count):
        f, y = simulated.once(rng)
        with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
            if anew:
                again = clone(model).fit(
                    simulated.points, simulated.outcomes(y), *simulated.exposures
                )
                mean, variance = again.latent(simulated.points)
                f = simulated.raw(f)
            else:
                mean, variance = simulated.inferred(y)
        z[i] = ((f - mean) / np.sqrt(variance))[kept]
    return _summed(z, anew)


def points_of(model: GPEstimator, X: ArrayLike | None) -> Array:
    """Return the rows that a fit is judged at, as the user has them: X, or those of the fit."""
    if X is not None:
        return model.validate_points(X)
    if not len(model.X_train_) or getattr(model, "warp_", None) is not None:
        raise InputError("the rows of this fit were not kept as they came: pass X")
    return model.X_train_


def _summed(z: Array, learnt: bool) -> Calibration:
    """Sum up standardised errors (n, T): simulations are independent, rows of one are not."""
    n = len(z)
    bias, square = z.mean(axis=1), (z * z).mean(axis=1)
    inside = (np.abs(z) <= ndtri(0.5 + 0.5 * _LEVEL)).mean(axis=1)
    spread = math.sqrt(square.mean())
    errors = [float(values.std(ddof=1)) / math.sqrt(n) for values in (bias, square, inside)]
    return Calibration(
        ndtr(z), float(bias.mean()), errors[0], spread, errors[1] / (2.0 * spread),
        float(inside.mean()), errors[2], learnt,
    )  # fmt: skip


#: Tries to draw labels of two classes.
_TRIES = 100


class Drawn:
    """A fitted model of one latent function, as a source of data at N rows.

    Parameters
    ----------
    model : fitted estimator
    points : ndarray, shape (N, d)
        Rows as the user has them.
    exposure : ndarray, shape (N,), or None
        Of counts.
    """

    def __init__(self, model: GPEstimator, points: Array, exposure: Array | None) -> None:
        (prior,) = model.prior_means(points)
        inputs = model.kernel_inputs(points)
        only_mode(model, "data are drawn")
        self.model, self.exposures = model, () if exposure is None else (exposure,)
        kernel = model.kernel_
        assert not isinstance(kernel, tuple), "there is one latent function"
        self.points, self.prior = points, np.broadcast_to(prior, len(points))
        self.K = kernel(inputs)
        self.slope, self.shift = np.ones(len(points)), np.zeros(len(points))
        if exposure is not None:
            slope, shift = LINKS[getattr(model, "link_", "")].exposed(exposure)
            self.slope, self.shift = self.slope * slope, self.shift + shift

    @classmethod
    def at(cls, model: GPEstimator, X: ArrayLike | None, rng: np.random.Generator) -> Drawn:
        """Return the source at the rows of X or of the fit; of more than 300, at 300 drawn."""
        points = points_of(model, X)
        rows = np.arange(len(points))
        if rows.size > _ROWS:
            rows = np.sort(rng.choice(rows, _ROWS, replace=False))
        exposure = getattr(model, "exposure_", None)
        if exposure is not None:
            exposure = exposure[rows] if X is None and exposure.size else np.ones(rows.size)
        return cls(model, points[rows], exposure)

    def once(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """Draw a latent function (N,), and encoded observations of it (N,).

        Raises
        ------
        InputError
            If 100 draws in a row had labels of one class.
        """
        for _ in range(_TRIES):
            f = draws(self.prior, self.K, 1, rng)[0]
            y = drawn_outcomes(self.model, self.slope * f + self.shift, rng)
            if not isinstance(self.model, GPClassifier) or abs(y.sum()) < y.size:
                return f, y
        raise InputError(
            f"{_TRIES} draws in a row had labels of one class: the prior is nearly sure of it"
        )

    def inferred(self, y: Array) -> tuple[Array, Array]:
        """Posterior means and variances of f at the rows, with the fit's own prior and noise."""
        model, mean = self.model, self.slope * self.prior + self.shift
        K = self.K * self.slope * self.slope[:, None]
        # Coordinates of the engine: slope f + shift.
        method: Any = model.method
        post = infer(K, y, model.fitted_likelihood, method=method, mean=mean, tol=model.tol)
        return (post.mean - self.shift) / self.slope, post.variance / self.slope**2

    def raw(self, f: Array) -> Array:
        """Latent values in units of the data."""
        centre, unit = self.model.latent_units()
        return np.asarray(centre + unit * f)

    def outcomes(self, y: Array) -> NDArray[Any]:
        """Observations as the estimator is given them."""
        if isinstance(self.model, GPClassifier):
            return np.asarray(self.model.classes_[(y > 0.0).astype(int)])
        return self.raw(y)


def drawn_outcomes(model: GPEstimator, f: Array, rng: np.random.Generator) -> Array:
    """Draw encoded observations of latent values (N,) that have taken in the exposure."""
    likelihood = model.fitted_likelihood
    if likelihood is None:
        raise InputError("the likelihood of this model is known from a table alone: no draws")
    if isinstance(model, GPClassifier):
        # Not every likelihood of labels has a link; p(+1|f) is its normaliser where f is certain.
        p = np.exp(log_density(likelihood, f, np.zeros(f.size), np.ones(f.size)))
        return np.where(rng.uniform(size=f.size) < p, 1.0, -1.0)
    if likelihood.given is None:
        raise InputError(
            f"likelihood {likelihood.name!r} has no draws: it is known by its density alone"
        )
    return observed(likelihood, f, rng)
