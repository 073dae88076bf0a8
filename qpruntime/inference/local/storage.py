"""Arrays in temporary memory-mapped files, for rows that do not fit into memory.

A file is deleted as soon as it is open, so that the system frees it when nothing maps it any more,
however the process ends. It is in the folder for temporary files, which the variable TMPDIR names.
"""

from __future__ import annotations

import mmap
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from qpruntime._typing import Array
from qpruntime.dataframes.lazy_rows import CHUNK
from qpruntime.errors import InputError
from qpruntime.inference.sparse.rows import ChunkedRows, Lazy

__all__ = [
    "blocks",
    "forget",
    "held_inputs",
    "in_parts",
    "joined_inputs",
    "mapped",
    "on_disk",
    "room",
    "taken",
]

# Free space to leave on the disk, in bytes.
_FREE_BYTES = 2**26


class _MappedArray(np.memmap[Any, Any]):
    """Array in a file of this module, unlike arrays of users."""


def on_disk(X: object) -> bool:
    """Decide whether an array is in a file of this module."""
    return isinstance(X, _MappedArray) and getattr(X, "_mmap", None) is not None


def room(shape: tuple[int, ...], dtype: DTypeLike, disk: bool) -> Array:
    """Return an array to be filled, in memory or on disk.

    Raises
    ------
    InputError
        If the disk has no room for it.
    """
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if not (disk and size):
        return np.empty(shape, dtype)
    folder = tempfile.gettempdir()
    why = f"{size / 1e9:.3g} GB for the nearest rows of a point are to go to {folder}"
    remedy = "let TMPDIR name a folder with room, raise memory=, or take nearest=0"
    free = shutil.disk_usage(folder).free
    if size + _FREE_BYTES > free:
        raise InputError(f"{why}, which has {free / 1e9:.3g} GB left: {remedy}")
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return _MappedArray(file, dtype, "w+", shape=shape)
    except OSError as error:
        raise InputError(f"{why}, which fails ({error.strerror or error}): {remedy}") from error


def forget(X: object) -> None:
    """Free the memory of the pages of a file, which are read again when needed."""
    if on_disk(X) and hasattr(mmap, "MADV_DONTNEED"):
        getattr(X, "_mmap").madvise(mmap.MADV_DONTNEED)  # noqa: B009  unknown to NumPy's stubs


def blocks(n: int) -> Iterator[slice]:
    """Yield slices of at most `CHUNK` of n rows."""
    return (slice(start, min(start + CHUNK, n)) for start in range(0, n, CHUNK))


def held_inputs(rows: ChunkedRows, memory: float) -> Array:
    """Return the inputs of rows as an array in memory, or in a file if they exceed `memory`."""
    inputs: Any = rows.X  # type: ignore[attr-defined]
    if not isinstance(rows, Lazy):
        return np.ascontiguousarray(inputs)
    shape = rows.n, int(inputs.shape[1])
    stored = room(shape, float, 8.0 * shape[0] * shape[1] > memory)
    for number in range(rows.chunks):
        stored[rows.slice(number)] = rows.read(number).X
    forget(stored)
    return stored


def in_parts(function: Callable[[Array], Array], X: Array) -> Array:
    """Return a number for each row of X, reading X in blocks."""
    values = np.concatenate([function(np.asarray(X[block])) for block in blocks(len(X))])
    forget(X)
    return values


def mapped(X: Array, function: Callable[[Array], Array]) -> Array:
    """Return a function of the rows of X, in a file if X is in one."""
    width = function(np.asarray(X[:1])).shape[1]
    out = room((len(X), width), float, on_disk(X))
    for block in blocks(len(X)):
        out[block] = function(np.asarray(X[block]))
    forget(out)
    return out


def joined_inputs(first: Array, second: Array) -> Array:
    """Return the rows of two arrays together, in a file if the first are in one."""
    if not on_disk(first):
        return np.concatenate([first, second])
    out = room((len(first) + len(second), first.shape[1]), float, True)
    for block in blocks(len(first)):
        out[block] = first[block]
    out[len(first) :] = second
    forget(out)
    return out


def taken(X: Array, rows: NDArray[np.intp]) -> Array:
    """Return rows of X in this order, in a file if X is in one; X itself if nothing changes."""
    if len(rows) == len(X) and (rows == np.arange(len(X))).all():
        return X
    out = room((len(rows), X.shape[1]), float, on_disk(X))
    for block in blocks(len(rows)):
        out[block] = X[rows[block]]
    forget(out)
    forget(X)
    return out
