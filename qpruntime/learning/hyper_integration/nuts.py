"""A chain of hyper-parameters by slopes of their density: no U-turns (Hoffman & Gelman 2014).

States of a trajectory are chosen by their density, as Betancourt (2017) has it; the step is adapted
while the chain warms up. Coordinates are those in which the mode has unit curvature.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from qpruntime._typing import Array

__all__ = ["Chain", "effective", "nuts"]

#: Log density and slope at z; None where there is none.
Slope = Callable[[Array], "tuple[float, Array] | None"]

# Doublings at most, and what the chance of a step is adapted to.
_DEPTH, _AIM = 5, 0.8
# Beyond this error of the energy a trajectory has diverged.
_FAR = 50.0
# Of dual averaging, as published.
_GAMMA, _DELAY, _FADE = 0.05, 10.0, 0.75


class Chain(NamedTuple):
    """Places (n, p), the number of trajectories that diverged, and the step."""

    z: Array
    diverged: int
    step: float


class _Tree(NamedTuple):
    """Ends of a trajectory (place, momentum, slope), its choice, and what it weighs."""

    first: tuple[Array, Array, Array]
    last: tuple[Array, Array, Array]
    chosen: tuple[Array, float, Array]
    weight: float
    turned: bool
    diverged: bool
    chance: float
    steps: int


def nuts(
    slope: Slope, z: Array, n: int, warm: int, rng: np.random.Generator, step: float = 0.5
) -> Chain:
    """Draw `n` places after `warm` of warm-up, beginning at z (p,), where there is a density."""
    now = slope(z)
    assert now is not None
    state = (z, *now)
    kept, diverged, average, mean = [], 0, 0.0, math.log(step)
    centre = math.log(2.0 * step)
    for k in range(warm + n):
        own = step if k < warm else math.exp(mean)
        tree = _trajectory(slope, state, own, rng)
        state = tree.chosen
        if k < warm:
            share = 1.0 / (k + 1.0 + _DELAY)
            average += share * (_AIM - tree.chance / max(tree.steps, 1) - average)
            log = centre - math.sqrt(k + 1.0) / _GAMMA * average
            fade = (k + 1.0) ** -_FADE
            mean = fade * log + (1.0 - fade) * mean
            step = math.exp(log)
        else:
            kept.append(state[0])
            diverged += tree.diverged
    return Chain(np.array(kept), diverged, math.exp(mean))


def _trajectory(
    slope: Slope, state: tuple[Array, float, Array], step: float, rng: np.random.Generator
) -> _Tree:
    z, value, at = state
    r = rng.standard_normal(z.size)
    energy = value - 0.5 * float(r @ r)
    end = (z, r, at)
    tree = _Tree(end, end, state, 0.0, False, False, 0.0, 0)
    for depth in range(_DEPTH):
        forward = bool(rng.uniform() < 0.5)
        begin = tree.last if forward else tree.first
        more = _grown(slope, begin, depth, step if forward else -step, energy, rng)
        chance, steps = tree.chance + more.chance, tree.steps + more.steps
        if more.turned or more.diverged:
            return tree._replace(chance=chance, steps=steps, diverged=more.diverged)
        chosen = tree.chosen
        if math.log(rng.uniform()) < more.weight - tree.weight:
            chosen = more.chosen
        first, last = (tree.first, more.last) if forward else (more.last, tree.last)
        weight = float(np.logaddexp(tree.weight, more.weight))
        tree = _Tree(first, last, chosen, weight, False, False, chance, steps)
        if _turns(first, last):
            break
    return tree


def _grown(
    slope: Slope,
    begin: tuple[Array, Array, Array],
    depth: int,
    step: float,
    energy: float,
    rng: np.random.Generator,
) -> _Tree:
    """2^depth steps from one end; `last` is the far end."""
    if depth == 0:
        z, r, at = begin
        half = r + 0.5 * step * at
        there = z + step * half
        found = slope(there)
        if found is None:
            return _Tree(begin, begin, (z, -math.inf, at), -math.inf, False, True, 0.0, 1)
        r = half + 0.5 * step * found[1]
        weight = found[0] - 0.5 * float(r @ r) - energy
        end = (there, r, found[1])
        away = not weight > -_FAR
        chance = min(1.0, math.exp(min(weight, 0.0)))
        return _Tree(end, end, (there, *found), weight, False, away, chance, 1)
    near = _grown(slope, begin, depth - 1, step, energy, rng)
    if near.turned or near.diverged:
        return near
    far = _grown(slope, near.last, depth - 1, step, energy, rng)
    chance, steps = near.chance + far.chance, near.steps + far.steps
    if far.turned or far.diverged:
        return far._replace(chance=chance, steps=steps)
    weight = float(np.logaddexp(near.weight, far.weight))
    chosen = far.chosen if math.log(rng.uniform()) < far.weight - weight else near.chosen
    ends = (near.first, far.last) if step > 0.0 else (far.last, near.first)
    turned = _turns(*ends)
    return _Tree(near.first, far.last, chosen, weight, turned, False, chance, steps)


def _turns(first: tuple[Array, Array, Array], last: tuple[Array, Array, Array]) -> bool:
    """Whether the ends of a trajectory, in the order of time, move towards each other."""
    gap = last[0] - first[0]
    return bool(gap @ first[1] < 0.0 or gap @ last[1] < 0.0)


def effective(chain: Array) -> float:
    """Effective number of draws of a chain (n, p), the least over columns.

    By Geyer's initial monotone sequence of autocorrelations.
    """
    n = len(chain)
    least = float(n)
    for column in (chain - chain.mean(axis=0)).T:
        spectrum = np.abs(np.fft.rfft(column, 2 * n)) ** 2
        own = np.fft.irfft(spectrum)[:n]
        if not own[0] > 0.0:
            return 1.0
        rho = own / own[0]
        pairs = rho[: 2 * (n // 2)].reshape(-1, 2).sum(axis=1)
        end = int(np.argmax(pairs <= 0.0)) if (pairs <= 0.0).any() else len(pairs)
        total = float(np.minimum.accumulate(pairs[:end]).sum())
        least = min(least, n / max(2.0 * total - 1.0, 1.0 / n))
    return max(1.0, min(least, float(n)))
