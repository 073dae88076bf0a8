"""Some rows of an engine, by their numbers: without a pass over all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qpruntime.arrays import Array
from qpruntime.blocks import in_blocks
from qpruntime.inference.sparse.blas import divide
from qpruntime.inference.sparse.block_updates import Block, Cavities, cavities, project
from qpruntime.inference.sparse.engine import Engine

__all__ = ["leave_out", "seen_by_likelihood", "without_site"]


def leave_out(engine: Engine, chosen: NDArray[np.intp]) -> Array:
    """Return leave-one-out log densities of some rows, as `Engine.outcome` has them of all."""

    def of(block: Block, at: Cavities) -> Array:
        log_z: Array = project(engine.rule, block, at, "log_z", whole=True)[0]
        return log_z

    found: Array = _of_cavities(engine, chosen, of)
    return found


def without_site(engine: Engine, chosen: NDArray[np.intp]) -> tuple[Array, Array]:
    """Cavity means and variances of some rows, of what the likelihood takes; nan where improper."""
    found: tuple[Array, Array] = _of_cavities(engine, chosen, seen_by_likelihood)
    return found


def seen_by_likelihood(block: Block, at: Cavities) -> tuple[Array, Array]:
    """Cavity means and variances of what the likelihood takes; nan where a cavity is improper."""
    slope = 1.0 if block.scale is None else block.scale
    mean, variance = slope * block.centre(at.mean), slope * slope * at.v
    return np.where(at.proper, mean, np.nan), np.where(at.proper, variance, np.nan)


def _of_cavities(engine: Engine, chosen: NDArray[np.intp], of: Callable[..., Any]) -> Any:
    """Join what `of` makes of blocks of some rows and their cavities."""
    state, rule = engine.state, engine.rule
    rows = engine.rows.some(chosen)

    def one(some: slice) -> Any:
        columns = rows.weights, rows.prior, rows.scale
        _, prior, scale = (None if a is None else a[some] for a in columns)
        tau, nu = engine.tau[chosen[some]], engine.nu[chosen[some]]
        block = Block(rows.y[some], None, prior, tau, nu, scale)
        phi, r = state.inducing.features(rows.X[some])
        mean = (phi @ state.mean.astype(phi.dtype)).astype(float)
        solved = divide(phi, state.rounded)
        w = np.einsum("nm,nm->n", solved, solved).astype(float)
        return of(block, cavities(block, mean, w, r, rule.power, 1.0))

    return in_blocks(one, len(chosen), state.inducing.size)
