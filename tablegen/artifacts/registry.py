"""``registry.json``: which tables a directory holds, and by what each is known again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

from qpruntime import _formatting
from qpruntime.errors import TableError
from qpruntime.table_format import container

__all__ = ["FILE", "LARGEST", "Entry", "choose", "read", "written"]

#: Name of the document, beside the tables.
FILE = "registry.json"
#: Bytes that one may have.
LARGEST = 1 << 22
_FORMAT = 1
HASH = re.compile("[0-9a-f]{64}")
_REMEDY = "publish it again: tablegen publish"


@dataclass(frozen=True)
class Entry:
    """A table of a registry.

    Attributes
    ----------
    name : str
        By which it is asked for.
    file : str
        Its file, in the directory of the registry.
    size : int
        Bytes of that file.
    sha256 : str
        Of that file.
    data_sha256 : str
        Of its data, as ``tablegen info`` and fitted models have it.
    guarantee : str
        Its certificate in a line.
    certificate : dict
    command : str
        What builds it again.
    """

    name: str
    file: str
    size: int
    sha256: str
    data_sha256: str
    guarantee: str
    certificate: dict[str, Any]
    command: str


def written(entries: Iterable[Entry]) -> bytes:
    """Return the document."""
    tables = [asdict(entry) for entry in sorted(entries, key=lambda entry: entry.name)]
    text = json.dumps({"format": _FORMAT, "tables": tables}, indent=1, sort_keys=True)
    return text.encode() + b"\n"


def read(text: bytes, source: str) -> list[Entry]:
    """Return the entries of a document that a stranger may have written.

    Raises
    ------
    TableError
        If it is none; `source` names it.
    """
    try:
        document = container.loads(text)
        form = document.get("format")
        if form != _FORMAT:
            raise ValueError(f"format {form!r}, this version reads {_FORMAT}")
        tables = document.get("tables")
        if not isinstance(tables, list):
            raise ValueError("no list of tables")
        entries = [_entry(table) for table in tables]
        for attribute in ("name", "file"):
            if len({getattr(entry, attribute) for entry in entries}) < len(entries):
                raise ValueError(f"a {attribute} that occurs twice")
    except ValueError as error:
        raise TableError(
            f"{source} is no registry of tables: {_formatting.printable(str(error))}; {_REMEDY}"
        ) from error
    return entries


def _entry(table: object) -> Entry:
    kinds = {"size": int, "certificate": dict}
    known = [field.name for field in fields(Entry)]
    if not isinstance(table, dict) or set(table) != set(known):
        raise ValueError(f"a table whose keys are not {', '.join(known)}")
    for name in known:
        if type(table[name]) is not kinds.get(name, str):
            raise ValueError(f"{name} {table[name]!r:.60}")
    entry = Entry(**table)
    if not entry.size > 0:
        raise ValueError(f"size {entry.size}")
    for digest in (entry.sha256, entry.data_sha256):
        if not HASH.fullmatch(digest):
            raise ValueError(f"the hash {digest!r:.80}")
    if not is_file_name(entry.file):
        raise ValueError(f"the file name {entry.file!r:.80}")
    return entry


def is_file_name(name: str) -> bool:
    """Return True for the name of a table in the directory of a registry: no path, not hidden."""
    return re.fullmatch(r"[\w(),=.+-]+\.h5", name) is not None and not name.startswith(".")


def choose(entries: list[Entry], name: str, source: str) -> Entry:
    """Return the entry of this name, or whose data have this hash; `TableError` if none has."""
    for entry in entries:
        if name in (entry.name, entry.file, entry.data_sha256, entry.sha256):
            return entry
    known = [entry.name for entry in entries]
    said = ", ".join(known[:20]) + (", ..." if len(known) > 20 else "") if known else "no table"
    raise TableError(
        f"{source} has no table {name!r}{_formatting.meant(name, known)}; it has {said}"
    )
