"""Contract of a solution: what an engine leaves behind for a `Posterior`, and its arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from qpruntime._typing import Array
from qpruntime._validation import finite
from qpruntime.errors import InputError
from qpruntime.inference.corrections.corrected import MarginalPoints
from qpruntime.inference.problem import Observed
from qpruntime.inference.sites import Sites

__all__ = ["Crossed", "Solution", "draws", "given_mean", "prior_mean", "row_numbers"]

# An engine is a way to hold the prior of N latent values: a covariance matrix, inducing inputs, the
# states of a series, or the nearest rows of a point. Whatever it is, a `Posterior` asks no more of
# it than is written here; `qpruntime.inference.dense`, `sparse`, `markov` and `nearest` each have a
# `Solution`, and `tests/tools/diagonal.py` has the least there can be.

#: Prior covariances of points with the rows (T, N), and prior variances of the points (T,).
Crossed = Callable[[], tuple[Array, Array]]


class Solution(Protocol):
    """A settled approximation, as its engine holds it; it pickles."""

    @property
    def where(self) -> tuple[str, ...]:
        """Names of the arguments that say where predictions are wanted."""

    @property
    def name(self) -> str:
        """Name of the engine, as estimators report it."""

    @property
    def words(self) -> str:
        """What a line about the posterior says of the engine, as in ", 20 inducing inputs"."""

    @property
    def lines(self) -> tuple[str, ...]:
        """Further lines of a posterior that is printed."""

    @property
    def width(self) -> int:
        """Numbers that a prediction makes of a point; 0 if all points are best handed over."""

    @property
    def held_rows(self) -> int:
        """Rows that leave-one-out densities can be asked of."""

    @property
    def corrects(self) -> bool:
        """Whether there are corrections, once the covariance is at hand."""

    @property
    def algebra(self) -> int:
        """Rows of the matrices that a call multiplies, which threads of BLAS share; 0 for none."""

    def sites(self) -> Sites:
        """Sites of f at the rows."""

    def moments(self) -> tuple[Array, Array]:
        """Posterior means and variances of f at the rows."""

    def loo(self, rows: NDArray[np.intp] | None) -> Array:
        """Leave-one-out log densities of some rows, shape (n,), or of all."""

    def least(self) -> tuple[float, int]:
        """The least leave-one-out log density, and its row."""

    def predict(self, at: tuple[Any, ...], mean: Any) -> tuple[Array, Array]:
        """Latent means and variances (T,); `mean` is the prior mean there, None the usual one."""

    def points(self, at: tuple[Any, ...], mean: Any) -> MarginalPoints:
        """Points for corrections: prior covariances with the rows, prior variances and means."""

    def draw(self, at: tuple[Any, ...], mean: Any, count: int, rng: np.random.Generator) -> Array:
        """Joint draws of the latent function, shape (count, T)."""

    def joint(self, at: tuple[Any, ...], mean: Any) -> tuple[Array, Array]:
        """Means (T,) and covariances (T, T) of the latent function, at what `draw` takes."""

    def gradient(self, change: Any) -> Array | float:
        """Slope of EP's log evidence: by the kernel's parameters, or where the prior changes so."""

    def observed(self) -> Observed:
        """Data and prior covariance of the rows, or `InputError` that says what has them."""

    def facts(self) -> dict[str, Any]:
        """What this engine adds to a summary."""

    def inputs(self, points: Array, crossed: Crossed) -> tuple[Any, ...]:
        """What `predict` takes of points (T, d): these, or their covariances."""

    def on(self, kernel: Any, X: Any, unscaled: Callable[[Array], Array]) -> Self:
        """Return the same in other units: with this kernel, rows X and inputs `unscaled`."""


def given_mean(mean: Any, usual: float | None) -> Any:
    """Return the prior mean that was given, by default the usual one, or raise `InputError`."""
    given = usual if mean is None else mean
    if given is None:
        raise InputError("the prior mean differs between rows: pass mean= at these points")
    return given


def prior_mean(mean: Any, usual: float | None, shape: tuple[int, ...]) -> Array:
    """Return a prior mean at points, by default the usual one.

    Raises
    ------
    InputError
        If it is not usable, or none was given and there is no usual one.
    """
    found = finite(given_mean(mean, usual), "mean")
    if found.shape not in ((), shape):
        raise InputError(f"mean must be a number or have shape {shape}, got {found.shape}")
    return found


def row_numbers(rows: Any, n: int) -> NDArray[np.intp]:
    """Return numbers of rows, from 0 to n - 1, or raise `InputError`."""
    found = np.asarray(rows)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise InputError(
            f"rows must be whole numbers of shape (n,), got {found.dtype} of shape {found.shape}"
        )
    if found.size and not (found.min() >= 0 and found.max() < n):
        raise InputError(f"rows must be from 0 to {n - 1}, got {found.min()} to {found.max()}")
    return found.astype(np.intp)


def draws(mean: Array, covariance: Array, count: int, rng: np.random.Generator) -> Array:
    """Return draws, shape (count, T), of N(mean, covariance), which is (T, T).

    By its eigenvalues: those that rounding has left below zero count as zero.
    """
    values, vectors = eigh(covariance, check_finite=False)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    found: Array = mean + rng.standard_normal((count, mean.size)) @ root.T
    return found
