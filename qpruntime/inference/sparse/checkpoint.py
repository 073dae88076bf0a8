"""Sites on the disk, to go on from when this process, or its cluster, went away.

One file, written beside its place and renamed: whole or absent. It says of what problem it is.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from qpruntime.errors import ConvergenceWarning, InputError, warn
from qpruntime.inference.sites import Sites
from qpruntime.inference.sparse.arrays_file import array_of, read_arrays, write_arrays
from qpruntime.inference.sparse.engine import Engine
from qpruntime.inference.sparse.identity import FORMAT, digest, kernel_words, projector_words
from qpruntime.validation import path_of

__all__ = ["EVERY", "Checkpoint", "SitesFile"]

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
