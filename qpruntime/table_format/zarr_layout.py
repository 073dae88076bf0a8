"""A table as a zarr v3 group: which files it consists of, and what stands in each of them.

Everything follows from the metadata document, so that the one who writes a group and the one who
reads it ask here, and a changed byte is one that is not what it has to be. The arrays are those
of an ordinary zarr group, named and labelled as xarray takes them: the data, and a coordinate for
each of its axes. Nothing is read or written here, and no zarr is needed.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qpruntime.table_format.metadata import DATASET, Axis, Metadata

__all__ = ["CHUNK_BYTES", "CNAME", "LEVEL", "ROOT", "Stored", "arrays", "documents", "seal"]

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
