"""What the inducing inputs say of places, made when first needed and kept while there is room."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qpruntime.arrays import Array
from qpruntime.inference.nearest.places import Places
from qpruntime.inference.sparse.blas import divide
from qpruntime.inference.sparse.inducing import Inducing

__all__ = ["MEMORY", "Features", "described"]

#: Bytes of features that are kept.
MEMORY = 2e9
# Up to so many bytes they are kept in double precision; beyond in single, which takes half the
# time, unless sites are so narrow that its rounding would show.
_DOUBLE = 3e7
# Precision of a site, in units of the prior's.
_NARROW = 1e4
# Numbers in a block of features.
_NUMBERS = 2**19


def described(inducing: Inducing, root: Array, weights: Array, X: Array) -> tuple[Any, ...]:
    """Return phi and psi = phi L_B^-T (n, M) of points, r and the mean of phi^T w (n,)."""
    phi, r = inducing.features(X)
    psi = divide(phi.copy(), root)
    return phi, psi, r, phi @ weights


class Features:
    """Features of places, by slots: as many as there are places, or as there is memory for.

    Attributes
    ----------
    phi, psi : ndarray, shape (slots, M)
    r, mean, T, N : ndarray, shape (slots,)
        Variance given the inducing inputs, white noise among it; mean of phi^T w; and what the
        inducing inputs were told of the rows there.
    """

    def __init__(
        self,
        places: Places,
        inducing: Inducing,
        posterior: tuple[Array, Array],
        power: float,
        memory: float = MEMORY,
    ) -> None:
        self._places, self._inducing, self._power = places, inducing, power
        self._root, self._weights = posterior
        P, M = places.count, inducing.size
        self.dtype = np.dtype(np.float64 if min(_DOUBLE, memory) >= 16 * P * M else np.float32)
        self._make(int(min(P, memory // (2 * M * self.dtype.itemsize))))

    def _make(self, slots: int) -> None:
        M = self._inducing.size
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
        step = max(1, _NUMBERS // self._inducing.size)
        for start in range(0, len(missing), step):
            self._fill(missing[start : start + step])
        return self._slot[places]

    def _fill(self, places: NDArray[np.intp]) -> None:
        some = slice(self._used, self._used + len(places))
        X = self._places.X[places]
        found = described(self._inducing, self._root, self._weights, X)
        self.phi[some], self.psi[some], self.r[some], self.mean[some] = found
        self.T[some], self.N[some] = self._places.told(places, found[2], self._power)
        self._slot[places] = np.arange(some.start, some.stop)
        self._used = some.stop
