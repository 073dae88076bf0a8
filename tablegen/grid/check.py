"""Check a finished grid: its hash, the bounds of every value, and fresh random points."""

from __future__ import annotations

import hashlib
import math
from functools import partial

import numpy as np

from qpruntime._numba import kernel
from qpruntime._pointers import call_moments
from qpruntime._typing import Array
from qpruntime.execution.executors import run
from qpruntime.projection.table import Table
from tablegen.files.looking import Found, Look
from tablegen.grid import errors

__all__ = ["check"]

_BLOCK_BYTES = 8_000_000


@kernel
def _outside(
    theta: Array,
    has_moments: bool,
    moments: int,
    narrows: bool,
    mu: Array,
    sigma: Array,
    y: float,
    slack: float,
    values: Array,
) -> tuple[int, int, int]:
    """Return (count, i, j) of values that are not in (0, sigma_EP], and the first of them.

    If there are no moments, the cavity's width is the bound if the likelihood `narrows`, else there
    is none.
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


def check(table: Table, look: Look) -> Found:
    """Return the problems of a grid and the errors measured."""
    problems, worst, rough = _scan(table, look)
    if any("outside" in problem for problem in problems):
        return problems, {}
    certificate = errors.certify(
        table.values,
        table.metadata,
        worst,
        rough=rough,
        run=partial(run, workers=look.workers),
        points=look.points,
        seed=look.seed,
    )
    nodes = certificate["nodes"]
    if nodes["max_relative_error"] > look.tolerance:
        problems.append(
            f"relative error {nodes['max_relative_error']:.2g} at mu = {nodes['mu']:g}, "
            f"log10 sigma = {nodes['log10_sigma']:g}, allowed {look.tolerance:.2g}"
        )
    return problems, certificate


Places = list[tuple[float, int, int, int]]


def _scan(table: Table, look: Look) -> tuple[list[str], Places, Places]:
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

    def scan(block: tuple[int, int, int]) -> tuple[int, str, Places, Places]:
        """Return the problems of a block of the table, and its worst and roughest nodes."""
        nonlocal done
        k, a, b = block
        values = np.array(table.values[k, a:b], dtype=np.float64)
        y = table.metadata.outcomes[k]
        count, i, j = _outside(
            theta, has_moments, moments, narrows, mu[a:b], sigma, y, look.tolerance, values
        )
        where = ""
        if count:
            where = f"{values[i, j]:g} at mu = {mu[a + i]:g}, log10 sigma = {np.log10(sigma[j]):g}"
        worst = [] if count else errors.worst_nodes(values, k, a)
        rough = [] if count else errors.rough_nodes(values, k, a)
        done += 1
        look.report("scan", done, len(blocks))
        return count, where, worst, rough

    problems = []
    scans = run(scan, blocks, look.workers)
    count = sum(part[0] for part in scans)
    if count:
        first = next(part[1] for part in scans if part[0])
        problems.append(f"{count} values outside (0, sigma_EP], the first {first}")
    if (actual := digest()) != table.metadata.sha256:
        problems.append(
            f"data hash is {actual[:16]}..., metadata says {table.metadata.sha256[:16]}..."
        )
    worst = [place for part in scans for place in part[2]]
    rough = [place for part in scans for place in part[3]]
    return problems, worst, rough
