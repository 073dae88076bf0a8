"""Read a table that is a zarr group, as one comes from an object store, and materialise it once.

A group is read file by file, never by the zarr library, whose codecs and stores do not exist for
it: its documents have to be what `zarr_layout` makes of the metadata in it, and its chunks go
through one checksum and one decompressor. A large grid goes decompressed into the user's cache,
under the hash of its data, and is mapped from there; smaller tables stay in memory.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
from numpy.typing import NDArray

from qpruntime._formatting import install_hint
from qpruntime.errors import TableError, warn
from qpruntime.table_format import container
from qpruntime.table_format.metadata import Metadata
from qpruntime.table_format.zarr_layout import ROOT, Stored, arrays, documents, seal

__all__ = [
    "cache_directory",
    "is_group",
    "read",
    "read_metadata",
]

#: Grids up to here are held in memory, larger ones mapped from the cache.
IN_MEMORY = 1 << 25
#: Largest table that is read into memory if no file can be kept; larger ones are refused.
MOST_IN_MEMORY = 1 << 30
#: Data may have so many times the bytes of their chunks: those of tables have at most some tens.
RATIO = 1000
# Overhead of a compressed chunk: blosc's header, and its block offsets for incompressible data.
_HEADER, _SLACK = struct.Struct("<4B3I"), 1 << 16
# Flags in blosc's header: our compressor, and a filter that we do not use.
_ZSTD, _BITSHUFFLE = 4, 4
_STALE = 3600.0
_REMEDY = "export or copy it again"


def cache_directory() -> Path:
    """Return where materialised tables are kept: ``$QP_CACHE``, else the user's cache directory.

    Files in it can be deleted at any time.
    """
    named = os.environ.get("QP_CACHE")
    return (Path(named) if named else Path(platformdirs.user_cache_dir("qpruntime"))) / "tables"


def is_group(path: Path) -> bool:
    """Decide whether this is a directory that can be read as a table."""
    return (path / ROOT).is_file()


def read_metadata(path: Path) -> Metadata:
    """Return the metadata of a group; every byte but those of the data's chunks is checked.

    Raises
    ------
    TableError
        If this is no table, or a byte was changed.
    """
    content = _content(path, ROOT, 2 * container.LIMIT)
    try:
        attributes = container.loads(content).get("attributes")
    except ValueError as error:
        raise TableError(f"{path / ROOT} is not plain JSON: {error}; {_REMEDY}") from error
    text = attributes.get("metadata") if isinstance(attributes, dict) else None
    if not isinstance(attributes, dict) or not isinstance(text, str):
        raise TableError(f"{path}: a zarr group without the metadata of a table")
    if attributes.get("seal") != seal(text):
        raise _changed(path / ROOT)
    metadata = Metadata.from_json(text, str(path))
    if metadata.nbytes >= 1 << 62 or not re.fullmatch("[0-9a-f]{64}", metadata.sha256):
        raise TableError(f"{path}: metadata field 'sha256' or 'axes' cannot be that of a table")
    for name, expected in documents(text, metadata).items():
        if _content(path, name, 2 * container.LIMIT) != expected:
            raise _changed(path / name)
    return metadata


def read(path: Path, *, verify: bool = False) -> tuple[Metadata, NDArray[Any]]:
    """Return metadata and data of a group; its hash is compared whenever chunks are read.

    Parameters
    ----------
    path : Path
    verify : bool
        Read the chunks also where the cache has their content.

    Returns
    -------
    metadata : Metadata
    values : ndarray, shape ``metadata.shape``
        Read-only.

    Raises
    ------
    TableError
        If anything is missing or was changed, or a package for decompression is missing.
    """
    metadata = read_metadata(path)
    data, *coordinates = arrays(metadata)
    stored = _stored(path, data)
    if data.nbytes > max(RATIO * stored, IN_MEMORY):
        raise TableError(
            f"{path}: {stored} bytes of chunks claim to hold {data.nbytes}, more than {RATIO} "
            "times as many: not a table of tablegen's"
        )
    for coordinate in coordinates:
        _check_coordinate(path, coordinate)

    dtype = np.dtype(metadata.dtype).newbyteorder("<")
    if metadata.kind == "grid" and data.nbytes > IN_MEMORY:
        return metadata, _mapped(path, metadata, data, dtype, verify)
    return metadata, _loaded(path, metadata, data, dtype)


def _stored(path: Path, data: Stored) -> int:
    """Return the bytes of all chunks; `TableError` if one is missing."""
    total = 0
    for name, _, _ in data.chunks():
        try:
            total += (path / name).stat().st_size
        except OSError as error:
            raise TableError(
                f"{path / name}: {error.strerror}: a chunk of the table that was not copied; "
                f"{_REMEDY}"
            ) from error
    return total


def _check_coordinate(path: Path, coordinate: Stored) -> None:
    """Compare a coordinate with the axis in the metadata, up to another machine's rounding."""
    expected = coordinate.values()
    content = b"".join(_decoded(path, coordinate))
    values = np.frombuffer(content, np.dtype(coordinate.dtype).newbyteorder("<"))
    if not np.allclose(values, expected, rtol=0.0, atol=1e-12 * float(np.abs(expected).max())):
        raise _changed(path / coordinate.name)


