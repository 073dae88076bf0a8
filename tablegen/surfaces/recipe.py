"""The build of a table of surfaces as one thing: what it will be, and how to make it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qpruntime.errors import InputError
from qpruntime.likelihoods import Likelihood
from qpruntime.table_format.metadata import Metadata
from tablegen.files.documents import Document, projection_of
from tablegen.files.finish import TableJob
from tablegen.files.workspace import Workspace
from tablegen.surfaces import build, errors
from tablegen.surfaces.domain import Domain, domain

__all__ = ["SurfacesRecipe"]

_OURS = {"outcomes", "y_range", "mu_range", "log10_sigma_range", "limit", "projection", "p"}


@dataclass(frozen=True)
class SurfacesRecipe:
    """A `tablegen.request.Recipe`; how many nodes there will be is found while it is made."""

    plan: Domain
    mapped: int = 0
    space: int | None = None

    @classmethod
    def of(cls, likelihood: Likelihood, source: str, options: dict[str, Any]) -> SurfacesRecipe:
        if (counts := options.pop("counts", None)) is not None:
            options["outcomes"] = range(counts[0], counts[1] + 1)
        if wrong := set(options) - _OURS:
            raise InputError(
                f"a table of surfaces has no such options: {', '.join(sorted(wrong))}; "
                "leave them out"
            )
        return cls(domain(likelihood, source, **options))

    @property
    def likelihood(self) -> Likelihood:
        return self.plan.likelihood

    @property
    def order(self) -> float | None:
        return self.plan.p

    @property
    def tolerance(self) -> float:
        return errors.tolerance(self.plan.p)

    @property
    def largest(self) -> int:
        return self.plan.limit

    def resolved(self) -> SurfacesRecipe:
        return self

    def estimated(self) -> SurfacesRecipe:
        return self

    def describe(self, threads: int) -> Document:
        """Return the document that describes the domain and the limit of its table."""
        what = self.plan
        return {
            "likelihood": what.likelihood.spelt,
            **projection_of(what.p),
            "outcomes": list(what.outcomes),
            "mu": "{:g} to {:g}".format(*what.mu),
            "log10_sigma": "{:g} to {:g}".format(*what.log10_sigma),
            "nodes": "as many as the tolerance takes",
            "largest_bytes": what.limit,
        }

    def make(self, job: TableJob) -> Metadata:
        return build.build(self.plan, *job)

    def made(self, workspace: Workspace) -> Metadata:
        return build.finished(self.plan, workspace)
