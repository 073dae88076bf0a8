"""Rows where a model is drawn: along one feature or two, the others held at values of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.validation import finite, shown, whole

__all__ = ["Rows", "ends", "pair"]

# Of the range of a feature, on either side of it.
_MARGIN = 0.05


class Rows:
    """Rows as a user has them, an array or a data frame, with the names of their columns.

    Attributes
    ----------
    values : ndarray, shape (N, d)
    names : list of str
        Of the columns; ``x0``, ``x1``, ... if they have none.
    """

    def __init__(self, X: Any) -> None:
        self._given = X
        self.values = finite(X, "X")
        if self.values.ndim != 2 or not self.values.size:
            raise InputError(
                f"X must have shape (N, d) with N and d of at least 1, got {self.values.shape}; "
                "one column is X[:, None]"
            )
        columns = getattr(X, "columns", range(self.values.shape[1]))
        self.names = [c if isinstance(c, str) else f"x{c}" for c in columns]

    def column(self, feature: Any) -> int:
        """Return the number of a column that is given by number or name."""
        if isinstance(feature, str):
            if feature not in self.names:
                raise InputError(f"X has no column {feature!r}, but {shown(self.names)}")
            return self.names.index(feature)
        found = whole(feature, "feature", 0)
        if found >= len(self.names):
            raise InputError(f"X has {len(self.names)} columns: there is no feature {found}")
        return found

    def observed(self, y: ArrayLike) -> np.ndarray:
        """Return `y` as an array, one for each row."""
        found = np.asarray(y)
        if found.shape != (len(self.values),):
            raise InputError(f"y must have shape ({len(self.values)},) like X, got {found.shape}")
        return found

    def at(self, others: ArrayLike | None, features: list[int], *grids: Array) -> Any:
        """Return rows with `grids` in columns `features` and `others` elsewhere.

        `others` has a value for every column, those of `features` are not looked at; by default
        medians. The rows are of the kind that was given.
        """
        width = len(self.names)
        base = np.median(self.values, axis=0)
        if others is not None:
            base = finite(others, "at", (width,))
        points = np.tile(base, (grids[0].size, 1))
        for j, grid in zip(features, grids, strict=True):
            points[:, j] = grid.ravel()
        if hasattr(self._given, "columns") and hasattr(self._given, "iloc"):
            return type(self._given)(points, columns=self._given.columns)
        return points


def ends(values: Array, given: Any, name: str) -> tuple[float, float]:
    """Return the ends of what is drawn: as given, or a little beyond the values."""
    if given is not None:
        low, high = finite(given, name, (2,))
        if not low < high:
            raise InputError(f"{name} must be a pair low < high, got {shown(given)}")
        return float(low), float(high)
    low, high = float(values.min()), float(values.max())
    margin = _MARGIN * (high - low) or 0.5
    return low - margin, high + margin


def pair(given: Any, name: str, what: str) -> tuple[Any, Any]:
    """Return the two things that are given, or raise `InputError` that says `what` they are."""
    try:
        first, second = given
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be two {what}, got {shown(given)}") from error
    return first, second
