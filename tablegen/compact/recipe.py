"""The build of a compact table as one thing: what it will be, how large, and how to make it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qpruntime.errors import InputError
from qpruntime.likelihoods import Likelihood
from qpruntime.table_format.metadata import Metadata
from tablegen.compact import build, errors
from tablegen.files import finish
from tablegen.files.documents import Document, stated
from tablegen.files.finish import TableJob
from tablegen.files.workspace import Workspace

__all__ = ["CompactRecipe"]


@dataclass(frozen=True)
class CompactRecipe:
    """A `tablegen.request.Recipe`; the plan is the metadata without hash and certificate."""

    likelihood: Likelihood
    plan: Metadata
    order: float | None = None
    tolerance: float = errors.TOLERANCE
    mapped: int = 0

    @classmethod
    def of(cls, likelihood: Likelihood, source: str, options: dict[str, Any]) -> CompactRecipe:
        if options:
            raise InputError(
                f"a compact table has no such options: {', '.join(sorted(options))}; leave them out"
            )
        return cls(likelihood, build.metadata(likelihood))

    @property
    def largest(self) -> int:
        return self.plan.nbytes

    @property
    def space(self) -> int:
        return self.plan.nbytes

    def resolved(self) -> CompactRecipe:
        return self

    def estimated(self) -> CompactRecipe:
        return self

    def describe(self, threads: int) -> Document:
        return stated(self.plan)

    def make(self, job: TableJob) -> Metadata:
        likelihood, plan = self.likelihood, self.plan
        return build.build(likelihood, plan, *job)

    def made(self, workspace: Workspace) -> Metadata:
        return finish.left_over(workspace, self.plan)
