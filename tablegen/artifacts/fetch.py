"""Fetch a table that somebody has published, or one by its URL.

Bytes come in pieces, are resumed where a connection was cut, and are bounded. `pooch` calls a
`Transfer` with a temporary name and gives the file its own name only if its hash is right. Until
then the bytes are in a file beside it, from which the next call goes on.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import unquote, urlsplit

from qpruntime._atomic_file import open_regular
from qpruntime._formatting import printable, size
from qpruntime._validation import path_of, shown
from qpruntime.errors import InputError, TableError
from qpruntime.projection.open import open_table
from qpruntime.table_format.metadata import Metadata
from tablegen.artifacts import registry
from tablegen.artifacts.publish import digest_of
from tablegen.files.target import installed_directory, resolve

fcntl: Any = None
with suppress(ImportError):  # not there on Windows
    import fcntl

__all__ = ["Cut", "TransferLimits", "fetch"]

#: Names the registry where none is given.
VARIABLE = "QP_REGISTRY"
Report = Callable[[int, int | None], None]
_CHUNK = 1 << 18


def fetch(
    table: str,
    *,
    source: str | os.PathLike[str] | None = None,
    sha256: str | None = None,
    output: str | os.PathLike[str] | None = None,
    force: bool = False,
    report: Report | None = None,
    limits: TransferLimits | None = None,
) -> tuple[Path, Metadata]:
    """Bring a table, check it, and put it among the installed ones.

    The received file is opened and all its data are hashed before it gets its name. If a connection
    was cut, now or in an earlier call, only the missing bytes are requested.

    Parameters
    ----------
    table : str
        A name of a registry, the hash of a table's data, or the URL or path of a table.
    source : str or path, optional
        The directory of a registry, or its URL: http, https, or any that fsspec knows. By default
        the environment's ``QP_REGISTRY``. Proxies are those of the environment.
    sha256 : str, optional
        Hash of the file, or of its data as ``tablegen info`` has it: any other table is refused.
    output : path, optional
        By default the table's name among the installed tables.
    force : bool
        Replace another table.
    report : function, optional
        Called with the bytes that are there, and bytes in all or None.
    limits : TransferLimits, optional
        Patience and sizes.

    Returns
    -------
    path : Path
    metadata : Metadata

    Raises
    ------
    InputError
        If an argument is not usable.
    TableError
        If there is no such table, or what came is not what was asked for.

    See Also
    --------
    tablegen.publish, tablegen.build

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import tablegen
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = tablegen.publish(folder, ["probit"])
    ...     path, metadata = tablegen.fetch(
    ...         "probit-compact", source=folder, output=Path(folder) / "fetched.h5"
    ...     )
    ...
    >>> path.name
    'fetched.h5'
    """
    wanted = _hash(sha256)
    limits = limits or TransferLimits()
    if _is_place(table):
        url, name, entry = _url(table), _file_name(table), None
    else:
        url, entry = _look_up(table, source, limits)
        name = entry.file
        if wanted not in (None, entry.sha256, entry.data_sha256):
            raise TableError(
                f"the registry's {entry.name} has sha256 {entry.sha256}, data sha256 "
                f"{entry.data_sha256}, not {wanted}"
            )
    target = _target(name, output)
    if target.exists() and not force:
        return _kept(target, wanted, entry)
    _bring(url, target, wanted, entry, report, limits)
    return target, open_table(target).metadata


def _bring(
    url: str,
    target: Path,
    wanted: str | None,
    entry: registry.Entry | None,
    report: Report | None,
    limits: TransferLimits,
) -> None:
    """Put the file of the URL in its place, if it is what was wanted."""
    import pooch

    known = entry.sha256 if entry else wanted
    mark = (known or hashlib.sha256(url.encode()).hexdigest())[:16]
    part = target.with_name(f"{target.name[:60]}.{mark}.part")
    size = entry.size if entry else None
    check = partial(_check, url=url, wanted=wanted, entry=entry)
    transfer = Transfer(part, known is not None, size, check, report, limits)
    pooch.get_logger().setLevel("WARNING")
    # pooch keeps a file that is there, and may not replace any other: what an earlier call that was
    # killed has left goes.
    place = target.with_name(f"{target.name[:60]}.{mark}.whole")
    try:
        place.unlink(missing_ok=True)
        digest = f"sha256:{entry.sha256}" if entry else None
        pooch.retrieve(url, digest, place.name, place.parent, downloader=transfer)
        os.replace(place, target)
    except OSError as error:
        raise InputError(f"{target} cannot be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            place.unlink(missing_ok=True)


def _check(path: Path, url: str, wanted: str | None, entry: registry.Entry | None) -> None:
    """Raise `TableError` if a complete file is not the table that was asked for."""
    digest = digest_of(path)
    if entry and digest != entry.sha256:
        raise TableError(
            f"{printable(url)} has sha256 {digest}, its registry says {entry.sha256}: not kept"
        )
    try:
        table = open_table(path, verify=True)
    except TableError as error:
        words = str(error).replace(os.fspath(path), printable(url))
        raise TableError(f"what came is no table that can be used: {words}; not kept") from error
    if wanted not in (None, digest, table.sha256):
        raise TableError(
            f"{printable(url)} has sha256 {digest}, data sha256 {table.sha256}, "
            f"not {wanted}: not kept"
        )


def _kept(target: Path, wanted: str | None, entry: registry.Entry | None) -> tuple[Path, Metadata]:
    """Return the table that is there, if it is the one that was asked for."""
    digest = digest_of(target)
    existing = open_table(target, verify=True)
    right = [h for h in (wanted, entry and entry.sha256) if h]
    if right and all(h in (digest, existing.sha256) for h in right):
        return target, existing.metadata
    raise TableError(
        f"{target} is there, with data sha256 {existing.sha256}; replace it with --force, "
        "or choose another --output"
    )


def _look_up(
    name: str, source: str | os.PathLike[str] | None, limits: TransferLimits
) -> tuple[str, registry.Entry]:
    """Return the URL and the entry of a table by its name in a registry."""
    location = os.fspath(source) if source is not None else os.environ.get(VARIABLE, "")
    if not location:
        raise InputError(
            f"which registry has the table {name!r}? Give its directory or URL: --from, or set "
            f"{VARIABLE}; a URL of the table itself needs none"
        )
    base = location.removesuffix(registry.FILE).rstrip("/") or "/"
    url = f"{_url(base)}/{registry.FILE}"
    with tempfile.TemporaryDirectory() as folder:
        part = Path(folder) / registry.FILE
        few = replace(limits, least=0.0, largest=registry.LARGEST)
        whole = Path(f"{part}.whole")
        Transfer(part, False, None, lambda _: None, None, few)(url, str(whole), None)
        contents = whole.read_bytes()
    entry = registry.choose(registry.read(contents, printable(url)), name, printable(url))
    return f"{_url(base)}/{entry.file}", entry


def _is_place(table: object) -> bool:
    if not isinstance(table, str) or not table:
        raise InputError(f"a table is given by a name, a URL or a path, got {shown(table)}")
    return "://" in table or "/" in table or table.endswith(".h5")


def _url(text: str) -> str:
    try:
        return text if "://" in text else Path(text).absolute().as_uri()
    except UnicodeEncodeError:
        raise InputError(
            f"{printable(text)} is no path of this file system: it has half a character; give a "
            "directory or a URL"
        ) from None


def _file_name(url: str) -> str:
    name = Path(urlsplit(url).path).name
    if not registry.is_file_name(name):
        raise InputError(f"{printable(url)} does not end in the name of a table, NAME.h5")
    return name


def _target(name: str, output: str | os.PathLike[str] | None) -> Path:
    if output is not None:
        return resolve(path_of(output, "output"), force=True)
    return resolve(installed_directory() / name)


def _hash(sha256: str | None) -> str | None:
    if sha256 is None:
        return None
    text = sha256.strip().lower().removeprefix("sha256:") if isinstance(sha256, str) else ""
    if not registry.HASH.fullmatch(text):
        raise InputError(f"sha256 is 64 hexadecimal digits, got {shown(sha256)}")
    return text


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


@dataclass(frozen=True)
class Transfer:
    """A downloader for `pooch.retrieve`.

    Bytes are in the file `partial` until they are all there. It `resumes` if what an earlier call
    has left is of the same file; `nbytes` is the size that was announced. `check` is called with
    the complete file before it gets a name, and raises if it is not what was wanted.
    """

    partial: Path
    resumes: bool
    nbytes: int | None
    check: Callable[[Path], None]
    report: Report | None
    limits: TransferLimits

    def __call__(self, url: str, output_file: str, pooch: object, check_only: bool = False) -> None:
        """Bring all bytes of the URL; `TableError` if it cannot be, or another process does."""
        lock = self.partial.with_name(f".{self.partial.name}.lock")
        with _held(lock, url):
            if not self.resumes:
                self.partial.unlink(missing_ok=True)
            self._bring_all(url, output_file)

    def _bring_all(self, url: str, output_file: str) -> None:
        for attempt in range(self.limits.tries):
            before = self._there()
            if self.nbytes is not None and before == self.nbytes:
                break
            try:
                self._bring(url)
                break
            except Cut as error:
                if attempt == self.limits.tries - 1:
                    raise TableError(
                        f"{printable(url)}: {error}, after {attempt + 1} connections; "
                        f"{size(self._there())} are kept: the same command goes on from there"
                    ) from error
                if self._there() == before:
                    time.sleep(min(0.1 * 2.0**attempt, 2.0))
        if self.nbytes is not None and self._there() != self.nbytes:
            self._refuse(f"{url} has {self._there()} bytes, {self.nbytes} were announced")
        try:
            self.check(self.partial)
        except BaseException:
            self.partial.unlink(missing_ok=True)
            raise
        os.replace(self.partial, output_file)

    def _there(self) -> int:
        try:
            status = self.partial.lstat()
        except FileNotFoundError:
            return 0
        if not stat.S_ISREG(status.st_mode):
            raise TableError(
                f"{self.partial} is a link or a special file, and the bytes that come are kept in "
                "a regular file of that name: remove it"
            )
        return status.st_size

    def _refuse(self, words: str) -> None:
        self.partial.unlink(missing_ok=True)
        raise TableError(f"{printable(words)}; nothing was kept")

    def _bring(self, url: str) -> None:
        """Append what is missing to the partial file, by one connection."""
        start = self._there()
        web = urlsplit(url).scheme in ("http", "https")
        source = _by_http(url, start, self.limits.silence) if web else _by_file_system(url, start)
        with closing(source.pieces), _appended(self.partial) as file:
            if source.start != start:
                file.truncate(source.start)
            received, total = source.start, source.total
            if self.nbytes is not None and total is not None and total != self.nbytes:
                self._refuse(f"{url} says it has {total} bytes, {self.nbytes} were announced")
            largest = self.limits.largest if self.nbytes is None else self.nbytes
            if total is not None and total > largest:
                self._refuse(f"{url} says it has {total} bytes, more than the {largest} allowed")
            free = shutil.disk_usage(self.partial.parent).free
            expected = self.nbytes if total is None else total
            if expected is not None and expected - received > free:
                self._refuse(
                    f"{url} has {expected} bytes, and {self.partial.parent} has {free} free: "
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
                if self.report is not None:
                    self.report(received, self.nbytes or total)
                if (now := time.monotonic()) - began > self.limits.window:
                    if received - marked < self.limits.least:
                        raise Cut(
                            f"fewer than {size(self.limits.least)} came in {self.limits.window:g} s"
                        )
                    began, marked = now, received
            if total is not None and received < total:
                raise Cut(f"the connection ended at {received} of {total} bytes")


def _appended(path: Path) -> BinaryIO:
    """Open a file to append to; a link of that name is not followed, a pipe not waited for."""
    more = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    return open(path, "ab", opener=lambda name, flags: os.open(name, flags | more, 0o666))


@contextmanager
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


class _Source(NamedTuple):
    start: int
    total: int | None
    pieces: Any


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
    code, span = answer.status_code, answer.headers.get("Content-Range", "")
    refusal: Exception | None = None
    if code == 416:  # what is there is longer than what they have
        refusal = TableError(
            f"{printable(url)}: the server answers 416 to a request for the whole file"
        )
    elif code >= 500:
        refusal = Cut(f"the server answers {code}")
    elif code not in (200, 206):
        refusal = TableError(f"{printable(url)}: the server answers {code}")
    elif code == 206 and not span.startswith(f"bytes {start}-"):
        refusal = TableError(
            f"{printable(url)}: the server sends another part: {printable(span)!r}"
        )
    if refusal is not None:
        answer.close()
        if start and code in (206, 416):
            return _by_http(url, 0, silence)
        raise refusal
    length = answer.headers.get("Content-Length", "")
    plain = answer.headers.get("Content-Encoding", "identity") == "identity"
    begin = start if code == 206 else 0
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
