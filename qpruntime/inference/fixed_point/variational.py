"""The variational Gaussian approximation (Opper & Archambeau, 2009).

q = N(m, (K^-1 + diag tau)^-1) maximises sum_i E_q log p(y_i|f_i) - KL(q || prior), a lower bound of
the log evidence. The maximum has K^-1 (m - prior mean) = g and tau = h, where g_i is the mean slope
and h_i the mean negative curvature of log p(y_i|f_i) under q. So the 2N numbers are sites (tau, nu)
with tau = h and nu = g + h m. The iteration takes accelerated natural-gradient steps of length 1,
and shortens any step that would lower the bound.
"""

from __future__ import annotations

import math

import numpy as np

from qpruntime._numba import kernel
from qpruntime._pointers import call_moments
from qpruntime._typing import Array
from qpruntime.errors import InputError
from qpruntime.inference.fixed_point.convergence import (
    DEFAULT_MAX_SWEEPS,
    DEFAULT_TOL,
    Limits,
    Trace,
)
from qpruntime.inference.fixed_point.schedules import (
    Anderson,
    Settled,
    Swept,
    farthest,
    swept_until,
)
from qpruntime.inference.problem import Problem
from qpruntime.inference.sites import ImproperPosterior, Sites, no_counts, no_sites
from qpruntime.inference.solver_protocol import Solved
from qpruntime.likelihoods import Likelihood

__all__ = ["check_likelihood", "settle"]

# Updates of the means alone between two factorisations.
_MEAN_STEPS = 3
# Fall of the bound that counts as rounding, relative to its size.
_BOUND_ROUNDING = 1e-12
_MAX_HALVINGS = 30
#: Slopes and curvatures below this count as zero.
_NEGLIGIBLE_DERIVATIVE = 1e-30
_STEP_GROWTH = 1.4


def check_likelihood(likelihood: Likelihood) -> int:
    """Return the handle of the expected log density.

    Raises
    ------
    InputError
        If the likelihood has none because it may be zero, like the heaviside.
    """
    if likelihood.expected is None:
        raise InputError(
            f"method 'vb' needs the expected log density of the likelihood {likelihood.name!r}, "
            "which has none (Likelihood.expected); use 'ep' or 'qp'"
        )
    return likelihood.expected.handle


@kernel
def expect_all(
    expected: int,
    theta: Array,
    mean: Array,
    variance: Array,
    y: Array,
    value: Array,
    slope: Array,
    curvature: Array,
) -> None:
    """Fill the three results of a likelihood's `expected` for N observations."""
    for i in range(mean.size):
        value[i], slope[i], curvature[i] = call_moments(
            expected, mean[i], math.sqrt(variance[i]), y[i], theta
        )


class _VariationalState:
    """Gaussian with given sites, expectations of the likelihood terms under it, and its bound."""

    def __init__(self, problem: Problem, handle: int, sites: Sites, factor: Solved) -> None:
        self.sites, self.factor = sites, factor
        self.variance, self.kept = factor.marginals()
        if not (self.variance > 0.0).all():
            raise ImproperPosterior("a posterior variance is not positive")
        self._problem, self._handle = problem, handle
        self._expect()

    def _expect(self) -> None:
        n, problem = self.variance.size, self._problem
        value, self.slope, self.curvature = np.empty(n), np.empty(n), np.empty(n)
        theta, mean = problem.projector.likelihood.theta, self.factor.mean
        expect_all(
            self._handle,
            theta,
            mean,
            self.variance,
            problem.y,
            value,
            self.slope,
            self.curvature,
        )
        for derivative in (self.slope, self.curvature):
            # A site far on the right side of Phi has a curvature of 1e-100: in a factorisation
            # its products are subnormal, and 30 times slower.
            derivative[np.abs(derivative) < _NEGLIGIBLE_DERIVATIVE] = 0.0
        centred = mean - problem.prior.mean
        # KL(q || prior): trace(K^-1 S) - N = -sum tau v, log |K|/|S| = log |I + K diag tau|.
        spread = self.factor.log_det - float(np.sum(1.0 - self.kept))
        self.bound = float(value.sum()) - 0.5 * (spread + float(self.factor.weights @ centred))

    def proposal(self) -> tuple[Array, Array]:
        """Return the changes of tau and nu that meet the optimality conditions."""
        sites = self.sites
        return self.curvature - sites.tau, self.slope + self.curvature * self.factor.mean - sites.nu

    def match_means(self) -> None:
        """Move nu towards weights = slope with tau, and so the factorisation, fixed."""
        inner, unit = Anderson(begin=np.inf), np.sqrt(self.variance)
        best, nu, start = self.bound, self.sites.nu, self.sites.nu
        for _ in range(_MEAN_STEPS):
            residual = self.slope + self.sites.tau * self.factor.mean - nu
            nu = nu + inner.step(nu, residual, unit)
            self.factor.relocate(nu)
            self._expect()
            if not self.bound >= best - _BOUND_ROUNDING * abs(best):
                nu = start
                self.factor.relocate(nu)
                self._expect()
                break
            best, start = self.bound, nu
        self.sites = Sites(self.sites.tau, nu)


