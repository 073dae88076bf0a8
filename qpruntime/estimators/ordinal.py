"""Levels in an order over `infer`: proportional odds or ordered probit, with learnt thresholds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import column_or_1d

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import central_levels, choice, levels as quantile_levels, shown
from qpruntime.dataframes.levels import level_keys, level_values, numbers_of, sorted_levels
from qpruntime.dataframes.readers import DeclaredLevels, categories_of
from qpruntime.errors import InputError
from qpruntime.estimators.averaging import averaged, shares
from qpruntime.estimators.input_data import check_labels, checked, fit_data, weighed
from qpruntime.estimators.likelihood_regressor import LikelihoodRegressor
from qpruntime.estimators.process import draft_of
from qpruntime.inference.corrections.marginals import CorrectedMarginals
from qpruntime.learning.options import Integrate
from qpruntime.likelihoods import Likelihood, get
from qpruntime.likelihoods.ordinal import BEYOND, MOST_LEVELS, gap_names, thresholds
from qpruntime.predictive.density import log_density

__all__ = ["GPOrdinal"]

# Likelihood of each noise, and its unit: logistic noise is nearly normal of this deviation.
_NOISES = {"logistic": ("ordinal-logistic", 1.7), "probit": ("ordinal", 1.0)}
# Gaps of thresholds are learnt between these.
_GAPS = (1e-3, 1e3)
# A gap at first, at the least.
_LEAST = 0.05


@restorable("gp-ordinal/1", root=True)
@dataclass(kw_only=True, eq=False, repr=False, match_args=False)
class GPOrdinal(ClassifierMixin, LikelihoodRegressor):
    """Levels in an order, such as grades and ratings, by EP or QP: proportional odds.

    y is the number of thresholds below f(x) plus noise, and f is a Gaussian process. The thresholds
    and the kernel's parameters maximise EP's evidence together.

    Parameters
    ----------
    kernel : scikit-learn kernel, "auto" or None
        By default a constant, a nearly linear part and Matérn 5/2, in units of each feature's
        standard deviation, with priors. One feature, fits with inducing points and fits without
        optimisation have the kernel of `GPClassifier`.
    levels : sequence, optional
        The levels from the lowest to the highest. By default the order that the column y declares:
        all categories of an ordered pandas categorical or a polars Enum, seen or not, and the seen
        ones of an unordered pandas categorical. Otherwise the levels of y, sorted. Give the levels
        if this is not their order, as for words, or if some are not in y. ``VotingClassifier``
        passes numbers of the sorted labels; for it give these numbers in the order of the levels.
    likelihood : {"logistic", "probit"}
        Standard logistic noise, so that f less a threshold is the log odds of a level above it; or
        standard normal noise, whose tails are lighter.
    method : {"qp", "ep"}
        Inference of the final posterior.
    table : None or "exact"
        See `qpruntime.infer`; there are no tables of this likelihood.
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
    levels_ : ndarray, shape (K,)
        The levels from the lowest to the highest.
    classes_ : ndarray, shape (K,)
        The levels sorted by value, as scikit-learn's scorers and ensembles expect them. Columns of
        `predict_proba` have this order; ``numpy.argsort(numpy.argsort(levels_))`` finds the column
        of each level of ``levels_``.
    thresholds_ : ndarray, shape (K - 1,)
        Thresholds between the levels from the lowest to the highest, in units of f.
    kernel_ : scikit-learn kernel
        Kernel with the fitted parameters.
    mean_ : float
        Prior mean of f.
    likelihood_ : Likelihood
        Likelihood with the gaps between thresholds as parameters.
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
    qpruntime.GPClassifier, qpruntime.GPRegressor

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime import GPOrdinal
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(0.0, 6.0, (90, 1))
    >>> f = 2.0 * np.sin(X[:, 0]) + 0.5 * rng.standard_normal(90)
    >>> y = np.array(["bad", "fair", "good"])[np.digitize(f, [-1.0, 1.0])]
    >>> model = GPOrdinal(levels=["bad", "fair", "good"], method="ep").fit(X, y)
    >>> model.predict([[1.5], [3.1], [4.7]]).tolist()
    ['good', 'fair', 'bad']
    """

    levels: Sequence[Any] | None = None
    likelihood: Literal["logistic", "probit"] = "logistic"
    method: Literal["qp", "ep"] = "qp"
    hyperparameters: Literal["mode", "integrate"] | Integrate = "mode"

    _has_linear_part: ClassVar[bool] = True

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> GPOrdinal:
        """Fit hyper-parameters, thresholds and posterior.

        Parameters
        ----------
        X : array-like, shape (N, d)
        y : array-like, shape (N,)
            Levels, of any kind.
        sample_weight : array-like, shape (N,), optional
            Powers of the single likelihoods, as in `GPClassifier.fit`.
        groups : array-like, shape (N,), optional
            Labels of groups, as in `GPClassifier.fit`.

        Raises
        ------
        ValueError
            If X, y or weights are not usable; a subclass, `InputError`, where the check is ours.

        Warns
        -----
        ConvergenceWarning
            If the optimiser or the sites have not settled.
        """
        name, unit = _NOISES[choice(self.likelihood, "likelihood", tuple(_NOISES))]
        draft = draft_of(self)
        points, labels = fit_data(draft, X, y, sample_weight, ensure_min_samples=2)
        check_labels(labels)
        weights, points, labels = weighed(sample_weight, points, labels, groups=groups)
        draft.levels_ = _ordered(self.levels, labels, categories_of(y))
        draft.classes_ = draft.levels_[_by_value(draft.levels_)]
        codes = _codes(draft.levels_, labels)
        edges = unit * _normal_edges(codes, weights, len(draft.levels_))
        likelihood, mean = _begun(name, edges)
        return self._fit_observed(draft, points, codes, weights, likelihood, (mean, unit))

    def _learnt(
        self, likelihood: Likelihood, units: Mapping[str, float]
    ) -> dict[str, tuple[float, float]]:
        names = gap_names(len(self.levels_))
        return dict.fromkeys(names, _GAPS)

    @property
    def thresholds_(self) -> Array:
        """Between the levels, in units of f."""
        return thresholds(self.likelihood_, len(self.levels_)).copy()

    @averaged(shares)
    def predict_proba(self, X: ArrayLike) -> Array:
        """Return the probability of each level, shape (T, K), in the order of ``classes_``."""
        points, likelihood = self.validate_points(X), self.likelihood_
        codes = np.arange(float(len(self.levels_)))

        def finish(mean: Array, variance: Array) -> Array:
            return np.exp(log_density(likelihood, mean[:, None], variance[:, None], codes))

        def by_grid(marginals: list[CorrectedMarginals]) -> Array:
            every = np.tile(codes, (marginals[0].mean.size, 1))
            p = np.exp(marginals[0].log_probability(every))
            return np.asarray(p / p.sum(axis=1, keepdims=True))

        p = self._predicted(points, finish, by_grid=by_grid, width=codes.size)
        return np.asarray(p[:, _by_value(self.levels_)])

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Return the most probable level, shape (T,)."""
        shares = self.predict_proba(X)
        return np.asarray(self.classes_[shares.argmax(axis=1)])

    def predict_quantiles(self, X: ArrayLike, q: ArrayLike = (0.05, 0.5, 0.95)) -> NDArray[Any]:
        """Return the lowest level such that y is not above it with probability q.

        Returns
        -------
        ndarray, shape (T,) for a number q, else (T, Q)
        """
        at = quantile_levels(q, "q")
        upwards = np.argsort(_by_value(self.levels_))
        below = np.cumsum(self.predict_proba(X)[:, upwards], axis=1)[:, None, :-1]
        place = (below < at.reshape(-1)[:, None]).sum(axis=2)
        return np.asarray(self.levels_[place].reshape(len(place), *at.shape))

    def predict_interval(self, X: ArrayLike, level: float = 0.9) -> NDArray[Any]:
        """Return the lowest and highest level of a central interval, shape (T, 2)."""
        return self.predict_quantiles(X, central_levels(level))

    def sample(
        self, X: ArrayLike, n: int = 1, random_state: int | np.random.Generator | None = None
    ) -> NDArray[Any]:
        """Draw levels at `X` jointly, shape (n, T), as `GPRegressor.sample`."""
        codes = super().sample(X, n, random_state).astype(int)
        return np.asarray(self.levels_[codes])

    def _observations(self, y: ArrayLike) -> Array:
        return _codes(self.levels_, checked(column_or_1d, y))


