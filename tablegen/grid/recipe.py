"""The build of a dense grid as one thing: what it will be, how large, and how to make it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from threadpoolctl import threadpool_limits

from qpruntime.errors import InputError
from qpruntime.likelihoods import Likelihood
from qpruntime.table_format.metadata import Metadata
from tablegen.files import finish
from tablegen.files.documents import Document, axis_of
from tablegen.files.finish import TableJob
from tablegen.files.workspace import Workspace
from tablegen.grid import build, chebyshev, errors
from tablegen.grid.plan import Plan, make_plan

__all__ = ["GridRecipe"]

# Options of tables of surfaces.
_NOT_OURS = {"outcomes", "y_range", "limit", "projection", "p"}


@dataclass(frozen=True)
class GridRecipe:
    """A `tablegen.request.Recipe`; the method of the plan is not resolved before it is made."""

    likelihood: Likelihood
    plan: Plan
    order: float | None = None

    @classmethod
    def of(cls, likelihood: Likelihood, source: str, options: dict[str, Any]) -> GridRecipe:
        if wrong := _NOT_OURS & set(options):
            raise InputError(
                f"a grid has no such options: {', '.join(sorted(wrong))}; leave them out"
            )
        return cls(likelihood, make_plan(likelihood, **options))

    @property
    def tolerance(self) -> float:
        return errors.TOLERANCES[self.plan.dtype]

    @property
    def largest(self) -> int:
        return self.plan.nbytes

    @property
    def mapped(self) -> int:
        return self.plan.nbytes

    @property
    def space(self) -> int:
        return self.plan.nbytes

    def resolved(self) -> GridRecipe:
        with threadpool_limits(1, "blas"):
            return replace(self, plan=chebyshev.resolve(self.plan))

    def estimated(self) -> GridRecipe:
        with threadpool_limits(1, "blas"):
            return replace(self, plan=chebyshev.estimate(self.plan))

    def describe(self, threads: int) -> Document:
        """Return the document that describes the plan, with its estimated time and memory."""
        plan = self.plan
        few = plan.nodes and len(plan.outcomes) > chebyshev.FEW
        return {
            "likelihood": plan.likelihood,
            "method": plan.method,
            "dtype": plan.dtype,
            "mu": axis_of(plan.mu),
            "log10_sigma": axis_of(plan.log10_sigma),
            "nodes": plan.size,
            "bytes": plan.nbytes,
            "chunks": plan.chunk_count,
            "chebyshev_nodes": list(plan.nodes) if plan.nodes else None,
            **({"estimated_from_outcomes": chebyshev.FEW} if few else {}),
            # For a cluster this is the time of one worker and of this process.
            "estimated_seconds": round(plan.estimate_seconds(threads), 1),
        }

    def make(self, job: TableJob) -> Metadata:
        plan = chebyshev.resolve(self.plan)
        return build.carry_out(plan, *job)

    def made(self, workspace: Workspace) -> Metadata:
        return finish.left_over(workspace, chebyshev.resolve(self.plan).metadata())
