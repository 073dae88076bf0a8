"""Files that are whole or absent: written beside their place, to the disk, then put there.

The file beside the place ends in ``.part``. Whoever writes it holds a lock on it, which the system
takes back when the process ends, however that happens: one without a lock is of a writer that was
killed, and the next write to the same place removes it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from qpruntime._validation import path_of
from qpruntime.errors import InputError

fcntl: Any = None
with contextlib.suppress(ImportError):  # not there on Windows
    import fcntl

__all__ = ["open_regular", "remove_parts", "write_whole"]

_SUFFIX = ".part"
# If files cannot be locked, a file that was not written to for so many seconds has no writer.
_STALE = 3600.0
# Characters of the name that a part begins with: more need not fit into the name of a file.
_BEGINNING = 60
# Flags of a file that is new, with the permissions of any other that its user makes.
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
# Tries to make a file that another process does not take for one without a writer.
_TRIES = 20


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; a pipe is not waited for.

    Raises
    ------
    OSError
        If it cannot be opened, or is a directory, a pipe, a device or a socket.
    """
    more = getattr(os, "O_NONBLOCK", 0)
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(
            open(path, "rb", opener=lambda name, flags: os.open(name, flags | more))
        )
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file; give one", os.fspath(path))
        stack.pop_all()
        return file


def write_whole(path: str | os.PathLike[str], write: Callable[[BinaryIO], Any]) -> None:
    """Call `write` with a file that takes the place of `path` once it is on the disk.

    The file is open for reading too. It has the permissions of the one at `path`, if there is one.

    Temporary files that killed writers of `path` left beside it are removed.

    Raises
    ------
    InputError
        If it cannot be written; what was at `path` is there still.
    """
    target = path_of(path, "path").absolute()
    remove_parts(target)
    name = None
    try:
        file, name = _begun(target)
        with file:
            with contextlib.suppress(OSError):  # there is none, or its system has no permissions
                os.chmod(name, stat.S_IMODE(os.stat(target).st_mode))
            write(file)
            file.flush()
            os.fsync(file.fileno())
            if fcntl is not None:
                os.replace(name, target)  # before the lock is given back
        if fcntl is None:
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


def remove_parts(target: Path) -> None:
    """Remove what killed writers of this file have left beside it, and nothing of living ones."""
    start = re.escape(target.name[:_BEGINNING])
    ours = re.compile(start + r"\.?[a-z0-9_]{8}" + re.escape(_SUFFIX))
    with contextlib.suppress(OSError):
        for name in os.listdir(target.parent):
            if ours.fullmatch(name):
                # A folder, what is another user's, or was renamed meanwhile, stays.
                with contextlib.suppress(OSError):
                    _remove_abandoned(target.parent / name)


def _begun(target: Path) -> tuple[BinaryIO, str]:
    """Return a new file beside the target, locked, and its path."""
    for _ in range(_TRIES):
        name = f"{target.name[:_BEGINNING]}.{secrets.token_hex(4)}{_SUFFIX}"
        part = os.fspath(target.parent / name)
        try:
            handle = os.open(part, _NEW, 0o666)
        except FileExistsError:
            continue
        file = os.fdopen(handle, "w+b")
        if fcntl is not None:
            # Some file systems have no locks: there files of this age are left alone.
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX)
        # Between its making and its lock it may have looked abandoned.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.stat(part), os.fstat(handle)):
                return file, part
        file.close()
    raise OSError(None, "other processes remove what is written there")


def _remove_abandoned(part: Path) -> None:
    """Remove a file if nobody writes to it; `OSError` if that cannot be."""
    handle = os.open(part, os.O_RDWR | getattr(os, "O_NONBLOCK", 0))
    try:
        if fcntl is None:
            locked = False
        else:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                locked = True
            except BlockingIOError:
                return
            except OSError:
                locked = False
        abandoned = locked or time.time() - os.fstat(handle).st_mtime > _STALE
        # The lock is held meanwhile: a writer that waits for it sees that its file is gone.
        if abandoned and fcntl is not None:
            part.unlink()
    finally:
        os.close(handle)
    if abandoned and fcntl is None:
        part.unlink()
