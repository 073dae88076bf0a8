"""Sealed container of a table file, and strict JSON."""

from __future__ import annotations

import hashlib
import math
import os
import struct
from dataclasses import dataclass
from typing import Any, BinaryIO

from qpruntime._sealed_file import json_object
from qpruntime.errors import TableError

__all__ = ["LIMIT", "SIGNATURE", "SIZE", "Seal", "loads", "read"]

#: Metadata nest four deep.
_DEPTH = 8
_LARGEST_INTEGER = 2**63


def loads(text: str | bytes) -> dict[str, Any]:
    """Return the JSON object of metadata, small, flat and plain.

    Deep nesting, numbers that overflow and strings that would act on a terminal are refused.

    Raises
    ------
    ValueError
        If this is not a JSON object, or one that is refused; the message is a noun phrase.
    """
    document = json_object(text)
    _check(document, _DEPTH)
    return document


def _check(value: object, depth: int) -> None:
    if depth == 0:
        raise ValueError(f"nesting deeper than {_DEPTH}")
    if isinstance(value, dict):
        for name, entry in value.items():
            _check(name, depth)
            _check(entry, depth - 1)
    elif isinstance(value, list):
        for entry in value:
            _check(entry, depth - 1)
    elif isinstance(value, str):
        if not value.isprintable():
            raise ValueError(f"the unprintable string {value[:40]!r}")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("a number beyond double precision")
    elif isinstance(value, int) and abs(value) >= _LARGEST_INTEGER:
        raise ValueError("an integer of more than 64 bits")


# --- The last 72 bytes of a table file: where data and metadata are, and a hash of all but the
# data.
#
# A table is an ordinary HDF5 file with this seal behind it, where HDF5 does not look. The runtime
# reads tables by their seal alone: no HDF5 library ever parses a file on the way in, and no changed
# bit outside of the data goes unseen. The data have their own hash, in the metadata.

#: First bytes of every HDF5 file.
SIGNATURE = b"\x89HDF\r\n\x1a\n"
#: Bytes other than data that a table may have.
LIMIT = 1 << 18
_MAGIC = b"qp-seal\x01"
_FIELDS = struct.Struct("<8s4Q")
#: Bytes of the seal: the fields, then a SHA-256.
SIZE = _FIELDS.size + 32
_REMEDY = "build it again"


@dataclass(frozen=True)
class Seal:
    """Positions in the file, in bytes from its beginning.

    Attributes
    ----------
    start, nbytes : int
        Of the data.
    text_start, text_bytes : int
        Of the metadata, a JSON document outside of the data.
    """

    start: int
    nbytes: int
    text_start: int
    text_bytes: int

    def pack(self, before: bytes, after: bytes) -> bytes:
        """Return the seal; arguments are the file's other bytes, on both sides of the data."""
        fields = _FIELDS.pack(_MAGIC, self.start, self.nbytes, self.text_start, self.text_bytes)
        return fields + hashlib.sha256(before + after + fields).digest()

    def text(self, before: bytes, after: bytes) -> bytes | None:
        """Return the metadata, None if they are not outside of the data."""
        end = self.text_start + self.text_bytes
        if end <= len(before):
            return before[self.text_start : end]
        offset = self.text_start - self.start - self.nbytes
        if offset >= 0 and offset + self.text_bytes <= len(after):
            return after[offset : offset + self.text_bytes]
        return None


def read(file: BinaryIO, source: str) -> tuple[Seal, bytes]:
    """Return the seal of an open file and its metadata; `source` names the file in messages.

    Reads at most `LIMIT` bytes, and nothing outside of the file.

    Raises
    ------
    TableError
        If this is no table, or a byte outside of its data has been changed.
    """
    size = os.fstat(file.fileno()).st_size
    if file.read(len(SIGNATURE)) != SIGNATURE:
        raise TableError(f"{source}: not an HDF5 file, and so not a table; {_REMEDY}")
    stated = b""
    if size >= len(SIGNATURE) + SIZE:
        file.seek(size - SIZE)
        stated = file.read(SIZE)
    if not stated.startswith(_MAGIC):
        raise TableError(
            f"{source}: no seal at its end: truncated, edited, or not a table of this version's "
            f"tablegen; {_REMEDY}"
        )
    seal = Seal(*_FIELDS.unpack(stated[: _FIELDS.size])[1:])
    behind = size - SIZE - seal.start - seal.nbytes
    if behind < 0:
        raise TableError(
            f"{source}: truncated: its seal puts the end of the data at byte "
            f"{seal.start + seal.nbytes}, the file has {size}; {_REMEDY}"
        )
    if seal.start + behind > LIMIT:
        raise TableError(
            f"{source}: {seal.start + behind} bytes besides the data, at most {LIMIT} are read; "
            f"{_REMEDY}"
        )
    file.seek(0)
    before = file.read(seal.start)
    file.seek(seal.start + seal.nbytes)
    after = file.read(behind)
    if seal.pack(before, after) != stated:
        raise TableError(
            f"{source}: the seal does not fit: bytes were changed since the table was made; "
            f"{_REMEDY}"
        )
    text = seal.text(before, after)
    if text is None:
        raise TableError(f"{source}: the seal puts the metadata outside of the file; {_REMEDY}")
    return seal, text
