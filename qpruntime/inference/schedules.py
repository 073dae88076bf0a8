"""The orders in which sites are visited, each a loop of bounded length.

One site after the other, in turn or at random, updating the posterior after each; all of them from
one posterior; or mixtures of these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qpruntime.inference.anderson import Anderson
from qpruntime.inference.dense.factor import Factor, ImproperPosterior, Sites
from qpruntime.inference.steps import Problem, advance, measure_change, sweep_once, turn_all

__all__ = ["Settled", "settle_mixed", "settle_visiting"]

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

# Sweeps whose step points back along the previous one are shortened by this factor, down to the
# floor.
_SHORTEN = 0.7
_LEAST_DAMPING = 0.02
# Changes above this are far from the fixed point.
_FAR = 1e-2
# Parallel iterations that are still far after so many have lost their way: labels of one kind under
# a wide prior make all sites overshoot together. Two sweeps in turn bring them close.
_PATIENCE, _RESCUE = 20, 2


@dataclass
class Settled:
    """Where the iteration ended. `factor` and its `marginals()` belong to `sites`.

    `held` counts sites whose precision would be negative were it not held at zero. `bound` is the
    variational bound where that is what was maximised.
    """

    sites: Sites
    factor: Factor
    variance: Array
    kept: Array
    converged: bool
    history: list[float]
    worst: int
    damped: int
    counts: Counts
    held: int = 0
    bound: float | None = None

    def after(self, first: Settled | None, lost: list[float] | None = None) -> Settled:
        """Count what was done before: by a run that ended, or `lost` by one that failed."""
        if first:
            self.counts = first.counts + self.counts
            self.damped += first.damped
            lost = first.history
        self.history = (lost or []) + self.history
        return self

    @property
    def proper(self) -> bool:
        """Whether every site has a proper cavity."""
        return bool((self.kept > 0.0).all())


def settle_mixed(
    problem: Problem,
    start: Sites,
    factor: Factor,
    tol: float,
    max_sweeps: int,
    damping: float,
    rng: np.random.Generator | None,
    anderson: Anderson,
) -> Settled:
    """Parallel order, with sweeps where it is known to lose its way."""

    def over(end: Settled) -> bool:
        return end.converged or len(end.history) >= max_sweeps

    def go(
        by: Any, how: Any, most: int, near: tuple[Sites, Factor], end: Settled | None
    ) -> Settled:
        done = end.history if end else []
        try:
            part = by(problem, *near, tol, min(most, max_sweeps - len(done)), damping, how)
        except ImproperPosterior as error:
            error.history = done + error.history
            raise
        return part.after(end)

    first = None
    near = start, factor
    if not (problem.projector.likelihood.log_concave or start.tau.any()):
        # There may be several fixed points: begin near that of the other orders.
        first = go(settle_visiting, rng, _RESCUE, near, None)
        if over(first):
            return first
        near = first.sites, first.factor
    end = go(_settle_parallel, anderson, _PATIENCE, near, first)
    if not over(end) and end.history[-1] > _FAR:
        nothing = Sites(np.zeros(start.tau.size), np.zeros(start.tau.size))
        near = nothing, Factor(problem.K, nothing, problem.prior)
        end = go(settle_visiting, rng, _RESCUE, near, end)
    if not over(end):
        half = (max_sweeps - len(end.history) + 1) // 2
        end = go(_settle_parallel, anderson, half, (end.sites, end.factor), end)
    if not over(end):
        end = go(settle_visiting, rng, max_sweeps, (end.sites, end.factor), end)
    return end


def settle_visiting(
    problem: Problem,
    sites: Sites,
    factor: Factor,
    tol: float,
    max_sweeps: int,
    damping: float,
    rng: np.random.Generator | None,
) -> Settled:
    """Sequential order, or a new random one in every sweep if there is a generator."""
    n = len(problem.K)
    counts = np.zeros(3, dtype=np.int64)
    history: list[float] = []
    damped, worst, shorter, converged = 0, 0, 1.0, False
    previous = np.zeros(2 * n)
    for _ in range(max_sweeps):
        skipped = counts[2]
        turn = rng.permutation(n) if rng is not None else None
        variance, d_tau, d_nu = sweep_once(problem, factor, sites, damping * shorter, turn, counts)
        change, step = measure_change(d_tau, d_nu, variance)
        history.append(change)
        worst = int(np.argmax(np.abs(step[:n]) + np.abs(step[n:])))
        damped += n * (shorter < 1.0)
        if float(step @ previous) < -0.5 * float(previous @ previous):
            shorter = max(_SHORTEN * shorter, _LEAST_DAMPING)
        else:
            shorter = min(1.0, shorter / _SHORTEN**0.25)
        previous = step
        sites, factor, halvings = _advance(problem, sites, d_tau, d_nu, 1.0, history)
        damped += n * halvings
        # A site that could not be updated has not settled, though it does not change.
        converged = change < tol and counts[2] == skipped
        if converged:
            break
    return Settled(sites, factor, *factor.marginals(), converged, history, worst, damped, counts)


def _settle_parallel(
    problem: Problem,
    sites: Sites,
    factor: Factor,
    tol: float,
    max_sweeps: int,
    damping: float,
    accelerator: Anderson,
) -> Settled:
    """All sites from one factorisation, accelerated."""
    n = len(problem.K)
    counts = np.zeros(3, dtype=np.int64)
    history: list[float] = []
    damped, converged = 0, False
    step, unit = np.zeros(2 * n), np.ones(2 * n)
    accelerator.restart()
    for turn in range(max_sweeps):
        variance, kept = factor.marginals()
        if turn == 0:
            # Site parameters in units of the posterior they started from.
            unit = np.concatenate([variance, np.sqrt(np.abs(variance))])
        skipped = counts[2]
        # Far from the fixed point one step of the means is too few where the prior is wide: the
        # iteration then wanders (test_cold_start.py). Near it a second one gains nothing.
        steps = 2 if history and history[-1] > _FAR else int(turn > 0 or sites.tau.any())
        sites, d_tau, d_nu = turn_all(problem, factor, variance, kept, sites, steps, counts)
        change, step = measure_change(d_tau, d_nu, variance)
        history.append(change)
        converged = change < tol and counts[2] == skipped
        if converged:
            # The posterior at hand already belongs to these sites: nothing to recompute.
            break
        move = accelerator.step(np.concatenate(sites), np.concatenate([d_tau, d_nu]), unit)
        if problem.nonnegative:
            # No site may turn negative: such a site takes its plain step.
            plain = sites.tau + move[:n] < 0.0
            move[:n][plain], move[n:][plain] = d_tau[plain], d_nu[plain]
        factor.discard()
        sites, factor, halvings = _advance(problem, sites, move[:n], move[n:], damping, history)
        damped += n * halvings
    worst = int(np.argmax(np.abs(step[:n]) + np.abs(step[n:])))
    if not converged:
        variance, kept = factor.marginals()
    return Settled(sites, factor, variance, kept, converged, history, worst, damped, counts)


def _advance(
    problem: Problem, sites: Sites, d_tau: Array, d_nu: Array, scale: float, history: list[float]
) -> tuple[Sites, Factor, int]:
    """`advance`, whose failure says what was done before."""
    try:
        return advance(problem, sites, d_tau, d_nu, scale)
    except ImproperPosterior as error:
        error.history = history
        raise
