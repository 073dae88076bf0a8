"""Check a finished table: its hash, the bounds of every value, and fresh random points."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qpruntime._validation import number, shown, whole
from qpruntime.errors import InputError
from qpruntime.execution.threads import Progress, Threads
from qpruntime.likelihoods import Likelihood
from qpruntime.projection.open import open_table
from qpruntime.projection.table import Table
from qpruntime.table_format.metadata import Metadata
from tablegen import compact
from tablegen.files.looking import Found, Look
from tablegen.grid import errors as grid_errors
from tablegen.surfaces import errors as surface_errors

__all__ = ["VerificationReport", "verify"]

#: More take hours, and their places alone gigabytes.
MOST_POINTS = 10_000_000


@dataclass(frozen=True)
class VerificationReport:
    """Findings of `verify`.

    Attributes
    ----------
    path : Path
    problems : tuple of str
        Empty if the table is sound.
    seed, points : int
        Of the random nodes.
    tolerance : float
        Largest relative error allowed at nodes.
    certificate : dict
        The errors measured now, as `grid.errors.certify` returns them; empty if the data are
        too damaged to measure, or the likelihood was not given.
    """

    path: Path
    problems: tuple[str, ...]
    seed: int
    points: int
    tolerance: float
    certificate: dict[str, Any]

    @property
    def ok(self) -> bool | None:
        """True if the table is sound, None if nothing is wrong but the accuracy was not checked."""
        if self.problems:
            return False
        return True if self.certificate else None


#: Checks of tables of each kind, and their tolerances unless they state one.
_KINDS: dict[str, tuple[Callable[[Table, Look], Found], Callable[[Metadata], float]]] = {
    "grid": (grid_errors.check, lambda metadata: grid_errors.TOLERANCES[metadata.dtype]),
    "compact": (compact.check, lambda metadata: compact.TOLERANCE),
    "surfaces": (surface_errors.check, lambda metadata: surface_errors.tolerance(metadata.order)),
}


def verify(
    table: str | os.PathLike[str],
    *,
    likelihood: Likelihood | None = None,
    points: int = 2000,
    seed: int | None = None,
    tolerance: float | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> VerificationReport:
    """Check a table file against its metadata and against the second quadrature rule.

    Parameters
    ----------
    table : str or path
        A file, or the name of an installed table.
    likelihood : Likelihood, optional
        The code of a table of surfaces whose likelihood is not registered. Without it, such a table
        is hashed, but its accuracy is not checked and the report's ``ok`` is None.
    points : int
        Random points to integrate again: nodes of a grid, points in each region of a compact
        table. Edges, corners, and the nodes that fit their neighbours worst come on top; small
        grids are integrated whole.
    seed : int, optional
        Of the random points; by default a new one each time, which the report states.
    tolerance : float, optional
        By default the one the table was certified with.

    Raises
    ------
    TableError
        If the file cannot be opened as a table at all.
    """
    points = whole(points, "points", -MOST_POINTS)
    if not 1 <= points <= MOST_POINTS:
        raise InputError(f"points must be at least 1 and at most {MOST_POINTS}, got {points}")
    seed = None if seed is None else whole(seed, "seed", -(2**63))
    if seed is not None and seed < 0:
        raise InputError(f"seed must not be negative, got {seed}")
    if tolerance is not None:
        tolerance = number(tolerance, "tolerance", above=0.0)
    if not (progress is None or callable(progress)):
        raise InputError(f"progress must be None or a function, got {shown(progress)}")
    opened = open_table(table, verify=False)
    if opened.path.is_dir():
        # The opened path may be the copy in the cache.
        opened = open_table(opened.path, verify=True)
    opened = opened.serving(likelihood)
    metadata = opened.metadata
    local = Threads(workers)
    seed = int.from_bytes(os.urandom(4), "little") if seed is None else seed
    check, default = _KINDS[metadata.kind]
    if tolerance is None:
        stated = metadata.certificate.get("tolerance")
        tolerance = stated if isinstance(stated, float) else default(metadata)
    report = progress or (lambda stage, done, total: None)
    problems, certificate = check(opened, Look(points, seed, tolerance, local, report))
    return VerificationReport(opened.path, tuple(problems), seed, points, tolerance, certificate)
