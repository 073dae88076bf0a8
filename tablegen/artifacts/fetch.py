"""Fetch a table that somebody has published, or one by its URL."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from qpruntime._formatting import printable
from qpruntime._validation import path_of, shown
from qpruntime.errors import InputError, TableError
from qpruntime.projection.open import open_table, table_directory
from qpruntime.table_format.metadata import Metadata
from tablegen.artifacts import registry
from tablegen.artifacts.publish import digest_of
from tablegen.artifacts.transfer import Transfer, TransferLimits
from tablegen.files.target import resolve

__all__ = ["VARIABLE", "fetch"]

#: Names the registry where none is given.
VARIABLE = "QP_REGISTRY"
Report = Callable[[int, int | None], None]


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
    limits : Limits, optional
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

    def check(path: Path) -> None:
        _check(path, url, wanted, entry)

    known = entry.sha256 if entry else wanted
    mark = (known or hashlib.sha256(url.encode()).hexdigest())[:16]
    partial = target.with_name(f"{target.name[:60]}.{mark}.part")
    size = entry.size if entry else None
    transfer = Transfer(partial, known is not None, size, check, report, limits)
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
    contents: list[bytes] = []
    with tempfile.TemporaryDirectory() as folder:
        partial = Path(folder) / registry.FILE
        few = TransferLimits(limits.silence, limits.window, 0.0, limits.tries, registry.LARGEST)

        def keep(path: Path) -> None:
            contents.append(path.read_bytes())

        Transfer(partial, False, None, keep, None, few)(url, f"{partial}.whole", None)
    entry = registry.choose(registry.read(contents[0], printable(url)), name, printable(url))
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
    if not re.fullmatch(r"[\w(),=.+-]+\.h5", name) or name.startswith("."):
        raise InputError(f"{printable(url)} does not end in the name of a table, NAME.h5")
    return name


def _target(name: str, output: str | os.PathLike[str] | None) -> Path:
    if output is not None:
        return resolve(path_of(output, "output"), force=True)
    directory = table_directory().absolute()
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{directory} cannot be made ({error.strerror or error}): set QP_TABLES, or give "
            "--output"
        ) from error
    return resolve(directory / name)


def _hash(sha256: str | None) -> str | None:
    if sha256 is None:
        return None
    text = sha256.strip().lower().removeprefix("sha256:") if isinstance(sha256, str) else ""
    if not re.fullmatch("[0-9a-f]{64}", text):
        raise InputError(f"sha256 is 64 hexadecimal digits, got {shown(sha256)}")
    return text
