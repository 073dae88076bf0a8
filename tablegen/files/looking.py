"""Shared parts of checks of finished tables: settings, problems and the hash."""

from __future__ import annotations

from typing import Any, NamedTuple

from qpruntime.errors import TableError
from qpruntime.execution.executors import Progress
from qpruntime.projection.table import Table

__all__ = ["Found", "Look", "hash_problems"]

#: Problems in words, and the errors measured.
Found = tuple[list[str], dict[str, Any]]


class Look(NamedTuple):
    """Settings of a check: random points, seed, tolerance and workers and progress report."""

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
