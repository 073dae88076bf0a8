"""The box that is searched, in the units of its variables and as the unit cube."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.validation import finite, real

__all__ = ["Box", "box"]


class Box(NamedTuple):
    """Low and high end (d,) of every variable."""

    low: Array
    high: Array

    def to_unit(self, X: Array) -> Array:
        """Points (T, d) of the box in the unit cube."""
        return (X - self.low) / (self.high - self.low)

    def from_unit(self, u: Array) -> Array:
        """A point (d,) of the unit cube in the box, which roundings do not leave."""
        return np.clip(self.low + (self.high - self.low) * u, self.low, self.high)

    def inside(self, x: ArrayLike) -> Array:
        """Return a point of the box as an array, or raise `InputError`."""
        place = finite(x, "x", self.low.shape)
        outside = (place < self.low) | (place > self.high)
        if outside.any():
            i = int(np.argmax(outside))
            raise InputError(
                f"x[{i}] = {place[i]:g} is outside its bounds ({self.low[i]:g}, "
                f"{self.high[i]:g}): widen them in a new Optimizer"
            )
        return place


def box(bounds: ArrayLike) -> Box:
    """Return the box that is given as d pairs, or raise `InputError`."""
    found = real(bounds, "bounds")
    if found.ndim != 2 or found.shape[1] != 2 or not len(found):
        raise InputError(f"bounds must be pairs (low, high), one a variable, got {found.shape}")
    for i, (low, high) in enumerate(found):
        if not (np.isfinite([low, high]).all() and low < high and np.isfinite(high - low)):
            raise InputError(
                f"bounds[{i}] is ({low:g}, {high:g}): the low end must be below the high one, and "
                "both finite; leave out variables that are fixed"
            )
    return Box(found[:, 0].copy(), found[:, 1].copy())
