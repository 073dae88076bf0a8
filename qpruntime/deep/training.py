"""Stochastic maximisation of the energy by Adam: one compiled function of a few steps at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from qpruntime.arrays import Array
from qpruntime.deep.energy import Batch, Layers, energy
from qpruntime.deep.feed import Feed
from qpruntime.deep.layers import Layer
from qpruntime.deep.observing import ByKernel, evidence
from qpruntime.errors import ConvergenceWarning, InputError, NumericalError, warn
from qpruntime.likelihoods import Likelihood

__all__ = ["Plan", "Report", "Trained", "flattened", "raise_failure", "restoring", "train"]

#: Steps that one call of the compiled function makes.
CHUNK = 10
#: Steps over which the energy is averaged, and averages without a gain after which it stops.
WINDOW, PATIENCE = 100, 5
#: The learning rate falls by a cosine to this share.
_LAST_RATE = 0.05

Report = Callable[[int, float], Any]


class Plan(NamedTuple):
    """How to train; see `qpruntime.deep.base.DeepGP` for what is said of each."""

    likelihood: Likelihood | None
    power: float
    max_iter: int
    batch_size: int
    learning_rate: float
    least_gain: float
    dtype: str
    devices: int = 1
    polish: int = 0


class Trained(NamedTuple):
    """Layers of NumPy's arrays, the energy estimated at every step, and whether all went well."""

    layers: Layers
    history: Array
    converged: bool


@lru_cache(maxsize=32)
def _advance(likelihood: Likelihood | None, power: float, dtype: str) -> Any:
    """Compile `CHUNK` steps; arguments of any size, each size compiled at its first use."""
    log_z = evidence(likelihood, power)
    adam = optax.scale_by_adam()
    narrow = None if dtype == "float64" else jnp.dtype(dtype)

    def step(state: Any, given: Any, restored: Any, rows: jax.Array, scale: jax.Array) -> Any:
        flat, moved = state
        batch, rate = given

        def of(flat: jax.Array) -> jax.Array:
            return energy(restored(flat), batch, rows, power, log_z, narrow, scale)

        value, slope = jax.value_and_grad(of)(flat)
        change, after = adam.update(slope, moved)
        finite = jnp.isfinite(value) & jnp.all(jnp.isfinite(slope))
        # What is not finite moves nothing: the state stays the last good one.
        kept = jax.tree.map(
            lambda new, old: jnp.where(finite, new, old), (flat + rate * change, after), state
        )
        return kept, jnp.where(finite, value, jnp.nan)

    def steps(
        state: Any, batches: Batch, rates: jax.Array, rows: Any, scale: Any, like: Layers
    ) -> Any:
        restored = restoring(like)
        return jax.lax.scan(
            lambda now, given: step(now, given, restored, rows, scale), state, (batches, rates)
        )

    return jax.jit(steps), adam.init, log_z


def flattened(layers: Layers) -> Array:
    """All that is learnt in one vector: one Adam step instead of one for every array."""
    return np.concatenate([np.ravel(part) for one in layers for part in one[:-1]])


def restoring(like: Layers) -> Callable[[Any], Layers]:
    """Return what makes layers again of a vector, linear means being those of `like`."""

    def restored(flat: Any) -> Layers:
        found, end = [], 0
        for one in like:
            parts = []
            for part in one[:-1]:
                start, end = end, end + math.prod(part.shape)
                parts.append(flat[start:end].reshape(part.shape))
            found.append(Layer._make([*parts, one.slope]))
        return tuple(found)

    return restored


