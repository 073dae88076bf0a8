"""Some rows of an engine, by their numbers: without a pass over all of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qpruntime.arrays import Array
from qpruntime.blocks import in_blocks
from qpruntime.inference.sparse.blas import divide
from qpruntime.inference.sparse.block_updates import Block, cavities, project
from qpruntime.inference.sparse.engine import Engine

__all__ = ["leave_out"]


def leave_out(engine: Engine, chosen: NDArray[np.intp]) -> Array:
    """Return leave-one-out log densities of some rows, as `Engine.outcome` has them of all."""
    state, rule = engine.state, engine.rule
    rows = engine.rows.some(chosen)

    def of(some: slice) -> Array:
        columns = rows.weights, rows.prior, rows.scale
        _, prior, scale = (None if a is None else a[some] for a in columns)
        tau, nu = engine.tau[chosen[some]], engine.nu[chosen[some]]
        block = Block(rows.y[some], None, prior, tau, nu, scale)
        phi, r = state.inducing.features(rows.X[some])
        mean = (phi @ state.mean.astype(phi.dtype)).astype(float)
        solved = divide(phi, state.rounded)
        w = np.einsum("nm,nm->n", solved, solved).astype(float)
        at = cavities(block, mean, w, r, rule.power, 1.0)
        log_z: Array = project(rule, block, at, "log_z", whole=True)[0]
        return log_z

    found: Array = in_blocks(of, len(chosen), state.inducing.size)
    return found
