"""What checks of finished tables have in common: how to look, what is found, and the hash."""

from __future__ import annotations

from typing import Any, NamedTuple

from qpruntime.errors import TableError
from qpruntime.execution.executors import Progress
from qpruntime.projection.table import Table

__all__ = ["Found", "Look", "hash_problems"]

#: Problems in words, and the errors measured.
Found = tuple[list[str], dict[str, Any]]


class Look(NamedTuple):
    """At how many random points, drawn from what, how good they have to be, and by how many."""

    points: int
    seed: int
    tolerance: float
    workers: int
    report: Progress


def hash_problems(table: Table) -> list[str]:
    """Return what is wrong with the hash of a table that is read whole."""
    try:
        table.verify_hash()
    except TableError as error:
        return [str(error).removeprefix(f"{table.path}: ")]
    return []
