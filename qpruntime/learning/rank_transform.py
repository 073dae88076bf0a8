"""Features by their ranks: monotone, piecewise linear, the same for training and new rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from qpruntime._restorable import restorable
from qpruntime._typing import Array

__all__ = ["Warp"]

# Largest number of knots of a feature.
_MAX_KNOTS = 200


@restorable("warp/1")
@dataclass(frozen=True, eq=False)
class Warp:
    """A monotone map of every feature to (0, 1): the share of rows that are below it.

    Attributes
    ----------
    knots, levels : tuple of ndarray
        Of each feature the values that are known, ascending, and their shares; a value between two
        has a share between theirs, one beyond all that of the last. A feature without any is left
        as it is.
    """

    knots: tuple[Array, ...]
    levels: tuple[Array, ...]

    @classmethod
    def of(cls, X: Array, weights: Array | None = None, codes: Sequence[int] = ()) -> Warp:
        """Fit the transform to the rows of X (N, d), except for columns of codes.

        A row of weight 2 counts as two rows.
        """
        row_weights = np.ones(len(X)) if weights is None else weights
        empty = np.empty(0)
        knots = [
            (empty, empty) if k in codes else _levels(column, row_weights)
            for k, column in enumerate(X.T)
        ]
        return cls(tuple(f[0] for f in knots), tuple(f[1] for f in knots))

    def __call__(self, X: Array) -> Array:
        """Return the cumulative shares (T, d) of the values of X (T, d)."""
        warped = np.empty(np.shape(X))
        for k, (knots, levels) in enumerate(zip(self.knots, self.levels, strict=True)):
            warped[:, k] = np.interp(X[:, k], knots, levels) if knots.size else X[:, k]
        return warped


def _levels(column: Array, mass: Array) -> tuple[Array, Array]:
    """Return the knots of a feature, and the middle of the cumulative share of their rows."""
    values, which = np.unique(column, return_inverse=True)
    weight = np.bincount(which, mass)
    above = np.cumsum(weight)
    middle = (above - 0.5 * weight) / above[-1]
    if len(values) > _MAX_KNOTS:
        # Values whose shares are evenly spaced, the first and the last among them.
        wanted = np.linspace(middle[0], middle[-1], _MAX_KNOTS)
        chosen = np.unique(np.searchsorted(middle, wanted).clip(0, len(values) - 1))
        values, middle = values[chosen], middle[chosen]
    return values, middle
