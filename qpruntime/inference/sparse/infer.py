"""`infer_sparse`: validate, settle the sites of all rows, and hand over a SparsePosterior."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.execution.calls import Threads
from qpruntime.inference.arguments import check_powers, check_sites
from qpruntime.inference.schedules import Limits
from qpruntime.inference.sites import Sites
from qpruntime.inference.sparse.complaints import warn_unsettled
from qpruntime.inference.sparse.engine import Engine
from qpruntime.inference.sparse.posterior import SparsePosterior, conclude
from qpruntime.inference.sparse.rows import Held
from qpruntime.inference.sparse.rule import Rule
from qpruntime.inference.sparse.settle import settle
from qpruntime.likelihoods import Likelihood
from qpruntime.projection.projector import Inference, Projector
from qpruntime.projection.table import Table
from qpruntime.validation import finite, number, whole

__all__ = ["infer_sparse"]


def infer_sparse(
    kernel: Any,
    X: ArrayLike,
    y: ArrayLike,
    Z: ArrayLike,
    likelihood: str | Likelihood | None = "probit",
    method: Inference = "qp",
    table: Table | str | os.PathLike[str] | None = None,
    *,
    power: float = 0.5,
    weights: ArrayLike | None = None,
    mean: ArrayLike = 0.0,
    tol: float = 1e-6,
    max_sweeps: int = 100,
    damping: float = 1.0,
    p: float | None = None,
    sites: tuple[ArrayLike, ArrayLike] | None = None,
    jitter: float = 1e-8,
    workers: int | None = None,
) -> SparsePosterior:
    """Approximate the posterior of a Gaussian process by sparse power EP or QP, in O(N M^2).

    Parameters
    ----------
    kernel : scikit-learn kernel
        Its hyper-parameters stay as they are. White noise in it is part of the latent values.
    X : array-like, shape (N, d)
    y : array-like, shape (N,)
        Observations; -1 and +1 for ``"probit"``.
    Z : array-like, shape (M, d)
        Inducing inputs, M <= N in all sensible uses; equal or faraway ones cost time only.
    likelihood, method, table, p
        As of `qpruntime.infer`; not method "vb", to which power EP tends with small powers.
    power : float in (0, 1]
        1 is FITC; towards 0 it becomes the variational bound. With Z learned 1 overfits.
    weights : array-like, shape (N,), optional
        Powers of the single likelihoods, not negative.
    mean : float or array-like, shape (N,)
        Prior mean.
    tol, max_sweeps, damping
        As of `qpruntime.infer`.
    sites : (tau, nu), optional
        Start from these, each of shape (N,), instead of from the prior.
    jitter : float
        Least lift of the diagonal of k(Z, Z), relative to its mean; grows to 1e-4 if need be.
    workers : int, optional
        Threads; by default as many as there are cores. Results are the same, bit for bit.

    Returns
    -------
    SparsePosterior

    Raises
    ------
    InputError
        If an argument is not usable; the message says which and what to do.
    NumericalError
        If double precision does not suffice.

    Warns
    -----
    ConvergenceWarning
        If the sites have not settled after `max_sweeps`, or only with precisions held at zero.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process.kernels import RBF
    >>> from qpruntime import infer_sparse
    >>> X = np.linspace(-3.0, 3.0, 200)[:, None]
    >>> post = infer_sparse(RBF(1.0), X, np.sign(np.sin(2.0 * X[:, 0])), X[::20], method="ep")
    >>> post.converged, round(post.log_evidence, 4)
    (True, -48.8718)
    """
    if method == "vb":
        raise InputError('method "vb" is dense only; small powers of "ep" tend to it: power=0.05')
    projector = Projector(likelihood, method, table, p)
    X, Z = _points(X, "X"), _points(Z, "Z")
    n = len(X)
    if Z.shape[1] != X.shape[1]:
        raise InputError(f"Z must have {X.shape[1]} columns like X, got {Z.shape[1]}")
    projector, y = projector.observing(y)
    if y.shape != (n,):
        raise InputError(f"y must have shape ({n},) like the rows of X, got {y.shape}")
    projector.check_outcomes(y)
    prior = finite(mean, "mean")
    if prior.shape not in ((), (n,)):
        raise InputError(f"mean must be a number or have shape ({n},), got {prior.shape}")
    power, checked = check_powers(power, weights, projector, n)
    limits = Limits(
        number(tol, "tol", above=0.0),
        whole(max_sweeps, "max_sweeps", 1),
        number(damping, "damping", above=0.0, most=1.0),
    )
    jitter = number(jitter, "jitter", above=-1e-300, most=1e-4)
    offset = np.array(np.broadcast_to(prior, (n,))) if prior.any() else None
    rows = Held(X, np.ascontiguousarray(y), checked, offset)
    rule = Rule(projector, power)
    start = check_sites(sites, n, rule.nonnegative)
    engine = Engine(rows, rule, kernel, Z, jitter=jitter, executor=Threads(workers))
    if start is not None:
        shift = 0.0 if offset is None else start.tau * offset
        engine.sites = Sites(start.tau, start.nu - shift)
    ended = settle(engine, limits)
    warn_unsettled(ended, limits.tol)
    return conclude(engine, ended, float(prior) if prior.ndim == 0 else None)


def _points(value: ArrayLike, name: str) -> Array:
    """Return finite points in rows, C-ordered."""
    points = finite(value, name)
    if points.ndim != 2 or 0 in points.shape:
        raise InputError(f"{name} must have shape (rows, columns), got {points.shape}")
    return np.ascontiguousarray(points)
