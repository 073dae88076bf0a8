"""The fixed-point iteration of EP and QP: update sites until they settle, within a bound.

``sequential`` and ``random`` update the posterior after every site, ``parallel`` after all of
them; the fixed point is the same. An iteration costs about two Cholesky factorisations in
parallel order and five in the others.

Sites of a likelihood that is not log-concave may have negative precisions. Where these leave some
other site without a proper cavity there is no fixed point; then every precision is held at zero
or above, and the result says for how many sites that changes anything.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qpruntime.accelerate import Anderson
from qpruntime.factor import Factor, ImproperPosterior, Sites
from qpruntime.steps import (
    Problem,
    advance,
    measure_change,
    propose_all,
    sweep_once,
    turn_all,
    without_negative,
)

__all__ = ["ORDERS", "Problem", "Settled", "iterate", "settle"]

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

ORDERS = ("sequential", "random", "parallel")

# Sweeps whose step points back along the previous one are shortened by this factor, down to the
# floor.
_SHORTEN = 0.7
_LEAST_DAMPING = 0.02
# A site counts as held if its precision, in units of the posterior's, would be this far below zero.
_HELD = 1e-9
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

    def after(self, first: Settled) -> Settled:
        """Count what was done before as well."""
        self.history = first.history + self.history
        self.counts = first.counts + self.counts
        self.damped += first.damped
        return self

    @property
    def proper(self) -> bool:
        """Whether every site has a proper cavity."""
        return bool((self.kept > 0.0).all())


def settle(
    problem: Problem,
    *,
    tol: float = 1e-6,
    max_sweeps: int = 100,
    damping: float = 1.0,
    order: str = "sequential",
    sites: Sites | None = None,
    rng: np.random.Generator | None = None,
) -> Settled:
    """Iterate to the fixed point; arguments as those of `qpruntime.infer`, known to be good.

    Every site of the result has a proper cavity, if need be with precisions held at zero or above.
    """
    options: dict[str, Any] = {"tol": tol, "max_sweeps": max_sweeps, "damping": damping, "rng": rng}
    first = None
    try:
        first = iterate(problem, order=order, sites=sites, **options)
    except ImproperPosterior:
        if problem.nonnegative:
            raise
    if first and (first.proper or problem.nonnegative):
        return first
    bounded = replace(problem, bounded=True)
    end = iterate(bounded, order="random" if rng else "sequential", sites=sites, **options)
    unbound, _ = propose_all(
        problem,
        problem.projector.source,
        end.kept,
        end.variance,
        end.factor.mean,
        end.sites,
        np.zeros(3, dtype=np.int64),
    )
    end.held = int(np.sum((end.sites.tau + unbound) * end.variance < -_HELD))
    if first:
        end.counts += first.counts
    return end


def iterate(
    problem: Problem,
    *,
    tol: float = 1e-6,
    max_sweeps: int = 100,
    damping: float = 1.0,
    order: str = "sequential",
    sites: Sites | None = None,
    rng: np.random.Generator | None = None,
    accelerator: Anderson | None = None,
) -> Settled:
    """`settle` without its last resort: sites may end up with improper cavities."""
    n = len(problem.K)
    start = Sites(np.zeros(n), np.zeros(n)) if sites is None else sites
    if problem.bounded:
        start = without_negative(start)
    # What overflows is found by `measure_change`, which says so in words.
    with np.errstate(all="ignore"):
        try:
            factor = Factor(problem.K, start, problem.prior)
        except ImproperPosterior:
            # Sites carried over from another K.
            start = without_negative(start)
            factor = Factor(problem.K, start, problem.prior)
        if order == "parallel":
            anderson = accelerator or Anderson()
            first = min(max_sweeps, _PATIENCE)
            end = _settle_parallel(problem, start, factor, tol, first, damping, anderson)
            if end.converged or first == max_sweeps:
                return end
            if end.history[-1] > _FAR:
                sweeps = min(_RESCUE, max_sweeps - first)
                nothing = Sites(np.zeros(n), np.zeros(n))
                factor = Factor(problem.K, nothing, problem.prior)
                near = _settle_visiting(problem, nothing, factor, tol, sweeps, damping, rng)
                end = near.after(end)
            rest = max_sweeps - len(end.history)
            if end.converged or rest == 0:
                return end
            factor = Factor(problem.K, end.sites, problem.prior)
            more = _settle_parallel(problem, end.sites, factor, tol, rest, damping, anderson)
            return more.after(end)
        return _settle_visiting(problem, start, factor, tol, max_sweeps, damping, rng)


def _settle_visiting(
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
        sites, factor, halvings = advance(problem, sites, d_tau, d_nu, 1.0)
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
        # iteration then wanders (tests/test_cold_start.py). Near it a second one gains nothing.
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
        sites, factor, halvings = advance(problem, sites, move[:n], move[n:], damping)
        damped += n * halvings
    worst = int(np.argmax(np.abs(step[:n]) + np.abs(step[n:])))
    if not converged:
        variance, kept = factor.marginals()
    return Settled(sites, factor, variance, kept, converged, history, worst, damped, counts)
