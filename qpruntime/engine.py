"""The fixed-point iteration of EP and QP: sweep until the sites settle, within a bound.

``sequential`` and ``random`` update the posterior after every site, ``parallel`` after all of
them; the fixed point is the same. An iteration costs about two Cholesky factorisations in
parallel order and five in the others, which need fewer of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qpruntime.accelerate import Anderson
from qpruntime.factor import Factor, ImproperPosterior, Sites
from qpruntime.projection import Projector, raise_status
from qpruntime.sweep import parallel, sweep
from qpruntime.wasserstein import OK

__all__ = ["ORDERS", "Settled", "settle"]

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

ORDERS = ("sequential", "random", "parallel")

# Steps that point back along the previous one are shortened by this factor, down to the floor.
_SHORTEN = 0.7
_LEAST_DAMPING = 0.02


@dataclass
class Settled:
    """Where the iteration ended. `factor` and `variance` belong to `sites`."""

    sites: Sites
    factor: Factor
    variance: Array
    converged: bool
    history: list[float]
    worst: int
    damped: int
    counts: Counts


def settle(
    K: Array,
    y: Array,
    projector: Projector,
    prior: Array,
    *,
    tol: float = 1e-6,
    max_sweeps: int = 100,
    damping: float = 1.0,
    order: str = "sequential",
    sites: Sites | None = None,
    rng: np.random.Generator | None = None,
    accelerator: Anderson | None = None,
) -> Settled:
    """Iterate to the fixed point; arguments as those of `qpruntime.infer`, known to be good."""
    n = len(K)
    sites = Sites(np.zeros(n), np.zeros(n)) if sites is None else sites
    counts = np.zeros(3, dtype=np.int64)
    history: list[float] = []
    damped, worst, shorter = 0, 0, 1.0
    converged = False
    previous = np.zeros(2 * n)
    accelerator = accelerator or Anderson()
    accelerator.restart()
    factor = Factor(K, sites, prior)
    unit = np.ones(2 * n)
    for _ in range(max_sweeps):
        if order == "parallel":
            variance = factor.variance()
            d_tau, d_nu = _parallel_step(factor, variance, sites, y, projector, counts)
        else:
            scale = damping * shorter
            turn = rng.permutation(n) if rng is not None else None
            variance, d_tau, d_nu = _swept(factor, sites, y, projector, scale, turn, counts)
        if not history:
            # Site parameters in units of the posterior they started from.
            unit = np.concatenate([variance, np.sqrt(np.abs(variance))])
        step = np.concatenate([d_tau * variance, d_nu * np.sqrt(np.abs(variance))])
        history.append(_change(d_tau, d_nu, step))
        worst = int(np.argmax(np.abs(step[:n]) + np.abs(step[n:])))
        converged = history[-1] < tol
        if converged and order == "parallel":
            # The posterior at hand already belongs to these sites: nothing to recompute.
            break
        if order == "parallel":
            move = accelerator.step(np.concatenate(sites), np.concatenate([d_tau, d_nu]), unit)
            if projector.likelihood.log_concave:
                # No site may turn negative: such a site takes its plain step.
                plain = sites.tau + move[:n] < 0.0
                move[:n][plain], move[n:][plain] = d_tau[plain], d_nu[plain]
            d_tau, d_nu, scale = move[:n], move[n:], damping
        else:
            scale = 1.0
            if _points_back(step, previous):
                shorter = max(_SHORTEN * shorter, _LEAST_DAMPING)
            else:
                shorter = min(1.0, shorter / _SHORTEN**0.25)
            previous = step
            damped += n * (shorter < 1.0)
        sites, factor, halvings = _advance(K, prior, sites, d_tau, d_nu, scale)
        damped += n * halvings
        if converged:
            break
    if not (converged and order == "parallel"):
        variance = factor.variance()
    return Settled(sites, factor, variance, converged, history, worst, damped, counts)


def _parallel_step(
    factor: Factor, variance: Array, sites: Sites, y: Array, projector: Projector, counts: Counts
) -> tuple[Array, Array]:
    d_tau, d_nu, failure = np.empty(y.size), np.empty(y.size), np.zeros(2)
    concave = projector.likelihood.log_concave
    status, site = parallel(
        projector.functions,
        projector.source,
        variance,
        factor.mean,
        *sites,
        y,
        concave,
        d_tau,
        d_nu,
        counts,
        failure,
    )
    if status != OK:
        raise_status(status, projector.likelihood, failure[0], failure[1], y[site])
    return d_tau, d_nu


def _swept(
    factor: Factor,
    sites: Sites,
    y: Array,
    projector: Projector,
    damping: float,
    turn: NDArray[np.intp] | None,
    counts: Counts,
) -> tuple[Array, Array, Array]:
    """One sweep in the order `turn`; return the variances before it and the changes of sites."""
    covariance, mean = factor.covariance(), factor.mean.copy()
    variance = covariance.diagonal().copy()
    tau, nu, observed = sites.tau.copy(), sites.nu.copy(), y
    if turn is not None:
        covariance = covariance[np.ix_(turn, turn)]
        mean, tau, nu, observed = mean[turn], tau[turn], nu[turn], y[turn]
    failure = np.zeros(2)
    concave = projector.likelihood.log_concave
    status, site = sweep(
        projector.functions,
        projector.source,
        np.ascontiguousarray(covariance.T),
        mean,
        tau,
        nu,
        observed,
        concave,
        damping,
        counts,
        failure,
    )
    if status != OK:
        raise_status(status, projector.likelihood, failure[0], failure[1], observed[site])
    if turn is not None:
        back = np.argsort(turn)
        tau, nu = tau[back], nu[back]
    return variance, tau - sites.tau, nu - sites.nu


def _advance(
    K: Array, prior: Array, sites: Sites, d_tau: Array, d_nu: Array, scale: float
) -> tuple[Sites, Factor, int]:
    """Take the step, halved until the posterior is proper; that can only fail with tau < 0."""
    for halvings in range(40):
        new = Sites(sites.tau + scale * d_tau, sites.nu + scale * d_nu)
        try:
            return new, Factor(K, new, prior), halvings
        except ImproperPosterior:
            scale *= 0.5
    raise ImproperPosterior(
        "negative site precisions leave no proper posterior however short the step; "
        "use a smaller prior variance or a prior mean away from zero"
    )


def _points_back(step: Array, previous: Array) -> bool:
    """Whether the iteration oscillates: a step against the last one, and not much shorter."""
    back, size = float(step @ previous), float(previous @ previous)
    return back < -0.5 * size


def _change(d_tau: Array, d_nu: Array, step: Array) -> float:
    """Root mean squared change of the site parameters, plain or in posterior units if larger."""
    n = d_tau.size
    scaled = max(np.mean(step[:n] ** 2), np.mean(step[n:] ** 2))
    return float(np.sqrt(max(np.mean(d_tau**2), np.mean(d_nu**2), scaled)))
