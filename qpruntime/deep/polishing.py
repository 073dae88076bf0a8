"""What follows the steps of Adam: L-BFGS with the energy of all rows, which are in memory."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

from qpruntime.arrays import Array
from qpruntime.deep.energy import Batch, Layers, energy
from qpruntime.deep.observing import evidence
from qpruntime.deep.training import Plan, Report, Trained, flattened, raise_failure, restoring
from qpruntime.likelihoods import Likelihood

__all__ = ["polished"]

#: Rows whose pairs of inducing inputs are held at a time, at most.
_BLOCK = 1024
#: Steps that the optimiser remembers; what it is told where the energy is not finite.
_MEMORY, _NOWHERE = 20, 1e300


@lru_cache(maxsize=32)
def _sloped(likelihood: Likelihood | None, power: float, dtype: str) -> Any:
    """Compile the energy of a batch, times its share of the rows, and its slope."""
    log_z = evidence(likelihood, power)
    narrow = None if dtype == "float64" else jnp.dtype(dtype)

    def of(flat: jax.Array, batch: Batch, rows: Any, like: Layers) -> jax.Array:
        found = energy(restoring(like)(flat), batch, rows, power, log_z, narrow)
        return found * (jnp.sum(batch.weight) / rows)

    return jax.jit(jax.value_and_grad(of)), log_z


def polished(trained: Trained, data: Batch, plan: Plan, report: Report | None = None) -> Trained:
    """Maximise the energy of all rows from where Adam has ended, by at most ``plan.polish`` steps.

    The energy of all rows is the mean of those estimated from blocks, weighted by their rows, for
    only the sum of log Z is scaled. The history goes on with it.

    Raises
    ------
    NumericalError
        If a likelihood cannot be integrated.
    """
    sloped, log_z = _sloped(plan.likelihood, plan.power, plan.dtype)
    like, rows, blocks = trained.layers, float(np.sum(data.weight)), _blocks(data)
    history = trained.history.tolist()

    def falling(flat: Array) -> tuple[float, Array]:
        value, slope = 0.0, np.zeros_like(flat)
        for block in blocks:
            part = sloped(flat, block, rows, like)
            value, slope = value - float(part[0]), slope - np.asarray(part[1])
        if not (np.isfinite(value) and np.isfinite(slope).all()):
            raise_failure(log_z)
            return _NOWHERE, np.zeros_like(flat)
        return value, slope

    def note(intermediate_result: Any) -> None:
        history.append(-float(intermediate_result.fun))
        if report is not None:
            report(len(history), history[-1])

    found = minimize(
        falling,
        flattened(like),
        jac=True,
        method="L-BFGS-B",
        callback=note,
        options={"maxiter": plan.polish, "maxfun": 2 * plan.polish, "maxcor": _MEMORY},
    )
    return Trained(restoring(like)(found.x), np.array(history), trained.converged)


def _blocks(data: Batch) -> list[Batch]:
    """Blocks of one size, the last filled up by rows of weight 0."""
    n = len(data.y)
    count = -(-n // _BLOCK)
    size = -(-n // count)
    at = np.arange(count * size)
    weight = np.where(at < n, data.weight[np.minimum(at, n - 1)], 0.0)
    X, y = (np.asarray(part)[np.minimum(at, n - 1)] for part in (data.X, data.y))
    return [Batch(X[k], y[k], weight[k]) for k in np.split(at, count)]
