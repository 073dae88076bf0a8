"""Finished work, one JSON document a line, so that a run that was stopped goes on."""

import json
import os
from collections import namedtuple
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

TOP = Path(__file__).resolve().parents[1]
#: What is kept with the project.
RESULTS = TOP / "tables" / "results"

Key = TypeVar("Key", bound=NamedTuple)


class Records(Generic[Key]):
    """Records under their key: the last of each; appended whole.

    A line cut short by a kill is left out when reading and its work is done again.

    Parameters
    ----------
    path : Path
    key : NamedTuple class, or str
        Its fields, or their names with blanks between, are among those of every record.
    """

    def __init__(self, path: Path, key: type[Key] | str) -> None:
        self.path = path
        self._key: Any = namedtuple("Key", key) if isinstance(key, str) else key
        self.records: dict[Key, dict[str, Any]] = {}
        if path.exists():
            for line in path.read_bytes().split(b"\n"):
                try:
                    record = json.loads(line)
                    self.records[self._of(record)] = record
                except (ValueError, KeyError, TypeError):
                    continue

    def __contains__(self, key: tuple[Any, ...]) -> bool:
        return key in self.records

    def add(self, record: dict[str, Any]) -> None:
        """Append one record with a single write, and wait until it is on disk."""
        key = self._of(record)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps(record, separators=(",", ":")).encode()
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            size = os.fstat(file).st_size
            whole = size == 0 or os.pread(file, 1, size - 1) == b"\n"
            os.write(file, (b"" if whole else b"\n") + line + b"\n")
            os.fsync(file)
        finally:
            os.close(file)
        self.records[key] = record

    def keep(self, key: tuple[Any, ...], found: dict[str, Any]) -> None:
        """Append what was found, behind the fields of its key."""
        self.add({**self._key(*key)._asdict(), **found})

    def _of(self, record: dict[str, Any]) -> Key:
        return self._key(*(record[name] for name in self._key._fields))


def lines(name: str) -> list[dict[str, Any]]:
    """Records of a file of the project, none if there is no such file."""
    path = RESULTS / name
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def document(name: str) -> Any:
    """One JSON document of the project."""
    return json.loads((RESULTS / name).read_text())
