"""Zarr v3 groups of tables: layout and reading."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import stat
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
from numpy.typing import NDArray

from qpruntime._formatting import install_hint
from qpruntime.errors import TableError, warn
from qpruntime.table_format import container
from qpruntime.table_format.metadata import DATASET, Axis, Metadata

__all__ = [
    "CHUNK_BYTES",
    "CNAME",
    "LEVEL",
    "ROOT",
    "Stored",
    "arrays",
    "cache_directory",
    "documents",
    "is_group",
    "read",
    "read_metadata",
    "seal",
]

# --- Read a table that is a zarr group, as one comes from an object store, and materialise it once.
#
# A group is read file by file, never by the zarr library, whose codecs and stores do not exist for
# it: its documents have to be what `zarr_layout` makes of the metadata in it, and its chunks go
# through one checksum and one decompressor. A large grid goes decompressed into the user's cache,
# under the hash of its data, and is mapped from there; smaller tables stay in memory.

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


# --- A table as a zarr v3 group: which files it consists of, and what stands in each of them.
#
# Everything follows from the metadata document, so that the one who writes a group and the one who
# reads it ask here, and a changed byte is one that is not what it has to be. The arrays are those
# of an ordinary zarr group, named and labelled as xarray takes them: the data, and a coordinate for
# each of its axes. Nothing is read or written here, and no zarr is needed.

#: Name of the document of a zarr v3 node.
ROOT = "zarr.json"
#: A chunk has at most so many bytes before compression: one request of an object store.
CHUNK_BYTES = 1 << 21
#: Compressor inside blosc, and its level. Noise fills the last bits of sigma*: nothing makes the
#: paper's grid much smaller than the 1.5 times of this; level 9 takes 6 times as long for 1 %.
CNAME, LEVEL = "zstd", 5
# Spline coefficients of an axis more than it has nodes: two beyond each end.
_BEYOND = 2
_WORDS = {
    "grid": "sigma*, the standard deviation of the QP projection",
    "compact": "coefficients of quintic B-splines of sigma*/sigma_EP",
    "surfaces": "coefficients of quintic B-splines of log Z, (mean - mu)/sigma_EP, "
    "log(sigma_EP/sigma) and log(sigma*/sigma_EP)",
}


@dataclass(frozen=True)
class Stored:
    """One array of the group.

    Attributes
    ----------
    name : str
    shape, dimensions
        As zarr has them.
    dtype : str
        Of zarr: ``float64``, ``float32`` or ``int64``; little-endian.
    attributes : dict
    make : callable or None
        Returns the values of a coordinate; None of the data.
    """

    name: str
    shape: tuple[int, ...]
    dimensions: tuple[str, ...]
    dtype: str
    attributes: dict[str, Any] = field(default_factory=dict)
    make: Callable[[], NDArray[Any]] | None = None

    def values(self) -> NDArray[Any]:
        """Return the values of a coordinate, made when they are asked for: a size may be a lie."""
        assert self.make is not None
        return self.make()

    @property
    def itemsize(self) -> int:
        """Bytes of a number."""
        return np.dtype(self.dtype).itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * self.itemsize

    @property
    def chunk(self) -> tuple[int, ...]:
        """Shape of a chunk: whole rows, and as many as fit, so that chunks follow the data."""
        sizes: list[int] = []
        chunk_bytes = self.itemsize
        for size in reversed(self.shape):
            room = max(1, CHUNK_BYTES // chunk_bytes)
            parts = -(-size // room)
            sizes.append(-(-size // parts))
            chunk_bytes = chunk_bytes * sizes[-1] if parts == 1 else CHUNK_BYTES
        return tuple(reversed(sizes))

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of a decoded chunk, of the last one with its padding."""
        return math.prod(self.chunk) * self.itemsize

    def chunks(self) -> Iterator[tuple[str, int, int]]:
        """Yield (path in the group, first byte, bytes of data) of every chunk, as the data lie."""
        counts = [-(-n // c) for n, c in zip(self.shape, self.chunk, strict=True)]
        start = 0
        for place in np.ndindex(*counts):
            sizes = [
                min(c, n - i * c) for i, n, c in zip(place, self.shape, self.chunk, strict=True)
            ]
            size = math.prod(sizes) * self.itemsize
            yield "/".join([self.name, "c", *map(str, place)]), start, size
            start += size

    def document(self) -> dict[str, Any]:
        """Return the node's metadata, as zarr v3 has them."""
        blosc = {"typesize": self.itemsize, "cname": CNAME, "clevel": LEVEL, "shuffle": "shuffle"}
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(self.shape),
            "data_type": self.dtype,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(self.chunk)}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": 0 if self.dtype == "int64" else "NaN",
            "codecs": [
                {"name": "bytes", "configuration": {"endian": "little"}},
                {"name": "blosc", "configuration": blosc | {"blocksize": 0}},
                {"name": "crc32c"},
            ],
            "attributes": self.attributes,
            "dimension_names": list(self.dimensions),
            "storage_transformers": [],
        }


