"""Regression by a deep Gaussian process: means, densities and quantiles, or draws of the layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, overload

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp
from sklearn.base import RegressorMixin

from qpruntime._typing import Array
from qpruntime._validation import finite, flag, levels
from qpruntime.deep.base import DeepGP
from qpruntime.deep.predictive import expected, quantiles_of
from qpruntime.errors import InputError
from qpruntime.estimators.input_data import fit_data, weighed
from qpruntime.estimators.process import commit, draft_of
from qpruntime.likelihoods import Likelihood, get
from qpruntime.predictive.density import log_density
from qpruntime.predictive.mixtures import Mixture
from qpruntime.projection.projector import Projector

__all__ = ["DeepGPRegressor"]

#: Squares of larger numbers, and of smaller ones than its inverse, leave double precision.
_LARGEST = 1e150


@dataclass(kw_only=True, eq=False, repr=False, match_args=False)
class DeepGPRegressor(RegressorMixin, DeepGP):
    """Regression by layers of Gaussian processes, trained by approximate EP with tied sites.

    Parameters
    ----------
    hidden : sequence of int
        Widths of the hidden layers, first to last; () is a single, sparse Gaussian process.
    inducing : int or Inducing
        Inducing inputs of every layer, of which an `Inducing` may say the number only; at most as
        many as there are different rows.
    power : float
        alpha of power EP, in (0, 1]; 1 is EP, towards 0 it becomes variational.
    linear_mean : bool
        Whether hidden layers add their functions to principal scores of their inputs.
    max_iter, batch_size, learning_rate
        Steps of Adam at most, rows of each, and the rate, which falls by a cosine to a twentieth.
    least_gain : float
        Training stops where the energy, averaged over 100 steps, has not gained this much a row
        for 500 steps; negative is never.
    dtype : {"float64", "mixed"}
        "mixed" takes the exponentials of pairs of inducing inputs in single precision; all else is
        in double precision.
    verbose : int
        Show how far training is, on stderr, if not 0.
    callback : callable, optional
        Called with steps done and the average energy after every ten steps.
    random_state : int, RandomState, Generator or None
        The same seed gives the same bits on one machine.
    devices : int
        Devices of JAX that share the rows of every batch, in equal parts.
    polish : int
        Iterations of L-BFGS, each with all rows, that follow Adam's; for rows in memory. Some
        hundreds raise the energy further than Adam comes, where there are some thousand rows.
    likelihood : "gaussian", str or Likelihood
        Noise of a variance that is learnt, of standardised targets; or any likelihood of one
        number an observation, whose targets are taken as they are.

    Attributes
    ----------
    layers_ : tuple of tuple of Layer
        The one process: the parameters of its layers.
    history_ : ndarray, shape (`n_iter_`,)
        The energy, estimated at each step from its rows.
    noise_ : float
        Standard deviation of Gaussian noise, in units of y; NaN for other likelihoods.
    n_iter_ : int
    converged_ : bool
        Whether training ended by itself or at max_iter, and did not diverge.

    See Also
    --------
    qpruntime.GPRegressor, qpruntime.deep.DeepGPClassifier

    Notes
    -----
    Weights count rows: one of 2 is the row twice.

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime.deep import DeepGPRegressor
    >>> X = np.linspace(-1.0, 1.0, 60)[:, None]
    >>> model = DeepGPRegressor((1,), inducing=10, max_iter=300, random_state=0)
    >>> model.fit(X, np.sign(X[:, 0])).predict([[-0.5], [0.5]]).round(1).tolist()
    [-1.0, 1.0]
    """

    likelihood: str | Likelihood = "gaussian"

    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> DeepGPRegressor:
        """Train on X (N, D) and y (N,), rows weighted (N,) if they are.

        X that is a zarr or HDF5 array, a memory map, or a dask array or data frame stays where it
        is: one pass over it gives the units and a sample of 20 000 rows the start; then batches
        come from windows of 32 768 rows (`qpruntime.deep.batches`). y and weights are held.

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
        likelihood = self._resolved()
        plan = self._plan(likelihood)
        draft = draft_of(self)
        points, targets = fit_data(draft, X, y, sample_weight, y_numeric=True, ensure_min_samples=2)
        targets = finite(targets, "y") if likelihood is None else likelihood.validate(targets)
        weights, points, targets = weighed(sample_weight, points, targets)
        draft._centre_, draft._unit_ = (0.0, 1.0) if likelihood else _units(targets, weights)
        scaled = (targets - draft._centre_) / draft._unit_
        trained = draft._train(points.rows, [scaled], weights, plan)[0]
        draft._likelihood_ = likelihood
        noise = np.exp(0.5 * trained.layers[-1].log_noise) if likelihood is None else np.nan
        draft.noise_ = float(noise * draft._unit_)
        return commit(self, draft)

    def latent(self, X: ArrayLike) -> tuple[Array, Array]:
        """Mean and variance of the function without noise at `X`, each of shape (T,)."""
        mean, variance = self._last(self._new_data(X))[0]
        return self._centre_ + self._unit_ * mean[:, 0], self._unit_**2 * variance[:, 0]

    @overload
    def predict(
        self, X: ArrayLike, return_std: Literal[False] = False, n_samples: int | None = None
    ) -> Array: ...
    @overload
    def predict(
        self, X: ArrayLike, return_std: Literal[True], n_samples: int | None = None
    ) -> tuple[Array, Array]: ...
    def predict(
        self, X: ArrayLike, return_std: bool = False, n_samples: int | None = None
    ) -> Array | tuple[Array, Array]:
        """Mean of the function without noise, shape (T,); of Poisson counts the mean count.

        Parameters
        ----------
        X : array-like, shape (T, D)
        return_std : bool
            Whether to return its standard deviation, shape (T,), as well; of counts, that of
            their rate.
        n_samples : int, optional
            Draws through the hidden layers, instead of one pass of normals.
        """
        wanted = flag(return_std, "return_std")
        means, variances = self._last(self._new_data(X), n_samples)[0]
        mean, std = expected(self._likelihood_, means, variances)
        mean = self._centre_ + self._unit_ * mean
        return (mean, self._unit_ * std) if wanted else mean

    def sample(self, X: ArrayLike, n_samples: int = 1, random_state: int | None = 0) -> Array:
        """Draw the function without noise through all layers, shape (T, n_samples).

        Every row on its own: draws at two rows are independent, given the layers.
        """
        rng = np.random.default_rng(random_state)
        points = self._new_data(X)
        means, variances = self._draws(points, n_samples, rng)[0]
        draws = means + np.sqrt(variances) * rng.standard_normal(means.shape)
        return np.asarray(self._centre_ + self._unit_ * draws)

    def predict_log_density(
        self, X: ArrayLike, y: ArrayLike, n_samples: int | None = None
    ) -> Array:
        """Log predictive density of observations `y`, shape (T,), one for each row of `X`."""
        points = self._new_data(X)
        outcomes = finite(y, "y", (len(points),))
        means, variances = self._last(points, n_samples)[0]
        if self._likelihood_ is not None:
            log_densities = log_density(self._likelihood_, means, variances, outcomes[:, None])
        else:
            total = variances * self._unit_**2 + self.noise_**2
            gaps = outcomes[:, None] - self._centre_ - self._unit_ * means
            log_densities = -0.5 * (np.log(2.0 * np.pi * total) + gaps**2 / total)
        return np.asarray(logsumexp(log_densities, axis=1) - np.log(means.shape[1]))

    def predict_quantiles(
        self, X: ArrayLike, q: ArrayLike = (0.05, 0.5, 0.95), n_samples: int | None = None
    ) -> Array:
        """Quantiles of an observation at `X`, noise and all.

        Quantiles exist for Gaussian noise, Student-t noise and Poisson counts; for counts they are
        whole numbers.

        Parameters
        ----------
        X : array-like, shape (T, D)
        q : float or array-like, shape (Q,)
            Strictly between 0 and 1.
        n_samples : int, optional
            As for `predict`; with Gaussian noise only.

        Returns
        -------
        ndarray, shape (T,) for a number q, else (T, Q)
        """
        at = levels(q, "q")
        flat = at.reshape(-1)
        points = self._new_data(X)
        likelihood = self._likelihood_
        if likelihood is None:
            means, variances = self._last(points, n_samples)[0]
            totals = variances + (self.noise_ / self._unit_) ** 2
            draws = Mixture(means.T, totals.T, np.full(means.shape[1], 1.0 / means.shape[1]))
            quantiles = self._centre_ + self._unit_ * draws.quantiles(flat)
        elif n_samples is None:
            mean, variance = self._last(points)[0]
            quantiles = quantiles_of(likelihood, mean[:, 0], variance[:, 0], flat)
        else:
            raise InputError(
                "quantiles of draws are those of Gaussian noise; with likelihood "
                f"{likelihood.name!r} leave n_samples out"
            )
        return np.asarray(quantiles.reshape(len(points), *at.shape))

    def _resolved(self) -> Likelihood | None:
        """Return the likelihood, None for Gaussian noise; `InputError` if it cannot be used."""
        if isinstance(self.likelihood, str) and self.likelihood == "gaussian":
            return None
        try:
            known = get(self.likelihood)
        except InputError as error:
            if not str(error).startswith("unknown"):
                raise
            raise InputError(f'{error}, and here "gaussian"') from error
        likelihood = Projector(known, "ep").likelihood
        if likelihood.columns > 1:
            raise InputError(
                f"an observation of {likelihood.name!r} is {likelihood.columns} numbers; "
                "deep models take one number an observation"
            )
        return likelihood


def _units(y: Array, weights: Array | None) -> tuple[float, float]:
    """Mean and standard deviation of targets, 1 where they are all the same.

    Raises
    ------
    InputError
        If squares of them leave double precision.
    """
    if (y == y[0]).all():
        return float(y[0]), 1.0
    reach, widest = float(np.abs(y).max()), 2.0 * float(np.ptp(0.25 * y))
    if reach > _LARGEST or widest < 1.0 / _LARGEST:
        raise InputError(
            f"y reaches {reach:.3g} and varies by {widest:.3g}, of which squares leave double "
            "precision: use other units"
        )
    centre = np.average(y, weights=weights)
    return float(centre), float(np.sqrt(np.average((y - centre) ** 2, weights=weights)))
