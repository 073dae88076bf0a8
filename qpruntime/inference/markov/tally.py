"""What passes over a series add up while they revise sites, by name."""

from __future__ import annotations

import math

import numpy as np

from qpruntime.inference.sites import Counts

__all__ = ["Tally"]


class Tally:
    """Sums of changes, counts and places, in one array that kernels fill (`revise`).

    Attributes
    ----------
    sums : ndarray, shape (12,)
        Squared changes of tau and nu, plain and in units of the marginals (4); lookups inside and
        outside a grid and updates skipped (3); one number that kernels keep for themselves; the
        site that changed most, and by how much; mean and standard deviation of a cavity whose
        projection failed.
    """

    def __init__(self) -> None:
        self.sums = np.zeros(12)

    def begin_pass(self) -> None:
        """Forget the changes of the pass before."""
        self.sums[:4] = 0.0

    def change(self, n: int) -> float:
        """Root mean squared change of n sites, plain or in units if larger."""
        return math.sqrt(self.sums[:4].max() / n)

    @property
    def counts(self) -> Counts:
        """Lookups inside and outside a grid, and updates skipped."""
        found: Counts = self.sums[4:7].astype(np.int64)
        return found

    @property
    def worst(self) -> int:
        """The site that changed most."""
        return int(self.sums[8])

    @property
    def cavity(self) -> tuple[float, float]:
        """Mean and standard deviation of the cavity that failed."""
        return float(self.sums[10]), float(self.sums[11])
