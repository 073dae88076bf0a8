"""What classes by inducing points leave behind: what predictions take of it, and of the rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qpruntime.arrays import Array
from qpruntime.blocks import in_blocks
from qpruntime.errors import InputError, NumericalError
from qpruntime.inference.classes.layout import Layout
from qpruntime.inference.classes.sparse.features import Features, features_of
from qpruntime.inference.sites import Sites
from qpruntime.inference.sparse.inducing import Inducing
from qpruntime.validation import finite

__all__ = ["PointKept", "PointSolution"]

_NEEDED = "needs the covariance of all rows, which inducing points do without: use infer_classes"


@dataclass(frozen=True, eq=False)
class PointKept:
    """The posterior of the values at the inducing points, whitened.

    Attributes
    ----------
    inducing : tuple of Inducing
        One for all classes, or one of each.
    mean : ndarray, shape (C M,)
    covariance : ndarray, shape (C M, C M)
    classes : int
    """

    inducing: tuple[Inducing, ...]
    mean: Array
    covariance: Array
    classes: int

    def features(self, X: Array) -> Features:
        """What the inducing points make of rows."""
        found = [one.features(X) for one in self.inducing]
        return features_of([phi for phi, _ in found], np.array([r for _, r in found]), self.classes)

    def predict(self, X: Array) -> tuple[Array, Array]:
        """Latent means (T, C) and covariances (T, C, C) at points (T, d)."""

        def one(some: slice) -> tuple[Array, Array]:
            features = self.features(X[some])
            covariance = features.quadratic(self.covariance)
            np.einsum("tcc->tc", covariance)[...] += features.rest.T
            return features.spread(self.mean).T, covariance

        mean, covariance = in_blocks(one, len(X), self.mean.size)
        if not (np.isfinite(mean).all() and np.isfinite(covariance).all()):
            raise NumericalError("a prediction is beyond double precision: rescale the kernel")
        return mean, covariance


@dataclass(frozen=True, eq=False)
class PointSolution:
    """Settled sites of N rows of C classes, as `ClassSolution` has them, by inducing points.

    Attributes
    ----------
    layout : Layout
    own : Sites
        Of g, each of shape (N (C - 1),).
    mean : ndarray, shape (N, C)
    left_out, of_values : callable or None
        Leave-one-out log probabilities, and covariances (N, C, C) of the latent values, computed
        when asked for; pickles have neither.
    kept : PointKept
    """

    layout: Layout
    own: Sites
    mean: Array
    left_out: Callable[[], Array] | None
    of_values: Callable[[], Array] | None
    kept: PointKept
    densities: Array | None = None
    K: None = None

    def sites(self) -> Sites:
        """Sites of all classes, (N, C) each, not a number at the own class."""
        return Sites(*(self.layout.whole(part, np.nan) for part in self.own))

    def loo(self) -> Array:
        """Leave-one-out log probabilities, shape (N,)."""
        if self.densities is None and self.left_out is not None:
            object.__setattr__(self, "densities", self.left_out())
        assert self.densities is not None
        return self.densities

    def covariance(self) -> Array:
        """Posterior covariances at the rows, shape (N, C, C)."""
        if self.of_values is None:
            raise InputError("pickles leave the covariances of rows out: predict at these rows")
        return self.of_values()

    def covariance_of(self, rows: NDArray[np.intp]) -> Array:
        """Those of some rows, shape (n, C, C)."""
        return self.covariance()[rows]

    def at(self, X: ArrayLike) -> Array:
        """Points (T, d), checked."""
        points, width = finite(X, "X"), self.kept.inducing[0].Z.shape[1]
        if points.ndim != 2 or points.shape[1] != width:
            raise InputError(f"X must have shape (T, {width}), got {points.shape}")
        return points

    def on(self, kernels: tuple[Any, ...], unscaled: Callable[[Array], Array]) -> PointSolution:
        """Return the same in other units: with these kernels, and points `unscaled`."""
        pairs = zip(self.kept.inducing, kernels, strict=True)
        moved = tuple(one.on(kernel, unscaled(one.Z)) for one, kernel in pairs)
        return replace(self, kept=replace(self.kept, inducing=moved))

    def gradient(self, change: Any) -> Any:
        """Nothing: `InputError`."""
        raise InputError(f"evidence_gradient {_NEEDED}")

    def observed(self) -> Any:
        """Nothing: `InputError`."""
        raise InputError(f"a correction {_NEEDED}")

    def with_covariance(self, K: ArrayLike) -> PointSolution:
        """Nothing: `InputError`."""
        raise InputError("inducing points take no covariance of rows: leave with_covariance out")

    def __getstate__(self) -> dict[str, Any]:
        self.loo()
        return {**vars(self), "left_out": None, "of_values": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
