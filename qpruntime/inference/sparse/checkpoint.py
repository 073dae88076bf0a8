"""Sites on the disk, to go on from when this process, or its cluster, went away.

One file, written beside its place and renamed: whole or absent. It says of what problem it is.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import stat
import time
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._atomic_file import write_whole
from qpruntime._typing import Array
from qpruntime._validation import path_of
from qpruntime.errors import ConvergenceWarning, InputError, warn
from qpruntime.inference.sites import Sites
from qpruntime.inference.sparse.data import ChunkedRows, Held
from qpruntime.inference.sparse.engine import Engine
from qpruntime.likelihoods import Likelihood
from qpruntime.projection.projector import Projector

__all__ = [
    "EVERY",
    "FORMAT",
    "Checkpoint",
    "DamagedFile",
    "SitesFile",
    "array_of",
    "digest",
    "kernel_words",
    "projector_words",
    "read_arrays",
    "write_arrays",
]

# --- Checkpoints of sites

#: Seconds between two checkpoints at least.
EVERY = 30.0
# Characters of a difference that are shown.
_LINE = 400


class Checkpoint:
    """A file of arrays by name, some of which say what problem it belongs to.

    Parameters
    ----------
    path : path
    task : str
        What goes on without it where it cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], task: str = "inference") -> None:
        self.path, self.task = path_of(path, "checkpoint"), task
        self._last = time.monotonic()
        self._failed = False

    @property
    def due(self) -> bool:
        """Whether the last checkpoint is old enough for a new one."""
        return time.monotonic() - self._last >= EVERY

    def write(self, problem: Mapping[str, str], content: Mapping[str, Any]) -> None:
        """Write the checkpoint; warn once if it cannot be written."""
        arrays: dict[str, Any] = {name: np.array(words) for name, words in problem.items()}
        arrays |= content
        try:
            write_arrays(self.path, arrays)
        except InputError as error:
            if not self._failed:
                warn(f"no checkpoint: {error}; {self.task} goes on without", ConvergenceWarning)
            self._failed = True
        self._last = time.monotonic()

    def read(self, problem: Mapping[str, str]) -> dict[str, Any] | None:
        """Return what the file holds of this problem, None if there is no file.

        Raises
        ------
        InputError
            If it is the file of another problem, or none.
        """
        if not self.path.exists():
            return None
        with self.understood():
            kept = read_arrays(self.path)
        for name, words in problem.items():
            if name not in kept or str(kept[name]) != words:
                its = str(kept[name])[:_LINE] if name in kept else "missing"
                raise InputError(
                    f"{self.path} is the checkpoint of another {self.task}: its {name} is {its}, "
                    f"not {words[:_LINE]}; remove it, or name another file"
                )
        return kept

    @contextlib.contextmanager
    def understood(self) -> Iterator[None]:
        """Turn errors raised inside into an `InputError` that names the file."""
        try:
            yield
        except InputError:
            raise
        # Wrong types, missing names, numbers out of range, nesting without end.
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            RecursionError,
            TypeError,
            ValueError,
        ) as error:
            words = str(error) or type(error).__name__
            raise InputError(
                f"{self.path} is no checkpoint, or damaged: {words}; remove it, or name another "
                "file"
            ) from error

    def hint(self, again: str = "call again") -> str:
        """Say how to go on from the file, if there is one."""
        if not self.path.exists():
            return ""
        return f"; {self.path} has the sites so far: {again} with resume=True"


class SitesFile(Checkpoint):
    """The checkpoint of one inference: its sites."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self._words: dict[str, str] | None = None

    def _problem(self, engine: Engine) -> dict[str, str]:
        """Return what tells this inference from others; every call with the same engine."""
        if self._words is None:
            self._words = _problem(engine)
        return self._words

    def offer(self, engine: Engine) -> None:
        """Write the sites if the last ones are old."""
        if self.due:
            self.save(engine)

    def save(self, engine: Engine) -> None:
        """Write the sites there are."""
        self.write(self._problem(engine), {"tau": engine.tau, "nu": engine.nu})

    def restore(self, engine: Engine) -> bool:
        """Take the sites of the file, if there is one; return whether.

        Raises
        ------
        InputError
            If the file holds sites of another problem, or none.
        """
        kept = self.read(self._problem(engine))
        if kept is None:
            return False
        with self.understood():
            sites = Sites(*(array_of(kept, name, engine.rows.n) for name in ("tau", "nu")))
        engine.sites = sites
        return True


def _problem(engine: Engine) -> dict[str, str]:
    y, *_ = engine.rows.others(engine.rows.slice(0))
    return {
        "format": FORMAT,
        "kernel": kernel_words(engine.kernel, bounds=False),
        **projector_words(engine.rule.projector, y),
        "power": repr(engine.rule.power),
        "jitter": repr(engine.jitter),
        "rows": str(engine.rows.n),
        "data": digest(engine.rows, engine.Z),
    }


# --- Sealed file of named arrays
#
# The seal is a hash of all names, types, shapes and numbers. It is against accidents: whoever wants
# to deceive can compute it.

_SEAL = "seal"


class DamagedFile(ValueError):
    """A file is not what `write_arrays` writes; the message is a clause about the file."""


def write_arrays(path: str | os.PathLike[str], arrays: Mapping[str, Any]) -> None:
    """Write arrays; `InputError` if that cannot be done, and what was there is there still."""
    given: dict[str, Any] = {name: np.asarray(value) for name, value in arrays.items()}
    given[_SEAL] = np.array(_sealed(given))
    write_whole(path, lambda file: np.savez(file, **given))


def read_arrays(path: Path) -> dict[str, Any]:
    """Return the arrays of a file by name.

    Raises
    ------
    DamagedFile
        If the file is another one, or one of its bytes that mean anything was changed.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise DamagedFile("it is no file")
        found = _members(path)
    except DamagedFile:
        raise
    except Exception as error:  # whatever bytes make zipfile and NumPy raise
        words = str(error) or type(error).__name__
        raise DamagedFile(f"it cannot be read: {words}") from error
    seal = found.pop(_SEAL, None)
    if seal is None or str(seal) != _sealed(found):
        raise DamagedFile("its content was changed, or is not from this version")
    return found


