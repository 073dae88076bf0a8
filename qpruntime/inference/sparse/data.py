"""Rows in chunks, from memory, zarr or dask."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import finite, real
from qpruntime.errors import InputError

__all__ = [
    "CHUNK",
    "Chunk",
    "ChunkTask",
    "ChunkedRows",
    "Columns",
    "Held",
    "Lazy",
    "Others",
    "as_array",
    "chunk_count",
    "chunk_slice",
    "inputs_of",
    "is_lazy",
    "known_chunks",
    "mapped",
    "read",
    "rows_of",
    "sample",
    "taken",
]

# --- Inputs transformed as they are read


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


# --- Slices of chunked arrays
#
# zarr takes a chunk that is not there for its fill value, mostly zero: it does not write chunks
# that hold nothing else, and cannot tell them from chunks that were lost. Here they are refused,
# unless the attribute ``missing_chunks`` of the array is ``"fill_value"``.

_ATTRIBUTE, _FILLED = "missing_chunks", "fill_value"
_Place = tuple[tuple[int, ...], tuple[slice, ...]]


def taken(X: Any, some: slice, name: str = "X") -> Any:
    """Return ``X[some]``; of a dask array, which is not computed here, whatever that is.

    Raises
    ------
    InputError
        If it cannot be read, or chunks of a zarr array are missing; it says which.
    """
    if hasattr(X, "__dask_graph__"):
        return X[some]
    try:
        part = X[some]
    except (InputError, MemoryError):
        raise
    except Exception as error:  # whatever the library that holds it raises
        first, last, _ = some.indices(int(X.shape[0]))
        where = _unreadable(X, some)
        raise InputError(
            f"{name}[{first}:{last}] cannot be read{where}: {str(error) or type(error).__name__}; "
            "copy or write the data again"
        ) from error
    if _is_zarr(X):
        _refuse_missing(X, some, part, name)
    return part


def _is_zarr(X: Any) -> bool:
    ours = type(X).__module__.split(".")[0] == "zarr"
    return ours and hasattr(X, "store_path") and hasattr(X, "metadata")


def _places(X: Any, some: slice) -> Iterator[_Place]:
    """Yield number and place in X of every stored chunk, as far as it is in these rows."""
    ends = [some.indices(X.shape[0])[:2], *((0, n) for n in X.shape[1:])]
    axes = [
        [
            (k, slice(max(k * size, low), min((k + 1) * size, high)))
            for k in range(low // size, -(-high // size))
        ]
        for (low, high), size in zip(ends, X.shards or X.chunks, strict=True)
    ]
    for place in itertools.product(*axes):
        yield tuple(k for k, _ in place), tuple(part for _, part in place)


def _path(X: Any, number: tuple[int, ...]) -> Any:
    return X.store_path / X.metadata.encode_chunk_key(number)


def _unreadable(X: Any, some: slice) -> str:
    """Say which chunk of a zarr array it is, if it is one."""
    if _is_zarr(X):
        for number, place in _places(X, some):
            try:
                X[place]
            except Exception:  # the one that was met before
                return f": chunk {_path(X, number)} is damaged"
    return ""


def _refuse_missing(X: Any, some: slice, part: Any, name: str) -> None:
    """Look for chunks that hold the fill value alone: only those can be missing."""
    first = some.indices(X.shape[0])[0]
    fill, values = X.fill_value, np.asarray(part)
    if fill is None or X.attrs.get(_ATTRIBUTE) == _FILLED:
        return
    for number, (rows, *others) in _places(X, some):
        block = values[(slice(rows.start - first, rows.stop - first), *others)]
        if block.size and _filled(block[(0,) * block.ndim], fill) and _filled(block, fill).all():
            path = _path(X, number)
            if _absent(path):
                raise InputError(
                    f"{name}[{rows.start}:{rows.stop}]: chunk {path} is missing, and zarr takes it "
                    f"for {fill}; copy it again, or, if that was never written because it holds "
                    f'nothing else, say so: array.attrs["{_ATTRIBUTE}"] = "{_FILLED}"'
                )


def _absent(path: Any) -> bool:
    """Whether there is no such chunk; an empty one, which zarr takes for none, is none."""
    from zarr.core.sync import sync

    try:
        return not sync(path.store.getsize(path.path))
    except FileNotFoundError:
        return True


def _filled(values: Any, fill: Any) -> Any:
    """Where values are the fill value, which may be NaN."""
    same = values == fill
    return same | (values != values) if fill != fill else same


# --- Rows in chunks

#: Rows in a chunk, whoever holds them: sums over chunks have the same bits everywhere. Smaller ones
#: for samples would give a second core work, and cost more than it gains.
CHUNK = 32_768


class Chunk(NamedTuple):
    """Inputs X (n, d), encoded observations y (n,), and what else rows have, (n,) or None.

    Weights are 1 by default, prior means of f 0; what is observed is `scale` times f, 1 by default.
    """

    X: Array
    y: Array
    weights: Array | None = None
    prior: Array | None = None
    scale: Array | None = None

    def load(self) -> Chunk:
        """Return the arrays, which are here already."""
        return self


#: y, weights, prior means and scales of some rows.
Others = tuple[Array, Array | None, Array | None, Array | None]


class ChunkTask(Protocol):
    """What is sent to the worker that computes a chunk."""

    def load(self) -> Chunk:
        """Read the rows."""


class ChunkedRows(Protocol):
    """N rows in chunks."""

    @property
    def n(self) -> int:
        """Number of rows."""

    @property
    def chunks(self) -> int:
        """Number of chunks."""

    def piece(self, number: int) -> ChunkTask:
        """Return what chunk `number` is read from."""

    def read(self, number: int) -> Chunk:
        """Read a chunk in this process."""

    def others(self, some: slice) -> Others:
        """Return what some rows have beside X."""

    def some(self, numbers: NDArray[np.intp]) -> Chunk:
        """Read rows of these numbers, in their order, in this process."""

    def slice(self, number: int) -> slice:
        """Return which rows a chunk has."""


def chunk_count(n: int) -> int:
    """Number of chunks of `n` rows."""
    return -(-n // CHUNK)


def chunk_slice(number: int, n: int) -> slice:
    """Rows of chunk `number` of `n` rows."""
    return slice(number * CHUNK, min((number + 1) * CHUNK, n))


@dataclass(frozen=True, eq=False)
class Columns:
    """Inputs of N rows, encoded y (N,), weights, prior means and scales (N,) if there are any.

    Labels of one byte each are enough for y.
    """

    X: Any
    y: Array
    weights: Array | None = None
    prior: Array | None = None
    scale: Array | None = None

    @property
    def n(self) -> int:
        return len(self.y)

    @property
    def chunks(self) -> int:
        return chunk_count(self.n)

    def others(self, some: slice | NDArray[np.intp]) -> Others:
        """y, weights, prior means and scales of some rows."""
        columns = self.weights, self.prior, self.scale
        weights, prior, scale = (None if a is None else a[some] for a in columns)
        return np.asarray(self.y[some], dtype=float), weights, prior, scale

    def slice(self, number: int) -> slice:
        return chunk_slice(number, self.n)


@restorable("rows-in-memory/1")
class Held(Columns):
    """Rows that are arrays of this process; X has shape (N, d)."""

    def piece(self, number: int) -> Chunk:
        some = self.slice(number)
        # Scaled columns may be in Fortran's order, which travel in another, and round otherwise.
        return Chunk(np.ascontiguousarray(self.X[some]), *self.others(some))

    def read(self, number: int) -> Chunk:
        return self.piece(number)

    def some(self, numbers: NDArray[np.intp]) -> Chunk:
        return Chunk(np.ascontiguousarray(self.X[numbers]), *self.others(numbers))


# --- Rows stored elsewhere: zarr, HDF5, memory maps, dask arrays and data frames
#
# Observations, weights and prior means are held, 8 bytes a row each; inputs are read chunk by
# chunk, by whoever computes the chunk. Nothing here imports the libraries that made them.


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
) -> ChunkedRows:
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
class UnreadChunk:
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
        return UnreadChunk, (self.X, self.some, self.first, *others)


class Lazy(Columns):
    """Rows of inputs X (N, d) that are sliced chunk by chunk."""

    @cached_property
    def home(self) -> Any:
        """Client of the cluster that holds the inputs, if one does."""
        return _home(self.X, "X")

    def piece(self, number: int) -> UnreadChunk:
        some = self.slice(number)
        if hasattr(self.X, "__dask_graph__"):
            part = self.X[some]
            if self.home is None:
                part = _culled(part)  # only this chunk's part of the graph travels
            return UnreadChunk(part, slice(None), some.start, *self.others(some), self.home)
        return UnreadChunk(self.X, some, some.start, *self.others(some))

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
