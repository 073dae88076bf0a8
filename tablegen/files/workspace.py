"""The directory beside the target where a build lives until it is done, and its lock.

``probit.h5`` is built in ``.probit.h5.build/``. The lock is the kernel's (flock): it ends with the
process that holds it, however that ends. The content of the file only names that process.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from qpruntime._formatting import size
from qpruntime.errors import TableError

__all__ = ["BuildStopped", "Workspace"]

_MARGIN = 1 << 20


class BuildStopped(TableError):
    """A build met an obstacle outside of it; once that is gone, the same call resumes."""


class Workspace:
    """Working directory in which the table `target` is built.

    Attributes
    ----------
    target : Path
        The finished table.
    directory, chunks, partial : Path
        The working directory; in it the chunk store and the unfinished file.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self.directory = target.parent / f".{target.name}.build"
        self.chunks = self.directory / "chunks.zarr"
        self.partial = self.directory / "table.partial"
        self._lock = self.directory / "lock"
        self._held = -1

    @property
    def exists(self) -> bool:
        """True if the directory is there."""
        return self.directory.exists()

    def check_space(self, nbytes: int, copies: int | None = None) -> None:
        """Raise `TableError` unless chunks and finished file, `nbytes` each, fit on the disk.

        A zarr table makes three `copies`, at most: it is compressed.
        """
        if copies is None:
            copies = 3 if self.target.suffix == ".zarr" else 2
        stored = 0
        for file in self.directory.rglob("*"):
            with suppress(FileNotFoundError):  # another build may be at work here
                stored += file.stat().st_size
        needed = copies * nbytes + _MARGIN - stored
        free = shutil.disk_usage(self.target.parent).free
        if free < needed:
            raise TableError(
                f"building {self.target} needs {size(needed)}, "
                f"{size(free)} are free in {self.target.parent}; "
                "free some, choose another --output, or a coarser grid"
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make the directory and hold its lock; raise `TableError` if another build does."""
        self._held = self._acquire()
        try:
            yield
        finally:
            os.close(self._held)
            self._held = -1

    def check(self) -> None:
        """Raise `FileNotFoundError` unless the directory is the one that was locked.

        Whoever removed it let another build in, and what writes chunks would make it anew.
        """
        with suppress(FileNotFoundError):
            if os.fstat(self._held).st_ino == self._lock.stat().st_ino:
                return
        raise FileNotFoundError(errno.ENOENT, f"{self.directory} was removed during the build")

    def _acquire(self) -> int:
        for _ in range(20):
            try:
                self.directory.mkdir(exist_ok=True)
                descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o644)
            except FileNotFoundError:
                continue  # the other build just ended and removed its directory
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(descriptor).st_ino == self._lock.stat().st_ino:
                    os.ftruncate(descriptor, 0)
                    os.write(descriptor, f"{os.getpid()} on {socket.gethostname()}".encode())
                    return descriptor
            except FileNotFoundError:
                pass
            except OSError as error:
                holder = os.pread(descriptor, 300, 0).decode(errors="replace").strip()
                os.close(descriptor)
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
                raise TableError(
                    f"{self.target} is being built by process {holder or 'unknown'}; "
                    "wait for it, or choose another --output"
                ) from None
            os.close(descriptor)
        raise TableError(f"cannot lock {self._lock}; is another build starting again and again?")

    def remove_if_empty(self) -> None:
        """Remove the directory if there is nothing in it that another build could take up."""
        kept = [self.chunks / "c", self.directory / "samples"]
        if self.exists and not any(file.is_file() for k in kept for file in k.rglob("*")):
            self.partial.unlink(missing_ok=True)
            self.remove()

    def remove(self) -> None:
        """Remove the directory, the lock last."""
        shutil.rmtree(self.chunks, ignore_errors=True)
        shutil.rmtree(self.directory)