def _members(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    size = path.stat().st_size
    with zipfile.ZipFile(path) as file:
        for member in file.infolist():
            # A small file does not become a large one in memory.
            if member.compress_type != zipfile.ZIP_STORED or member.file_size > size:
                raise DamagedFile("it is no file of plain arrays")
            name = member.filename.removesuffix(".npy")
            if name in found:
                raise DamagedFile(f"it has {name!r} twice")
            content = io.BytesIO(file.read(member))
            found[name] = np.lib.format.read_array(content, allow_pickle=False)
    return found


def _sealed(arrays: Mapping[str, Any]) -> str:
    found = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        found.update(f"{name} {array.dtype.str} {np.shape(arrays[name])} ".encode())
        found.update(array.tobytes())
    return found.hexdigest()


def array_of(found: Mapping[str, Any], name: str, *shape: int | None) -> Array:
    """Return an array of finite numbers of a file; None stands for any size.

    Raises
    ------
    DamagedFile
        If it is not there, or of another shape or kind.
    """
    array = found.get(name)
    if array is None:
        raise DamagedFile(f"it has no {name!r}")
    right = array.ndim == len(shape) and all(
        size is None or size == own for size, own in zip(shape, array.shape, strict=True)
    )
    if not right or array.dtype.kind != "f" or not np.isfinite(array).all():
        wanted = " x ".join("any" if size is None else str(size) for size in shape)
        raise DamagedFile(
            f"its {name!r} of shape {array.shape} and type {array.dtype} should be {wanted} finite "
            "numbers"
        )
    return np.asarray(array)


# --- Fingerprint of a problem
#
# A checkpoint is compared by them before anything in it is used.

#: Of checkpoints; those of another one are refused.
FORMAT = "2"
# Inputs that are read in parts are compared in so many chunks, from the first to the last.
_COMPARED = 4
# Where a density of the user's own is compared, and to how many digits: other machines round
# otherwise. Its observations are the first ones.
_PLACES, _DIGITS, _OBSERVATIONS = (-3.0, -1.1, -0.2, 0.0, 0.7, 2.3), 10, 5


def kernel_words(kernel: Any, bounds: bool) -> str:
    """Return a kernel with every digit, and with the bounds of what is learnt if asked for."""
    if not isinstance(kernel, Kernel):
        return repr(kernel)
    kind = type(kernel)
    parts = [
        f"{name}={_value(value, bounds)}"
        for name, value in sorted(kernel.get_params(deep=False).items())
        if bounds or not name.endswith("_bounds")
    ]
    return f"{kind.__module__}.{kind.__qualname__}({', '.join(parts)})"


def _value(value: Any, bounds: bool) -> str:
    if isinstance(value, Kernel):
        return kernel_words(value, bounds)
    if isinstance(value, (list, tuple)) and any(isinstance(one, Kernel) for one in value):
        return f"[{', '.join(_value(one, bounds) for one in value)}]"
    if isinstance(value, (int, float, np.number, np.ndarray, list, tuple)):
        array = np.asarray(value)
        if array.dtype.kind in "iuf":
            return repr(array.astype(float).tolist())
    # An object's address is another one in every process.
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def projector_words(projector: Projector, y: Any) -> dict[str, str]:
    """Return likelihood, method, order and table; `y` are encoded observations."""
    table = projector.table
    return {
        "likelihood": _likelihood_words(projector.likelihood, y),
        "method": projector.method,
        "p": repr(projector.p),
        "table": "none" if table is None else table.sha256,
    }


def _likelihood_words(likelihood: Likelihood, y: Any) -> str:
    """Name and parameters; of a density that is not ours its values too."""
    if likelihood.recipe is None or not likelihood.has_density:
        return likelihood.spelt
    some = np.unique(np.asarray(y, dtype=float).ravel()[:_OBSERVATIONS])
    values = [
        f"{likelihood.split(f, float(one), likelihood.theta)[0]:.{_DIGITS}g}"
        for one in some
        for f in _PLACES
    ]
    return f"{likelihood.spelt} {hashlib.sha256(' '.join(values).encode()).hexdigest()[:16]}"


def digest(rows: ChunkedRows, *arrays: Any) -> str:
    """Return a hash of these arrays and of rows.

    All of them, but of inputs that are read in parts only some chunks: reading takes longer than
    computing can.
    """
    found = hashlib.sha256()

    def add(values: Any) -> None:
        if values is None:
            found.update(b"-")
            return
        found.update(f"{values.dtype.str} {values.shape} ".encode())
        found.update(np.ascontiguousarray(values).tobytes())

    for array in arrays:
        add(np.asarray(array))
    last = rows.chunks - 1
    some = range(rows.chunks) if isinstance(rows, Held) else range(min(_COMPARED, rows.chunks))
    read = {last * k // max(len(some) - 1, 1) for k in some}
    for number in range(rows.chunks):
        for values in rows.others(rows.slice(number)):
            add(values)
        if number in read:
            add(rows.read(number).X)
    return found.hexdigest()
