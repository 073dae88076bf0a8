"""Priors of classes by inducing points, and their posteriors under given sites."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.inference.classes.layout import Layout
from qpruntime.inference.classes.solved import ClassPrior, ClassSolved
from qpruntime.inference.classes.sparse.algebra import PointBlocks
from qpruntime.inference.classes.sparse.features import Features
from qpruntime.inference.sites import Sites

__all__ = ["PointPrior", "PointSolved"]


class PointPrior(ClassPrior):
    """FITC's priors of C latent functions at N rows, all of mean 0.

    Parameters
    ----------
    features : Features
    layout : Layout
    """

    def __init__(self, features: Features, layout: Layout) -> None:
        self.features, self.layout = features, layout
        squares = [np.einsum("nm,nm->n", phi, phi) for phi in features.phi]
        self.squares = np.broadcast_to(squares + features.rest, (layout.classes, layout.n))

    def factor(self, sites: Sites) -> PointSolved:
        return PointSolved(self, sites)


class PointSolved(ClassSolved):
    """The posterior of given sites; see `ClassSolved`, whose algebra is another."""

    _prior: PointPrior

    @cached_property
    def blocks(self) -> PointBlocks:  # type: ignore[override]
        D = np.ascontiguousarray(self._layout.whole(self.tau, 1.0).T)
        return PointBlocks(self._prior.features, D)

    def along_z(self) -> Array:
        """The sites' precision-weighted means along z, shape (C, N)."""
        return np.ascontiguousarray(-self._layout.whole(self._nu, 0.0).T)

    def rows(self) -> Array:
        return self._prior.rows() if self._is_prior else self.blocks.covariances()

    def marginals(self) -> tuple[Array, Array]:
        layout = self._layout
        if self._is_prior:
            return self._prior.variance, np.ones(layout.sites)
        variance, kept = self.blocks.marginals()
        return layout.flat(variance), layout.flat(kept)

    def slope(self):  # type: ignore[no-untyped-def]
        raise InputError("inducing points of classes have no slope of the evidence")