def settle(
    problem: Problem,
    *,
    tol: float = DEFAULT_TOL,
    max_sweeps: int = DEFAULT_MAX_SWEEPS,
    damping: float = 1.0,
    sites: Sites | None = None,
    accelerator: Anderson | None = None,
) -> Settled:
    """Maximise the bound, given checked arguments of `qpruntime.infer`.

    Returns
    -------
    Settled
        With ``bound``.

    Raises
    ------
    InputError
        If the likelihood has no expected log density.
    """
    handle = check_likelihood(problem.projector.likelihood)
    n = problem.n
    sites = no_sites(n) if sites is None else sites
    accelerator = accelerator or Anderson()
    accelerator.restart()
    state = _VariationalState(problem, handle, sites, problem.prior.factor(sites))
    unit = np.concatenate([state.variance, np.sqrt(state.variance)])
    steering, trace = _Rate(damping), Trace()

    def sweep(share: float) -> Swept:
        """Match the means and propose a step that does not lower the bound."""
        if trace.history or sites.tau.any():
            state.match_means()
        residual = np.concatenate(state.proposal())
        step = residual * np.concatenate([state.variance, np.sqrt(state.variance)])
        change = float(np.sqrt(max(step @ step, residual @ residual) / n))
        if change < tol:
            return Swept(change, farthest(step), no_counts())
        plain = share * residual
        move = accelerator.step(np.concatenate(state.sites), plain, unit)
        steering.ahead, shortened = _advance(problem, handle, state, move, plain)
        if shortened:
            accelerator.restart()
        steering.shortened(shortened)
        return Swept(change, farthest(step), no_counts(), n if shortened else 0)

    def move(ends: bool) -> int:
        nonlocal state
        if steering.ahead is not None and not ends:
            state = steering.ahead
        return 0

    settled, last = swept_until(sweep, Limits(tol, max_sweeps, 1.0), steering, trace, move)
    # If no step raises the bound by more than its rounding, it is at its maximum.
    settled |= steering.ahead is None and last.change < max(tol, 1e-4)
    return Settled(
        sites=state.sites, factor=state.factor, variance=state.variance, kept=state.kept,
        settled=settled, worst=last.worst, trace=trace, bound=state.bound,
    )  # fmt: skip


class _Rate:
    """Length of steps that raise the bound, and the state after the last step."""

    def __init__(self, damping: float) -> None:
        self.share = self._most = damping
        self.ahead: _VariationalState | None = None

    def shortened(self, times: int) -> None:
        """Adapt the length of the next step to the number of halvings of the last."""
        longer = _STEP_GROWTH if times <= 1 else 0.5 ** (times - 1)
        self.share = min(self._most, self.share * longer)

    def ends(self, _: Swept) -> bool:
        """Return True if no step has raised the bound."""
        return self.ahead is None


def _advance(
    problem: Problem, handle: int, state: _VariationalState, move: Array, plain: Array
) -> tuple[_VariationalState | None, int]:
    """Take the accelerated step, or the plain one halved until it does not lower the bound."""
    n, scale = problem.n, 1.0
    lowest_bound = state.bound - _BOUND_ROUNDING * abs(state.bound)
    for attempt in range(_MAX_HALVINGS):
        step = move if attempt == 0 else scale * plain
        tau, nu = state.sites.tau + step[:n], state.sites.nu + step[n:]
        if problem.nonnegative and (tau < 0.0).any():
            # Such a site takes its plain step, which ends at a curvature that is not negative.
            negative = tau < 0.0
            tau[negative] = np.maximum(state.sites.tau[negative] + scale * plain[:n][negative], 0.0)
            nu[negative] = state.sites.nu[negative] + scale * plain[n:][negative]
        new = Sites(tau, nu)
        try:
            ahead = _VariationalState(problem, handle, new, problem.prior.factor(new))
            if ahead.bound >= lowest_bound:
                return ahead, attempt
        except ImproperPosterior:
            pass
        if attempt:
            scale *= 0.5
    return None, _MAX_HALVINGS
