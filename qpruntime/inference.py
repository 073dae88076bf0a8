"""`infer`: validate, sweep until the sites settle, and hand over a Posterior."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import eigvalsh
from scipy.linalg.lapack import dpotrf

from qpruntime.engine import ORDERS, Problem, Settled, settle
from qpruntime.errors import ConvergenceWarning, InputError, NumericalError
from qpruntime.factor import Sites
from qpruntime.likelihoods import Likelihood
from qpruntime.posterior import Lookups, Posterior
from qpruntime.projection import Projector
from qpruntime.sweep import site_terms
from qpruntime.table import Table
from qpruntime.wasserstein import OK

__all__ = ["infer", "summarise", "warn_unsettled"]

Array = NDArray[np.float64]

# K may have eigenvalues this far below zero, relative to the largest diagonal entry: a Gram matrix
# of coinciding points has them from rounding alone (about N times 2e-16).
_NEGATIVE = 1e-8


def infer(
    K: ArrayLike,
    y: ArrayLike,
    likelihood: str | Likelihood = "probit",
    method: str = "qp",
    table: Table | str | os.PathLike[str] | None = None,
    mean: ArrayLike = 0.0,
    *,
    tol: float = 1e-6,
    max_sweeps: int = 100,
    damping: float = 1.0,
    order: str = "sequential",
    sites: Sites | Sequence[ArrayLike] | None = None,
    random_state: int | np.random.Generator | None = None,
) -> Posterior:
    """Approximate the posterior of a Gaussian process by EP or QP.

    Parameters
    ----------
    K : array-like, shape (N, N)
        Prior covariance, from any library: symmetric, positive semi-definite, finite.
    y : array-like, shape (N,)
        Observations; -1 and +1 for ``"probit"``.
    likelihood : str or Likelihood
    method : {"qp", "ep"}
    table : None, "exact", path, name or Table
        Where QP finds sigma*; None and "exact" integrate.
    mean : float or array-like, shape (N,)
        Prior mean.
    tol : float
        Stop when the root mean squared change of the site parameters in a sweep is below `tol`,
        both as it stands (the paper's rule) and measured in posterior standard deviations.
    max_sweeps : int
        Sweeps at most; running out of them warns and sets ``converged=False``.
    damping : float in (0, 1]
        Fraction of every site update that is taken. Sites that oscillate are damped further.
    order : {"sequential", "random", "parallel"}
        How the sites are visited; the fixed point is the same. Parallel iterations cost least.
    sites : (tau, nu), optional
        Start from these sites instead of from the prior.
    random_state : int, Generator or None
        Seed of ``order="random"``.

    Returns
    -------
    Posterior

    Raises
    ------
    InputError
        If an argument is not usable; the message says which and what to do.
    NumericalError
        If double precision does not suffice.

    Warns
    -----
    ConvergenceWarning
        If the sites have not settled after `max_sweeps`.

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime import infer
    >>> x = np.linspace(-1.0, 1.0, 5)
    >>> K = np.exp(-0.5 * (x[:, None] - x) ** 2)
    >>> post = infer(K, np.sign(x + 0.1), method="ep")
    >>> post.converged, round(post.log_evidence, 6)
    (True, -2.637263)
    """
    projector = Projector(likelihood, method, table)
    K = check_covariance(K)
    n = len(K)
    y = projector.likelihood.validate(y)
    if y.shape != (n,):
        raise InputError(f"y must have shape ({n},) like K, got {y.shape}")
    prior = np.asarray(mean, dtype=float)
    if prior.shape not in ((), (n,)) or not np.isfinite(prior).all():
        raise InputError(f"mean must be a finite number or have shape ({n},), got {prior.shape}")
    if not 0.0 < damping <= 1.0:
        raise InputError(f"damping must be in (0, 1], got {damping}")
    if not tol > 0.0:
        raise InputError(f"tol must be positive, got {tol}")
    if order not in ORDERS:
        raise InputError(f"order must be one of {ORDERS}, got {order!r}")
    if max_sweeps < 1:
        raise InputError(f"max_sweeps must be at least 1, got {max_sweeps}")
    problem = Problem(K, y, projector, np.broadcast_to(prior, (n,)))
    end = settle(
        problem,
        tol=tol,
        max_sweeps=max_sweeps,
        damping=damping,
        order=order,
        sites=check_sites(sites, n, projector.likelihood.log_concave),
        rng=np.random.default_rng(random_state) if order == "random" else None,
    )
    warn_unsettled(end, tol)
    return summarise(problem, end)


def warn_unsettled(end: Settled, tol: float, stacklevel: int = 3) -> None:
    """Warn if the sites have not settled; by default at the caller of `infer`."""
    if not end.converged:
        warnings.warn(
            f"not converged after {len(end.history)} sweeps: the sites still change by "
            f"{end.history[-1]:.2g} (tol {tol:g}), most of all site {end.worst}; "
            "raise max_sweeps, lower damping, or check that observation and the kernel",
            ConvergenceWarning,
            stacklevel=stacklevel,
        )


def summarise(problem: Problem, end: Settled) -> Posterior:
    """Compute evidence and cavities of settled sites."""
    factor, (tau, nu) = end.factor, end.sites
    log_z, terms = np.empty(tau.size), np.empty(tau.size)
    status, site = site_terms(
        problem.projector.functions,
        problem.projector.without_table,
        end.variance,
        factor.mean,
        problem.prior,
        tau,
        nu,
        problem.y,
        log_z,
        terms,
    )
    if status != OK:
        raise NumericalError(
            f"site {site} has no proper cavity (marginal variance {end.variance[site]:.3g}, "
            f"site precision {tau[site]:.3g}): K is too close to singular there for double "
            "precision; add jitter to its diagonal"
        )
    centred = factor.mean - problem.prior
    evidence = terms.sum() - 0.5 * factor.log_det + 0.5 * factor.shifted @ centred
    return Posterior(
        sites=end.sites,
        mean=factor.mean,
        variance=end.variance,
        log_evidence=float(evidence),
        converged=end.converged,
        n_sweeps=len(end.history),
        history=tuple(end.history),
        lookups=Lookups(int(end.counts[0]), int(end.counts[1])),
        skipped=int(end.counts[2]),
        damped=end.damped,
        log_z=log_z,
        factor=factor,
    )


def check_covariance(K: ArrayLike) -> Array:
    """Return K as a C-ordered float array, or raise `InputError`."""
    K = np.ascontiguousarray(K, dtype=float)
    if K.ndim != 2 or K.shape[0] != K.shape[1] or K.shape[0] == 0:
        raise InputError(f"K must be a square matrix, got shape {K.shape}")
    if not np.isfinite(K).all():
        i, j = np.argwhere(~np.isfinite(K))[0]
        raise InputError(f"K[{i}, {j}] is {K[i, j]}: every entry must be finite")
    scale = np.abs(K).max()
    gap = np.abs(K - K.T)
    if gap.max() > 1e-10 * scale:
        i, j = np.unravel_index(np.argmax(gap), gap.shape)
        raise InputError(
            f"K is not symmetric: K[{i}, {j}] = {K[i, j]:.17g} but K[{j}, {i}] = {K[j, i]:.17g}; "
            "pass (K + K.T) / 2"
        )
    if K.diagonal().min() <= 0.0:
        i = int(np.argmin(K.diagonal()))
        raise InputError(f"K[{i}, {i}] = {K[i, i]:g}: prior variances must be positive")
    shifted = K.copy()
    shifted.flat[:: len(K) + 1] += _NEGATIVE * scale
    _, info = dpotrf(shifted, lower=1, overwrite_a=1)
    if info != 0:
        smallest = eigvalsh(K, subset_by_index=[0, 0])[0]
        raise InputError(
            f"K is not positive semi-definite: its smallest eigenvalue is {smallest:.3g}; "
            f"add at least {-smallest:.1g} to its diagonal"
        )
    return K


def check_sites(
    sites: Sites | Sequence[ArrayLike] | None, n: int, log_concave: bool = True
) -> Sites | None:
    """Return starting sites as float arrays, or raise `InputError`."""
    if sites is None:
        return None
    tau, nu = (np.array(a, dtype=float) for a in sites)
    if tau.shape != (n,) or nu.shape != (n,):
        raise InputError(f"sites must be (tau, nu), each of shape ({n},)")
    if not (np.isfinite(tau).all() and np.isfinite(nu).all()):
        raise InputError("sites must be finite")
    if log_concave and (tau < 0.0).any():
        raise InputError(f"site precisions must not be negative, got {tau.min():g}")
    return Sites(tau, nu)
