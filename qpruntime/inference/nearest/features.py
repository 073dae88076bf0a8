"""What the inducing inputs say of places, made when first needed and kept while there is room."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qpruntime.arrays import Array
from qpruntime.inference.nearest.places import Places
from qpruntime.inference.sparse.blas import divide
from qpruntime.inference.sparse.inducing import Inducing

__all__ = ["MEMORY", "Described", "Features", "Known"]

#: Bytes of features that are kept.
MEMORY = 2e9
# Up to so many bytes they are kept in double precision; beyond in single, which takes half the
# time. They are also made in single, in half the time, where that is off by less than this
# share of the deviations of predictions, which is seen on so many places.
_DOUBLE = 3e7
_RIGHT, _LOOKED_AT = 1e-3, 256
# Numbers in a block of features.
_NUMBERS = 2**19


class Known(NamedTuple):
    """The posterior of w as prediction takes it: root of B, mean, power of power EP."""

    inducing: Inducing
    root: Array
    weights: Array
    power: float

    def single(self) -> Known:
        """The same for features of single precision."""
        single = np.float32
        inducing, root, weights = self.inducing.in_dtype(single), self.root, self.weights
        return Known(inducing, root.astype(single), weights.astype(single), self.power)

    def described(self, X: Array, phi: Any = None, psi: Any = None) -> Described:
        """Describe points (n, d), in arrays (n, M) if they are given."""
        phi, r = self.inducing.features(X, phi)
        psi = np.empty_like(phi) if psi is None else psi
        psi[:] = phi
        return Described(phi, divide(psi, self.root), np.asarray(r, float), phi @ self.weights)


class Described(NamedTuple):
    """phi and psi = phi L_B^-T (n, M) of points, r and the mean of phi^T w (n,)."""

    phi: Any
    psi: Any
    r: Array
    mean: Array


class Features:
    """Features of places, by slots: as many as there are places, or as there is memory for.

    Attributes
    ----------
    known : Known
        In the precision that features are made in.
    phi, psi : ndarray, shape (slots, M)
    r, mean, T, N : ndarray, shape (slots,)
        Variance given the inducing inputs, white noise among it; mean of phi^T w; and what the
        inducing inputs were told of the rows there.
    """

    def __init__(self, places: Places, known: Known, memory: float = MEMORY) -> None:
        self._places = places
        P, M = places.count, known.inducing.size
        self.dtype = np.dtype(np.float64 if min(_DOUBLE, memory) >= 16 * P * M else np.float32)
        self.known = known
        if self.dtype == np.float32:
            some = places.at(np.arange(0, P, max(1, P // _LOOKED_AT))[:_LOOKED_AT])
            if _suffices(known, some):
                self.known = known.single()
        self._make(int(min(P, memory // (2 * M * self.dtype.itemsize))))

    def _make(self, slots: int) -> None:
        M = self.known.inducing.size
        self.phi, self.psi = (np.empty((slots, M), self.dtype) for _ in range(2))
        self.r, self.mean, self.T, self.N = np.zeros((4, slots))
        self._slot = np.full(self._places.count, -1, np.intp)
        self._used = 0

    def slots(self, places: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return where the features of places are, of any shape, until the next call."""
        wanted = np.unique(places)
        missing = wanted[self._slot[wanted] < 0]
        if self._used + len(missing) > len(self.r):
            if len(wanted) > len(self.r):
                self._make(len(wanted))
            self._slot[:], self._used, missing = -1, 0, wanted
        step = max(1, _NUMBERS // self.known.inducing.size)
        for start in range(0, len(missing), step):
            self._fill(missing[start : start + step])
        return self._slot[places]

    def _fill(self, places: NDArray[np.intp]) -> None:
        some = slice(self._used, self._used + len(places))
        X = self._places.at(places)
        same = self.dtype == self.known.inducing.dtype
        found = self.known.described(X, *((self.phi[some], self.psi[some]) if same else ()))
        if not same:
            self.phi[some], self.psi[some] = found.phi, found.psi
        self.r[some], self.mean[some] = found.r, found.mean
        self.T[some], self.N[some] = self._places.sites_of(places, found.r, self.known.power)
        self._slot[places] = np.arange(some.start, some.stop)
        self._used = some.stop


def _suffices(known: Known, X: Array) -> bool:
    """Whether features of points are right enough if they are made in single precision."""
    single, double = known.single().described(X), known.described(X)

    def variance(of: Described) -> Array:
        return of.r + np.einsum("nm,nm->n", of.psi, of.psi)

    usual = float(variance(double).mean())
    wrong = [np.abs(variance(single) - variance(double)), np.abs(single.mean - double.mean)]
    return bool(wrong[0].max() <= _RIGHT * usual and wrong[1].max() <= _RIGHT * math.sqrt(usual))
