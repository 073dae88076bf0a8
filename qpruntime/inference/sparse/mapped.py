"""Inputs whose rows are changed as they are read: in other units, or by ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.inference.sparse.lazy import is_lazy
from qpruntime.inference.sparse.stored import taken

__all__ = ["mapped"]


def mapped(X: Any, function: Callable[[Array], Array], columns: int) -> Any:
    """Return ``function(X)`` of inputs of any kind; those that are read in parts still are.

    Parameters
    ----------
    X : inputs, shape (N, d)
    function : callable
        Rows (n, d) to rows (n, columns), each row for itself.
    columns : int
    """
    if not is_lazy(X):
        return function(X)
    if not hasattr(X, "__dask_graph__"):
        return _Mapped(X, function, columns)
    whole = X if X.numblocks[1] == 1 else X.rechunk({1: -1})
    shape = whole.chunks[0], (columns,)
    return whole.map_blocks(function, chunks=shape, dtype=float, meta=np.empty((0, 0)))


@dataclass(frozen=True, eq=False)
class _Mapped:
    """Inputs that are changed when they are sliced."""

    X: Any
    function: Callable[[Array], Array]
    columns: int

    @property
    def shape(self) -> tuple[int, int]:
        return int(self.X.shape[0]), self.columns

    @property
    def dtype(self) -> Any:
        return np.dtype(float)

    @property
    def chunks(self) -> Any:
        return getattr(self.X, "chunks", None)

    def __getitem__(self, some: slice) -> Array:
        return self.function(np.asarray(taken(self.X, some), dtype=float))
