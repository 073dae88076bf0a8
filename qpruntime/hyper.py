"""Evidence maximisation over the hyper-parameters of a scikit-learn kernel.

The objective is EP's log evidence also when QP is asked for, as in the paper: only EP's gradient
is exact at its fixed point. Sites are carried from one evaluation to the next; the fixed point
does not depend on where an iteration starts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from qpruntime.accelerate import Anderson
from qpruntime.covariance import contract_gradient
from qpruntime.engine import Problem, Settled, iterate, settle
from qpruntime.errors import NumericalError
from qpruntime.factor import ImproperPosterior, Sites
from qpruntime.inference import summarise
from qpruntime.posterior import Posterior
from qpruntime.projection import Projector

__all__ = ["Optimum", "maximise", "settle_fast"]

Array = NDArray[np.float64]

# Parallel iterations before sequential sweeps take over.
_PARALLEL = 30
# Far from the optimum the sites need not settle further than this: the evidence is stationary in
# them, and its gradient is right to about as many digits.
_LOOSE = 3e-4


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
    """Negative log evidence of EP and its gradient, as a function of theta, for one optimiser run.

    Parameters
    ----------
    kernel, X, y, projector, prior, tol, max_sweeps, scale
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
    ) -> None:
        self.kernel, self.X, self.y = kernel, X, y
        self.projector, self.prior = projector, prior
        self.tol, self.max_sweeps = tol, max_sweeps
        self.scales = None if scale is None else np.outer(scale, scale)
        self.evaluations = 0
        self._sites: Sites | None = None
        self._bounded = False
        self._accelerator = Anderson()
        self._worst = -np.inf
        self._slope = np.inf

    def posterior(self, theta: Array) -> tuple[Any, Posterior]:
        """Return the kernel at `theta` and EP's posterior."""
        kernel = self.kernel.clone_with_theta(theta)
        K = kernel(self.X)
        if self.scales is not None:
            K *= self.scales
        problem = Problem(K, self.y, self.projector, self.prior, self._bounded)
        end = settle_fast(
            problem,
            tol=max(self.tol, min(_LOOSE, 3e-5 * self._slope)),
            max_sweeps=self.max_sweeps,
            sites=self._sites,
            accelerator=self._accelerator,
        )
        self._sites = end.sites
        # Held once, held for good: one smooth objective, whose gradient is exact either way.
        self._bounded |= end.held > 0
        return kernel, summarise(problem, end)

    def __call__(self, theta: Array) -> tuple[float, Array]:
        self.evaluations += 1
        try:
            kernel, post = self.posterior(theta)
        except NumericalError:
            if self.evaluations == 1:
                raise
            # Too far for double precision: a value no line search accepts.
            self._sites = None
            return abs(self._worst) + 1e3, np.zeros_like(theta)
        inner = np.outer(post.factor.weights, post.factor.weights)
        inner -= post.factor.inner()
        K: Array | None = post.factor.K
        if self.scales is not None:
            inner *= self.scales
            K = None
        self._worst = max(self._worst, -post.log_evidence)
        gradient = -0.5 * contract_gradient(kernel, self.X, inner, K)
        self._slope = float(np.abs(gradient).max())
        return -post.log_evidence, gradient


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
) -> tuple[Optimum, Sites | None]:
    """Maximise EP's evidence by L-BFGS-B in the log parameters, within the kernel's bounds.

    Parameters
    ----------
    kernel : scikit-learn kernel
    X : ndarray, shape (N, d)
    y : ndarray, shape (N,)
        Encoded observations.
    projector : Projector
        Of method "ep".
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
    objective = Objective(kernel, X, y, projector, prior, tol, max_sweeps, scale)
    result = minimize(
        objective,
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
        n_evaluations=objective.evaluations,
        success=bool(result.success),
        message=str(result.message),
        start=theta0,
    )
    return optimum, objective._sites
