"""Write a table as a zarr v3 group: made beside its place, and given its name when it is whole.

`qpruntime.table_format.zarr_layout` says what is in the files; equal tables give equal files.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
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
    digest = hashlib.sha256()
    little = np.dtype(metadata.dtype).newbyteorder("<")
    for name, part in _parts(data, table.values.astype(little, copy=False).reshape(-1)):
        digest.update(part.data)
        write_file(directory / name, _chunk(data, part))
    if digest.hexdigest() != metadata.sha256:
        raise TableError(
            f"{table.path}: data hash is {digest.hexdigest()[:16]}..., metadata says "
            f"{metadata.sha256[:16]}...; the file is damaged and is not exported"
        )
    for coordinate in coordinates:
        for name, part in _parts(coordinate, coordinate.values()):
            write_file(directory / name, _chunk(coordinate, part))
    for name, content in documents(metadata.to_json(), metadata).items():
        write_file(directory / name, content)
    for folder, _, _ in os.walk(directory):
        sync(Path(folder))


def _parts(array: Stored, values: NDArray[Any]) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the name and the values of every chunk."""
    for name, start, size in array.chunks():
        yield name, values[start // array.itemsize : (start + size) // array.itemsize]


def _chunk(array: Stored, part: NDArray[Any]) -> bytes:
    """Return the content of a chunk's file: padded, compressed, with its checksum."""
    from google_crc32c import value as crc32c
    from numcodecs.blosc import SHUFFLE, compress

    whole = np.zeros(array.chunk_nbytes // array.itemsize, dtype=part.dtype.newbyteorder("<"))
    whole[: part.size] = part
    packed = compress(whole, CNAME.encode(), LEVEL, SHUFFLE, 0)
    return bytes(packed) + int(crc32c(packed)).to_bytes(4, "little")


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
