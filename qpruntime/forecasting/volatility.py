"""Volatility of real numbers: a variance that changes over time, seen in one-step errors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.linalg import solve_triangular
from scipy.sparse.linalg import splu
from scipy.special import expit, gammaincinv, gammaln

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime.effects.state import EffectsState
from qpruntime.forecasting.structure import Structure
from qpruntime.forecasting.trial import MANY, SURE

__all__ = ["CONSTANT", "Volatility", "innovations", "volatility_of"]

#: Decay of the weights of squared errors by step, and degrees of freedom of errors.
_DECAY, _FREEDOM = 0.85, 5.0
#: Student's t has so many equally likely variances. Densities of logarithms so have a mean.
_VALUES = 9
#: A series that repeats exactly has errors of 0.
_LEAST = 0.01
#: One-step errors of the latest observations only, because a factor of their covariance is dense.
_ROWS = 500


@restorable("volatility/1")
@dataclass(frozen=True, eq=False)
class Volatility:
    """Factors of the variances of observations to come.

    Attributes
    ----------
    factors : ndarray, shape (K,)
    weights : ndarray, shape (K,)
        They sum to 1.
    """

    factors: Array
    weights: Array

    @property
    def is_constant(self) -> bool:
        """True if the variance is that of the fit."""
        return self.factors.size == 1


#: The variance of the fit.
CONSTANT = Volatility(np.ones(1), np.ones(1))


def volatility_of(structure: Structure, state: EffectsState) -> Volatility:
    """Return the volatility after a fit to fewer than 2000 normal or log-normal numbers.

    Other fits have a constant variance.

    Standardised one-step errors e_t are normal with variance 1 if the variance is constant. If it
    changes, e_t is Student's t with 5 degrees of freedom and squared scale S_t, where S_t+1 is
    .85 S_t + .15 e_t^2 and S_1 is 1. The two have weights by the likelihood of the errors. A
    constant variance must gain 3, because its likelihood is at the mode.
    """
    if state.rows >= MANY or structure.family not in ("gaussian", "log-normal"):
        return CONSTANT
    errors = innovations(state)
    scales = np.empty(errors.size + 1)
    scales[0] = 1.0
    for t, error in enumerate(errors):
        scales[t + 1] = max(_DECAY * scales[t] + (1.0 - _DECAY) * error**2, _LEAST)
    constant = -0.5 * (errors**2).sum() - 0.5 * errors.size * np.log(2.0 * np.pi)
    gain = _log_student(errors, scales[:-1]) - constant + SURE
    shape, share = 0.5 * _FREEDOM, (np.arange(_VALUES) + 0.5) / _VALUES
    factors = scales[-1] * shape / gammaincinv(shape, share)
    weight = float(expit(gain))
    weights = np.full(_VALUES, weight / _VALUES)
    return Volatility(np.append(1.0, factors), np.append(1.0 - weight, weights))


def innovations(state: EffectsState) -> Array:
    """Return standardised one-step errors of the latest rows, in their order, shape (R,).

    They are L^-1 (y - offset) with L L' the covariance of normal y at the heaviest node, which is
    A Sigma A' + s^2 I. The covariance Sigma of the effects x is Q^-1 given that C x = 0.
    """
    k = int(np.argmax(state.nodes.weights))
    theta, _ = state.split(state.nodes.theta[k])
    A = state.A[-_ROWS:]
    solve = splu(sparse.csc_matrix(state.assembly.precision(theta)[0])).solve
    covariance = A @ solve(A.T.toarray())
    C = state.assembly.constraint
    if C is not None:
        free = solve(np.ascontiguousarray(C.T))
        seen = A @ free
        covariance -= seen @ np.linalg.solve(C @ free, seen.T)
    scale = state.inner_likelihood(k).parameters["scale"]
    covariance[np.diag_indices_from(covariance)] += scale**2
    residual = state.y[-_ROWS:] - state.offset[-_ROWS:]
    return np.asarray(solve_triangular(np.linalg.cholesky(covariance), residual, lower=True))


def _log_student(errors: Array, scales: Array) -> float:
    """Return the log density of independent errors with these squared scales."""
    nu = _FREEDOM
    constant = gammaln(0.5 * (nu + 1.0)) - gammaln(0.5 * nu) - 0.5 * np.log(nu * np.pi)
    tails = 0.5 * (nu + 1.0) * np.log1p(errors**2 / (nu * scales))
    return float((constant - 0.5 * np.log(scales) - tails).sum())
