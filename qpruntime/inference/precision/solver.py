"""The prior of rows on a sparse precision, `qpruntime.inference.solver`: eta = o + A x."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from qpruntime.arrays import Array
from qpruntime.inference.precision.latent import SparseLatent
from qpruntime.inference.precision.solved import PrecisionSolved
from qpruntime.inference.sites import Sites, no_sites
from qpruntime.inference.solver import Prior

__all__ = ["PrecisionPrior"]


class PrecisionPrior(SparseLatent, Prior):
    """N linear functionals of K latent values with a sparse precision: see `SparseLatent`."""

    covariance = None

    @property
    def mean(self) -> Array:
        return self.offset

    @cached_property
    def variance(self) -> Array:
        return self.factor(no_sites(self.offset.size)).marginals()[0]

    def factor(self, sites: Sites) -> PrecisionSolved:
        return PrecisionSolved(self, sites)

    def draw(self, rng: np.random.Generator) -> Array:
        x = self.draw_latent(self.own, rng, 1)[:, 0]
        return self.offset + self.times(x[self.pattern.symbolic.order])
