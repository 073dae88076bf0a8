"""What a last pass tells of every row of a series, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qpruntime.arrays import Array

__all__ = ["Report"]


@dataclass(frozen=True)
class Report:
    """Cavities of f and its moments by the rows before, about the prior mean.

    Attributes
    ----------
    columns : ndarray, shape (N, 4)
        As kernels fill it.
    """

    columns: Array

    def __getitem__(self, some: Any) -> Report:
        return Report(self.columns[some])

    @property
    def mean(self) -> Array:
        """Cavity means."""
        return self.columns[:, 0]

    @property
    def variance(self) -> Array:
        """Cavity variances."""
        return self.columns[:, 1]

    @property
    def mean_before(self) -> Array:
        """Means given the rows before."""
        return self.columns[:, 2]

    @property
    def variance_before(self) -> Array:
        """Variances given the rows before."""
        return self.columns[:, 3]
