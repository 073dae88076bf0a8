"""Write a table as a zarr v3 group: made beside its place, and given its name when it is whole.

`qpruntime.table_format.zarr_layout` says what is in the files; equal tables give equal files.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qpruntime.errors import TableError
from qpruntime.projection.table import Table
from qpruntime.table_format.zarr import read_metadata
from qpruntime.table_format.zarr_layout import CNAME, LEVEL, Stored, arrays, documents

__all__ = ["check_replaceable", "publish", "sync", "write"]


def write(table: Table, directory: Path) -> None:
    """Write the files of a group into a new directory, and make them durable.

    Raises
    ------
    TableError
        If the data are not those the metadata were made for.
    """
    metadata = table.metadata
    data, *coordinates = arrays(metadata)
    little = np.dtype(metadata.dtype).newbyteorder("<")
    values = table.values.astype(little, copy=False).reshape(-1)
    digest = _write_chunks(data, values, directory)
    if digest != metadata.sha256:
        raise TableError(
            f"{table.path}: data hash is {digest[:16]}..., metadata says "
            f"{metadata.sha256[:16]}...; the file is damaged and is not exported"
        )
    for coordinate in coordinates:
        _write_chunks(coordinate, coordinate.values(), directory)
    for name, content in documents(metadata.to_json(), metadata).items():
        write_file(directory / name, content)
    for folder, _, _ in os.walk(directory):
        sync(Path(folder))


def _write_chunks(array: Stored, values: NDArray[Any], directory: Path) -> str:
    """Write every chunk, padded and compressed, with a checksum; return the hash of the values."""
    from google_crc32c import value as crc32c
    from numcodecs.blosc import SHUFFLE, compress

    digest = hashlib.sha256()
    for name, start, size in array.chunks():
        part = values[start // array.itemsize : (start + size) // array.itemsize]
        digest.update(part.data)
        whole = np.zeros(array.chunk_nbytes // array.itemsize, dtype=part.dtype.newbyteorder("<"))
        whole[: part.size] = part
        packed = compress(whole, CNAME.encode(), LEVEL, SHUFFLE, 0)
        checksum = int(crc32c(packed)).to_bytes(4, "little")
        write_file(directory / name, bytes(packed) + checksum)
    return digest.hexdigest()


def write_file(path: Path, content: bytes) -> None:
    """Write one file of a group; its folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path) -> None:
    """Make a file or a folder durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_replaceable(target: Path) -> None:
    """Raise `TableError` if this is a directory that holds anything but a table."""
    if target.is_dir() and any(target.iterdir()):
        try:
            read_metadata(target)
        except TableError as error:
            raise TableError(
                f"{target} is a directory that is no table of tablegen's, and is not replaced; "
                "remove it yourself, or choose another --output"
            ) from error


def publish(table: Table, target: Path, work: Path) -> None:
    """Write a table as a group in the directory `work`, and give that its name.

    The previous table of that name waits in the working directory until the new one has the name.
    Neither has it for a moment; if the process is killed then, the same command resumes.
    """
    fresh, old = work / "table.zarr", work / "old"
    for leftover in (fresh, old):
        shutil.rmtree(leftover, ignore_errors=True)
    write(table, fresh)
    if target.exists():
        check_replaceable(target)
        target.rename(old)
    fresh.rename(target)
    sync(target.parent)
