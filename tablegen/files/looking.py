"""Shared parts of certificates and of checks of finished tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from qpruntime._typing import Array
from qpruntime.errors import TableError
from qpruntime.execution.threads import Progress, Threads
from qpruntime.projection.table import Table

__all__ = ["Found", "Look", "Runner", "hash_problems", "in_blocks", "largest", "measured"]

#: ``run(function, items)`` maps on any number of threads.
Runner = Callable[[Callable[[Any], Array], Sequence[Any]], list[Array]]


#: Problems in words, and the errors measured.
Found = tuple[list[str], dict[str, Any]]


class Look(NamedTuple):
    """Settings of a check: random points, their seed, tolerance, threads and progress report."""

    points: int
    seed: int
    tolerance: float
    local: Threads
    report: Progress


def hash_problems(table: Table) -> list[str]:
    """Return what is wrong with the hash of a table that is read whole."""
    try:
        table.verify_hash()
    except TableError as error:
        return [str(error).removeprefix(f"{table.path}: ")]
    return []


def in_blocks(function: Callable[[slice], Array], rows: int, run: Runner) -> Array:
    """Call a function with slices of 128 rows, and join what it returns."""
    return np.concatenate(
        run(function, [slice(a, min(a + 128, rows)) for a in range(0, rows, 128)])
    )


def largest(error: Array, mu: Array, log10_sigma: Array, y: Array) -> dict[str, Any]:
    """Return the entry of a certificate: the largest error, or the first NaN, and its place."""
    at = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
    return {
        "max_relative_error": float(error[at]),
        "points": int(mu.size),
        "mu": float(mu[at]),
        "log10_sigma": float(log10_sigma[at]),
        "outcome": float(y[at]),
    }


def measured(
    table: Table,
    look: Look,
    certify: Callable[..., dict[str, Any]],
    problems: Callable[[dict[str, Any], float], list[str]],
) -> Found:
    """Return the problems of a table, its hash included, and the errors measured."""
    reasons = hash_problems(table)
    look.report("certify", 0, 1)
    certificate = certify(table, run=look.local.run, points=look.points, seed=look.seed)
    look.report("certify", 1, 1)
    return reasons + problems(certificate, look.tolerance), certificate
