"""Write, seal and rename the finished table: one HDF5 file, one contiguous dataset, no timestamps.

h5py makes the header, so that the data can be streamed to a known offset and mapped while it is
being certified; the metadata come last, and behind them the `qpruntime.table_format.container`.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from qpruntime._typing import Array
from qpruntime.errors import TableError
from qpruntime.execution import fingerprint
from qpruntime.projection.open import open_table
from qpruntime.table_format.container import LIMIT, Seal
from qpruntime.table_format.metadata import DATASET, Metadata
from tablegen.files import zarr as zarr_files
from tablegen.files.target import check_kind
from tablegen.files.workspace import Workspace

__all__ = [
    *("create_file", "finish", "left_over", "map_file", "publish", "publish_from", "seal"),
    *("write_data", "write_metadata"),
]

#: Fixed, so that another HDF5 library writes the same header.
_FORMAT = ("earliest", "v110")


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Turn the ways in which HDF5 says that the disk is full into a plain `OSError`."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        code = re.search(r"errno = (\d+)", str(error))
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1]))) from error


def create_file(path: Path, document: Metadata) -> int:
    """Create the file with its dataset allocated but not written; return the data's offset."""
    layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    layout.set_layout(h5py.h5d.CONTIGUOUS)
    layout.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    layout.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    layout.set_obj_track_times(False)
    dtype = h5py.h5t.py_create(np.dtype(document.dtype).newbyteorder("<"))
    space = h5py.h5s.create_simple(document.shape)
    with _plain_errors(), h5py.File(path, "w", libver=_FORMAT) as file:
        dataset = h5py.h5d.create(file.id, DATASET.encode(), dtype, space, dcpl=layout)
        return int(dataset.get_offset())


def map_file(path: Path, document: Metadata, offset: int) -> NDArray[Any]:
    """Map the data read-only, in their shape."""
    dtype = np.dtype(document.dtype).newbyteorder("<")
    return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=document.shape)


def write_metadata(path: Path, metadata: Metadata) -> None:
    """Add the metadata document to the file, and seal it."""
    with _plain_errors(), h5py.File(path, "r+", libver=_FORMAT) as file:
        file.attrs["metadata"] = metadata.to_json()
    seal(path)


def seal(path: Path) -> None:
    """Put a seal behind the one dataset and the metadata of an HDF5 file.

    Raises `TableError` if the dataset is not contiguous, or there is too much besides it.
    """
    with _plain_errors(), h5py.File(path, "r") as file:
        dataset, text = file[DATASET], file.attrs["metadata"].encode()
        start, nbytes = dataset.id.get_offset(), dataset.nbytes
    if start is None:
        raise TableError(f"{path}: the dataset is not one contiguous block")
    with path.open("r+b") as file:
        before = file.read(start)
        file.seek(start + nbytes)
        after = file.read(LIMIT + 1)
        if len(before) + len(after) > LIMIT:
            raise TableError(f"{path}: more than {LIMIT} bytes besides the data")
        position = after.find(text)
        position = before.find(text) if position < 0 else start + nbytes + position
        file.write(Seal(start, nbytes, position, len(text)).pack(before, after))


def write_data(path: Path, document: Metadata, parts: Iterable[NDArray[Any]]) -> tuple[str, int]:
    """Write the dataset part by part; return the hash of its bytes, and their offset."""
    offset, digest = create_file(path, document), hashlib.sha256()
    with path.open("r+b") as file:
        file.seek(offset)
        for part in parts:
            digest.update(part.data)
            file.write(part.data)
    return digest.hexdigest(), offset


def publish(path: Path, target: Path) -> None:
    """Make the file durable, then give it its name in one step; ``.zarr`` is made a group of."""
    if target.suffix == ".zarr":
        zarr_files.publish(open_table(path, verify=False), target, path.parent)
        return
    zarr_files.sync(path)
    check_kind(target)
    path.replace(target)
    zarr_files.sync(target.parent)


# --- The last step of a build


def finish(
    workspace: Workspace,
    document: Metadata,
    values: Array,
    certificate: dict[str, Any],
    tolerance: float,
) -> Metadata:
    """Publish a table that is in memory; return its metadata, hash and certificate included."""
    certificate |= {"tolerance": tolerance, "arithmetic": fingerprint.arithmetic()}
    digest, _ = write_data(workspace.partial, document, [values.astype("<f8", copy=False)])
    return publish_from(workspace, replace(document, sha256=digest, certificate=certificate))


def publish_from(workspace: Workspace, metadata: Metadata) -> Metadata:
    """Seal the file of a locked workspace, and give it the name of the target."""
    write_metadata(workspace.partial, metadata)
    workspace.check()
    publish(workspace.partial, workspace.target)
    workspace.remove()
    return metadata


def left_over(workspace: Workspace, expected: Callable[[Metadata], Metadata | None]) -> Metadata:
    """Return the metadata of a table whose build was killed between rename and cleaning up.

    Raises `TableError` if the target is no table, or another than `expected`, a `Recipe`'s, says.
    """
    refused = f"{workspace.target} exists; replace it with --force"
    try:
        metadata = open_table(workspace.target).metadata
    except TableError as error:
        raise TableError(refused) from error
    if replace(metadata, sha256="", certificate={}) != expected(metadata):
        raise TableError(refused)
    workspace.remove()
    return metadata