def _ordered(
    option: ArrayLike | None, labels: NDArray[Any], declared: DeclaredLevels
) -> NDArray[Any]:
    """Return the levels in their order.

    Raises
    ------
    InputError
        If there are too few or too many, or y has others than those given.
    """
    values = level_values(labels, "y")
    if option is None and declared.declared is not None:
        order = level_values(declared.declared, "the categories of y")
        ordered = order if declared.ordered else sorted_levels(values, order)
    elif option is None:
        ordered = sorted_levels(values)
    else:
        ordered = level_values(checked(np.asarray, option), "levels")
        if ordered.ndim != 1 or len(set(level_keys(ordered))) < ordered.size:
            raise InputError(f"levels must be different ones in their order, got {shown(option)}")
        unknown = numbers_of(values, ordered) < 0
        if unknown.any() and values.dtype.kind in "iu" and ordered.dtype.kind == "U":
            encoded = np.argsort(_by_value(ordered)).tolist()
            raise InputError(
                f"y has {shown(labels[unknown][0])}, which is none of "
                f"levels={shown(ordered.tolist())}: give the labels as they are. VotingClassifier "
                "of scikit-learn passes positions of the sorted labels: give "
                f"levels={shown(encoded)} inside it"
            )
        if unknown.any():
            raise InputError(f"y has {shown(labels[unknown][0])}, which is none of levels=")
    if not 2 <= ordered.size <= MOST_LEVELS:
        raise InputError(
            f"GPOrdinal takes 2 to {MOST_LEVELS} levels, got {ordered.size}: add rows of another "
            "class, or use GPRegressor for more levels"
        )
    return ordered


