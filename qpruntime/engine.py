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
from qpruntime.errors import NumericalError
from qpruntime.factor import Factor, ImproperPosterior, Sites
from qpruntime.projection import Projector
from qpruntime.site import raise_status
from qpruntime.sweep import parallel, sweep
from qpruntime.wasserstein import OK

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
# Updates of the means alone between two factorisations in parallel order.
_MEAN_STEPS = 2


@dataclass(frozen=True)
class Problem:
    """What is to be inferred, checked and encoded: K (N, N), y (N,), prior mean (N,).

    `bounded` holds site precisions at zero or above also where the likelihood is not log-concave.
    `power` is that of power EP, `weights` (N,) are powers of the single likelihoods.
    """

    K: Array
    y: Array
    projector: Projector
    prior: Array
    bounded: bool = False
    power: float = 1.0
    weights: Array | None = None

    @property
    def exponents(self) -> Array:
        """Weight of every site, shape (N,)."""
        return np.ones(self.y.size) if self.weights is None else self.weights

    @property
    def nonnegative(self) -> bool:
        """Whether no site precision can be negative."""
        return self.bounded or self.projector.likelihood.log_concave


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
    unbound, _ = _proposals(
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
        start = _without_negative(start)
    # What overflows is found by `_change`, which says so in words.
    with np.errstate(all="ignore"):
        try:
            factor = Factor(problem.K, start, problem.prior)
        except ImproperPosterior:
            # Sites carried over from another K.
            start = _without_negative(start)
            factor = Factor(problem.K, start, problem.prior)
        if order == "parallel":
            anderson = accelerator or Anderson()
            return _settle_parallel(problem, start, factor, tol, max_sweeps, damping, anderson)
        return _settle_visiting(problem, start, factor, tol, max_sweeps, damping, rng)


def _without_negative(sites: Sites) -> Sites:
    """Forget the sites of negative precision."""
    kept = sites.tau >= 0.0
    return Sites(np.where(kept, sites.tau, 0.0), np.where(kept, sites.nu, 0.0))


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
        variance, d_tau, d_nu = _swept(problem, factor, sites, damping * shorter, turn, counts)
        change, step = _change(d_tau, d_nu, variance)
        history.append(change)
        worst = int(np.argmax(np.abs(step[:n]) + np.abs(step[n:])))
        damped += n * (shorter < 1.0)
        if float(step @ previous) < -0.5 * float(previous @ previous):
            shorter = max(_SHORTEN * shorter, _LEAST_DAMPING)
        else:
            shorter = min(1.0, shorter / _SHORTEN**0.25)
        previous = step
        sites, factor, halvings = _advance(problem, sites, d_tau, d_nu, 1.0)
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
    damped, worst, converged = 0, 0, False
    unit = np.ones(2 * n)
    accelerator.restart()
    for turn in range(max_sweeps):
        variance, kept = factor.marginals()
        if turn == 0:
            # Site parameters in units of the posterior they started from.
            unit = np.concatenate([variance, np.sqrt(np.abs(variance))])
        if turn > 0 or sites.tau.any():
            sites = _match_means(problem, factor, variance, kept, sites)
        skipped = counts[2]
        d_tau, d_nu = _proposals(
            problem, problem.projector.source, kept, variance, factor.mean, sites, counts
        )
        change, step = _change(d_tau, d_nu, variance)
        history.append(change)
        worst = int(np.argmax(np.abs(step[:n]) + np.abs(step[n:])))
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
        sites, factor, halvings = _advance(problem, sites, move[:n], move[n:], damping)
        damped += n * halvings
    if not converged:
        variance, kept = factor.marginals()
    return Settled(sites, factor, variance, kept, converged, history, worst, damped, counts)


def _match_means(
    problem: Problem, factor: Factor, variance: Array, kept: Array, sites: Sites
) -> Sites:
    """Move nu, with tau and so the factorisation fixed, towards marginal = tilted means.

    The means couple the sites far more than the variances do, and cost a few products with K:
    two such steps save a third of the factorisations.
    """
    nu, inner = sites.nu, Anderson(begin=np.inf)
    ignored = np.zeros(3, dtype=np.int64)
    unit = np.sqrt(np.abs(variance))
    for _ in range(_MEAN_STEPS):
        d_tau, d_nu = _proposals(
            problem,
            problem.projector.without_table,
            kept,
            variance,
            factor.mean,
            Sites(sites.tau, nu),
            ignored,
        )
        # 1 + variance d_tau, from the cavity: it would cancel where a site dominates.
        power = problem.power
        remaining = (1.0 - power) + power * (kept + variance * (sites.tau + d_tau))
        tilted = (factor.mean + power * variance * d_nu) / remaining
        nu = nu + inner.step(nu, (tilted - factor.mean) / variance, unit)
        factor.relocate(nu)
    return Sites(sites.tau, nu)


def _proposals(
    problem: Problem,
    source: tuple,
    kept: Array,
    variance: Array,
    mean: Array,
    sites: Sites,
    counts: Counts,
) -> tuple[Array, Array]:
    """Changes of all sites that one and the same posterior asks for."""
    n = problem.y.size
    d_tau, d_nu, failure = np.empty(n), np.empty(n), np.zeros(2)
    likelihood = problem.projector.likelihood
    status, site = parallel(
        problem.projector.functions,
        source,
        problem.power,
        problem.exponents,
        kept,
        variance,
        mean,
        sites.tau,
        sites.nu,
        problem.y,
        problem.nonnegative,
        d_tau,
        d_nu,
        counts,
        failure,
    )
    if status != OK:
        raise_status(status, likelihood, failure[0], failure[1], problem.y[site])
    return d_tau, d_nu


def _swept(
    problem: Problem,
    factor: Factor,
    sites: Sites,
    damping: float,
    turn: NDArray[np.intp] | None,
    counts: Counts,
) -> tuple[Array, Array, Array]:
    """One sweep in the order `turn`; return the variances before it and the changes of sites."""
    covariance, mean = factor.covariance(last=True), factor.mean.copy()
    variance = covariance.diagonal().copy()
    tau, nu, y = sites.tau.copy(), sites.nu.copy(), problem.y
    weights = problem.exponents
    if turn is not None:
        covariance = covariance[np.ix_(turn, turn)]
        mean, tau, nu = mean[turn], tau[turn], nu[turn]
        y, weights = y[turn], weights[turn]
    failure = np.zeros(2)
    likelihood = problem.projector.likelihood
    status, site = sweep(
        problem.projector.functions,
        problem.projector.source,
        problem.power,
        weights,
        np.ascontiguousarray(covariance.T),
        mean,
        tau,
        nu,
        y,
        problem.nonnegative,
        damping,
        counts,
        failure,
    )
    if status != OK:
        raise_status(status, likelihood, failure[0], failure[1], y[site])
    if turn is not None:
        back = np.argsort(turn)
        tau, nu = tau[back], nu[back]
    return variance, tau - sites.tau, nu - sites.nu


def _advance(
    problem: Problem, sites: Sites, d_tau: Array, d_nu: Array, scale: float
) -> tuple[Sites, Factor, int]:
    """Take the step, halved until the posterior is proper; that can only fail with tau < 0."""
    for halvings in range(40):
        new = Sites(sites.tau + scale * d_tau, sites.nu + scale * d_nu)
        try:
            return new, Factor(problem.K, new, problem.prior), halvings
        except ImproperPosterior:
            scale *= 0.5
    raise ImproperPosterior(
        "negative site precisions leave no proper posterior however short the step; "
        "use a smaller prior variance or a prior mean away from zero"
    )


def _change(d_tau: Array, d_nu: Array, variance: Array) -> tuple[float, Array]:
    """Root mean squared change of the site parameters, plain or in posterior units if larger.

    Also the changes in posterior units, those of tau before those of nu.
    """
    n = d_tau.size
    step = np.concatenate([d_tau * variance, d_nu * np.sqrt(np.abs(variance))])
    # tau is the difference of two precisions: smaller changes than their rounding are none.
    d_tau = np.where(np.abs(step[:n]) < 1e-14, 0.0, d_tau)
    squares = d_tau @ d_tau, d_nu @ d_nu, step[:n] @ step[:n], step[n:] @ step[n:]
    change = float(np.sqrt(max(squares) / n))
    if not np.isfinite(sum(squares)):
        site = int(np.argmax(np.where(np.isfinite(step[:n] + step[n:]), 0.0, 1.0)))
        raise NumericalError(
            f"the sites grow without bound, site {site} first: observations that the kernel ties "
            "together contradict each other, as equal points with opposite labels do under the "
            'heaviside; use likelihood="probit", or add a WhiteKernel to the kernel'
        )
    return change, step
