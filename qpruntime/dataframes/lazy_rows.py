"""Rows as users pass them: tables, or rows read in parts, as of zarr, HDF5, memory maps and dask.

Workers that compute a chunk read its inputs. This module does not import the storage libraries.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeGuard, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qpruntime._typing import Array
from qpruntime._validation import finite, floats, no_text, real, unmasked
from qpruntime.dataframes.encoding import EncodedTable
from qpruntime.dataframes.readers import Column, Frame, columns_of, is_frame, of_array
from qpruntime.errors import InputError

if TYPE_CHECKING:
    from dask.array import Array as DaskArray
    from distributed import Client
    from zarr import Array as ZarrArray
    from zarr.storage import StorePath

__all__ = [
    "CHUNK",
    "FeatureRows",
    "InputRows",
    "LazyInputs",
    "as_array",
    "chunk_count",
    "chunk_slice",
    "client_of",
    "inputs_of",
    "is_dask",
    "is_lazy",
    "mapped",
    "read",
    "read_block",
    "read_rows",
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


# The median of a column is taken over at most this many evenly spaced rows.
_MEDIAN_ROWS = 20_000


@dataclass(frozen=True)
class FeatureRows:
    """Rows of features as they were read.

    Attributes
    ----------
    source : Frame
        The rows as scikit-learn can validate them: masked entries are missing values.
    table : EncodedTable or None
        Levels and medians of columns; None for rows that are read in parts.
    columns : list of Column or None
        Columns that `points` encodes; None if scikit-learn reads `source` just as well.
    stored : LazyInputs or None
        The rows, if they are read in parts.
    learnt : bool
        True if the table is that of these rows.
    """

    source: Frame
    table: EncodedTable | None = None
    columns: list[Column] | None = None
    stored: LazyInputs | None = None
    learnt: bool = False

    def points(self) -> Array | None:
        """Return the rows as numbers, shape (N, d + gaps); None if there are no columns."""
        if self.columns is None or self.table is None:
            return None
        return self.table.matrix(self.columns, silent=self.learnt)


def read_rows(
    X: Frame,
    known: EncodedTable | None = None,
    *,
    learn: bool = False,
    sample_weight: ArrayLike | None = None,
    most: float = math.inf,
) -> FeatureRows:
    """Read rows of features.

    Parameters
    ----------
    X : Frame, shape (N, d)
        An array, a data frame, or rows that can be read in parts: zarr, memory maps, dask.
    known : EncodedTable, optional
        Encoding of the rows of a fit.
    learn : bool
        Learn the encoding from these rows, instead of reading them by `known`.
    sample_weight : array-like, shape (N,), optional
        The encoding is learnt from rows of a weight above 0.
    most : float
        Rows that can be read in parts are read in parts if there are more than so many.

    Raises
    ------
    InputError
        If a column cannot be read.
    """
    if hasattr(X, "toarray"):  # a sparse matrix, which scikit-learn refuses
        return FeatureRows(X)
    if is_lazy(X):
        if most < math.inf:
            rows = known_chunks(X, "X")
            if len(rows.shape) != 2 or rows.shape[0] > most:
                return FeatureRows(X, stored=inputs_of(rows, "X"))
        X = _in_memory(X)
    X = unmasked(X, "X", missing=True)
    counted = _counted(sample_weight, X) if learn else None
    columns = _columns(X, known)
    if columns is None:
        no_text(X, "X")
        return FeatureRows(X, _medians(X, counted) if learn else known)
    weighted = columns if counted is None else [column.take(counted) for column in columns]
    table = EncodedTable.of(weighted) if learn else known
    if table is None:
        raise InputError(
            "the fit was to rows that were read in parts: give numbers without missing values"
        )
    first = weighted[0]
    if len(weighted) == 1 and first.numbers is not None and np.isnan(first.numbers).any():
        raise InputError(
            f"column {first.name} is the only one, so it has the times of a series, and it has "
            "missing values (NaN): leave these rows out"
        )
    return FeatureRows(X, table, columns, learnt=learn)


def _in_memory(X: Any) -> NDArray[Any]:
    """Return rows that could be read in parts as an array."""
    try:
        return np.asarray(as_array(X, "X"))
    except (TypeError, ValueError):
        raise
    except Exception as error:  # whatever storage and clusters raise
        raise InputError(f"the data cannot be read: {error}") from error


def _columns(X: Frame, known: EncodedTable | None) -> list[Column] | None:
    """Return the columns of a table; None if scikit-learn reads it just as well."""
    mixed = known is not None and not known.plain
    if is_frame(X):
        return None if not mixed and _numeric(X) else columns_of(X)
    array = X
    if not isinstance(X, np.ndarray):
        try:
            array = np.asarray(X)
        except Exception:  # what is no array is for validators to complain of
            return None
    if array.ndim != 2 or array.dtype.kind not in "biufO" or 0 in array.shape:
        return None
    if array.dtype.kind == "O" and not mixed and not _has_gaps(array):
        return None
    if array.dtype.kind == "f" and not mixed and np.isfinite(array).all():
        return None
    if array.dtype.kind in "biu" and not mixed:
        return None
    return of_array(array, [str(k) for k in range(array.shape[1])])


def _numeric(X: Frame) -> bool:
    """Decide whether a data frame has numbers of numpy alone, all of them finite."""
    dtypes = getattr(X, "dtypes", None)
    kinds = [d.kind if isinstance(d, np.dtype) else "" for d in getattr(dtypes, "values", [""])]
    numbers = all(kind and kind in "biuf" for kind in kinds)
    return numbers and bool(np.isfinite(X.to_numpy(dtype=float)).all())


def _has_gaps(array: NDArray[Any]) -> bool:
    """Decide whether a matrix of objects has missing entries, and no text."""
    if any(isinstance(entry, (str, bytes)) for entry in array.flat):
        return False
    return any(
        entry is None
        or type(entry).__name__ == "NAType"
        or (isinstance(entry, float) and entry != entry)
        for entry in array.flat
    )


def _counted(sample_weight: ArrayLike | None, X: Frame) -> NDArray[np.intp] | None:
    """Return the rows of a weight above 0; None for all, and for what are no weights of rows."""
    if sample_weight is None:
        return None
    try:
        weights = floats(sample_weight)
    except TypeError:  # of which `weighed` complains
        return None
    rows = len(X) if hasattr(X, "__len__") else len(np.asarray(X))
    if weights.shape != (rows,) or not (weights > 0.0).any() or (weights > 0.0).all():
        return None
    return np.flatnonzero(weights > 0.0)


def _medians(X: Frame, counted: NDArray[np.intp] | None) -> EncodedTable | None:
    """Return the medians that replace missing numbers in later rows."""
    try:
        numbers = X.to_numpy() if hasattr(X, "to_numpy") else np.asarray(X)
        if counted is not None:
            numbers = numbers[counted]
        numbers = np.asarray(numbers[:: len(numbers) // _MEDIAN_ROWS + 1], dtype=float)
        return EncodedTable.of(of_array(numbers, [str(k) for k in range(numbers.shape[1])]))
    except Exception:  # no matrix of numbers, of which validators complain
        return None