def _by_value(levels: NDArray[Any]) -> NDArray[np.intp]:
    """Return the places of levels sorted by value."""
    try:
        return np.argsort(levels, kind="stable")
    except TypeError as error:
        raise InputError(f"levels must be of one type, got {shown(levels.tolist())}") from error


def _codes(levels: NDArray[Any], labels: NDArray[Any]) -> Array:
    """Return the number of the level of each label."""
    codes = numbers_of(level_values(labels, "y"), levels, "y")
    if (codes < 0).any():
        raise InputError(
            f"y has {shown(labels[codes < 0][0])}, which is no level of the fit: leave these "
            "rows out"
        )
    return codes.astype(float)


def _normal_edges(codes: Array, weights: Array | None, count: int) -> Array:
    """Return thresholds (K - 1,) that give levels their shares if f and noise have variance 1."""
    masses = np.bincount(codes.astype(int), weights, minlength=count) + 0.5
    lower = np.cumsum(masses)[:-1] / masses.sum()
    upper = np.cumsum(masses[::-1])[-2::-1] / masses.sum()
    # The smaller tail is taken, so that levels in the opposite order have opposite edges.
    return np.asarray(np.sqrt(2.0) * np.where(lower < upper, ndtri(lower), -ndtri(upper)))


def _begun(name: str, edges: Array) -> tuple[Likelihood, float]:
    """Return the likelihood with thresholds `edges` for f less its prior mean, and that mean.

    The middle of the thresholds stays where it is while gaps are learnt, so that the fit does not
    depend on which end of the levels is called the lowest.
    """
    gaps = np.maximum(np.diff(edges), _LEAST)
    names = gap_names(MOST_LEVELS)
    values = dict(zip(names, gaps, strict=False)) | {"middle": 0.5 * float(gaps.sum())}
    if edges.size < len(names) + 1:
        values[names[edges.size - 1]] = BEYOND
    return get(name, **values), values["middle"] - 0.5 * float(edges[0] + edges[-1])
