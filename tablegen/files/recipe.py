"""The build of a table as one thing: what it will be, how large, how to make it, in documents."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from qpruntime._validation import shown
from qpruntime.errors import InputError, TableError
from qpruntime.execution.threads import Executor, Progress, Threads
from qpruntime.likelihoods import Likelihood
from qpruntime.table_format.metadata import Axis, Metadata
from tablegen.files import target, zarr as zarr_files
from tablegen.files.workspace import Workspace

__all__ = [
    *("Document", "Recipe", "Request", "axis_of", "one_of", "projection_of", "refuse_others"),
    *("stated", "unfinished"),
]

Document = dict[str, Any]
M = TypeVar("M", bound=Metadata)


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


def unfinished(
    likelihood: Likelihood,
    outcomes: Iterable[float],
    document: type[M] = Metadata,  # type: ignore[assignment]
    **entries: Any,
) -> M:
    """Return the metadata of a table before it is built: no hash, no certificate."""
    return document(
        likelihood=likelihood.name,
        parameters=dict(likelihood.parameters),
        outcomes=[float(y) for y in outcomes],
        generator=f"tablegen {version('qpruntime')}",
        **{"dtype": "float64", "method": "collocation", **entries},
    )


def one_of(value: object, name: str, known: Iterable[str]) -> str:
    """Return `value`, or raise `InputError` if it is not one of the known words."""
    if not isinstance(value, str) or value not in known:
        raise InputError(f"{name} must be one of {', '.join(known)}, got {shown(value)}")
    return value


def refuse_others(options: Iterable[str], known: dict[str, Any] | None, what: str) -> None:
    """Raise `InputError` if there are options besides those known, a function's keywords."""
    if others := set(options) - set(known or ()):
        raise InputError(f"{what} has no such options: {', '.join(sorted(others))}; leave them out")


class Recipe:
    """Recipe of a table of any kind.

    Attributes
    ----------
    tolerance : float
        By default.
    largest, mapped : int
        Bytes that the finished table may have, and that are mapped while it is certified.
    space : int or None
        Bytes that are needed on disk, if they are known before.
    order : float or None
        p of L_p projections.
    """

    tolerance: float
    largest: int
    mapped: int = 0
    space: int | None = None
    order: float | None = None

    def describe(self, threads: int) -> Document:
        """Describe what a build would do."""
        raise NotImplementedError

    def make(self, request: Request, workspace: Workspace, report: Progress) -> Metadata:
        """Build the table in a locked workspace."""
        raise NotImplementedError

    def expected(self, existing: Metadata) -> Metadata | None:
        """Return the metadata that this table has, with the size of an existing one if it is free.

        They have no hash and no certificate. None if the existing table is of another kind.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class Request:
    """A build whose options have been checked.

    `path` is the place that was asked for, maybe a link. `local` certifies, and `executor`, which
    may be a cluster, computes.
    """

    recipe: Recipe
    path: Path
    local: Threads
    executor: Executor
    tolerance: float
    force: bool

    @property
    def workspace(self) -> Workspace:
        """Working directory of the build; raises `TableError` if no file may be made there."""
        workspace = Workspace(target.resolve(self.path, force=self.force))
        zarr_files.check_replaceable(workspace.target)
        if workspace.target.exists() and not self.force and not workspace.exists:
            raise TableError(f"{self.path} exists; replace it with --force")
        return workspace
