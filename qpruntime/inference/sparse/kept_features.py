"""Features of all rows, and their variances, kept from pass to pass where there is memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.inference.sparse.inducing import Inducing
from qpruntime.inference.sparse.passes import Features, Variances
from qpruntime.memory import fits

__all__ = ["MEMORY", "Keeper"]

#: Bytes of features that are kept by default.
MEMORY = 1e9
# Features are kept where so many times their bytes are there: what else passes take is left.
_SPARE = 1.5


class Keeper:
    """Room for the features of N rows under one `Inducing`; under another it is filled anew."""

    def __init__(self) -> None:
        self._owner: Inducing | None = None
        self._phi: Any = None
        self._r: Array = np.empty(0)
        self._full: dict[int, Any] = {}
        self._root: Array | None = None
        self._w: Array | None = None
        self._variances_known: dict[int, Any] = {}

    def of(self, inducing: Inducing, n: int, memory: float) -> Keeper:
        """Return the keeper with room for these features if they fit, else with none."""
        if self._owner is inducing:
            return self
        self._owner, self._full, self._root = inducing, {}, None
        shape = (n, inducing.size)
        nbytes = n * inducing.size * inducing.dtype.itemsize
        if nbytes > memory:
            self._phi = None
        elif self._phi is None or (self._phi.shape, self._phi.dtype) != (shape, inducing.dtype):
            self._phi = None
            if fits(_SPARE * nbytes):
                self._phi, self._r = np.empty(shape, inducing.dtype), np.empty(n)
        return self

    def chunk(self, number: int, some: slice) -> Features | None:
        """Return the features of a chunk, or room for them; None if they are not kept."""
        if self._phi is None:
            return None
        full = self._full.setdefault(number, np.zeros(1, dtype=bool))
        return Features(self._phi[some], self._r[some], full)

    def under(self, root: Array, n: int, memory: float) -> Keeper:
        """Return the keeper with room for the variances of N rows under this root of B.

        Means are settled several times between sweeps, and the root stays: what they spare is
        all of the M^2 operations a row.
        """
        if self._root is not root:
            self._root, self._variances_known = root, {}
            if 8.0 * n > memory:
                self._w = None
            elif self._w is None or len(self._w) != n:
                self._w = np.empty(n)
        return self

    def variances(self, number: int, some: slice) -> Variances | None:
        """Return the variances of a chunk, or room for them; None if they are not kept."""
        if self._w is None:
            return None
        full = self._variances_known.setdefault(number, np.zeros(1, dtype=bool))
        return Variances(self._w[some], full)
