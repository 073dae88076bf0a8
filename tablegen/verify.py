# mypy: disable-error-code=no-untyped-def
"""Check a finished table: its hash, the bounds of every value, and fresh random points."""

from __future__ import annotations

import hashlib
import math
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from qpruntime.errors import InputError, TableError
from qpruntime.execution.calls import Progress, run, thread_count
from qpruntime.jit import call_moments, kernel
from qpruntime.likelihoods import Likelihood
from qpruntime.projection.opening import open_table
from qpruntime.projection.table import Table
from qpruntime.validation import number, shown, whole
from tablegen.compact import errors as regions
from tablegen.grid import errors as certify
from tablegen.surfaces import errors as surface_errors

__all__ = ["Report", "verify"]

_BLOCK_BYTES = 8_000_000
#: More take hours, and their places alone gigabytes.
MOST_POINTS = 10_000_000


@dataclass(frozen=True)
class Report:
    """What `verify` found.

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
        too damaged to measure.
    """

    path: Path
    problems: tuple[str, ...]
    seed: int
    points: int
    tolerance: float
    certificate: dict[str, Any]

    @property
    def ok(self) -> bool:
        return not self.problems


@kernel
def _outside(theta, has_moments, moments, narrows, mu, sigma, y, slack, values):
    """Return (count, i, j) of values that are not in (0, sigma_EP], and the first of them.

    Without moments the cavity's width is the bound if the likelihood `narrows`, else there is none.
    """
    count, row, column = 0, 0, 0
    for i in range(mu.size):
        for j in range(sigma.size):
            bound = sigma[j] if narrows else math.inf
            if has_moments:
                bound = math.sqrt(call_moments(moments, mu[i], sigma[j], y, theta)[2])
            # Written so that NaN fails it.
            if not 0.0 < values[i, j] <= bound * (1.0 + slack):
                if count == 0:
                    row, column = i, j
                count += 1
    return count, row, column


