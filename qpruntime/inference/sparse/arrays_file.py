"""Arrays by name in one file, in NumPy's format and sealed: what was not written so is refused.

The seal is a hash of all names, types, shapes and numbers. It is against accidents: whoever wants
to deceive can compute it.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.whole_file import write_whole

__all__ = ["DamagedFile", "array_of", "read_arrays", "write_arrays"]

_SEAL = "seal"


class DamagedFile(ValueError):
    """A file is not what `write_arrays` writes; the message is a clause about the file."""


def write_arrays(path: str | os.PathLike[str], arrays: Mapping[str, Any]) -> None:
    """Write arrays; `InputError` if that cannot be done, and what was there is there still."""
    given: dict[str, Any] = {name: np.asarray(value) for name, value in arrays.items()}
    given[_SEAL] = np.array(_sealed(given))
    write_whole(path, lambda file: np.savez(file, **given))


def read_arrays(path: Path) -> dict[str, Any]:
    """Return the arrays of a file by name.

    Raises
    ------
    DamagedFile
        If the file is another one, or one of its bytes that mean anything was changed.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise DamagedFile("it is no file")
        found = _members(path)
    except DamagedFile:
        raise
    except Exception as error:  # whatever bytes make zipfile and NumPy raise
        words = str(error) or type(error).__name__
        raise DamagedFile(f"it cannot be read: {words}") from error
    seal = found.pop(_SEAL, None)
    if seal is None or str(seal) != _sealed(found):
        raise DamagedFile("its content was changed, or is not from this version")
    return found


def _members(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    size = path.stat().st_size
    with zipfile.ZipFile(path) as file:
        for member in file.infolist():
            # A small file does not become a large one in memory.
            if member.compress_type != zipfile.ZIP_STORED or member.file_size > size:
                raise DamagedFile("it is no file of plain arrays")
            name = member.filename.removesuffix(".npy")
            if name in found:
                raise DamagedFile(f"it has {name!r} twice")
            content = io.BytesIO(file.read(member))
            found[name] = np.lib.format.read_array(content, allow_pickle=False)
    return found


def _sealed(arrays: Mapping[str, Any]) -> str:
    found = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        found.update(f"{name} {array.dtype.str} {np.shape(arrays[name])} ".encode())
        found.update(array.tobytes())
    return found.hexdigest()


def array_of(found: Mapping[str, Any], name: str, *shape: int | None) -> Array:
    """Return an array of finite numbers of a file; None stands for any size.

    Raises
    ------
    DamagedFile
        If it is not there, or of another shape or kind.
    """
    array = found.get(name)
    if array is None:
        raise DamagedFile(f"it has no {name!r}")
    right = array.ndim == len(shape) and all(
        size is None or size == own for size, own in zip(shape, array.shape, strict=True)
    )
    if not right or array.dtype.kind != "f" or not np.isfinite(array).all():
        wanted = " x ".join("any" if size is None else str(size) for size in shape)
        raise DamagedFile(
            f"its {name!r} of shape {array.shape} and type {array.dtype} should be {wanted} finite "
            "numbers"
        )
    return np.asarray(array)
