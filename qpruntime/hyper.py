"""Maximisation of an objective over the hyper-parameters of a scikit-learn kernel.

By default that is EP's log evidence also when QP is asked for, as in the paper: only EP's gradient
is exact at its fixed point. Sites are carried from one evaluation to the next; the fixed point
does not depend on where an iteration starts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from sklearn.base import clone

from qpruntime import variational
from qpruntime.accelerate import Anderson
from qpruntime.covariance import contract_gradient, evaluate
from qpruntime.engine import Problem, Settled, iterate, settle
from qpruntime.errors import NumericalError
from qpruntime.extrapolate import Extrapolation
from qpruntime.factor import ImproperPosterior, Sites
from qpruntime.inference import summarise
from qpruntime.loo import loo_slope
from qpruntime.projection import Projector

__all__ = ["OBJECTIVES", "LeaveOneOut", "Objective", "Optimum", "maximise", "settle_fast"]

Array = NDArray[np.float64]

# Parallel iterations before sequential sweeps take over.
_PARALLEL = 30
# Far from the optimum the sites need not settle further than this: the evidence is stationary in
# them, and its gradient is right to about as many digits.
_LOOSE = 3e-5


@dataclass(frozen=True)
class Optimum:
    """Where one optimiser run ended.

    Attributes
    ----------
    theta : ndarray
        Log-transformed kernel parameters, as in ``kernel.theta``.
    value : float
        The objective there: the log evidence of EP.
    n_iterations, n_evaluations : int
    success : bool
    message : str
        The optimiser's own words.
    start : ndarray
        Where it began.
    """

    theta: Array
    value: float
    n_iterations: int
    n_evaluations: int
    success: bool
    message: str
    start: Array


def settle_fast(
    problem: Problem,
    *,
    tol: float,
    max_sweeps: int,
    sites: Sites | None = None,
    accelerator: Anderson | None = None,
) -> Settled:
    """Reach the fixed point in parallel order, or sequentially where that does not settle.

    Sequential updates never leave the proper posteriors, parallel ones may: where precisions turn
    negative, what they found is not relied on.
    """
    if problem.projector.method == "vb":
        return variational.settle(
            problem, tol=tol, max_sweeps=max_sweeps, sites=sites, accelerator=accelerator
        )
    try:
        end = iterate(
            problem,
            tol=tol,
            max_sweeps=min(_PARALLEL, max_sweeps),
            order="parallel",
            sites=sites,
            accelerator=accelerator,
        )
        if end.converged and (problem.nonnegative or end.sites.tau.min() >= 0.0):
            return end
    except ImproperPosterior:
        pass
    return settle(problem, tol=tol, max_sweeps=max_sweeps, sites=sites)


class Objective:
    """Negative log evidence and its gradient, as a function of theta, for one optimiser run.

    Subclasses measure something else: they override `tolerance` and `measure`.

    Parameters
    ----------
    kernel, X, y, projector, prior, tol, max_sweeps, scale, weights
        As for `maximise`.
    """

    def __init__(
        self,
        kernel: Any,
        X: Array,
        y: Array,
        projector: Projector,
        prior: Array,
        tol: float,
        max_sweeps: int,
        scale: Array | None = None,
        weights: Array | None = None,
    ) -> None:
        self.kernel, self.X, self.y, self.weights = clone(kernel), X, y, weights
        self.projector, self.prior = projector, prior
        self.tol, self.max_sweeps = tol, max_sweeps
        self.scales = None if scale is None else np.outer(scale, scale)
        self.evaluations = 0
        self.sites: Sites | None = None
        self._extrapolation = Extrapolation()
        self._bounded = False
        self._accelerator = Anderson()
        self._worst = -np.inf
        self._slope = np.inf

    def tolerance(self) -> float:
        """How far the sites have to settle: less far from the optimum, where they only steer."""
        return max(self.tol, min(_LOOSE, 1e-5 * self._slope))

    def measure(self, problem: Problem, end: Settled) -> tuple[float, Array]:
        """Return the value to be maximised and M, with d value = sum_ij M_ij dK_ij."""
        post = summarise(problem, end)
        return post.log_evidence, end.factor.slope()

    def settle(self, K: Array, theta: Array) -> tuple[Problem, Settled]:
        """Run inference from what the evaluations before let expect."""
        problem = Problem(
            K, self.y, self.projector, self.prior, self._bounded, weights=self.weights
        )
        end = settle_fast(
            problem,
            tol=self.tolerance(),
            max_sweeps=self.max_sweeps,
            sites=self._extrapolation.guess(theta),
            accelerator=self._accelerator,
        )
        self.sites = end.sites
        self._extrapolation.learn(theta, end.sites)
        # Held once, held for good: one smooth objective, whose gradient is exact either way.
        self._bounded |= end.held > 0
        return problem, end

    def __call__(self, theta: Array) -> tuple[float, Array]:
        self.evaluations += 1
        kernel = self.kernel
        kernel.theta = theta
        K = plain = evaluate(kernel, self.X)
        if self.scales is not None:
            K = K * self.scales
        try:
            value, M = self.measure(*self.settle(K, theta))
        except NumericalError as error:
            if self.evaluations == 1 or error.__cause__ is not None:  # a user's own exception
                raise
            # Too far for double precision: a value no line search accepts.
            self.sites = None
            self._extrapolation.forget()
            return abs(self._worst) + 1e3, np.zeros_like(theta)
        if self.scales is not None:
            M *= self.scales
        self._worst = max(self._worst, -value)
        gradient = -contract_gradient(kernel, self.X, M, plain)
        self._slope = float(np.abs(gradient).max())
        return -value, gradient


class LeaveOneOut(Objective):
    """Negative sum of the leave-one-out log predictive densities of the posterior itself.

    Unlike the evidence it is not stationary in the sites, so they have to settle.
    """

    def tolerance(self) -> float:
        return 1e-2 * self.tol

    def measure(self, problem: Problem, end: Settled) -> tuple[float, Array]:
        return loo_slope(problem, end)


#: What `maximise` can maximise, by the name estimators use.
OBJECTIVES: dict[str, type[Objective]] = {"evidence": Objective, "loo": LeaveOneOut}


def maximise(
    kernel: Any,
    X: Array,
    y: Array,
    projector: Projector,
    prior: Array,
    *,
    start: Array | None = None,
    max_iterations: int = 1000,
    ftol: float = 1e-9,
    tol: float = 1e-6,
    max_sweeps: int = 100,
    scale: Array | None = None,
    weights: Array | None = None,
    objective: type[Objective] = Objective,
    callback: Callable[[Array, float], Any] | None = None,
) -> tuple[Optimum, Sites | None]:
    """Maximise an objective by L-BFGS-B in the log parameters, within the kernel's bounds.

    Parameters
    ----------
    kernel : scikit-learn kernel
    X : ndarray, shape (N, d)
    y : ndarray, shape (N,)
        Encoded observations.
    projector : Projector
        Of method "ep" for the evidence, whose gradient is exact for EP only, or "vb" for its bound.
    prior : ndarray, shape (N,)
        Prior mean.
    start : ndarray, optional
        Starting point; ``kernel.theta`` by default.
    ftol : float
        Relative tolerance on the evidence.
    tol, max_sweeps
        Of the EP run inside every evaluation.
    scale : ndarray, shape (N,), optional
        The latent values observed are these multiples of the kernel's: K_ij scale_i scale_j.
    weights : ndarray, shape (N,), optional
        Powers of the single likelihoods.
    objective : subclass of Objective
        What to maximise; by default the log evidence.
    callback : callable, optional
        Called with theta and the value after every evaluation.

    Returns
    -------
    Optimum
    Sites
        EP's sites at the last evaluation, to start from.

    Raises
    ------
    NumericalError
        If EP fails at the starting point.
    """
    theta0 = np.array(kernel.theta if start is None else start, dtype=float)
    function = objective(kernel, X, y, projector, prior, tol, max_sweeps, scale, weights)

    def reported(theta: Array) -> tuple[float, Array]:
        value, slope = function(theta)
        if callback is not None:
            callback(theta, -value)
        return value, slope

    result = minimize(
        reported,
        theta0,
        jac=True,
        method="L-BFGS-B",
        bounds=kernel.bounds,
        options={"maxiter": max_iterations, "ftol": ftol},
    )
    optimum = Optimum(
        theta=result.x,
        value=-float(result.fun),
        n_iterations=int(result.nit),
        n_evaluations=function.evaluations,
        success=bool(result.success),
        message=str(result.message),
        start=theta0,
    )
    return optimum, function.sites
