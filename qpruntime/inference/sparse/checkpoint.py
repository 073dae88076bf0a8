"""Sites on the disk after a sweep, to go on from when this process, or its cluster, went away.

One file, written beside its place and renamed: whole or absent.
"""

from __future__ import annotations

import hashlib
import os
import time
import zipfile
from typing import Any

import numpy as np

from qpruntime.errors import ConvergenceWarning, InputError, warn
from qpruntime.inference.sites import Sites
from qpruntime.inference.sparse.engine import Engine
from qpruntime.validation import path_of
from qpruntime.whole_file import write_whole

__all__ = ["EVERY", "Checkpoint"]

#: Seconds between two checkpoints at least.
EVERY = 30.0


class Checkpoint:
    """A file of sites.

    Parameters
    ----------
    path : path
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path_of(path, "checkpoint")
        self._last = time.monotonic()
        self._failed = False

    def offer(self, engine: Engine) -> None:
        """Write the sites if the last ones are old; a disk that is full is warned of, once."""
        if time.monotonic() - self._last >= EVERY:
            self.save(engine)

    def save(self, engine: Engine) -> None:
        """Write the sites there are."""
        try:
            write_whole(self.path, lambda file: np.savez(file, **_content(engine)))
        except InputError as error:
            if not self._failed:
                warn(f"no checkpoint: {error}; inference goes on without", ConvergenceWarning)
            self._failed = True
        self._last = time.monotonic()

    def restore(self, engine: Engine) -> bool:
        """Take the sites of the file, if there is one; return whether.

        Raises
        ------
        InputError
            If the file holds sites of another problem, or none.
        """
        if not self.path.exists():
            return False
        try:
            with np.load(self.path, allow_pickle=False) as found:
                kept = {name: found[name] for name in found.files}
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise InputError(f"{self.path} is no checkpoint ({error}): remove it") from error
        own = _content(engine)
        for name in own:
            if name in ("tau", "nu"):
                continue
            if name not in kept or str(kept[name]) != str(own[name]):
                raise InputError(
                    f"{self.path} is the checkpoint of another inference: its {name} is "
                    f"{kept.get(name, 'missing')}, not {own[name]}; remove it, or name another file"
                )
        engine.sites = Sites(kept["tau"], kept["nu"])
        return True

    @property
    def hint(self) -> str:
        """Say how to go on from the file, if there is one."""
        if not self.path.exists():
            return ""
        return f"; {self.path} has the sites so far: call again with resume=True"


def _content(engine: Engine) -> dict[str, Any]:
    projector = engine.rule.projector
    digest = hashlib.sha256(np.ascontiguousarray(engine.Z).tobytes())
    for number in range(engine.rows.chunks):
        for values in engine.rows.others(engine.rows.slice(number)):
            digest.update(b"-" if values is None else np.ascontiguousarray(values).tobytes())
    return {
        "kernel": np.array(repr(engine.kernel)),
        "likelihood": np.array(projector.likelihood.spelt),
        "method": np.array(projector.method),
        "power": np.array(repr(engine.rule.power)),
        "rows": np.array(engine.rows.n),
        "data": np.array(digest.hexdigest()),
        "tau": engine.tau,
        "nu": engine.nu,
    }
