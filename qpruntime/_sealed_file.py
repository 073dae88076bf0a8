"""Files that were written whole, and are read as if a stranger had written them.

A sealed file is a zip file without compression. Its comment is the SHA-256 of all bytes before, so
that a file that was cut short or changed in any bit is refused before anything in it is used. The
seal finds accidents. It is no protection against a forger, who can compute it as well.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, NoReturn

import numpy as np
from numpy.typing import NDArray

from qpruntime._atomic_file import write_whole
from qpruntime._formatting import printable
from qpruntime.errors import NumericalError, QPError, TableError

__all__ = [
    "DamagedFile",
    "array_from",
    "damage_named",
    "json_object",
    "read_sealed",
    "write_sealed",
]

# Time of all members, so that the same content is the same file to the bit.
_TIME = (1980, 1, 1, 0, 0, 0)
_CHUNK = 1 << 20


class DamagedFile(ValueError):
    """Error of content that we did not write; the message is a clause about the file."""


@contextmanager
def damage_named(
    path: str | os.PathLike[str], what: str, remedy: str, error_type: type[QPError]
) -> Iterator[None]:
    """Turn whatever content raises inside into one error that names the file and the remedy.

    Parameters
    ----------
    path : path
    what : str
        What the file should be.
    remedy : str
    error_type : type
        `TableError` of a table that is missing, and a lack of memory, pass as they are.
    """
    try:
        yield
    except (TableError, NumericalError, MemoryError):
        raise
    except Exception as error:  # values that do not fit together raise whatever they like
        words = str(error)
        if isinstance(error, KeyError):
            words = f"there is no {error}"
        elif not isinstance(error, ValueError):
            words = f"{type(error).__name__}: {error}"
        raise error_type(
            f"{printable(os.fspath(path))} is no {what}, or damaged: {printable(words)[:400]}; "
            f"{remedy}"
        ) from error


def write_sealed(
    path: str | os.PathLike[str], kind: str, members: Mapping[str, bytes | NDArray[Any]]
) -> None:
    """Write named members, whole or not at all.

    Parameters
    ----------
    path : path
    kind : str
        `read_sealed` refuses a file of another kind.
    members : mapping of str to bytes or ndarray
        Arrays become members in NumPy's format, with ``.npy`` behind their names.

    Raises
    ------
    InputError
        If it cannot be written; what was at `path` is there still.
    """

    def write(file: BinaryIO) -> None:
        """Write the members as a zip archive whose comment is the seal."""
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for name, content in members.items():
                is_bytes = isinstance(content, bytes)
                info = zipfile.ZipInfo(name if is_bytes else f"{name}.npy", _TIME)
                with archive.open(info, "w", force_zip64=True) as member:
                    if isinstance(content, bytes):
                        member.write(content)
                    else:
                        np.lib.format.write_array(member, content, allow_pickle=False)
            archive.comment = _mark(kind) + b"0" * 64
        seal = _seal(file, file.tell() - 64)
        file.seek(-64, os.SEEK_END)
        file.write(seal)

    write_whole(path, write)


def read_sealed(file: BinaryIO, kind: str) -> dict[str, bytes]:
    """Return the members of an open file by name.

    Raises
    ------
    DamagedFile
        If the file is of another kind, or not as it was written.
    """
    mark = _mark(kind)
    size = os.fstat(file.fileno()).st_size
    if size > len(mark) + 64:
        file.seek(-len(mark) - 64, os.SEEK_END)
    end = file.read(len(mark) + 64)
    if end[:-64] != mark:
        raise DamagedFile("it is of another kind, or was cut short")
    if _seal(file, size - 64) != end[-64:]:
        raise DamagedFile("it was changed since it was written")
    members: dict[str, bytes] = {}
    try:
        with zipfile.ZipFile(file) as archive:
            for info in archive.infolist():
                # Compressed members are refused, so that a small file cannot fill the memory.
                if info.compress_type != zipfile.ZIP_STORED or info.file_size > size:
                    raise DamagedFile("it has a member that is compressed, or larger than the file")
                if info.filename in members:
                    raise DamagedFile(f"it has two members of the name {info.filename!r:.80}")
                members[info.filename] = archive.read(info)
    except (zipfile.BadZipFile, EOFError, NotImplementedError, OSError, RuntimeError) as error:
        raise DamagedFile(f"it is no zip file of plain members ({error!s:.200})") from error
    return members


def _mark(kind: str) -> bytes:
    return f"qpruntime-{kind} sha256 ".encode()


def _seal(file: BinaryIO, size: int) -> bytes:
    """Return the hexadecimal SHA-256 of the first bytes of a file."""
    sha256 = hashlib.sha256()
    file.seek(0)
    while size > 0:
        chunk = file.read(min(size, _CHUNK))
        if not chunk:
            break
        sha256.update(chunk)
        size -= len(chunk)
    return sha256.hexdigest().encode()


def array_from(content: bytes) -> NDArray[Any]:
    """Return the array of a member, which takes as many bytes as its head says.

    Raises
    ------
    DamagedFile
        If it is no array of plain values.
    """
    file = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(file)
        read_head = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }.get(version)
        if read_head is None:
            raise DamagedFile(f"it has an array of version {version}")
        shape, _, dtype = read_head(file)
        if dtype.hasobject or min(shape, default=1) < 0:
            raise DamagedFile("it has an array of objects")
        available = len(content) - file.tell()
        if math.prod(shape) * dtype.itemsize != available:
            raise DamagedFile(f"it has an array of shape {shape} in {available} bytes")
        file.seek(0)
        return np.lib.format.read_array(file, allow_pickle=False)
    except DamagedFile:
        raise
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
        raise DamagedFile(f"it has a member that is no array ({error!s:.200})") from error


def json_object(text: str | bytes) -> dict[str, Any]:
    """Return a JSON object that has one meaning.

    Input that `json` tolerates is refused: repeated keys, of which one would be ignored, ``NaN``
    and ``Infinity``, and endless nesting.

    Parameters
    ----------
    text : str or bytes
        Bytes are UTF-8.

    Raises
    ------
    ValueError
        If this is no such object; the message is a noun phrase.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")  # `json` would guess UTF-16 and UTF-32 as well
        document = json.loads(text, parse_constant=_constant, object_pairs_hook=_unique)
    except RecursionError as error:
        raise ValueError("nesting without end") from error
    if not isinstance(document, dict):
        raise ValueError(f"a JSON {type(document).__name__}, not a JSON object")
    return document


def _constant(name: str) -> NoReturn:
    raise ValueError(f"the number {name}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a repeated key")
    return members
