"""Contract between a `Posterior` and the solution of its engine, and checks of arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from qpruntime._typing import Array, ArrayLike
from qpruntime.errors import InputError
from qpruntime.inference.corrections.corrected import MarginalPoints
from qpruntime.inference.problem import Observed, check_mean
from qpruntime.inference.sites import Sites

if TYPE_CHECKING:
    from sklearn.gaussian_process.kernels import Kernel

__all__ = [
    "Crossed",
    "SettledSites",
    "Solution",
    "common_value",
    "draws",
    "given_mean",
    "prior_mean",
    "row_numbers",
]

# An engine represents the prior of N latent values by a covariance matrix, inducing inputs, the
# states of a series, or the nearest rows of a point. A `Posterior` needs only the members below, of
# which some have a default. Engines are in `qpruntime.inference.dense`, `sparse`, `markov`, `local`
# and others.

#: Prior covariances of points with the rows (T, N), and prior variances of the points (T,).
Crossed = Callable[[], tuple[Array, Array]]


class SettledSites(Protocol):
    """Converged sites of any engine."""

    def sites(self) -> Sites:
        """Return the sites of f at the rows."""

    def least(self) -> tuple[float, int]:
        """Return the least leave-one-out log density, and its row."""

    def facts(self) -> dict[str, str | int | float]:
        """Return the engine's entries of a summary."""


class Solution(SettledSites, Protocol):
    """Converged approximation in the form of its engine; it pickles."""

    @property
    def where(self) -> tuple[str, ...]:
        """Names of the arguments that give the points of predictions."""

    @property
    def name(self) -> str:
        """Name of the engine, as estimators report it."""

    @property
    def words(self) -> str:
        """Words about the engine for one line on the posterior, as in ", 20 inducing inputs"."""
        return ""

    @property
    def lines(self) -> tuple[str, ...]:
        """Further lines of a printed posterior."""
        return ()

    @property
    def width(self) -> int:
        """Numbers that a prediction computes per point; 0 if all points are best passed at once."""

    @property
    def held_rows(self) -> int:
        """Number of rows that have leave-one-out densities."""

    @property
    def corrects(self) -> bool:
        """True if there are corrections, given the covariance."""

    @property
    def algebra(self) -> int:
        """Rows of the matrices that BLAS threads multiply in a call; 0 for none."""

    @property
    def knows_covariance(self) -> bool:
        """True if the prior covariance is at hand."""
        return self.corrects

    def with_covariance(self, K: ArrayLike) -> Self:
        """Return the solution with its prior covariance, itself if it knows its kernel."""
        return self

    def without_covariance(self) -> Self:
        """Return the solution without its prior covariance, itself if it holds none."""
        return self

    def moments(self) -> tuple[Array, Array]:
        """Return posterior means and variances of f at the rows."""

    def latent(self) -> tuple[Array, Array]:
        """Return posterior means and variances of the latent values, here those at the rows."""
        return self.moments()

    def loo(self, rows: NDArray[np.intp] | None) -> Array:
        """Return leave-one-out log densities of selected rows, shape (n,), or of all."""

    def least(self) -> tuple[float, int]:
        """Return the least leave-one-out log density, and its row."""
        log_z = self.loo(None)
        row = int(np.argmin(log_z))
        return float(log_z[row]), row

    def predict(self, at: tuple[ArrayLike, ...], mean: ArrayLike | None) -> tuple[Array, Array]:
        """Return latent means and variances (T,); `mean` None is the usual prior mean."""

    def points(self, at: tuple[ArrayLike, ...], mean: ArrayLike | None) -> MarginalPoints:
        """Return points for corrections: prior covariances with the rows, variances and means."""

    def draw(
        self,
        at: tuple[ArrayLike, ...],
        mean: ArrayLike | None,
        count: int,
        rng: np.random.Generator,
    ) -> Array:
        """Return joint samples of the latent function, shape (count, T)."""
        return draws(*self.joint(at, mean), count, rng)

    def joint(self, at: tuple[ArrayLike, ...], mean: ArrayLike | None) -> tuple[Array, Array]:
        """Return means (T,) and covariances (T, T) of the latent function at points of `draw`."""

    def gradient(self, change: ArrayLike | None) -> Array | float:
        """Return the slope of EP's log evidence, by kernel parameters or a change of the prior."""

    def observed(self) -> Observed:
        """Return data and prior covariance of the rows, or raise `InputError`."""

    def inputs(self, points: Array, crossed: Crossed) -> tuple[Array, ...]:
        """Return the arguments of `predict` for points (T, d): the points, or their covariances."""

    def on(self, kernel: Kernel, X: Array, unscaled: Callable[[Array], Array]) -> Self:
        """Return the solution in other units, given their kernel and rows and the way back.

        A solution that holds no inputs is returned unchanged.
        """
        return self


def common_value(values: Array) -> float | None:
    """Return the value that all entries have, None if they differ."""
    low, high = float(values.min()), float(values.max())
    return low if low == high else None


def given_mean(mean: ArrayLike | None, usual: float | None) -> ArrayLike:
    """Return the given prior mean, by default the usual one, or raise `InputError`."""
    value = usual if mean is None else mean
    if value is None:
        raise InputError("the prior mean differs between rows: pass mean= at these points")
    return value


def prior_mean(mean: ArrayLike | None, usual: float | None, shape: tuple[int, ...]) -> Array:
    """Return a prior mean at points, by default the usual one.

    Raises
    ------
    InputError
        If it is not usable, or none was given and there is no usual one.
    """
    return check_mean(given_mean(mean, usual), shape)


def row_numbers(rows: ArrayLike, n: int) -> NDArray[np.intp]:
    """Return numbers of rows, from 0 to n - 1, or raise `InputError`."""
    numbers = np.asarray(rows)
    if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
        raise InputError(
            "rows must be whole numbers of shape (n,), got "
            f"{numbers.dtype} of shape {numbers.shape}"
        )
    if numbers.size and not (numbers.min() >= 0 and numbers.max() < n):
        raise InputError(f"rows must be from 0 to {n - 1}, got {numbers.min()} to {numbers.max()}")
    return numbers.astype(np.intp)


def draws(mean: Array, covariance: Array, count: int, rng: np.random.Generator) -> Array:
    """Return samples, shape (count, T), of N(mean, covariance), whose covariance is (T, T).

    The root is an eigendecomposition's; eigenvalues that rounding left negative count as
    zero.
    """
    values, vectors = eigh(covariance, check_finite=False)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    return np.asarray(mean + rng.standard_normal((count, mean.size)) @ root.T)
