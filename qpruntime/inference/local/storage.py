"""Rows in files of their own where memory is short: mapped, without a name, gone with their arrays.

A file loses its name as soon as it is open: the system takes it back when nothing maps it any
more, however the process ends. It lies in the folder for temporary files, which the variable
TMPDIR names.
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
from qpruntime.errors import InputError
from qpruntime.inference.sparse.data import CHUNK, ChunkedRows, Lazy

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

# What may be left on the disk when a file has been written.
_SPARE = 2**26


class _MappedArray(np.memmap[Any, Any]):
    """An array of this module, which those of users are not."""


def on_disk(X: Any) -> bool:
    """Whether an array is in a file of this module."""
    return isinstance(X, _MappedArray) and getattr(X, "_mmap", None) is not None


def room(shape: tuple[int, ...], dtype: DTypeLike, disk: bool) -> Any:
    """Return an array to be filled, on the disk or not.

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
    if size + _SPARE > free:
        raise InputError(f"{why}, which has {free / 1e9:.3g} GB left: {remedy}")
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return _MappedArray(file, dtype, "w+", shape=shape)
    except OSError as error:
        raise InputError(f"{why}, which fails ({error.strerror or error}): {remedy}") from error


def forget(X: Any) -> None:
    """Give back the memory of what was read or written of a file; it is read again when needed."""
    if on_disk(X) and hasattr(mmap, "MADV_DONTNEED"):
        X._mmap.madvise(mmap.MADV_DONTNEED)


def blocks(n: int) -> Iterator[slice]:
    """Yield slices of at most `CHUNK` of n rows."""
    return (slice(start, min(start + CHUNK, n)) for start in range(0, n, CHUNK))


def held_inputs(rows: ChunkedRows, memory: float) -> Array:
    """Return the inputs of rows: as they are, read, or where that takes too much in a file."""
    inputs: Any = rows.X  # type: ignore[attr-defined]
    if not isinstance(rows, Lazy):
        return np.ascontiguousarray(inputs)
    shape = rows.n, int(inputs.shape[1])
    found = room(shape, float, 8.0 * shape[0] * shape[1] > memory)
    for number in range(rows.chunks):
        found[rows.slice(number)] = rows.read(number).X
    forget(found)
    return found


def in_parts(function: Callable[[Array], Array], X: Array) -> Array:
    """Return a number for each row of X, which is read in parts."""
    found = np.concatenate([function(np.asarray(X[some])) for some in blocks(len(X))])
    forget(X)
    return found


def mapped(X: Array, function: Callable[[Array], Array]) -> Array:
    """Return a function of rows of X, in a file if X is."""
    width = function(np.asarray(X[:1])).shape[1]
    found = room((len(X), width), float, on_disk(X))
    for some in blocks(len(X)):
        found[some] = function(np.asarray(X[some]))
    forget(found)
    return found


def joined_inputs(one: Array, two: Array) -> Array:
    """Return the rows of both, in a file if the first are."""
    if not on_disk(one):
        return np.concatenate([one, two])
    found = room((len(one) + len(two), one.shape[1]), float, True)
    for some in blocks(len(one)):
        found[some] = one[some]
    found[len(one) :] = two
    forget(found)
    return found


def taken(X: Array, rows: NDArray[np.intp]) -> Array:
    """Return rows of X in this order, in a file if X is; X itself if that is all of it as it is."""
    if len(rows) == len(X) and (rows == np.arange(len(X))).all():
        return X
    found = room((len(rows), X.shape[1]), float, on_disk(X))
    for some in blocks(len(rows)):
        found[some] = X[rows[some]]
    forget(found)
    forget(X)
    return found
