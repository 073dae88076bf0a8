"""Files that are whole or absent: written beside their place, to the disk, then put there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from qpruntime.errors import InputError
from qpruntime.validation import path_of

__all__ = ["write_whole"]


def write_whole(path: str | os.PathLike[str], write: Callable[[BinaryIO], Any]) -> None:
    """Call `write` with a file that takes the place of `path` once it is on the disk.

    Raises
    ------
    InputError
        If it cannot be written; what was at `path` is there still.
    """
    target = path_of(path, "path").absolute()
    name = None
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=target.name, suffix=".part")
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, target)
    except BaseException as error:
        if name is not None:
            Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise InputError(
                f"{target} cannot be written ({error.strerror or error}): see to the folder and "
                "call again; nothing was changed"
            ) from error
        raise
