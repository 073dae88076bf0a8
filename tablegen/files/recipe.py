"""The build of a table as one thing: what it will be, how large, and how to make it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, Self, TypeVar

from qpruntime.execution.executors import Executor, Progress, Threads
from qpruntime.likelihoods import Likelihood
from qpruntime.table_format.metadata import Metadata
from tablegen.files.documents import Document
from tablegen.files.workspace import Workspace

__all__ = ["Recipe", "TableJob"]

P = TypeVar("P")


class TableJob(NamedTuple):
    """Job of building a table.

    `executor` computes, and `local` certifies, wherever the numbers came from; `workspace` is
    locked.
    """

    workspace: Workspace
    executor: Executor
    local: Threads
    tolerance: float
    report: Progress


@dataclass(frozen=True)
class Recipe(Generic[P]):
    """Recipe of a table of any kind.

    Attributes
    ----------
    likelihood : Likelihood
        Resolved once; nobody below looks its name up again.
    plan : Plan, Metadata or Domain
    tolerance : float
        By default.
    largest, mapped : int
        Bytes that the finished table may have, and that are mapped while it is certified.
    space : int or None
        Bytes that are needed on disk, if they are known before.
    order : float or None
        p of L_p projections.
    """

    likelihood: Likelihood
    plan: P
    tolerance: float
    largest: int
    mapped: int = 0
    space: int | None = None
    order: float | None = None

    def resolved(self) -> Self:
        """Return the recipe with all choices made."""
        return self

    def estimated(self) -> Self:
        """Return what `resolved` does, or soon a guess at it where there are many outcomes."""
        return self

    def describe(self, threads: int) -> Document:
        """Describe what a build would do."""
        raise NotImplementedError

    def make(self, job: TableJob) -> Metadata:
        """Build the table."""
        raise NotImplementedError

    def expected(self, existing: Metadata) -> Metadata | None:
        """Return the metadata that this table has, with the size of an existing one if it is free.

        They have no hash and no certificate. None if the existing table is of another kind.
        """
        raise NotImplementedError
