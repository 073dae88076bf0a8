"""Sites on the disk, to go on from when this process, or its cluster, went away.

One file, written beside its place and renamed: whole or absent. It says of what problem it is.
"""

from __future__ import annotations

import hashlib
import os
import time
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from qpruntime.errors import ConvergenceWarning, InputError, warn
from qpruntime.inference.sites import Sites
from qpruntime.inference.sparse.engine import Engine
from qpruntime.inference.sparse.rows import Rows
from qpruntime.validation import path_of
from qpruntime.whole_file import write_whole

__all__ = ["EVERY", "Checkpoint", "SitesFile", "digest"]

#: Seconds between two checkpoints at least.
EVERY = 30.0


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
        """Whether the last one is old."""
        return time.monotonic() - self._last >= EVERY

    def write(self, problem: Mapping[str, str], content: Mapping[str, Any]) -> None:
        """Write what there is; a disk that is full is warned of, once."""
        arrays: dict[str, Any] = {name: np.array(words) for name, words in problem.items()}
        arrays |= content
        try:
            write_whole(self.path, lambda file: np.savez(file, **arrays))
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
        try:
            with np.load(self.path, allow_pickle=False) as found:
                kept = {name: found[name] for name in found.files}
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise InputError(f"{self.path} is no checkpoint ({error}): remove it") from error
        for name, words in problem.items():
            if name not in kept or str(kept[name]) != words:
                raise InputError(
                    f"{self.path} is the checkpoint of another {self.task}: its {name} is "
                    f"{kept.get(name, 'missing')}, not {words}; remove it, or name another file"
                )
        return kept

    def hint(self, again: str = "call again") -> str:
        """Say how to go on from the file, if there is one."""
        if not self.path.exists():
            return ""
        return f"; {self.path} has the sites so far: {again} with resume=True"


class SitesFile(Checkpoint):
    """The checkpoint of one inference: its sites."""

    def offer(self, engine: Engine) -> None:
        """Write the sites if the last ones are old."""
        if self.due:
            self.save(engine)

    def save(self, engine: Engine) -> None:
        """Write the sites there are."""
        self.write(_problem(engine), {"tau": engine.tau, "nu": engine.nu})

    def restore(self, engine: Engine) -> bool:
        """Take the sites of the file, if there is one; return whether.

        Raises
        ------
        InputError
            If the file holds sites of another problem, or none.
        """
        kept = self.read(_problem(engine))
        if kept is None:
            return False
        engine.sites = Sites(kept["tau"], kept["nu"])
        return True


def digest(rows: Rows, *arrays: Any) -> str:
    """Return a hash of these arrays and of all that rows have beside their inputs."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(array).tobytes())
    for number in range(rows.chunks):
        for values in rows.others(rows.slice(number)):
            found.update(b"-" if values is None else np.ascontiguousarray(values).tobytes())
    return found.hexdigest()


def _problem(engine: Engine) -> dict[str, str]:
    projector = engine.rule.projector
    return {
        "kernel": repr(engine.kernel),
        "likelihood": projector.likelihood.spelt,
        "method": projector.method,
        "power": repr(engine.rule.power),
        "rows": str(engine.rows.n),
        "data": digest(engine.rows, engine.Z),
    }
