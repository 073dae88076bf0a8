"""One iteration of EP or QP in pieces: what sites a posterior asks for, and taking that step.

The loops that put the pieces together are in `qpruntime.inference.fixed_point`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qpruntime.arrays import Array
from qpruntime.errors import NumericalError
from qpruntime.inference.dense.factor import Factor, ImproperPosterior, Sites
from qpruntime.inference.parallel import match, parallel, sizes, take_turn
from qpruntime.inference.sequential import sweep
from qpruntime.projection.kernel import raise_status
from qpruntime.projection.projector import Projector
from qpruntime.quadrature.sigma_star import OK

__all__ = [
    "Problem",
    "advance",
    "measure_change",
    "propose_all",
    "sweep_once",
    "turn_all",
    "without_negative",
]

Counts = NDArray[np.int64]


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
    def functions(self) -> tuple[Any, ...]:
        """What kernels take of the likelihood; powers other than 1 need the adaptive rule."""
        if self.power == 1.0 and self.weights is None:
            return self.projector.functions
        return self.projector.likelihood.functions(powers=True)

    @property
    def nonnegative(self) -> bool:
        """Whether no site precision can be negative."""
        concave = self.projector.likelihood.log_concave and self.projector.method != "wp"
        return self.bounded or concave


def without_negative(sites: Sites) -> Sites:
    """Forget the sites of negative precision."""
    kept = sites.tau >= 0.0
    return Sites(np.where(kept, sites.tau, 0.0), np.where(kept, sites.nu, 0.0))


def turn_all(
    problem: Problem,
    factor: Factor,
    variance: Array,
    kept: Array,
    sites: Sites,
    steps: int,
    counts: Counts,
) -> tuple[Sites, Array, Array]:
    """Match the means in so many steps, then propose the changes of all sites."""
    if factor.negative.size or not problem.K.flags.carray:
        for _ in range(steps):
            sites = match_means(problem, factor, variance, kept, sites)
        source = problem.projector.source
        proposed = propose_all(problem, source, kept, variance, factor.mean, sites, counts)
        return sites, *proposed
    n = problem.y.size
    nu, failure = sites.nu.copy(), np.zeros(2)
    weights, mean, d_tau, d_nu = np.empty((4, n))
    status, site = take_turn(
        problem.functions,
        problem.projector.means,
        problem.projector.source,
        problem.power,
        problem.exponents,
        problem.K,
        factor.upper_inverse(),
        factor.root,
        problem.prior,
        kept,
        variance,
        sites.tau,
        nu,
        problem.y,
        steps,
        problem.nonnegative,
        weights,
        mean,
        d_tau,
        d_nu,
        counts,
        failure,
    )
    check(problem, status, site, failure)
    factor.relocate(nu, (weights, mean))
    return Sites(sites.tau, nu), d_tau, d_nu


def match_means(
    problem: Problem, factor: Factor, variance: Array, kept: Array, sites: Sites
) -> Sites:
    """Move nu, with tau and so the factorisation fixed, so that marginal = projected means."""
    ignored, nu = np.zeros(3, dtype=np.int64), sites.nu.copy()
    source = problem.projector.means
    d_tau, d_nu = propose_all(problem, source, kept, variance, factor.mean, sites, ignored)
    match(problem.power, kept, variance, factor.mean, sites.tau, nu, d_tau, d_nu)
    factor.relocate(nu)
    return Sites(sites.tau, nu)


def propose_all(
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
    status, site = parallel(
        problem.functions,
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
    check(problem, status, site, failure)
    return d_tau, d_nu


def check(problem: Problem, status: int, site: int, failure: Array) -> None:
    """Raise what the status of a kernel stands for; `failure` holds the cavity."""
    if status != OK:
        likelihood, table = problem.projector.likelihood, problem.projector.table
        raise_status(status, likelihood, failure[0], failure[1], problem.y[site], table)


def sweep_once(
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
    status, site = sweep(
        problem.functions,
        problem.projector.source,
        problem.power,
        weights,
        covariance if covariance.flags.c_contiguous else np.ascontiguousarray(covariance.T),
        mean,
        tau,
        nu,
        y,
        problem.nonnegative,
        damping,
        counts,
        failure,
    )
    check(problem, status, site if turn is None else turn[site], failure)
    if turn is not None:
        back = np.argsort(turn)
        tau, nu = tau[back], nu[back]
    return variance, tau - sites.tau, nu - sites.nu


def advance(
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


def measure_change(d_tau: Array, d_nu: Array, variance: Array) -> tuple[float, Array]:
    """Root mean squared change of the site parameters, plain or in posterior units if larger.

    Also the changes in posterior units, those of tau before those of nu.
    """
    n = d_tau.size
    step = np.empty(2 * n)
    change = sizes(d_tau, d_nu, variance, step)
    if not np.isfinite(change):
        site = int(np.argmax(np.where(np.isfinite(step[:n] + step[n:]), 0.0, 1.0)))
        raise NumericalError(
            f"the sites grow without bound, site {site} first: observations that the kernel ties "
            "together contradict each other, as equal points with opposite labels do under the "
            'heaviside; use likelihood="probit", or add a WhiteKernel to the kernel'
        )
    return change, step