def train(
    layers: Layers, feed: Feed, plan: Plan, rng: np.random.Generator, report: Report | None = None
) -> Trained:
    """Maximise the energy of the data from these layers on.

    Warns
    -----
    ConvergenceWarning
        If the energy leaves the finite numbers, or falls by more than a nat a row or to that below
        where it began: training stops, and the layers are those of the best average of 100 steps.

    Raises
    ------
    NumericalError
        If it is not finite at the start, or a likelihood cannot be integrated.
    InputError
        If rows that are read are not finite, or devices cannot share batches.
    """
    advance, begin, log_z = _advance(plan.likelihood, plan.power, plan.dtype)
    rows = float(np.sum(feed.data.weight))
    size = min(plan.batch_size, feed.n)
    shared, everywhere = _shares(plan.devices, size)
    chosen = feed.batches(size, rng)
    flat, restored = flattened(layers), restoring(layers)
    state = jax.device_put((flat, begin(flat)), everywhere)
    history: list[float] = []
    best, best_flat, mark, since, diverged = -np.inf, flat, -np.inf, 0, False
    averages: list[float] = []
    while len(history) < plan.max_iter and not diverged and since < PATIENCE:
        done = len(history)
        at = np.minimum(np.arange(done, done + CHUNK), plan.max_iter)
        batches = Batch(*map(np.stack, zip(*(next(chosen) for _ in at), strict=True)))
        batches = jax.device_put(batches, shared)
        state, values = advance(state, batches, _rates(plan, at), rows, feed.n / size, layers)
        found = np.asarray(values)[: plan.max_iter - done]
        finite = np.isfinite(found)
        if not finite.all():
            raise_failure(log_z)
            diverged = True
            found = found[: int(np.argmin(finite))]
        history.extend(found.tolist())
        if not history:
            break
        average = float(np.mean(history[-WINDOW:]))
        if report is not None:
            report(len(history), average)
        if len(history) // WINDOW > len(averages):
            averages.append(average)
            diverged |= average < max(history[0], *averages) - rows
            gained = average > mark + plan.least_gain * rows
            mark, since = (average, 0) if gained else (mark, since + 1)
        if not diverged and average > max(best, history[0]):
            best, best_flat = average, state[0]
    if not history:
        raise NumericalError(
            "the energy is not finite where training starts: rescale the targets, or take fewer "
            "inducing points"
        )
    if diverged:
        kept = f"that of its best average energy, {best:.6g}" if best > -np.inf else "as it began"
        remedy = f"lower learning_rate={plan.learning_rate:g}"
        if plan.dtype != "float64":
            remedy += ', or take dtype="float64"'
        warn(
            f"training diverged after {len(history)} steps and was stopped; the model is {kept}: "
            f"{remedy}",
            ConvergenceWarning,
        )
    final = restored(np.asarray(best_flat if diverged else state[0]))
    return Trained(final, np.array(history), not diverged)


def _shares(devices: int, size: int) -> tuple[Any, Any]:
    """Return where stacks of batches go, shared by rows, and where what all need goes.

    Raises
    ------
    InputError
        If there are fewer devices, or rows that cannot be shared in equal parts.
    """
    if devices == 1:
        return None, None
    here = jax.devices()
    if devices > len(here):
        raise InputError(f"devices is {devices}, and JAX has {len(here)} here: {here}")
    if size % devices:
        raise InputError(
            f"{devices} devices cannot have equal shares of batches of {size} rows: "
            f"take batch_size={max(size // devices, 1) * devices}"
        )
    mesh = jax.sharding.Mesh(np.array(here[:devices]), ("rows",))
    parts = (jax.sharding.PartitionSpec(None, "rows"), jax.sharding.PartitionSpec())
    by_rows, everywhere = (jax.sharding.NamedSharding(mesh, part) for part in parts)
    return by_rows, everywhere


def raise_failure(log_z: Any) -> None:
    """Raise what a likelihood raised, once."""
    if isinstance(log_z, ByKernel) and log_z.failure is not None:
        failure, log_z.failure = log_z.failure, None
        raise failure


def _rates(plan: Plan, at: Array) -> Array:
    fallen = 0.5 * (1.0 + np.cos(np.pi * at / plan.max_iter))
    rates = plan.learning_rate * (_LAST_RATE + (1.0 - _LAST_RATE) * fallen)
    return np.where(at < plan.max_iter, rates, 0.0)
