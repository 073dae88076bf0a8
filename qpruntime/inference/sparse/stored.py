"""Slices of arrays that are stored in chunks, where a chunk may be damaged or missing.

zarr takes a chunk that is not there for its fill value, mostly zero: it does not write chunks that
hold nothing else, and cannot tell them from chunks that were lost. Here they are refused, unless
the attribute ``missing_chunks`` of the array is ``"fill_value"``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from qpruntime.errors import InputError

__all__ = ["taken"]

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
