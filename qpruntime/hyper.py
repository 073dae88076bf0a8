"""Evidence maximisation over the hyper-parameters of a scikit-learn kernel.

The objective is EP's log evidence also when QP is asked for, as in the paper: only EP's gradient
is exact at its fixed point. QP runs once, at the optimum.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from qpruntime.errors import ConvergenceWarning, NumericalError
from qpruntime.inference import run
from qpruntime.projection import Projector

__all__ = ["Optimum", "maximise_evidence"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Optimum:
    """Where one optimiser run ended.

    Attributes
    ----------
    theta : ndarray
        Log-transformed kernel parameters, as in ``kernel.theta``.
    log_evidence : float
    n_iterations, n_evaluations : int
    success : bool
    message : str
        The optimiser's own words.
    """

    theta: Array
    log_evidence: float
    n_iterations: int
    n_evaluations: int
    success: bool
    message: str


def maximise_evidence(
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
) -> Optimum:
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

    Raises
    ------
    NumericalError
        If EP fails at the starting point.
    """
    theta0 = np.array(kernel.theta if start is None else start, dtype=float)
    evaluations = 0
    worst = -np.inf

    def objective(theta: Array) -> tuple[float, Array]:
        nonlocal evaluations, worst
        evaluations += 1
        K, dK = kernel.clone_with_theta(theta)(X, eval_gradient=True)
        try:
            with warnings.catch_warnings():
                # An unsettled step on the way is no news; the final fit reports for itself.
                warnings.simplefilter("ignore", ConvergenceWarning)
                post = run(K, y, projector, prior, tol=tol, max_sweeps=max_sweeps)
        except NumericalError:
            if evaluations == 1:
                raise
            # Too far for double precision: a value no line search accepts.
            return abs(worst) + 1e3, np.zeros_like(theta)
        worst = max(worst, -post.log_evidence)
        return -post.log_evidence, -np.atleast_1d(post.evidence_gradient(dK))

    result = minimize(
        objective,
        theta0,
        jac=True,
        method="L-BFGS-B",
        bounds=kernel.bounds,
        options={"maxiter": max_iterations, "ftol": ftol},
    )
    return Optimum(
        theta=result.x,
        log_evidence=-float(result.fun),
        n_iterations=int(result.nit),
        n_evaluations=evaluations,
        success=bool(result.success),
        message=str(result.message),
    )
