"""GPBoost's Gaussian processes beside ours: by Vecchia's approximation, and of all rows.

Of up to ten features `Vecchia` has a length-scale for each: more take minutes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats
from sklearn.feature_selection import VarianceThreshold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

_WIDE = 10
_NODES = 40
_NEIGHBOURS = 20
_DRAWS = 1000


class Vecchia:
    """Negative binomial counts or Student-t noise, Matern 3/2 of scaled features.

    Parameters
    ----------
    kind : {"counts", "numbers"}
    seed : int
    """

    def __init__(self, kind: str, seed: int) -> None:
        self._kind, self._seed = kind, seed

    def fit(self, X: Any, y: Any) -> Vecchia:
        """Learn kernel, intercept and noise."""
        import gpboost

        # Constant features are refused.
        self._scaler = make_pipeline(VarianceThreshold(), StandardScaler()).fit(X)
        counts = self._kind == "counts"
        self._unit = 1.0 if counts else float(np.std(y)) or 1.0
        self._centre = 0.0 if counts else float(np.median(y))
        self._model = gpboost.GPModel(
            gp_coords=self._scaler.transform(X),
            cov_function="matern_ard" if X.shape[1] <= _WIDE else "matern",
            cov_fct_shape=1.5,
            likelihood="negative_binomial" if counts else "t",
            gp_approx="vecchia",
            num_neighbors=_NEIGHBOURS,
            matrix_inversion_method="cholesky",
            seed=self._seed,
        )
        ones = np.ones((len(y), 1))
        self._model.fit(y=(y - self._centre) / self._unit, X=ones, params={"trace": False})
        self._noise = list(np.ravel(self._model.get_aux_pars(format_pandas=False)))
        self._seen: tuple[Any, tuple[Any, Any]] | None = None
        return self

    def _latent(self, X: Any) -> tuple[Any, Any]:
        """Means and standard deviations of the latent function."""
        if self._seen is None or self._seen[0] is not X:
            found = self._model.predict(
                gp_coords_pred=self._scaler.transform(X),
                X_pred=np.ones((len(X), 1)),
                predict_var=True,
                predict_response=False,
            )
            deviation = np.sqrt(np.maximum(found["var"], 0.0))
            self._seen = X, (np.asarray(found["mu"]), deviation)
        return self._seen[1]

    def predict(self, X: Any) -> Any:
        """Mean counts, or medians of numbers."""
        mean, deviation = self._latent(X)
        if self._kind == "counts":
            return np.exp(mean + 0.5 * deviation**2)
        return self._centre + self._unit * mean

    def predict_quantiles(self, X: Any, levels: Any) -> Any:
        """By draws."""
        rng = np.random.default_rng(self._seed)
        mean, deviation = self._latent(X)
        ends = []
        for some in np.array_split(np.arange(len(mean)), max(1, len(mean) // 1000)):
            f = mean[some] + deviation[some] * rng.standard_normal((_DRAWS, len(some)))
            ends.append(np.quantile(self._noisy(f).rvs(random_state=rng), levels, axis=0).T)
        found = np.concatenate(ends)
        return found if self._kind == "counts" else self._centre + self._unit * found

    def predict_log_density(self, X: Any, y: Any) -> Any:
        """By Gauss-Hermite quadrature."""
        z, weights = np.polynomial.hermite_e.hermegauss(_NODES)
        mean, deviation = self._latent(X)
        noisy = self._noisy(mean[:, None] + deviation[:, None] * z)
        if self._kind == "counts":
            return np.log(noisy.pmf(np.asarray(y)[:, None]) @ (weights / weights.sum()))
        scaled = (np.asarray(y) - self._centre) / self._unit
        inside = noisy.pdf(scaled[:, None]) @ (weights / weights.sum())
        return np.log(inside / self._unit)

    def _noisy(self, f: Any) -> Any:
        if self._kind == "counts":
            shape = self._noise[0]
            return stats.nbinom(shape, shape / (shape + np.exp(f)))
        scale, nu = self._noise[:2]
        return stats.t(nu, loc=f, scale=scale)


class InTime:
    """Labels of a series, tuned for it: rows in order of time, 10 neighbours, one thread."""

    def __init__(self, X: Any) -> None:
        import gpboost

        self._model = gpboost.GPModel(
            gp_coords=X,
            cov_function="matern",
            cov_fct_shape=1.5,
            likelihood="bernoulli_probit",
            gp_approx="vecchia",
            num_neighbors=10,
            vecchia_ordering="none",
            matrix_inversion_method="cholesky",
            num_parallel_threads=1,
        )

    def fit(self, X: Any, y: Any) -> InTime:
        """Learn two parameters; the rows are those that it was made for."""
        # From where ours begin: from its own start it does not leave 0.69 nats at 1e5.
        start = np.array([2.0, 1.0])
        self._model.fit(y=(y > 0.0).astype(float), params={"init_cov_pars": start})
        return self

    def predict_proba(self, X: Any) -> Any:
        """Of both classes."""
        p = self._model.predict(gp_coords_pred=X, predict_response=True)["mu"]
        p = np.clip(p, 1e-12, 1.0 - 1e-12)
        return np.column_stack([1.0 - p, p])


def dense_fit(X: Any, y: Any) -> None:
    """Fit the Gaussian-kernel classifier of all rows."""
    import gpboost

    model = gpboost.GPModel(
        gp_coords=X, cov_function="gaussian", likelihood="bernoulli_probit", gp_approx="none"
    )
    model.fit(y=(y + 1.0) / 2.0)
