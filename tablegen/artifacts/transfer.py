"""Bytes from a URL into a file: in pieces, resumed where a connection was cut, and bounded.

`pooch` calls a `Transfer` with a temporary name and gives the file its own name only if its hash is
right. Until then the bytes are in a file beside it, from which the next call goes on.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

from qpruntime._atomic_file import open_regular
from qpruntime._formatting import printable, size
from qpruntime.errors import TableError

fcntl: Any = None
with contextlib.suppress(ImportError):  # not there on Windows
    import fcntl

__all__ = ["Cut", "Transfer", "TransferLimits"]

_CHUNK = 1 << 18


@dataclass(frozen=True)
class TransferLimits:
    """Time limits of a transfer.

    Attributes
    ----------
    silence : float
        Seconds without a byte after which a connection counts as cut.
    window, least : float
        Fewer than `least` bytes in `window` seconds are too slow.
    tries : int
        Connections that may be cut.
    largest : int
        Bytes of a table whose size nobody has said.
    """

    silence: float = 30.0
    window: float = 60.0
    least: float = 64_000.0
    tries: int = 5
    largest: int = 1 << 34


class Cut(Exception):
    """A connection ended before its time."""


class Transfer:
    """A downloader for `pooch.retrieve`.

    Parameters
    ----------
    partial : Path
        Where the bytes are until they are all there.
    resumes : bool
        Whether what an earlier call has left there is of the same file.
    nbytes : int, optional
        The size that was announced.
    check : function
        Called with the complete file before it gets a name; raises if it is not what was wanted.
    report : function, optional
        Called with bytes there, and bytes in all or None.
    """

    def __init__(
        self,
        partial: Path,
        resumes: bool,
        nbytes: int | None,
        check: Callable[[Path], None],
        report: Callable[[int, int | None], None] | None = None,
        limits: TransferLimits | None = None,
    ) -> None:
        self._partial, self._nbytes, self._check = partial, nbytes, check
        self._report, self._limits, self._resumes = report, limits or TransferLimits(), resumes

    def __call__(self, url: str, output_file: str, pooch: object, check_only: bool = False) -> None:
        """Bring all bytes of the URL; `TableError` if it cannot be, or another process does."""
        lock = self._partial.with_name(f".{self._partial.name}.lock")
        with _held(lock, url):
            if not self._resumes:
                self._partial.unlink(missing_ok=True)
            self._bring_all(url, output_file)

    def _bring_all(self, url: str, output_file: str) -> None:
        for attempt in range(self._limits.tries):
            before = self._there()
            if self._nbytes is not None and before == self._nbytes:
                break
            try:
                self._bring(url)
                break
            except Cut as error:
                if attempt == self._limits.tries - 1:
                    raise TableError(
                        f"{printable(url)}: {error}, after {attempt + 1} connections; "
                        f"{size(self._there())} are kept: the same command goes on from there"
                    ) from error
                if self._there() == before:
                    time.sleep(min(0.1 * 2.0**attempt, 2.0))
        if self._nbytes is not None and self._there() != self._nbytes:
            self._refuse(f"{url} has {self._there()} bytes, {self._nbytes} were announced")
        try:
            self._check(self._partial)
        except BaseException:
            self._partial.unlink(missing_ok=True)
            raise
        os.replace(self._partial, output_file)

    def _there(self) -> int:
        try:
            status = self._partial.lstat()
        except FileNotFoundError:
            return 0
        if not stat.S_ISREG(status.st_mode):
            raise TableError(
                f"{self._partial} is a link or a special file, and the bytes that come are kept in "
                "a regular file of that name: remove it"
            )
        return status.st_size

    def _refuse(self, words: str) -> None:
        self._partial.unlink(missing_ok=True)
        raise TableError(f"{printable(words)}; nothing was kept")

    def _bring(self, url: str) -> None:
        """Append what is missing to the partial file, by one connection."""
        start = self._there()
        source = _opened(url, start, self._limits.silence)
        with closing(source.pieces), _appended(self._partial) as file:
            if source.start != start:
                file.truncate(source.start)
            received, total = source.start, source.total
            if self._nbytes is not None and total is not None and total != self._nbytes:
                self._refuse(f"{url} says it has {total} bytes, {self._nbytes} were announced")
            largest = self._limits.largest if self._nbytes is None else self._nbytes
            if total is not None and total > largest:
                self._refuse(f"{url} says it has {total} bytes, more than the {largest} allowed")
            free = shutil.disk_usage(self._partial.parent).free
            expected = self._nbytes if total is None else total
            if expected is not None and expected - received > free:
                self._refuse(
                    f"{url} has {expected} bytes, and {self._partial.parent} has {free} free: "
                    "make room, or give another output"
                )
            most = largest if total is None else total
            began, marked = time.monotonic(), received
            for piece in source.pieces:
                received += len(piece)
                if received > most:
                    file.close()
                    self._refuse(f"{url} sends more than {most} bytes")
                file.write(piece)
                if self._report is not None:
                    self._report(received, self._nbytes or total)
                if (now := time.monotonic()) - began > self._limits.window:
                    if received - marked < self._limits.least:
                        raise Cut(
                            f"fewer than {size(self._limits.least)} came in "
                            f"{self._limits.window:g} s"
                        )
                    began, marked = now, received
            if total is not None and received < total:
                raise Cut(f"the connection ended at {received} of {total} bytes")


def _appended(path: Path) -> BinaryIO:
    """Open a file to append to; a link of that name is not followed, a pipe not waited for."""
    more = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    return open(path, "ab", opener=lambda name, flags: os.open(name, flags | more, 0o666))


@contextlib.contextmanager
def _held(lock: Path, url: str) -> Iterator[None]:
    """Hold a lock that the system takes back when the process ends; its file goes with it."""
    with _appended(lock) as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise TableError(
                    f"another process is fetching {printable(url)} to {lock.parent}: wait for it"
                ) from error
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


@dataclass
class _Source:
    start: int
    total: int | None
    pieces: Any


def _opened(url: str, start: int, silence: float) -> _Source:
    scheme = urlsplit(url).scheme
    if scheme in ("http", "https"):
        return _by_http(url, start, silence)
    return _by_file_system(url, start)


def _by_http(url: str, start: int, silence: float) -> _Source:
    import requests
    import urllib3

    wanted = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        answer = requests.get(url, headers=wanted, stream=True, timeout=(silence, silence))
    except (requests.ConnectionError, requests.Timeout) as error:
        raise Cut(f"no connection ({type(error).__name__})") from error
    except requests.RequestException as error:
        raise TableError(
            f"{printable(url)} cannot be asked for: {printable(str(error))}"
        ) from error
    if answer.status_code == 416:  # what is there is longer than what they have
        answer.close()
        if start:
            return _by_http(url, 0, silence)
        raise TableError(
            f"{printable(url)}: the server answers 416 to a request for the whole file"
        )
    if answer.status_code >= 500:
        answer.close()
        raise Cut(f"the server answers {answer.status_code}")
    if answer.status_code not in (200, 206):
        answer.close()
        raise TableError(f"{printable(url)}: the server answers {answer.status_code}")
    length = answer.headers.get("Content-Length", "")
    plain = answer.headers.get("Content-Encoding", "identity") == "identity"
    span = answer.headers.get("Content-Range", "")
    if answer.status_code == 206 and not span.startswith(f"bytes {start}-"):
        answer.close()
        return _by_http(url, 0, silence) if start else _unusable(url, span)
    begin = start if answer.status_code == 206 else 0
    total = begin + int(length) if plain and length.isdecimal() and len(length) < 20 else None

    def pieces() -> Iterator[bytes]:
        try:
            with closing(answer):
                # Read the bytes that have arrived at once, so that a slow server is noticed and its
                # bytes are kept.
                while piece := answer.raw.read1(_CHUNK, decode_content=True):
                    yield piece
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise Cut(f"the connection was cut ({type(error).__name__})") from error

    return _Source(begin, total, pieces())


def _unusable(url: str, span: str) -> _Source:
    raise TableError(f"{printable(url)}: the server sends another part: {printable(span)!r}")


def _by_file_system(url: str, start: int) -> _Source:
    """Open a file of this machine, or by fsspec one of an object store or elsewhere."""
    try:
        file, total = _file(url)
        begin = start if start <= total else 0
        file.seek(begin)
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "fsspec":
            raise
        reason = getattr(error, "strerror", None) or error
        raise TableError(f"{printable(url)} cannot be read: {printable(str(reason))}") from error

    def pieces() -> Iterator[bytes]:
        try:
            with closing(file):
                while piece := file.read(_CHUNK):
                    yield piece
        except OSError as error:
            raise Cut(str(error)) from error

    return _Source(begin, total, pieces())


def _file(url: str) -> tuple[Any, int]:
    """Return an open file and its size."""
    if urlsplit(url).scheme in ("file", "local"):
        file = open_regular(Path(unquote(urlsplit(url).path)))
        return file, os.fstat(file.fileno()).st_size
    import fsspec

    system, inside = fsspec.core.url_to_fs(url)
    return system.open(inside, "rb"), int(system.info(inside)["size"])