def _loaded(path: Path, metadata: Metadata, data: Stored, dtype: np.dtype) -> NDArray[Any]:
    """Return the data in memory."""
    buffer = np.empty(data.nbytes, dtype=np.uint8)
    position = 0

    def keep(part: bytes) -> None:
        nonlocal position
        buffer[position : position + len(part)] = np.frombuffer(part, np.uint8)
        position += len(part)

    _pour(path, metadata, data, keep)
    buffer.flags.writeable = False
    return buffer.view(dtype).reshape(metadata.shape)


def _mapped(
    path: Path, metadata: Metadata, data: Stored, dtype: np.dtype, verify: bool
) -> NDArray[Any]:
    """Return the data mapped from the cache, where they are put if they are not there."""
    place = cache_directory() / f"{metadata.sha256}.data"
    try:
        if verify or not place.is_file() or place.stat().st_size != data.nbytes:
            _materialise(path, metadata, data, place)
        return np.memmap(place, dtype, "r", 0, metadata.shape).view(np.ndarray)
    except OSError as error:
        reason = (
            f"cannot keep {path} decompressed in {place.parent}: {error.strerror or error}; "
            "set QP_CACHE to a directory that can be written"
        )
    if data.nbytes > MOST_IN_MEMORY:
        raise TableError(f"{reason}: it is too large for memory, {data.nbytes / 1e9:.1f} GB")
    warn(f"{reason}; it is held in memory", UserWarning)
    return _loaded(path, metadata, data, dtype)


def _materialise(path: Path, metadata: Metadata, data: Stored, place: Path) -> None:
    """Write the data to `place`: under another name, and renamed when their hash has been seen.

    Two processes may do so at once; both write the same bytes.
    """
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for leftover in place.parent.glob("*.partial"):  # by processes that were killed
        with suppress(OSError):
            if time.time() - leftover.stat().st_mtime > _STALE:
                leftover.unlink()
    if shutil.disk_usage(place.parent).free < data.nbytes:
        raise OSError(None, f"{data.nbytes / 1e6:.0f} MB are not free there")
    descriptor, name = tempfile.mkstemp(".partial", f"{metadata.sha256[:16]}.", place.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            _pour(path, metadata, data, file.write)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(place)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _pour(path: Path, metadata: Metadata, data: Stored, take: Callable[[bytes], Any]) -> None:
    """Hand over the data in pieces; raise `TableError` after the last if their hash is another."""
    digest = hashlib.sha256()
    for part in _decoded(path, data):
        digest.update(part)
        take(part)
    if digest.hexdigest() != metadata.sha256:
        raise TableError(
            f"{path}: data hash is {digest.hexdigest()[:16]}..., metadata says "
            f"{metadata.sha256[:16]}...; the table is damaged, {_REMEDY}"
        )


def _decoded(path: Path, array: Stored) -> Iterator[bytes]:
    """Yield the data of an array chunk by chunk, without padding."""
    for name, _, size in array.chunks():
        content = _content(path, name, array.chunk_nbytes + _SLACK)
        yield _decompress(content, array, path / name)[:size]


def _decompress(content: bytes, array: Stored, source: Path) -> bytes:
    """Return a chunk; whatever it is not, its header says before anything is decompressed."""
    try:
        from google_crc32c import value as crc32c
        from numcodecs.blosc import decompress
    except ModuleNotFoundError as error:
        raise TableError(
            f"{source}: zarr tables need {error.name}: {install_hint('zarr')}"
        ) from error
    packed, check = content[:-4], content[-4:]
    if len(packed) < _HEADER.size or crc32c(packed) != int.from_bytes(check, "little"):
        raise _changed(source)
    _, _, flags, typesize, nbytes, _, packed_bytes = _HEADER.unpack_from(packed)
    stated = typesize, nbytes, packed_bytes, flags >> 5, flags & _BITSHUFFLE
    if stated != (array.itemsize, array.chunk_nbytes, len(packed), _ZSTD, 0):
        raise TableError(f"{source}: a chunk of another size or another compressor; {_REMEDY}")
    try:
        unpacked = decompress(packed)
    except Exception as error:  # whatever it raises, the remedy is the same
        raise TableError(f"{source}: cannot be decompressed: {error}; {_REMEDY}") from error
    if len(unpacked) != array.chunk_nbytes:
        raise TableError(f"{source}: decompressed to {len(unpacked)} bytes; {_REMEDY}")
    return bytes(unpacked)


def _content(path: Path, name: str, limit: int) -> bytes:
    """Return the content of a file of at most `limit` bytes; no device and no pipe is read."""
    try:
        # Opening a pipe would wait for who writes to it.
        descriptor = os.open(path / name, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
                raise TableError(f"{path / name}: not a file of at most {limit} bytes; {_REMEDY}")
            return file.read(limit)
    except OSError as error:
        raise TableError(f"{path / name}: {error.strerror}; {_REMEDY}") from error


def _changed(source: Path) -> TableError:
    return TableError(f"{source}: bytes were changed since the table was made; {_REMEDY}")
