"""Rows that are read in parts: zarr, HDF5 and memory maps, dask arrays and data frames.

Workers that compute a chunk read its inputs. This module does not import the storage libraries.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeGuard, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qpruntime._typing import Array
from qpruntime._validation import finite, real
from qpruntime.errors import InputError

if TYPE_CHECKING:
    from dask.array import Array as DaskArray
    from distributed import Client
    from zarr import Array as ZarrArray
    from zarr.storage import StorePath

__all__ = [
    "CHUNK",
    "InputRows",
    "LazyInputs",
    "as_array",
    "chunk_count",
    "chunk_slice",
    "client_of",
    "inputs_of",
    "is_dask",
    "is_lazy",
    "known_chunks",
    "mapped",
    "read",
    "read_block",
    "sample",
    "taken",
]

Given = TypeVar("Given")


class LazyInputs(Protocol):
    """Inputs (N, d) that are read in parts: zarr, HDF5, a memory map, or a dask array."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Numbers of rows and columns."""

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Type of the numbers."""

    def __getitem__(self, rows: slice, /) -> Array:
        """Read a block of rows."""


#: Inputs of N rows as `inputs_of` returns them.
InputRows: TypeAlias = Array | LazyInputs


def is_dask(X: object) -> TypeGuard[DaskArray]:
    """Decide whether inputs are a collection of dask."""
    return hasattr(X, "__dask_graph__")


def is_lazy(X: object) -> TypeGuard[LazyInputs]:
    """Decide whether inputs are read in parts, being neither an array in memory nor a list."""
    if isinstance(X, np.memmap) or is_dask(X):
        return True
    plain = isinstance(X, np.ndarray) or hasattr(X, "__array_interface__")
    return not plain and all(hasattr(X, name) for name in ("shape", "dtype", "chunks"))


def known_chunks(X: Given, name: str) -> Given:
    """Return a dask collection as an array of known shape, and anything else unchanged.

    Raises
    ------
    InputError
        If a column is not numeric, or computing fails.
    """
    if not is_dask(X):
        return X
    client = client_of(X, name)
    with nullcontext() if client is None else client.as_current():
        array: DaskArray = X.to_dask_array(lengths=True) if hasattr(X, "to_dask_array") else X
        if any(math.isnan(size) for size in array.shape):
            # The copy protects the caller's array, because this sets the sizes in place.
            array = array.copy()
            array.compute_chunk_sizes()
    if array.dtype.kind not in "fiub":
        raise InputError(f"{name} must have real numbers in all columns, got dtype {array.dtype}")
    return cast("Given", array)


def client_of(X: object, name: str) -> Client | None:
    """Return the dask client of the cluster where a collection was persisted, None for others."""
    distributed = sys.modules.get("distributed")
    if distributed is None or not is_dask(X):
        return None
    futures = distributed.client.futures_of(X)
    if any(future.cancelled() for future in futures):
        raise InputError(f"{name} was persisted on a cluster that lost it: persist it anew")
    return futures[0].client if futures else None


def as_array(value: ArrayLike, name: str) -> ArrayLike:
    """Return a lazy column as an array in memory, and anything else unchanged."""
    if is_dask(value):
        return np.asarray(value.compute(scheduler=client_of(value, name)))
    return taken(value, slice(None), name) if is_lazy(value) else value


def inputs_of(X: ArrayLike | LazyInputs, name: str) -> InputRows:
    """Return checked inputs (rows, columns): finite C-ordered arrays, or lazy inputs unchanged.

    Raises
    ------
    InputError
        If they are not usable.
    """
    X = known_chunks(X, name)
    inputs: InputRows = X if is_lazy(X) else finite(X, name)
    if len(inputs.shape) != 2 or 0 in inputs.shape:
        raise InputError(f"{name} must have shape (rows, columns), got {tuple(inputs.shape)}")
    return inputs if is_lazy(inputs) else np.ascontiguousarray(inputs)


# --- Inputs transformed as they are read


def mapped(X: LazyInputs, function: Callable[[Array], Array], columns: int) -> LazyInputs:
    """Return ``function(X)``, which is as lazy as X.

    Parameters
    ----------
    X : LazyInputs, shape (N, d)
    function : callable
        Maps rows (n, d) to rows (n, columns), each row separately.
    columns : int
    """
    if not is_dask(X):
        return _TransformedInputs(X, function, columns)
    whole = X if X.numblocks[1] == 1 else X.rechunk({1: -1})
    shape = whole.chunks[0], (columns,)
    # dask is not followed by mypy, here and below.
    mapped_rows = whole.map_blocks(function, chunks=shape, dtype=float, meta=np.empty((0, 0)))
    return cast("LazyInputs", mapped_rows)


@dataclass(frozen=True, eq=False)
class _TransformedInputs:
    """Lazy inputs that are transformed when they are sliced."""

    X: LazyInputs
    function: Callable[[Array], Array]
    columns: int

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns."""
        return int(self.X.shape[0]), self.columns

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Type of the numbers."""
        return np.dtype(float)

    @property
    def chunks(self) -> object:
        """Chunks of the inputs; having them makes inputs lazy."""
        return getattr(self.X, "chunks", None)

    def __getitem__(self, block: slice) -> Array:
        return self.function(np.asarray(taken(self.X, block), dtype=float))


# --- Slices of chunked arrays
#
# zarr reads an absent chunk as its fill value, mostly zero. It does not write chunks that hold only
# that value, and cannot tell them from lost chunks. The functions below refuse absent chunks,
# unless the attribute ``missing_chunks`` of the array is ``"fill_value"``.

_MISSING_CHUNKS_ATTRIBUTE, _MISSING_CHUNKS_ALLOWED = "missing_chunks", "fill_value"
_Place = tuple[tuple[int, ...], tuple[slice, ...]]


def taken(X: InputRows, block: slice, name: str = "X") -> Array:
    """Return ``X[block]``, which stays lazy for a dask array.

    Raises
    ------
    InputError
        If it cannot be read, or chunks of a zarr array are missing; the message names them.
    """
    if is_dask(X):
        return cast("Array", X[block])
    try:
        part = X[block]
    except (InputError, MemoryError):
        raise
    except Exception as error:  # the storage library may raise anything
        first, last, _ = block.indices(int(X.shape[0]))
        where = _unreadable(X, block)
        raise InputError(
            f"{name}[{first}:{last}] cannot be read{where}: {str(error) or type(error).__name__}; "
            "copy or write the data again"
        ) from error
    if _is_zarr(X):
        _refuse_missing(X, block, part, name)
    return part


def _is_zarr(X: object) -> TypeGuard[ZarrArray]:
    ours = type(X).__module__.split(".")[0] == "zarr"
    return ours and hasattr(X, "store_path") and hasattr(X, "metadata")


def _places(X: ZarrArray, block: slice) -> Iterator[_Place]:
    """Yield the number of every stored chunk that meets these rows, and its place in X."""
    ends = [block.indices(X.shape[0])[:2], *((0, n) for n in X.shape[1:])]
    axes = [
        [
            (k, slice(max(k * size, low), min((k + 1) * size, high)))
            for k in range(low // size, -(-high // size))
        ]
        for (low, high), size in zip(ends, X.shards or X.chunks, strict=True)
    ]
    for place in itertools.product(*axes):
        yield tuple(k for k, _ in place), tuple(part for _, part in place)


def _path(X: ZarrArray, number: tuple[int, ...]) -> StorePath:
    return X.store_path / X.metadata.encode_chunk_key(number)


def _unreadable(X: InputRows, block: slice) -> str:
    """Return words that name the unreadable chunk of a zarr array."""
    if _is_zarr(X):
        for number, place in _places(X, block):
            try:
                X[place]
            except Exception:  # the error that the caller met
                return f": chunk {_path(X, number)} is damaged"
    return ""


def _refuse_missing(X: ZarrArray, block: slice, part: Array, name: str) -> None:
    """Raise `InputError` if a chunk is missing; only chunks of the fill value can be."""
    first = block.indices(X.shape[0])[0]
    fill, values = X.fill_value, np.asarray(part)
    if fill is None or X.attrs.get(_MISSING_CHUNKS_ATTRIBUTE) == _MISSING_CHUNKS_ALLOWED:
        return
    for number, (rows, *others) in _places(X, block):
        stored = values[(slice(rows.start - first, rows.stop - first), *others)]
        if (
            stored.size
            and _equals_fill(stored[(0,) * stored.ndim], fill)
            and _equals_fill(stored, fill).all()
        ):
            path = _path(X, number)
            if _is_absent(path):
                raise InputError(
                    f"{name}[{rows.start}:{rows.stop}]: chunk {path} is missing, and zarr takes it "
                    f"for {fill}; copy it again, or, if that was never written because it holds "
                    f'nothing else, say so: array.attrs["{_MISSING_CHUNKS_ATTRIBUTE}"] = '
                    f'"{_MISSING_CHUNKS_ALLOWED}"'
                )


def _is_absent(path: StorePath) -> bool:
    """Decide whether a chunk is absent or empty, which zarr treats alike."""
    from zarr.core.sync import sync

    try:
        return not sync(path.store.getsize(path.path))
    except FileNotFoundError:
        return True


def _equals_fill(values: Array, fill: float) -> NDArray[np.bool_]:
    """Return where values equal the fill value, which may be NaN."""
    return np.isnan(values) if fill != fill else np.asarray(values == fill)


# --- Reading

#: Number of rows in a chunk, the same for all storage, so that sums over chunks have the same bits.
#: Smaller chunks for samples would occupy a second core, but cost more than that gains.
CHUNK = 32_768


def chunk_count(n: int) -> int:
    """Return the number of chunks of `n` rows."""
    return -(-n // CHUNK)


def chunk_slice(number: int, n: int) -> slice:
    """Return the rows of chunk `number` of `n` rows."""
    return slice(number * CHUNK, min((number + 1) * CHUNK, n))


def read_block(X: InputRows, block: slice, first: int, home: Client | None = None) -> Array:
    """Read a slice of inputs as finite float64; `first` numbers its rows in messages."""
    part = taken(X, block)
    shape = part.shape
    if is_dask(part):
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


def read(X: InputRows, block: slice) -> Array:
    """Return a slice of inputs of any kind; `InputError` if it is not finite."""
    return read_block(X, block, block.start, client_of(X, "X"))


def sample(X: InputRows, rows: ArrayLike) -> Array:
    """Return selected rows of inputs of any kind, read chunk by chunk, in ascending order."""
    wanted = np.sort(np.asarray(rows))
    n, parts, home = int(X.shape[0]), [], client_of(X, "X")
    for number in range(chunk_count(n)):
        block = chunk_slice(number, n)
        chunk_rows = wanted[(wanted >= block.start) & (wanted < block.stop)]
        if chunk_rows.size:
            parts.append(read_block(X, block, block.start, home)[chunk_rows - block.start])
    return np.concatenate(parts)
