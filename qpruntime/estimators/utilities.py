"""Utilities of a fitted model at any points, and what only their differences tell."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.gaussian_process.kernels import Kernel

from qpruntime.arrays import Array
from qpruntime.blocks import in_blocks
from qpruntime.inference.posterior import Posterior, solution_of

__all__ = ["Utilities"]


@dataclass(frozen=True)
class Utilities:
    """A posterior of utilities with its kernel.

    Attributes
    ----------
    posterior : Posterior
    kernel : scikit-learn kernel
    X_train : ndarray, shape (m, d)
        Where the latent values are.
    rows : ndarray, shape (n, d) or (n, d - 1)
        Of all items, without times.
    """

    posterior: Posterior
    kernel: Kernel
    X_train: Array
    rows: Array

    def compared(self, points: Array, which: NDArray[np.intp]) -> tuple[Array, Array]:
        """Means and variances of the differences of points `which` (Q, 2), each (Q,)."""
        crossed, own = self.kernel(points, self.X_train), self.kernel(points)
        first, second = which.T
        diagonal = own.diagonal()
        variance = np.maximum(diagonal[first] + diagonal[second] - 2.0 * own[first, second], 0.0)

        def moments(some: slice) -> tuple[Array, Array]:
            rows = crossed[first[some]] - crossed[second[some]]
            found: tuple[Array, Array] = self.posterior.predict(self._all(rows), variance[some])
            return found

        found: tuple[Array, Array] = in_blocks(moments, len(which), len(self.X_train))
        return found

    def relative(self, points: Array) -> tuple[Array, Array]:
        """Means and variances of utilities less the mean of all items, at the same time."""
        mean, variance = np.empty((2, len(points)))
        for some, own in self._by_time(points):
            crossed, covariance = self._centred(points[some], own)
            mean[some], variance[some] = self.posterior.predict(
                self._all(crossed), covariance.diagonal()
            )
        return mean, variance

    def draws(
        self, points: Array, count: int, random_state: int | np.random.Generator | None
    ) -> Array:
        """Joint draws of utilities, relative to the mean of all items, (count, T), at one time."""
        own = self._items_at(points[0])
        crossed, covariance = self._centred(points, own)
        found: Array = self.posterior.sample(
            self._all(crossed), covariance, n_samples=count, random_state=random_state
        )
        return found

    def joint(self, points: Array) -> tuple[Array, Array]:
        """Means (T,) and covariance (T, T) of utilities at points."""
        crossed, own = self._all(self.kernel(points, self.X_train)), self.kernel(points)
        mean, _ = self.posterior.predict(crossed, own.diagonal())
        return mean, own - solution_of(self.posterior).kept.reduced(crossed)

    def _all(self, crossed: Array) -> Array:
        """Prior covariances with all latent values: none with the noise that choices share."""
        more = solution_of(self.posterior).functionals.latent - len(self.X_train)
        return np.pad(crossed, ((0, 0), (0, more))) if more else crossed

    def prior_spread(self) -> float:
        """Mean prior variance of the utilities of all items, about their mean."""
        return float(self._centred(own := self._items_at(self.X_train[0]), own)[1].trace()) / len(
            own
        )

    def _centred(self, points: Array, items: Array) -> tuple[Array, Array]:
        """Prior covariances of f(points) - mean f(items) with f(X_train), and among themselves."""
        crossed = self.kernel(points, self.X_train)
        crossed -= self.kernel(items, self.X_train).mean(axis=0)
        across = self.kernel(points, items).mean(axis=1)
        covariance = self.kernel(points) - across[:, None] - across
        covariance += self.kernel(items).mean()
        return crossed, covariance

    def _items_at(self, point: Array) -> Array:
        """All items, at the time of a point if there are times."""
        if self.rows.shape[1] == point.size:
            return self.rows
        return np.column_stack([self.rows, np.full(len(self.rows), point[-1])])

    def _by_time(self, points: Array) -> list[tuple[NDArray[np.intp], Array]]:
        """Rows of points of one time, and all items at that time."""
        if self.rows.shape[1] == points.shape[1]:
            return [(np.arange(len(points)), self.rows)]
        _, which = np.unique(points[:, -1], return_inverse=True)
        rows = [np.flatnonzero(which == k) for k in range(which.max(initial=-1) + 1)]
        return [(some, self._items_at(points[some[0]])) for some in rows]
