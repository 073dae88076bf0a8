"""Compiled kernels that travel: one file for images, continuous integration and cluster workers.

An archive is a zip file of numba's cache and a manifest. It is used only on a machine with the
same Python, numba, llvmlite, processor and processor features, and only for modules whose sources
have the same contents (`qpruntime._numba.fingerprint`). Machine code runs with the rights of who
loads it: load archives that you or your build made, as you would install a wheel.
"""

from __future__ import annotations

import importlib
import json
import logging
import pickle
import platform
import re
import sys
import zipfile
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

import llvmlite
import numba
from llvmlite import binding

from qpruntime import _numba
from qpruntime._atomic_file import write_whole
from qpruntime.errors import InputError

__all__ = ["load", "save"]

_LOG = logging.getLogger("qpruntime")
_MANIFEST = "manifest.json"
#: Bytes of an archive's files together; all kernels of the package take 60 MB.
_SIZE_LIMIT = 500_000_000
_NAME = re.compile(r"[A-Za-z_]\w*(/[A-Za-z_]\w*)*/[\w.<>-]+\.nb[ic]")


def machine() -> dict[str, str]:
    """Return what has to be the same for compiled code to be used."""
    magic = numba.njit(lambda: None).targetctx.codegen().magic_tuple()
    triple, cpu, features = (str(part) for part in magic)
    return {
        "python": f"{sys.implementation.name} {platform.python_version_tuple()[:2]}",
        "numba": numba.__version__,
        "llvmlite": llvmlite.__version__,
        "llvm": ".".join(map(str, binding.llvm_version_info)),
        "triple": triple,
        "cpu": cpu,
        "features": features,
    }


def save(path: str | Path) -> int:
    """Write the kernels of this process's cache that belong to today's sources.

    Parameters
    ----------
    path : path
        File to write, whole or not at all.

    Returns
    -------
    int
        Number of kernels.
    """
    files: dict[str, bytes] = {}
    sources: dict[str, str] = {}
    count = 0
    for module, folder in sorted(_numba.cache_folders().items()):
        stem = module.rpartition(".")[2]
        for index in sorted(Path(folder).glob(f"{stem}.*.nbi")):
            members = _members(index, module)
            if not members:
                continue
            where = "/".join(module.split(".")[:-1])
            for member in (index, *members):
                files[f"{where}/{member.name}"] = member.read_bytes()
            sources[module] = _numba.fingerprint(module)
            count += 1
    manifest = {
        "machine": machine(),
        "sources": sources,
        "files": {name: blake2b(data).hexdigest() for name, data in files.items()},
    }

    def write(file: BinaryIO) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(_MANIFEST, json.dumps(manifest, indent=1))
            for name, data in files.items():
                archive.writestr(name, data)

    write_whole(path, write)
    return count


def load(path: str | Path) -> int:
    """Put the kernels of an archive into the cache of this machine.

    Kernels that are there already, and those of modules whose sources differ, are left out. An
    archive of another machine or version is ignored with one line of the logger.

    Parameters
    ----------
    path : path
        File of `save`.

    Returns
    -------
    int
        Number of kernels that were put into the cache.

    Raises
    ------
    InputError
        If the file is no such archive, or its contents are not those of its manifest.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _load(archive, path)
    except (OSError, zipfile.BadZipFile, ValueError, KeyError, AttributeError) as error:
        raise InputError(
            f"{path} is no archive of kernels ({error}); make one by "
            "python -m qpruntime warmup --save FILE"
        ) from error


def _load(archive: zipfile.ZipFile, path: str | Path) -> int:
    if sum(member.file_size for member in archive.infolist()) > _SIZE_LIMIT:
        raise ValueError(f"its files take more than {_SIZE_LIMIT} bytes")
    manifest = json.loads(archive.read(_MANIFEST))
    current = machine()
    different = [name for name, value in current.items() if manifest["machine"].get(name) != value]
    if different:
        _LOG.warning(
            "qpruntime: %s is ignored: its kernels were compiled for %s %s, and this is %s",
            path,
            different[0],
            manifest["machine"].get(different[0]),
            current[different[0]],
        )
        return 0
    data = {}
    for name, digest in manifest["files"].items():
        if not _NAME.fullmatch(name):
            raise ValueError(f"the name {name!r}")
        data[name] = archive.read(name)
        if blake2b(data[name]).hexdigest() != digest:
            raise ValueError(f"{name} is not what the manifest says")
    count = 0
    for module, digest in manifest["sources"].items():
        if not _numba.is_ours(module) or _numba.fingerprint(module) != digest:
            continue
        importlib.import_module(module)
        folder = _numba.cache_folders().get(module)
        if folder is None:
            continue
        prefix = "/".join((*module.split(".")[:-1], f"{module.rpartition('.')[2]}."))
        ours = [name for name in data if name.startswith(prefix)]
        for index in (name for name in ours if name.endswith(".nbi")):
            place = Path(folder) / Path(index).name
            if place.exists() and _members(place, module):
                continue
            base = index.removesuffix("nbi")
            place.parent.mkdir(parents=True, exist_ok=True)
            # The index comes last: an interrupted load leaves nothing that names missing files.
            for name in [*(n for n in ours if n.startswith(base) and n != index), index]:
                write_whole(place.with_name(Path(name).name), partial(_write, data[name]))
            count += 1
    return count


def _write(data: bytes, file: BinaryIO) -> None:
    file.write(data)


def _members(index: Path, module: str) -> list[Path]:
    """Return the data files of an index that is of today's sources, none of another."""
    with index.open("rb") as file:
        if pickle.load(file) != (numba.__version__, _numba.fingerprint(module)):
            return []
        overloads: dict[Any, str] = pickle.load(file)[1]
    return [path for name in overloads.values() if (path := index.parent / name).exists()]
