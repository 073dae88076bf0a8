"""Checkpoints: sites on disk, from which an interrupted inference resumes.

A checkpoint is one file, written atomically, which identifies its problem.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._atomic_file import open_regular
from qpruntime._sealed_file import DamagedFile, array_from, damage_named, read_sealed, write_sealed
from qpruntime._typing import Array, ArrayLike
from qpruntime._validation import path_of
from qpruntime.errors import ConvergenceWarning, InputError, warn
from qpruntime.inference.sites import Sites
from qpruntime.inference.sparse.engine import Engine
from qpruntime.inference.sparse.rows import ChunkedRows, Held
from qpruntime.likelihoods import Likelihood
from qpruntime.projection.projector import Projector

__all__ = [
    "EVERY",
    "FORMAT",
    "Checkpoint",
    "SitesFile",
    "array_of",
    "digest",
    "kernel_words",
    "projector_words",
    "read_arrays",
    "write_arrays",
]

# --- Checkpoints of sites

#: Shortest time between two checkpoints, in seconds.
EVERY = 30.0
# Kind of sealed file.
_KIND = "checkpoint"
# Number of characters of a difference in messages.
_MAX_SHOWN = 400


class Checkpoint:
    """File of named arrays, some of which identify the problem.

    Parameters
    ----------
    path : path
    task : str
        Name of the task that continues without the file if it cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], task: str = "inference") -> None:
        self.path, self.task = path_of(path, "checkpoint"), task
        self._last = time.monotonic()
        self._failed = False

    @property
    def due(self) -> bool:
        """True if the last checkpoint is old enough for a new one."""
        return time.monotonic() - self._last >= EVERY

    def write(self, problem: Mapping[str, str], content: Mapping[str, ArrayLike]) -> None:
        """Write the checkpoint; warn once if it cannot be written."""
        arrays: dict[str, ArrayLike] = {name: np.array(words) for name, words in problem.items()}
        arrays |= content
        try:
            write_arrays(self.path, arrays)
        except InputError as error:
            if not self._failed:
                warn(f"no checkpoint: {error}; {self.task} goes on without", ConvergenceWarning)
            self._failed = True
        self._last = time.monotonic()

    def read(self, problem: Mapping[str, str]) -> dict[str, NDArray[np.generic]] | None:
        """Return the file's arrays for this problem, or None if there is no file.

        Raises
        ------
        InputError
            If the file belongs to another problem, or is no checkpoint.
        """
        if not self.path.exists():
            return None
        with self.understood():
            arrays = read_arrays(self.path)
        for name, words in problem.items():
            if name not in arrays or str(arrays[name]) != words:
                file_words = str(arrays[name])[:_MAX_SHOWN] if name in arrays else "missing"
                raise InputError(
                    f"{self.path} is the checkpoint of another {self.task}: its {name} is "
                    f"{file_words}, not {words[:_MAX_SHOWN]}; remove it, or name another file"
                )
        return arrays

    def understood(self) -> contextlib.AbstractContextManager[None]:
        """Turn errors raised inside into an `InputError` that names the file."""
        remedy = "remove it, or name another file"
        return damage_named(self.path, "checkpoint", remedy, InputError)

    def hint(self, again: str = "call again") -> str:
        """Return words on how to resume from the file, if there is one."""
        if not self.path.exists():
            return ""
        return f"; {self.path} has the sites so far: {again} with resume=True"


