"""Gradient of the leave-one-out log predictive density, through the fixed point of EP or QP.

The objective L = sum_i w_i log Z_i is a function of the cavities, these of marginals and sites, and
the sites solve F(sites, theta) = h(cavities) - sites = 0, h being the projection. Hence

    dL = (G - lambda' H) (P dv + Q dm),   J' lambda = dL/dsites,   J = dF/dsites,

with dv and dm the explicit changes of marginal variances and means with K, P and Q the derivatives
of a cavity (in precision and precision times mean) with respect to them, G = dL/dcavity and
H = dh/dcavity. This needs no stationarity, and so holds for QP as well as for EP.

An observation of weight w has the likelihood p(y|f)^w in h: its whole site, which the cavity is
without, stands for all of it. What it adds to L is w times log Z = log p(y_i | y_-i) of the
likelihood itself: as if y_i had been seen w times, and all of them were left out at once. For
weights 1 this is the plain sum; a weight of 0 removes the observation from both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse.linalg import LinearOperator, gmres

from qpruntime.arrays import Array
from qpruntime.errors import NumericalError
from qpruntime.inference.fixed_point.schedules import Settled
from qpruntime.inference.problem import Problem
from qpruntime.learning.parameter_slopes import cavities, parameter_slopes, site_rows
from qpruntime.projection.parameters import PLACES, derivative

__all__ = ["loo_slope"]

# Step of the differences that give the slope of a projection, in standard deviations of the
# cavity: fourth-order differences leave 1e-13 of truncation and 1e-12 of rounding.
_STEP = 1e-3


def loo_slope(
    problem: Problem, end: Settled, learn: Sequence[str] = ()
) -> tuple[float, Any, Array]:
    """Return L, its slope by the prior, in the form of `Solved.slope`, and slopes.

    Parameters
    ----------
    problem : Problem
    end : Settled
        Converged: the gradient is that of the fixed point.
    learn : sequence of str
        Parameters of the likelihood; the slopes are the derivatives of L by their logarithms.

    Raises
    ------
    NumericalError
        If a site has no proper cavity, or something is beyond double precision.
    """
    at = cavities(end)
    with np.errstate(all="ignore"):  # what overflows is found by `_finite`
        return _slope(problem, end, learn, at)


def _slope(
    problem: Problem, end: Settled, learn: Sequence[str], at: tuple[Array, Array]
) -> tuple[float, Any, Array]:
    """`loo_slope` at known cavities."""
    nu = end.sites.nu
    v, mean = end.variance, end.factor.mean
    cavity_tau = end.kept / v
    cavity_nu = mean / v - nu
    _finite(cavity_tau, cavity_nu, cavity_nu / cavity_tau, 1.0 / cavity_tau)
    held = problem.nonnegative or end.held > 0
    value, G, H = _local_slopes(problem, cavity_tau, cavity_nu, held)

    pullback = end.factor.pullback((v, end.kept))
    # A cavity changes with its marginal by P dv + Q dm; rows are its precision and its nu.
    P = np.array([-1.0 / v**2, -mean / v**2])
    Q = np.array([np.zeros_like(v), 1.0 / v])
    _finite(value, G, H, P, Q)

    def explicit_transposed(x: Array) -> Array:
        """(d cavity / d sites)' x, for x and the result of shape (2, N)."""
        return pullback.to_sites((P * x).sum(0), (Q * x).sum(0)) - x

    def jacobian_transposed(flat: Array) -> Array:
        x = flat.reshape(2, -1)
        return (explicit_transposed(np.einsum("abi,ai->bi", H, x)) - x).ravel()

    n = v.size
    target = explicit_transposed(G)
    # Site precisions and means differ by orders of magnitude: solve in posterior units.
    unit = np.concatenate([v, np.sqrt(v)])
    operator = LinearOperator(
        (2 * n, 2 * n), matvec=lambda x: unit * jacobian_transposed(x / unit), dtype=float
    )
    solution, info = gmres(
        operator, unit * target.ravel(), rtol=1e-11, atol=0.0, restart=min(2 * n, 60), maxiter=20
    )
    if info != 0:
        dense = np.column_stack([operator.matvec(e) for e in np.eye(2 * n)])
        _finite(dense)
        try:
            solution = np.linalg.solve(dense, unit * target.ravel())
        except np.linalg.LinAlgError:
            # Without a cause: that is how a user's own exception is told from this.
            raise NumericalError(
                "the fixed point has no derivative in double precision, which the leave-one-out "
                'objective takes: add a WhiteKernel, or take optimize="evidence"'
            ) from None
    adjoint = (solution / unit).reshape(2, -1)

    left = G - np.einsum("abi,ai->bi", H, adjoint)
    by_prior = pullback.to_prior((left * P).sum(0), (left * Q).sum(0))
    slopes = np.zeros(0)
    if learn:
        # dL = (d log Z - lambda' dh), both by the parameter alone.
        log_z, sites = parameter_slopes(problem, learn, *at, held=held, single=True)
        slopes = log_z.sum(axis=1) - np.einsum("pai,ai->p", sites, adjoint)
    _finite(by_prior, slopes)
    return value, by_prior, slopes


def _finite(*arrays: Array | float) -> None:
    """Raise `NumericalError` if something is not: squares of variances underflow below 1e-154."""
    if not all(np.isfinite(array).all() for array in arrays):
        raise NumericalError(
            "the slope of the leave-one-out density is beyond double precision: rescale the "
            "kernel, or add a WhiteKernel"
        )


def _local_slopes(
    problem: Problem, cavity_tau: Array, cavity_nu: Array, held: bool
) -> tuple[float, Array, Array]:
    """L, G = dL/dcavity of shape (2, N) and H = d site/d cavity of shape (2, 2, N).

    H[a, b] is the slope of site parameter a in cavity parameter b; precisions that are `held` at
    zero or above have none below.
    """
    sigma = 1.0 / np.sqrt(cavity_tau)
    mu = cavity_nu / cavity_tau

    def at(m: Array, s: Array) -> Array:
        """Rows: terms of L, tau and nu."""
        return site_rows(problem, problem.projector, m, s, held=held, single=True)

    value = float(at(mu, sigma)[0].sum())
    step = _STEP * sigma
    by_mu = derivative({k: at(mu + k * step, sigma) for k in PLACES}, step)
    by_sigma = derivative({k: at(mu, sigma + k * step) for k in PLACES}, step)
    # mu = nu_c/tau_c and sigma = tau_c^(-1/2).
    mu_tau, mu_nu, sigma_tau = -mu / cavity_tau, 1.0 / cavity_tau, -0.5 * sigma / cavity_tau
    by_tau, by_nu = by_mu * mu_tau + by_sigma * sigma_tau, by_mu * mu_nu
    return value, np.array([by_tau[0], by_nu[0]]), np.stack([by_tau[1:], by_nu[1:]], axis=1)
