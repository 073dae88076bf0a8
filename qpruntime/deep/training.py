"""Stochastic maximisation of the energy by Adam: one compiled function of a few steps at a time."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Sharding
from scipy.optimize import OptimizeResult, minimize

from qpruntime._typing import Array
from qpruntime.deep.batches import Feed
from qpruntime.deep.layers import Batch, Layer, Layers, LogNormaliser, Stored, energy
from qpruntime.deep.predictive import ByKernel, evidence
from qpruntime.errors import ConvergenceWarning, InputError, NumericalError, warn
from qpruntime.learning.progress import progress_bar, time_left
from qpruntime.likelihoods import Likelihood

__all__ = [
    "Report",
    "Trained",
    "TrainingPlan",
    "flattened",
    "polished",
    "raise_failure",
    "reporting",
    "restoring",
    "train",
]

#: Steps that one call of the compiled function makes.
CHUNK = 10
#: Steps over which the energy is averaged, and averages without a gain after which it stops.
WINDOW, PATIENCE = 100, 5
#: The learning rate falls by a cosine to this share.
_LAST_RATE = 0.05

Report = Callable[[int, float], object]
#: The learnt numbers in one vector, and Adam's moments of them.
State = tuple[jax.Array, optax.OptState]
#: A batch and its learning rate.
Given = tuple[Batch, jax.Array]


class TrainingPlan(NamedTuple):
    """Settings of training; see `qpruntime.deep.base.DeepGP` for each."""

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
def _advance(
    likelihood: Likelihood | None, power: float, dtype: str
) -> tuple[Callable[..., tuple[State, jax.Array]], Callable[..., optax.OptState], LogNormaliser]:
    """Compile `CHUNK` steps; arguments of any size, each size compiled at its first use."""
    log_z = evidence(likelihood, power)
    adam = optax.scale_by_adam()
    narrow = None if dtype == "float64" else jnp.dtype(dtype)

    def step(
        state: State,
        given: Given,
        restored: Callable[[jax.Array], Layers],
        rows: jax.Array,
        scale: jax.Array,
    ) -> tuple[State, jax.Array]:
        """Take one step of Adam on a batch, and skip it if it is not finite."""
        flat, moved = state
        batch, rate = given

        def of(flat: jax.Array) -> jax.Array:
            return energy(restored(flat), batch, rows, power, log_z, narrow, scale)

        value, slope = jax.value_and_grad(of)(flat)
        change, after = adam.update(slope, moved)
        finite = jnp.isfinite(value) & jnp.all(jnp.isfinite(slope))
        # A step that is not finite moves nothing: the state stays the last good one.
        kept = jax.tree.map(
            lambda new, old: jnp.where(finite, new, old), (flat + rate * change, after), state
        )
        return kept, jnp.where(finite, value, jnp.nan)

    def steps(
        state: State,
        batches: Batch,
        rates: jax.Array,
        rows: jax.Array,
        scale: jax.Array,
        like: Layers,
    ) -> tuple[State, jax.Array]:
        """Take a step for each batch, with layers that are linear as `like` is."""
        restored = restoring(like)
        last, energies = jax.lax.scan(
            lambda now, given: step(now, given, restored, rows, scale), state, (batches, rates)
        )
        return last, energies

    return jax.jit(steps), adam.init, log_z


def flattened(layers: Layers) -> Array:
    """All that is learnt in one vector: one Adam step instead of one for every array."""
    return np.concatenate([np.ravel(part) for layer in layers for part in layer[:-1]])


def restoring(like: Layers) -> Callable[[Stored], Layers]:
    """Return what makes layers again of a vector, linear means being those of `like`."""

    def restored(flat: Stored) -> Layers:
        layers, end = [], 0
        for layer in like:
            parts = []
            for part in layer[:-1]:
                start, end = end, end + math.prod(part.shape)
                parts.append(flat[start:end].reshape(part.shape))
            layers.append(Layer._make([*parts, layer.slope]))
        return tuple(layers)

    return restored


def train(
    layers: Layers,
    feed: Feed,
    plan: TrainingPlan,
    rng: np.random.Generator,
    report: Report | None = None,
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
        energies = np.asarray(values)[: plan.max_iter - done]
        finite = np.isfinite(energies)
        if not finite.all():
            raise_failure(log_z)
            diverged = True
            energies = energies[: int(np.argmin(finite))]
        history.extend(energies.tolist())
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


def _shares(devices: int, size: int) -> tuple[Sharding | None, Sharding | None]:
    """Return where stacks of batches go, shared by rows, and where what all need goes.

    Raises
    ------
    InputError
        If there are fewer devices, or rows that cannot be shared in equal parts.
    """
    if devices == 1:
        return None, None
    available = jax.devices()
    if devices > len(available):
        raise InputError(f"devices is {devices}, and JAX has {len(available)} here: {available}")
    if size % devices:
        raise InputError(
            f"{devices} devices cannot have equal shares of batches of {size} rows: "
            f"take batch_size={max(size // devices, 1) * devices}"
        )
    mesh = jax.sharding.Mesh(np.array(available[:devices]), ("rows",))
    parts = (jax.sharding.PartitionSpec(None, "rows"), jax.sharding.PartitionSpec())
    by_rows, everywhere = (jax.sharding.NamedSharding(mesh, part) for part in parts)
    return by_rows, everywhere


def raise_failure(log_z: object) -> None:
    """Raise what a likelihood raised, once."""
    if isinstance(log_z, ByKernel) and log_z.failure is not None:
        failure, log_z.failure = log_z.failure, None
        raise failure


def _rates(plan: TrainingPlan, at: Array) -> Array:
    fallen = 0.5 * (1.0 + np.cos(np.pi * at / plan.max_iter))
    rates = plan.learning_rate * (_LAST_RATE + (1.0 - _LAST_RATE) * fallen)
    return np.where(at < plan.max_iter, rates, 0.0)


# --- What `verbose` shows of training: a bar with the time left on a terminal, lines elsewhere.

_LINES = 10


@contextlib.contextmanager
def reporting(verbose: int, steps: int, processes: int) -> Iterator[Report | None]:
    """Yield what is to be called with steps done and the average energy; None if silent."""
    if not verbose:
        yield None
        return
    total, begun = steps * processes, time.perf_counter()
    before = last = 0

    def words(done: int, energy: float) -> tuple[int, str]:
        nonlocal before, last
        if done < last:  # the next process
            before += steps
        last = done
        whole = before + done
        remaining = (time.perf_counter() - begun) / whole * (total - whole)
        return whole, f"step {whole} of {total}, energy {energy:.6g}{time_left(remaining)}"

    with progress_bar(total) if verbose == 1 else contextlib.nullcontext(None) as update:
        printed = 0

        def report(done: int, energy: float) -> None:
            nonlocal printed
            whole, said = words(done, energy)
            if update is not None:
                update(whole, said)
            elif whole * _LINES // total > printed:
                printed = whole * _LINES // total
                print(said, file=sys.stderr)

        yield report


# --- What follows the steps of Adam: L-BFGS with the energy of all rows, which are in memory.

#: Rows whose pairs of inducing inputs are held at a time, at most.
_BLOCK = 1024
#: Steps that the optimiser remembers; what it is told where the energy is not finite.
_MEMORY, _NOWHERE = 20, 1e300


@lru_cache(maxsize=32)
def _sloped(
    likelihood: Likelihood | None, power: float, dtype: str
) -> tuple[Callable[..., tuple[jax.Array, jax.Array]], LogNormaliser]:
    """Compile the energy of a batch, times its share of the rows, and its slope."""
    log_z = evidence(likelihood, power)
    narrow = None if dtype == "float64" else jnp.dtype(dtype)

    def of(flat: jax.Array, batch: Batch, rows: jax.Array, like: Layers) -> jax.Array:
        value = energy(restoring(like)(flat), batch, rows, power, log_z, narrow)
        return value * (jnp.sum(batch.weight) / rows)

    return jax.jit(jax.value_and_grad(of)), log_z


def polished(
    trained: Trained, data: Batch, plan: TrainingPlan, report: Report | None = None
) -> Trained:
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

    def note(intermediate_result: OptimizeResult) -> None:
        history.append(-float(intermediate_result.fun))
        if report is not None:
            report(len(history), history[-1])

    optimum = minimize(
        falling,
        flattened(like),
        jac=True,
        method="L-BFGS-B",
        callback=note,
        options={"maxiter": plan.polish, "maxfun": 2 * plan.polish, "maxcor": _MEMORY},
    )
    return Trained(restoring(like)(optimum.x), np.array(history), trained.converged)


def _blocks(data: Batch) -> list[Batch]:
    """Blocks of one size, the last filled up by rows of weight 0."""
    n = len(data.y)
    count = -(-n // _BLOCK)
    size = -(-n // count)
    at = np.arange(count * size)
    weight = np.where(at < n, data.weight[np.minimum(at, n - 1)], 0.0)
    X, y = (np.asarray(part)[np.minimum(at, n - 1)] for part in (data.X, data.y))
    return [Batch(X[k], y[k], weight[k]) for k in np.split(at, count)]
