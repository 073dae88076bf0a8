"""The inputs of all rows as kernels see them: features, or their ranks, in units of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.inference.sparse.lazy import is_lazy
from qpruntime.inference.sparse.mapped import mapped
from qpruntime.kernels.units import Units
from qpruntime.learning.inducing import SAMPLE, rows_at, sample
from qpruntime.learning.warp import Warp

__all__ = ["View"]


@dataclass(frozen=True, eq=False)
class View:
    """Inputs (N, d), perhaps read in parts, what they go through, and their units."""

    X: Any
    warp: Warp | None
    units: Units

    @classmethod
    def of(
        cls,
        X: Any,
        weights: Array | None,
        rng: np.random.Generator,
        ranks: bool,
        levels: Sequence[int] = (),
    ) -> View:
        """Measure the rows of X, some of whose columns are levels; of many rows a sample."""
        n = int(X.shape[0])
        if n <= SAMPLE and not is_lazy(X):
            points, mass = X, weights
        else:
            some = sample(n, SAMPLE, rng)
            points, mass = rows_at(X, some), None if weights is None else weights[some]
        if not ranks:
            return cls(X, None, Units.of(points, mass, levels))
        warp = Warp.of(points, mass, levels)
        return cls(X, warp, Units.of(warp(points), mass, levels))

    @cached_property
    def features(self) -> Any:
        """What the kernel of users is a function of."""
        return mapped(self.X, self.warp, int(self.X.shape[1])) if self.warp else self.X

    @cached_property
    def scaled(self) -> Any:
        """The same in units of the kernel that is learnt."""
        return mapped(self.features, self.units.scaled, self.units.width)

    def rows(self, points: Array) -> Array:
        """Points (n, d) like those of X, scaled."""
        return self.units.scaled(self.warp(points) if self.warp else points)