class SitesFile(Checkpoint):
    """Checkpoint of the sites of one inference."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self._words: dict[str, str] | None = None

    def _problem(self, engine: Engine) -> dict[str, str]:
        """Return the fingerprint of the inference; all calls must pass the same engine."""
        if self._words is None:
            self._words = _problem(engine)
        return self._words

    def offer(self, engine: Engine) -> None:
        """Write the sites if the last checkpoint is old."""
        if self.due:
            self.save(engine)

    def save(self, engine: Engine) -> None:
        """Write the current sites."""
        self.write(self._problem(engine), {"tau": engine.tau, "nu": engine.nu})

    def restore(self, engine: Engine) -> bool:
        """Set the sites to those of the file; return False if there is none.

        Raises
        ------
        InputError
            If the file belongs to another problem, or is no checkpoint.
        """
        arrays = self.read(self._problem(engine))
        if arrays is None:
            return False
        with self.understood():
            sites = Sites(*(array_of(arrays, name, engine.rows.n) for name in ("tau", "nu")))
        engine.sites = sites
        return True


def _problem(engine: Engine) -> dict[str, str]:
    """Return the fingerprint of an inference by name."""
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


def write_arrays(path: str | os.PathLike[str], arrays: Mapping[str, ArrayLike]) -> None:
    """Write arrays atomically, or raise `InputError` and leave an existing file unchanged."""
    write_sealed(path, _KIND, {name: np.asarray(value) for name, value in arrays.items()})


def read_arrays(path: Path) -> dict[str, NDArray[np.generic]]:
    """Return the arrays of a file by name.

    Raises
    ------
    DamagedFile
        If the file is of another kind, or a byte was changed.
    OSError
        If it cannot be opened.
    """
    with open_regular(path) as file:
        members = read_sealed(file, _KIND)
    return {name.removesuffix(".npy"): array_from(content) for name, content in members.items()}


def array_of(arrays: Mapping[str, Any], name: str, *shape: int | None) -> Array:
    """Return an array of finite numbers from a file; None means any size.

    Raises
    ------
    DamagedFile
        If it is missing, or of another shape or kind.
    """
    array = arrays.get(name)
    if array is None:
        raise DamagedFile(f"it has no {name!r}")
    right = array.ndim == len(shape) and all(
        size is None or size == length for size, length in zip(shape, array.shape, strict=True)
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
# A checkpoint is used only if its fingerprint equals that of the problem.

#: Version of the format of checkpoints; other versions are refused.
FORMAT = "2"
# Number of chunks by which lazy inputs are compared, from the first to the last.
_COMPARED_CHUNKS = 4
# Points, digits and number of observations by which a user's density is compared. The digits are
# few because other machines round differently.
_COMPARED_POINTS, _COMPARED_DIGITS, _COMPARED_OBSERVATIONS = (
    (-3.0, -1.1, -0.2, 0.0, 0.7, 2.3),
    10,
    5,
)


def kernel_words(kernel: Kernel, bounds: bool) -> str:
    """Return a kernel as text with every digit, with `bounds` also those of hyper-parameters."""
    if not isinstance(kernel, Kernel):
        return repr(kernel)
    kind = type(kernel)
    parts = [
        f"{name}={_value(value, bounds)}"
        for name, value in sorted(kernel.get_params(deep=False).items())
        if bounds or not name.endswith("_bounds")
    ]
    return f"{kind.__module__}.{kind.__qualname__}({', '.join(parts)})"


def _value(value: object, bounds: bool) -> str:
    if isinstance(value, Kernel):
        return kernel_words(value, bounds)
    if isinstance(value, (list, tuple)) and any(isinstance(item, Kernel) for item in value):
        return f"[{', '.join(_value(item, bounds) for item in value)}]"
    if isinstance(value, (int, float, np.number, np.ndarray, list, tuple)):
        array = np.asarray(value)
        if array.dtype.kind in "iuf":
            return repr(array.astype(float).tolist())
    # The address of an object differs between processes.
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def projector_words(projector: Projector, y: Array) -> dict[str, str]:
    """Return likelihood, method, order and table; `y` are encoded observations."""
    table = projector.table
    return {
        "likelihood": _likelihood_words(projector.likelihood, y),
        "method": projector.method,
        "p": repr(projector.p),
        "table": "none" if table is None else table.sha256,
    }


def _likelihood_words(likelihood: Likelihood, y: Array) -> str:
    """Return name and parameters of a likelihood, and values of a user's density."""
    if likelihood.recipe is None or not likelihood.has_density:
        return likelihood.spelt
    outcomes = np.unique(np.asarray(y, dtype=float).ravel()[:_COMPARED_OBSERVATIONS])
    values = [
        f"{likelihood.split(f, float(outcome), likelihood.theta)[0]:.{_COMPARED_DIGITS}g}"
        for outcome in outcomes
        for f in _COMPARED_POINTS
    ]
    return f"{likelihood.spelt} {hashlib.sha256(' '.join(values).encode()).hexdigest()[:16]}"


def digest(rows: ChunkedRows, *arrays: ArrayLike) -> str:
    """Return a hash of these arrays and of rows.

    Lazy inputs enter by a few chunks only, because reading them all may take longer than computing.
    """
    sha256 = hashlib.sha256()

    def add(values: NDArray[np.generic] | None) -> None:
        if values is None:
            sha256.update(b"-")
            return
        sha256.update(f"{values.dtype.str} {values.shape} ".encode())
        sha256.update(np.ascontiguousarray(values).tobytes())

    for array in arrays:
        add(np.asarray(array))
    last = rows.chunks - 1
    compared = (
        range(rows.chunks) if isinstance(rows, Held) else range(min(_COMPARED_CHUNKS, rows.chunks))
    )
    read = {last * k // max(len(compared) - 1, 1) for k in compared}
    for number in range(rows.chunks):
        for values in rows.others(rows.slice(number)):
            add(values)
        if number in read:
            add(rows.read(number).X)
    return sha256.hexdigest()
