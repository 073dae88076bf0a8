"""The build of a table as one thing: what it will be, how large, how to make it, in documents."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Generic, NamedTuple, TypeVar

from qpruntime.errors import InputError
from qpruntime.execution.threads import Executor, Progress, Threads
from qpruntime.likelihoods import Likelihood
from qpruntime.table_format.metadata import Axis, Metadata
from tablegen.files.workspace import Workspace

__all__ = [
    *("Document", "Recipe", "TableJob", "axis_of", "projection_of", "refuse_others", "stated"),
    "unfinished",
]

Document = dict[str, Any]


def axis_of(axis: Axis) -> Document:
    """Describe an even axis."""
    return {"start": axis.start, "stop": axis.stop, "step": axis.step, "size": axis.size}


def projection_of(p: float | None) -> Document:
    """Say of which order L_p projections are; nothing of the others."""
    return {} if p is None else {"projection": f"wp, p = {p:g}"}


def stated(metadata: Metadata) -> Document:
    """Describe a table, made or to be made, but for its place, hash and certificate."""
    compact, whole = metadata.kind == "compact", metadata.kind == "surfaces"
    names: tuple[str, ...] = ("mu", "log10_sigma", "y")[: len(metadata.axes)]
    if compact:
        names = ("u", "v")[-len(metadata.axes) :]
    return {
        "kind": metadata.kind,
        "likelihood": metadata.likelihood,
        "parameters": metadata.parameters,
        **projection_of(metadata.order),
        "outcomes": metadata.outcomes,
        **{
            name: axis_of(axis) | ({"coordinate": axis.name} if compact else {})
            for name, axis in zip(names, metadata.axes, strict=True)
        },
        **({"surfaces": metadata.surfaces, "slabs": metadata.traits.get("mode")} if whole else {}),
        "coefficients" if compact or whole else "nodes": math.prod(metadata.shape),
        "dtype": metadata.dtype,
        "bytes": metadata.nbytes,
        "method": metadata.method,
        "generator": metadata.generator,
        "schema": metadata.schema,
    }


def unfinished(likelihood: Likelihood, outcomes: Iterable[float], **entries: Any) -> Metadata:
    """Return the metadata of a table before it is built: no hash, no certificate."""
    return Metadata(
        likelihood=likelihood.name,
        parameters=dict(likelihood.parameters),
        outcomes=[float(y) for y in outcomes],
        generator=f"tablegen {version('qpruntime')}",
        **{"dtype": "float64", "method": "collocation", **entries},
    )


def refuse_others(options: Iterable[str], known: dict[str, Any] | None, what: str) -> None:
    """Raise `InputError` if there are options besides those known, a function's keywords."""
    if others := set(options) - set(known or ()):
        raise InputError(f"{what} has no such options: {', '.join(sorted(others))}; leave them out")


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
