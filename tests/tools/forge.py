"""Damage table files on purpose, and forge ones whose seal and hashes hold."""

import contextlib
import hashlib
import json
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np

from qpruntime.table_format import container
from qpruntime.table_format.metadata import DATASET, Metadata
from tablegen.files import hdf5


def bytes_of(directory):
    """Return the bytes of every file, by its path in the directory."""
    files = sorted(p for p in directory.rglob("*") if p.is_file())
    return {p.relative_to(directory).as_posix(): p.read_bytes() for p in files}


def layout(path):
    """Return (seal, size of the file)."""
    with Path(path).open("rb") as file:
        return container.read(file, str(path))[0], Path(path).stat().st_size


def positions(path, count, rng, *, where):
    """Return `count` random bit positions as (byte, bit), of the "data" or of all the "rest"."""
    found, size = layout(path)
    if where == "data":
        byte = found.start + rng.integers(found.nbytes, size=count)
    else:
        byte = rng.integers(size - found.nbytes, size=count)
        byte = np.where(byte < found.start, byte, byte + found.nbytes)
    return zip(byte.tolist(), rng.integers(8, size=count).tolist(), strict=True)


@contextlib.contextmanager
def flipped(path, byte, bit):
    """Flip one bit of a file, and flip it back."""
    with Path(path).open("r+b", buffering=0) as file:
        file.seek(byte)
        (old,) = file.read(1)
        file.seek(byte)
        file.write(bytes([old ^ (1 << bit)]))
        try:
            yield
        finally:
            file.seek(byte)
            file.write(bytes([old]))


def sealed(text, data, *, fields=None, size=None):
    """Return the bytes of a file with this metadata and data that is no HDF5 beyond its signature.

    `fields` replaces what the seal says, `size` the length of the file before it.
    """
    before = container.SIGNATURE + bytes(4096 - len(container.SIGNATURE))
    stated = container.Seal(4096, len(data), 4096 + len(data), len(text))
    body = before + data + text
    if size is not None:
        body = body[:size] + bytes(max(size - len(body), 0))
    if fields is not None:
        stated = container.Seal(*fields)
    end = stated.start + stated.nbytes
    return body + stated.pack(body[: stated.start], body[end:] if end <= len(body) else b"")


def document(path, **fields):
    """Return the metadata of a table as a dict, with some fields replaced."""
    with Path(path).open("rb") as file:
        return json.loads(container.read(file, str(path))[1]) | fields


def change(path, edit, rehash):
    """Edit the data of a table in place; `rehash` makes the metadata agree, as a forger would."""
    with h5py.File(path, "r+") as file:
        values = file[DATASET][...]
        edit(values)
        file[DATASET][...] = values
        if rehash:
            metadata = Metadata.from_json(file.attrs["metadata"], "test")
            digest = hashlib.sha256(values.tobytes()).hexdigest()
            file.attrs["metadata"] = replace(metadata, sha256=digest).to_json()
    hdf5.seal(path)


def forged(path, values=None, **fields):
    """Return a table like that at `path` with other values or metadata, all hashes right."""
    found, _ = layout(path)
    data = Path(path).read_bytes()[found.start : found.start + found.nbytes]
    if values is not None:
        data = np.ascontiguousarray(values).tobytes()
    fields = {"sha256": hashlib.sha256(data).hexdigest()} | fields
    return sealed(json.dumps(document(path, **fields)).encode(), data)
