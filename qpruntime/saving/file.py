"""The file of a saved model: an npz of its arrays and a document, with a hash of every byte.

The archive is not compressed, so that no member is larger than the file. Its comment is the SHA-256
of all that comes before: a file that was cut short or changed in any bit is refused before anything
of it is read.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from qpruntime.errors import InputError, QPError, TableError
from qpruntime.memory import require
from qpruntime.names import printable
from qpruntime.saving.known import ROOTS, class_of
from qpruntime.saving.tree import Malformed, decoded, encoded
from qpruntime.validation import path_of
from qpruntime.whole_file import write_whole

__all__ = ["load", "save"]

_FORMAT = 1
_MAGIC = b"qpruntime-model sha256 "
_DOCUMENT = "model.json"
#: Bytes that the document may have.
_LARGEST = 1 << 26
# Time of all members, so that one model is one file to the bit.
_WHEN = (1980, 1, 1, 0, 0, 0)


def save(model: Any, path: str | os.PathLike[str]) -> None:
    """Write a fitted estimator or a posterior to one file that holds no code.

    `load` reads it on another machine, with these or newer versions of the packages, and its
    predictions are the same to the bit where arithmetic is. What pickles of it leave out is left
    out here: prior covariances, and what a table holds, which is found again by its hash.

    Parameters
    ----------
    model : estimator or posterior
    path : path
        Whole or absent; what was there is replaced.

    Raises
    ------
    InputError
        If the file cannot be written, or the model holds what no file without code can: a prior
        mean of another package, a likelihood or a kernel of your own. Pickle these.
    """
    name = f"{type(model).__module__}:{type(model).__qualname__}"
    if name not in ROOTS or class_of(name) is not type(model):
        raise InputError(
            f"what is saved is a fitted estimator or a posterior, got {type(model).__qualname__}; "
            "pickle others"
        )
    tree, arrays = encoded(model)
    document = {"format": _FORMAT, "of": name, "arrays": len(arrays), "tree": tree}
    text = json.dumps(document, allow_nan=False).encode()
    if len(text) > _LARGEST:
        raise InputError(f"the model's document has {len(text)} bytes, more than {_LARGEST}")
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo(_DOCUMENT, _WHEN), text)
        for number, array in enumerate(arrays):
            with archive.open(
                zipfile.ZipInfo(f"{number}.npy", _WHEN), "w", force_zip64=True
            ) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
        archive.comment = _MAGIC + b"0" * 64
    whole = held.getbuffer()
    digest = hashlib.sha256(whole[:-64]).hexdigest().encode()

    def write(file: BinaryIO) -> None:
        file.write(whole[:-64])
        file.write(digest)

    write_whole(path, write)


def load(path: str | os.PathLike[str]) -> Any:
    """Read what `save` has written: no code of the file is run, whoever wrote it.

    Parameters
    ----------
    path : path

    Returns
    -------
    estimator or posterior

    Raises
    ------
    TableError
        If it is no such file, was changed or cut short, is of a newer format, or its table is not
        there; the message says which.
    InputError
        If it cannot be read.
    """
    source = path_of(path, "path")
    try:
        nbytes = source.stat().st_size
        require(2.0 * nbytes, f"the model of {source.name}", "load it where there is more memory")
        data = source.read_bytes()
    except OSError as error:
        raise InputError(f"{source} cannot be read: {error.strerror or error}") from error
    try:
        document, arrays = _parts(data)
        return _model(document, arrays)
    except (QPError, MemoryError):
        raise
    except Exception as error:  # of values that fit together in no model, whatever they are
        words = str(error) if isinstance(error, Malformed) else f"no saved model ({error!r:.200})"
        raise TableError(f"{source}: {printable(words)}; save the model again") from error


def _parts(data: bytes) -> tuple[dict[str, Any], list[NDArray[Any]]]:
    """Return document and arrays of bytes whose hash is right."""
    end = len(_MAGIC) + 64
    if not data.startswith(b"PK") or data[-end:-64] != _MAGIC:
        raise Malformed("no saved model, or one that was cut short")
    if hashlib.sha256(memoryview(data)[:-64]).hexdigest().encode() != data[-64:]:
        raise Malformed("a saved model that was changed since")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = {info.filename: info for info in archive.infolist()}
            if len(members) < len(archive.infolist()) or _DOCUMENT not in members:
                raise Malformed("no saved model: it has no document, or members of one name")
            for info in members.values():
                if info.compress_type != zipfile.ZIP_STORED or info.file_size > len(data):
                    raise Malformed("a member that is compressed, or larger than the file")
            if members[_DOCUMENT].file_size > _LARGEST:
                raise Malformed(f"a document of more than {_LARGEST} bytes")
            document = json.loads(archive.read(_DOCUMENT))
            count = _count(document, len(members))
            return document, [_array(archive.read(f"{k}.npy")) for k in range(count)]
    except Malformed:
        raise
    except (zipfile.BadZipFile, ValueError, KeyError, RecursionError, EOFError, OSError) as error:
        raise Malformed(f"no saved model ({type(error).__name__}: {error!s:.200})") from error


def _count(document: Any, members: int) -> int:
    """Check the head of the document; return how many arrays there are."""
    if not isinstance(document, dict) or "format" not in document:
        raise Malformed("a document without a format")
    form = document["format"]
    if type(form) is int and form > _FORMAT:
        raise Malformed(
            f"format {form} of a newer qpruntime, this one reads {_FORMAT}: update it, or"
        )
    if form != _FORMAT or set(document) != {"format", "of", "arrays", "tree"}:
        raise Malformed(f"a document of format {form!r:.40}")
    if document["arrays"] != members - 1:
        raise Malformed(f"{members - 1} arrays, and a document of {document['arrays']!r:.40}")
    return members - 1


def _array(data: bytes) -> NDArray[Any]:
    """Return an array that says how large it is, if it is."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read is None:
        raise Malformed(f"an array of version {version}")
    shape, _, dtype = read(file)
    if dtype.hasobject or min(shape, default=1) < 0:
        raise Malformed("an array of objects")
    nbytes = dtype.itemsize
    for n in shape:
        nbytes *= n
    if nbytes != len(data) - file.tell():
        raise Malformed(f"an array of shape {shape} in {len(data) - file.tell()} bytes")
    file.seek(0)
    found: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    return found


def _model(document: dict[str, Any], arrays: list[NDArray[Any]]) -> Any:
    name = document["of"]
    if name not in ROOTS:
        raise Malformed(f"a {name!r:.80}, which is no estimator or posterior")
    model = decoded(document["tree"], arrays)
    if type(model) is not class_of(name):
        raise Malformed(f"a {type(model).__qualname__} under the name of another")
    return model
