"""Rows whose inputs stay where they are: zarr, HDF5, memory maps, dask arrays and data frames.

Observations, weights and prior means are held, 8 bytes a row each; inputs are read chunk by chunk,
by whoever computes the chunk. Nothing here imports the libraries that made them.
"""

from __future__ import annotations

import math
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.inference.sparse.rows import Chunk, Columns, Held, Rows, chunk_count, chunk_slice
from qpruntime.inference.sparse.stored import taken
from qpruntime.validation import finite, real

__all__ = ["Lazy", "as_array", "inputs_of", "is_lazy", "known_chunks", "read", "rows_of", "sample"]


def is_lazy(X: Any) -> bool:
    """Whether inputs are better read in parts: no array of this process, no list."""
    if isinstance(X, np.memmap) or hasattr(X, "__dask_graph__"):
        return True
    plain = isinstance(X, np.ndarray) or hasattr(X, "__array_interface__")
    return not plain and all(hasattr(X, name) for name in ("shape", "dtype", "chunks"))


def known_chunks(X: Any, name: str) -> Any:
    """Return a dask collection as an array of known shape; anything else as it is.

    Raises
    ------
    InputError
        If that takes columns of no numbers, or computing fails.
    """
    if not hasattr(X, "__dask_graph__"):
        return X
    home = _home(X, name)
    with nullcontext() if home is None else home.as_current():
        if hasattr(X, "to_dask_array"):
            X = X.to_dask_array(lengths=True)
        if any(math.isnan(size) for size in X.shape):
            # A copy, for this sets the sizes in place.
            X = X.copy()
            X.compute_chunk_sizes()
    if X.dtype.kind not in "fiub":
        raise InputError(f"{name} must have real numbers in all columns, got dtype {X.dtype}")
    return X


def _home(X: Any, name: str) -> Any:
    """Return the dask client of the cluster where a collection was persisted, None for others."""
    distributed: Any = sys.modules.get("distributed")
    if distributed is None or not hasattr(X, "__dask_graph__"):
        return None
    held = distributed.client.futures_of(X)
    if any(future.cancelled() for future in held):
        raise InputError(f"{name} was persisted on a cluster that lost it: persist it anew")
    return held[0].client if held else None


def as_array(value: Any, name: str) -> Any:
    """Return what is not lazy any more: a column of a collection, computed."""
    if hasattr(value, "__dask_graph__"):
        return value.compute(scheduler=_home(value, name))
    return taken(value, slice(None), name) if is_lazy(value) else value


def inputs_of(X: Any, name: str) -> Any:
    """Return inputs (rows, columns): arrays and lists finite and C-ordered, others to be sliced.

    Raises
    ------
    InputError
        If they are no such thing.
    """
    X = known_chunks(X, name)
    lazy = is_lazy(X)
    if not lazy:
        X = finite(X, name)
    if len(X.shape) != 2 or 0 in X.shape:
        raise InputError(f"{name} must have shape (rows, columns), got {tuple(X.shape)}")
    return X if lazy else np.ascontiguousarray(X)


def rows_of(
    X: Any, y: Array, weights: Array | None, prior: Array | None, scale: Array | None = None
) -> Rows:
    """Return rows of inputs that `inputs_of` has checked."""
    return (Lazy if is_lazy(X) else Held)(X, y, weights, prior, scale)


def _read(X: Any, some: slice, first: int, home: Any = None) -> Array:
    part = taken(X, some)
    shape = part.shape
    if hasattr(part, "__dask_graph__"):
        part = part.compute(scheduler="synchronous" if home is None else home)
    values = real(part, "X")
    if values.shape != shape:
        raise InputError(
            f"X[{first}:{first + shape[0]}] has shape {values.shape}, not {shape}: blocks of the "
            "dask array are not of the sizes that it says; X.compute_chunk_sizes() finds them"
        )
    if not np.isfinite(values).all():
        row, column = (int(k) for k in np.argwhere(~np.isfinite(values))[0])
        raise InputError(f"X[{first + row}, {column}] is {values[row, column]}: it must be finite")
    return np.ascontiguousarray(values)


@dataclass(frozen=True, eq=False)
class Part:
    """A chunk of inputs that are not read yet; `home` is the client of those of a cluster."""

    X: Any
    some: slice
    first: int
    y: Array
    weights: Array | None
    prior: Array | None
    scale: Array | None
    home: Any = None

    def load(self) -> Chunk:
        """Read the inputs.

        Raises
        ------
        InputError
            If they are not finite.
        """
        X = _read(self.X, self.some, self.first, self.home)
        return Chunk(X, self.y, self.weights, self.prior, self.scale)

    def __reduce__(self) -> tuple[Any, ...]:
        others = self.y, self.weights, self.prior, self.scale
        # What another connection holds does not travel.
        if self.home is not None:
            return Chunk, tuple(self.load())
        return Part, (self.X, self.some, self.first, *others)


class Lazy(Columns):
    """Rows of inputs X (N, d) that are sliced chunk by chunk."""

    @cached_property
    def home(self) -> Any:
        """Client of the cluster that holds the inputs, if one does."""
        return _home(self.X, "X")

    def piece(self, number: int) -> Part:
        some = self.slice(number)
        if hasattr(self.X, "__dask_graph__"):
            part = self.X[some]
            if self.home is None:
                part = _culled(part)  # only this chunk's part of the graph travels
            return Part(part, slice(None), some.start, *self.others(some), self.home)
        return Part(self.X, some, some.start, *self.others(some))

    def read(self, number: int) -> Chunk:
        return self.piece(number).load()

    def some(self, numbers: NDArray[np.intp]) -> Chunk:
        once, where = np.unique(numbers, return_inverse=True)
        X = sample(self.X, once)[where] if len(once) else np.empty((0, self.X.shape[1]))
        return Chunk(X, *self.others(numbers))


def _culled(part: Any) -> Any:
    from dask import optimize

    (found,) = optimize(part)
    return found


def read(X: Any, some: slice) -> Array:
    """Return a slice of inputs of any kind; `InputError` if it is not finite."""
    return _read(X, some, some.start, _home(X, "X"))


def sample(X: Any, rows: ArrayLike) -> Array:
    """Return some rows of inputs of any kind, chunk by chunk, in ascending order."""
    wanted = np.sort(np.asarray(rows))
    n, found, home = int(X.shape[0]), [], _home(X, "X")
    for number in range(chunk_count(n)):
        some = chunk_slice(number, n)
        here = wanted[(wanted >= some.start) & (wanted < some.stop)]
        if here.size:
            found.append(_read(X, some, some.start, home)[here - some.start])
    return np.concatenate(found)
