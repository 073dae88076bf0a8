"""Where slopes of the latent function are observed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qpruntime.arrays import Array
from qpruntime.kernels.slopes import Asked
from qpruntime.kernels.units import Units

__all__ = ["Slopes"]


@dataclass(frozen=True)
class Slopes:
    """Where slopes are observed.

    Attributes
    ----------
    where : ndarray, shape (M, d)
    feature : ndarray of int, shape (M,)
        That each is along.
    times : ndarray, shape (M,)
        What is observed is the slope times this.
    """

    where: Array
    feature: NDArray[np.intp]
    times: Array

    def scaled(self, units: Units) -> Slopes:
        """The same of scaled features."""
        kept = np.cumsum(units.spread > 0.0) - 1
        times = self.times / units.spread[self.feature]
        return Slopes(units.scaled(self.where), kept[self.feature], times)

    def unscaled(self, units: Units, first: Slopes) -> Slopes:
        """The same of the features themselves, of which the first are these already."""
        kept = np.flatnonzero(units.spread > 0.0)
        feature = kept[self.feature]
        where = units.unscaled(self.where)
        where[: len(first.where)] = first.where
        return Slopes(where, feature, self.times * units.spread[feature])

    def joined(self, other: Slopes) -> Slopes:
        """These, and then others."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Slopes(*(np.concatenate(pair) for pair in pairs))

    def asked(self, X: Array) -> Asked:
        """The function at rows X, and then these slopes."""
        return Asked.both(X, self.where, self.feature)

    def scales(self, n: int, scale: Array | float | None = None) -> Array:
        """What values at n rows, and then slopes, are multiplied by, shape (n + M,)."""
        values = np.broadcast_to(1.0 if scale is None else scale, n)
        return np.concatenate([values, self.times])