def verify(
    table: str | os.PathLike[str],
    *,
    likelihood: Likelihood | None = None,
    points: int = 2000,
    seed: int | None = None,
    tolerance: float | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Check a table file against its metadata and against the second quadrature rule.

    Parameters
    ----------
    table : str or path
        A file, or the name of an installed table.
    likelihood : Likelihood, optional
        The code of a table of surfaces that is not of a registered one; without it, such a table
        is hashed and nothing is integrated again.
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
        # What was opened may be the copy in the cache.
        opened = open_table(opened.path, verify=True)
    opened = opened.serving(likelihood)
    metadata = opened.metadata
    workers = thread_count(workers)
    seed = int.from_bytes(os.urandom(4), "little") if seed is None else seed
    if tolerance is None:
        stated = metadata.certificate.get("tolerance")
        defaults = {"compact": regions.TOLERANCE, "surfaces": surface_errors.TOLERANCE}
        if metadata.order is not None:
            defaults["surfaces"] = surface_errors.WP_TOLERANCE
        default = defaults.get(metadata.kind) or certify.TOLERANCES[metadata.dtype]
        tolerance = stated if isinstance(stated, float) else default
    report = progress or (lambda stage, done, total: None)
    check = {"grid": _check_grid, "compact": _check_compact, "surfaces": _check_surfaces}[
        metadata.kind
    ]
    problems, certificate = check(opened, points, seed, tolerance, workers, report)
    return Report(opened.path, tuple(problems), seed, points, tolerance, certificate)


Found = tuple[list[str], dict[str, Any]]


def _of_hash(table: Table) -> list[str]:
    """Return what is wrong with the hash of a table that is read whole."""
    try:
        table.verify_hash()
    except TableError as error:
        return [str(error).removeprefix(f"{table.path}: ")]
    return []


def _check_compact(
    table: Table, points: int, seed: int, tolerance: float, workers: int, report: Progress
) -> Found:
    """Return the problems of a compact table and the errors measured."""
    problems = _of_hash(table)
    report("certify", 0, 1)
    certificate = regions.certify(
        table, run=partial(run, workers=workers), points=points, seed=seed
    )
    report("certify", 1, 1)
    problems += regions.problems(certificate, tolerance)
    return problems, certificate


def _check_surfaces(
    table: Table, points: int, seed: int, tolerance: float, workers: int, report: Progress
) -> Found:
    """Return the problems of surfaces and the errors measured; none can be without the density."""
    problems = _of_hash(table)
    if not table.likelihood.has_density:
        return problems, {}
    report("certify", 0, 1)
    certificate = surface_errors.certify(
        table, table.likelihood, run=partial(run, workers=workers), points=points, seed=seed
    )
    report("certify", 1, 1)
    problems += surface_errors.problems(certificate, tolerance)
    return problems, certificate


def _check_grid(
    table: Table, points: int, seed: int, tolerance: float, workers: int, report: Progress
) -> Found:
    """Return the problems of a grid and the errors measured."""
    problems, worst, rough = _scan(table, tolerance, workers, report)
    if any("outside" in problem for problem in problems):
        return problems, {}
    certificate = certify.certify(
        table.values,
        table.metadata,
        worst,
        rough=rough,
        run=partial(run, workers=workers),
        points=points,
        seed=seed,
    )
    nodes = certificate["nodes"]
    if nodes["max_relative_error"] > tolerance:
        problems.append(
            f"relative error {nodes['max_relative_error']:.2g} at mu = {nodes['mu']:g}, "
            f"log10 sigma = {nodes['log10_sigma']:g}, allowed {tolerance:.2g}"
        )
    return problems, certificate


Places = list[tuple[float, int, int, int]]


def _scan(
    table: Table, tolerance: float, workers: int, report: Progress
) -> tuple[list[str], Places, Places]:
    """Read everything once; return the problems, the most curved and the roughest nodes."""
    theta, has_moments, _, _, moments, _ = table.likelihood.functions()[:6]
    narrows = table.likelihood.log_concave
    mu, sigma = table.metadata.mu.nodes(), 10.0 ** table.metadata.log10_sigma.nodes()
    outcomes, rows, columns = table.values.shape
    step = max(1, _BLOCK_BYTES // (columns * table.values.itemsize))
    blocks = [(k, a, min(a + step, rows)) for k in range(outcomes) for a in range(0, rows, step)]
    done = 0

    def digest() -> str:
        hasher = hashlib.sha256()
        for k, a, b in blocks:
            hasher.update(np.ascontiguousarray(table.values[k, a:b]).data)
        return hasher.hexdigest()

    def look(block: tuple[int, int, int]) -> tuple[int, str, Places, Places]:
        nonlocal done
        k, a, b = block
        values = np.array(table.values[k, a:b], dtype=np.float64)
        y = table.metadata.outcomes[k]
        count, i, j = _outside(
            theta, has_moments, moments, narrows, mu[a:b], sigma, y, tolerance, values
        )
        where = ""
        if count:
            where = f"{values[i, j]:g} at mu = {mu[a + i]:g}, log10 sigma = {np.log10(sigma[j]):g}"
        worst = [] if count else certify.worst_nodes(values, k, a)
        rough = [] if count else certify.rough_nodes(values, k, a)
        done += 1
        report("scan", done, len(blocks))
        return count, where, worst, rough

    problems = []
    found = run(look, blocks, workers)
    count = sum(part[0] for part in found)
    if count:
        first = next(part[1] for part in found if part[0])
        problems.append(f"{count} values outside (0, sigma_EP], the first {first}")
    if (actual := digest()) != table.metadata.sha256:
        problems.append(
            f"data hash is {actual[:16]}..., metadata says {table.metadata.sha256[:16]}..."
        )
    worst = [place for part in found for place in part[2]]
    rough = [place for part in found for place in part[3]]
    return problems, worst, rough