def arrays(metadata: Metadata) -> list[Stored]:
    """Return the arrays of the group, the data first.

    The data are laid out as in an HDF5 file, byte for byte; the four numbers at every node of
    surfaces have an axis of their own.
    """
    shape: tuple[int, ...] = metadata.shape
    spline = metadata.kind != "grid"
    sizes = {}
    if metadata.kind == "compact":
        axes = dict(zip(("u", "v")[-len(metadata.axes) :], metadata.axes, strict=True))
        sizes = {"y": shape[0], "u": shape[1], "v": shape[2]}
    else:
        names = ("mu", "log10_sigma", "y")[: len(metadata.axes)]
        axes = dict(zip(names, metadata.axes, strict=True))
        sizes = {"y": shape[0], "mu": shape[1], "log10_sigma": shape[2]}
    if metadata.kind == "surfaces":
        bands = shape[2] // (metadata.axes[1].size + 2 * _BEYOND)
        sizes |= {"log10_sigma": shape[2] // bands, "surface": bands}
    data = Stored(
        DATASET,
        tuple(sizes.values()),
        tuple(sizes),
        metadata.dtype,
        {"long_name": _WORDS[metadata.kind], "units": "1"},
    )
    members = [data]
    for name, size in sizes.items():
        if name in axes:
            members.append(_along(name, axes[name], spline))
        elif name == "y":
            make: Callable[[], NDArray[Any]] = partial(np.array, metadata.outcomes, "f8")
            members.append(_coordinate("y", size, make, "observation of the slab", "1"))
        elif name == "surface":
            # L_p projections hold their one standard deviation twice.
            words = " ".join([*metadata.surfaces, metadata.surfaces[-1]][:size])
            flags = {"flag_values": list(range(size)), "flag_meanings": words}
            make = partial(np.arange, size, dtype="i8")
            members.append(_coordinate(name, size, make, "surface", "1", flags))
    return members


def _along(name: str, axis: Axis, spline: bool) -> Stored:
    """Return the coordinate of an axis: its nodes, or the centres of its B-splines."""
    unit = axis.unit or "1"
    if not spline:
        return _coordinate(name, axis.size, axis.nodes, axis.name, unit)

    def centres() -> NDArray[Any]:
        return axis.start + axis.step * np.arange(-_BEYOND, axis.size + _BEYOND)

    words = f"{axis.name}: centres of B-splines"
    return _coordinate(name, axis.size + 2 * _BEYOND, centres, words, unit)


def _coordinate(
    name: str,
    size: int,
    make: Callable[[], NDArray[Any]],
    words: str,
    unit: str,
    flags: dict[str, Any] | None = None,
) -> Stored:
    """Return a coordinate of so many numbers, whole ones where they stand for words."""
    attributes = {"long_name": words, "units": unit} | (flags or {})
    return Stored(name, (size,), (name,), "int64" if flags else "float64", attributes, make)


def seal(text: str) -> str:
    """Return what guards the metadata document itself: its SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()


def documents(text: str, metadata: Metadata) -> dict[str, bytes]:
    """Return the content of every ``zarr.json``, by its path in the group.

    The group's holds all others as well, so that a reader without directory listings, as over
    HTTP, finds the arrays.
    """
    nodes = {array.name: array.document() for array in arrays(metadata)}
    group = {
        "zarr_format": 3,
        "node_type": "group",
        "attributes": {"metadata": text, "seal": seal(text)},
        "consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": nodes},
    }
    pages = {ROOT: group} | {f"{name}/{ROOT}": node for name, node in nodes.items()}
    return {path: json.dumps(page, indent=1).encode() for path, page in pages.items()}
