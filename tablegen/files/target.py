"""Targets of a command: regular and new files, never anything that a rename would destroy.

A finished file takes the place of its target in one step. A device, a socket or a FIFO would be
gone after that, and a symbolic link would have become a file: links are followed, the others
refused.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from qpruntime.errors import TableError
from qpruntime.projection.open import table_directory

__all__ = ["check_kind", "installed_directory", "replaced", "resolve"]

_KINDS = (
    (stat.S_ISDIR, "directory; name a file in it"),
    (stat.S_ISFIFO, "FIFO, not a regular file; choose another --output"),
    (stat.S_ISSOCK, "socket, not a regular file; choose another --output"),
    (stat.S_ISCHR, "character device, not a regular file; choose another --output"),
    (stat.S_ISBLK, "block device, not a regular file; choose another --output"),
)


def resolve(path: Path, *, force: bool = False) -> Path:
    """Return the absolute path of the file that is to be made, the links at its end followed.

    Raises
    ------
    TableError
        If it would replace anything but a regular file, if it is a link to nothing and `force` is
        not set, or if there is no directory that can be written to.
    """
    path = path.absolute()
    target = path
    if path.is_symlink():
        target = Path(os.path.realpath(path))
        if target.is_symlink():
            raise TableError(f"{path} is a link that leads in a circle; choose another --output")
        if not target.exists() and not force:
            raise TableError(
                f"{path} is a link to {target}, which is not there; remove the link, or make that "
                "file with --force"
            )
    check_kind(target)
    if not target.parent.is_dir():
        raise TableError(f"no directory {target.parent}; make it first, or choose another --output")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise TableError(f"cannot write to {target.parent}; choose another --output")
    return target


def installed_directory() -> Path:
    """Return the directory of installed tables, which is made if it does not exist."""
    directory = table_directory().absolute()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TableError(
            f"cannot make the directory of installed tables {directory}: {error.strerror}; "
            "set QP_TABLES or use --output"
        ) from error
    return directory


def check_kind(target: Path) -> None:
    """Raise `TableError` if this is anything but a regular file or nothing at all.

    A directory may be a zarr table if its name says so: see `tablegen.files.zarr`.
    """
    try:
        mode = os.lstat(target).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    for is_kind, words in _KINDS:
        if is_kind(mode) and not (stat.S_ISDIR(mode) and target.suffix == ".zarr"):
            raise TableError(f"{target} is a {words}")


@contextmanager
def replaced(target: Path) -> Iterator[Path]:
    """Yield a path to write to, of the same ending; what is there in the end becomes `target`.

    After an error nothing is there, and the target is as it was.
    """
    partial = target.with_name(f".{os.getpid()}-{secrets.token_hex(4)}{target.suffix}")
    try:
        yield partial
        check_kind(target)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
