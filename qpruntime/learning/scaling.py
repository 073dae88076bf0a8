"""Units of features: where each is and how far it spreads; one that is constant is ignored.

Kernels and deep models learn from features in these units. The caller measures the spread of a
feature; `spreads` does so robustly. `Warp` replaces features by their ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime.kernels.mixed_inputs import Categories, On

__all__ = ["Units", "Warp", "spreads"]

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


# This share of the rows is left out on either side, at least one row, so that an outlier does not
# set the unit. A column that is constant in between, as sparse ones are, is measured with a smaller
# share left out, or with all rows.
_TAILS = 0.01
# The range of a uniform variable is so many standard deviations.
_UNIFORM = math.sqrt(12.0)
# Smallest standard deviation in units of that of a uniform variable of the same range.
_LEAST_DEVIATION = 0.5
# One row is left out only if it is at most this share of the rows.
_MOST = 0.125
# Numbers that differ by less than this share of themselves are constant but for rounding.
_ROUNDING = 16.0 * np.finfo(float).eps


@dataclass(frozen=True)
class Units:
    """Centre and spread of each feature; the spread is 0 for a feature that is ignored.

    A feature is ignored that is the same in every row: it tells rows apart nowhere, and what it is
    in new rows changes nothing. Columns of levels stay as they are; ignored are those of one level,
    and those with a level of its own in every row, which tells nothing either.
    """

    centre: Array
    spread: Array
    levels: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        X: Array,
        weights: Array | None = None,
        levels: Sequence[int] = (),
        deviations: bool = False,
    ) -> Units:
        """Measure X (N, d), some of whose columns are levels, as `spreads` does."""
        centre, spread = spreads(X, weights, deviations)
        for k in levels:
            several = 1 < len(np.unique(X[:, k])) < max(len(X), 3)
            centre[k], spread[k] = 0.0, float(several)
        return cls(centre, spread, tuple(levels))

    @property
    def count(self) -> int:
        """Number of features that are not ignored."""
        return int(np.count_nonzero(self.spread))

    @property
    def width(self) -> int:
        """Columns of what is `scaled`."""
        return max(self.count, 1)

    @property
    def numbers_and_levels(self) -> tuple[list[int], list[int]]:
        """Columns of what is `scaled`: those of numbers, and those of levels."""
        kept = np.flatnonzero(self.spread > 0.0).tolist()
        levels = [at for at, k in enumerate(kept) if k in self.levels]
        return [at for at in range(len(kept)) if at not in levels], levels

    def scaled(self, X: Array) -> Array:
        """Return X in these units, without the ignored features; one of zeros if none is left."""
        kept = self.spread > 0.0
        if kept.all():
            return (X - self.centre) / self.spread
        if not kept.any():
            return np.zeros((len(X), 1))
        return (X[:, kept] - self.centre[kept]) / self.spread[kept]

    def unscaled(self, Z: Array) -> Array:
        """Return points in these units as points of the features, ignored ones in the middle."""
        points = np.tile(self.centre, (len(Z), 1))
        kept = self.spread > 0.0
        if kept.any():
            points[:, kept] += Z * self.spread[kept]
        return points

    def kernel_of_features(self, kernel: Kernel) -> Kernel:
        """Return a kernel of scaled features as one of the features themselves."""
        if self.levels and isinstance(kernel, (On, Categories)):
            return self._of_columns(kernel)
        parameters = kernel.get_params(deep=False)
        if "length_scale" in parameters:
            # Nothing is far in units of infinity: ignored features are ignored in new data too.
            lengths, kept = np.full(self.spread.size, np.inf), self.spread > 0.0
            lengths[kept] = self.spread[kept] * parameters["length_scale"]
            units = np.where(kept, self.spread, np.inf)
            bounds = parameters["length_scale_bounds"]
            if not isinstance(bounds, str):
                bounds = np.outer(units, bounds)
            parameters |= {"length_scale": lengths, "length_scale_bounds": bounds}
        for name, value in parameters.items():
            if isinstance(value, Kernel):
                parameters[name] = self.kernel_of_features(value)
        return type(kernel)(**parameters)

    def _of_columns(self, kernel: Kernel) -> Kernel:
        """Return a kernel of some scaled columns as one of the columns themselves."""
        kept = np.flatnonzero(self.spread > 0.0)[list(kernel.columns)]
        arguments = kernel.get_params(deep=False) | {"columns": kept.tolist()}
        if isinstance(kernel, On):
            units = Units(self.centre[kept], self.spread[kept])
            arguments["kernel"] = units.kernel_of_features(kernel.kernel)
        return type(kernel)(**arguments)


def spreads(
    X: Array, weights: Array | None = None, deviations: bool = False
) -> tuple[Array, Array]:
    """Return the middle and spread of every column, each of shape (d,).

    The spread is the range without its tails, over sqrt(12). Standard deviations serve alike but
    for sparse columns, counts and pixels, which they blow up. With `deviations` the spread is the
    standard deviation of values that are moved into this range, or half of the other if that is
    more: a rare level then counts for more, which a linear effect takes.

    Parameters
    ----------
    X : ndarray, shape (N, d)
    weights : ndarray, shape (N,), optional
        A row of weight 2 is two rows.
    """
    mass = np.ones(len(X)) if weights is None else weights
    pairs = np.array([_middle_and_spread(column, mass, deviations) for column in X.T])
    return pairs[:, 0].copy(), pairs[:, 1].copy()


def _middle_and_spread(column: Array, mass: Array, deviation: bool) -> tuple[float, float]:
    order = np.argsort(column, kind="stable")
    sorted_, mass = column[order], mass[order]
    below = np.cumsum(mass)
    total = float(below[-1])
    # One of the numbers: differences from it are exact where numbers are large beside them.
    middle = float(sorted_[np.searchsorted(below, 0.5 * total)])
    offsets = sorted_ - middle
    least = min(1.0, _MOST * total)
    for tail in (max(_TAILS * total, least), least, 0.0):
        first = min(int(np.searchsorted(below, tail, side="right")), len(offsets) - 1)
        last = min(int(np.searchsorted(below, total - tail)), len(offsets) - 1)
        low, high = float(offsets[first]), float(offsets[last])
        if high - low > _ROUNDING * max(abs(sorted_[first]), abs(sorted_[last])):
            spread = (high - low) / _UNIFORM
            if not deviation:
                return middle, spread
            clipped = np.clip(offsets, low, high)
            square = np.average((clipped - np.average(clipped, weights=mass)) ** 2, weights=mass)
            return middle, max(math.sqrt(square), _LEAST_DEVIATION * spread)
    return middle, 0.0
