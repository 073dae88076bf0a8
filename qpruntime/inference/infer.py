"""`infer`: check arguments, iterate until the sites settle, and return a Posterior."""

from __future__ import annotations

import os
from collections.abc import Sequence, Sized
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from qpruntime._duration import announce, expected_seconds
from qpruntime._memory import require, squares
from qpruntime._validation import choice, generator, whole
from qpruntime.errors import InputError
from qpruntime.execution.threads import sized
from qpruntime.inference.dense.solution import summarise
from qpruntime.inference.dense.solver import DensePrior
from qpruntime.inference.fixed_point import variational
from qpruntime.inference.fixed_point.convergence import (
    DEFAULT_MAX_SWEEPS,
    DEFAULT_TOL,
    Limits,
    warn_unsettled,
)
from qpruntime.inference.fixed_point.iterate import ORDERS, Order, settle
from qpruntime.inference.operator.functionals import Functionals
from qpruntime.inference.operator.solution import along, functionals_prior, takes_latent_side
from qpruntime.inference.posterior import Posterior
from qpruntime.inference.problem import Problem, check_mean, check_powers, check_sites, covariance
from qpruntime.inference.sites import Sites
from qpruntime.likelihoods import Likelihood
from qpruntime.projection.projector import Inference, Projector
from qpruntime.projection.table import Table

__all__ = ["infer"]

# The parallel order is the default from this number of rows on, if there is only one fixed point.
# It takes half the time from N = 200 on; smaller problems are fast anyway and keep the plain loop.
_PARALLEL_FROM = 1000
# Number of N x N arrays that any run needs besides K: a factor and its inverse.
_WORKSPACE_MATRICES = 2.0
# Duration of a run in Cholesky factorisations; measured 14 and 28 at N = 1600, and more for runs
# of more iterations.
_FACTORISATIONS = {"parallel": 20.0, "sequential": 35.0, "random": 40.0}


def _rows(K: Sized, *_: object, **__: object) -> int:
    """Return the number of rows of K, or 0 if K is not like a matrix."""
    try:
        return len(K)
    except Exception:  # `infer` refuses anything that is no matrix with a message
        return 0


@sized(_rows)
def infer(
    K: ArrayLike,
    y: ArrayLike,
    likelihood: str | Likelihood | None = None,
    method: Inference = "qp",
    table: Table | str | os.PathLike[str] | None = None,
    mean: ArrayLike = 0.0,
    *,
    tol: float = DEFAULT_TOL,
    max_sweeps: int = DEFAULT_MAX_SWEEPS,
    damping: float = 1.0,
    power: float = 1.0,
    weights: ArrayLike | None = None,
    p: float | None = None,
    order: Order | None = None,
    sites: Sites | Sequence[ArrayLike] | None = None,
    n_restarts: int = 0,
    random_state: int | np.random.Generator | None = None,
    operator: ArrayLike | None = None,
) -> Posterior:
    """Approximate the posterior of a Gaussian process by EP, QP or a variational Gaussian.

    Parameters
    ----------
    K : array-like, shape (N, N)
        Prior covariance, from any library: symmetric, positive semi-definite, finite. A matrix in a
        narrower format than float64 has to be so to its own precision: it is made symmetric, and if
        necessary `post.jitter` is added to its diagonal.
    y : array-like, shape (N,)
        Observations; -1 and +1 for ``"probit"``.
    likelihood : str or Likelihood, optional
        Likelihood; by default that of the table, or ``"probit"`` without a table.
    method : {"qp", "ep", "wp", "vb"}
        Quantile propagation, expectation propagation, projections by the L_p Wasserstein distance,
        of which QP is p = 2, or the Gaussian that maximises a lower bound of the evidence (Opper &
        Archambeau, 2009), whose `log_evidence` is that bound.
    table : None, "exact", path, name or Table
        Source of QP's sigma*: None is the table shipped with the likelihood, "exact" integrates. A
        table of surfaces also serves EP, and needs no code of the likelihood.
    mean : float or array-like, shape (N,)
        Prior mean.
    tol : float
        Tolerance: sweeps stop when the root mean squared change of the site parameters in a sweep
        is below it, both plain (the paper's rule) and measured in posterior standard deviations.
        Changes within the rounding of the posterior variances count as none.
    max_sweeps : int
        Largest number of sweeps; beyond it a warning is given and the status is "not converged". If
        sites are then left without a proper cavity, as many sweeps follow with precisions held at
        zero, and up to 100 for each of four damped attempts without holding. `n_sweeps` counts them
        all.
    damping : float in (0, 1]
        Fraction of every site update that is applied. Sites that oscillate are damped further.
    power : float in (0, 1]
        Power of power EP (and QP): cavities leave out only this fraction of a site, and the
        projected density has the likelihood to this power. Smaller powers come closer to
        variational inference.
    weights : array-like, shape (N,), optional
        Powers of the single likelihoods, at least 0; an observation of weight 0 is dropped.
        Densities with weights and powers other than 1 are integrated.
    p : float, optional
        Order of method "wp", from 1 to 10; by default that of the table.
    order : {None, "sequential", "random", "parallel"}
        Order in which the sites are visited. The fixed point is the same for log-concave
        likelihoods. Others may have several fixed points, and orders may find different ones: for
        counts with the square link, for example, the mirror image. Parallel iterations cost least,
        and continue as sequential ones if they do not converge. None is sequential, but parallel
        for log-concave likelihoods from N = 1000 on. Method "vb" is always parallel.
    sites : (tau, nu), optional
        Sites to start from, instead of the prior.
    n_restarts : int
        Number of further starts, at functions drawn from the prior, to search for other fixed
        points: ``post.fixed_points``. They are skipped if there can be only one fixed point, as
        with log-concave likelihoods.
    random_state : int, Generator or None
        Seed of ``order="random"`` and of restarts.
    operator : array-like or scipy sparse, shape (N, n), optional
        Observation i then sees ``operator[i] @ f`` for the n latent values f of K (n, n): a
        difference of two, a slope, a sum of components. `y` has shape (N,), and `mean` is that of
        f. Sites, mean, variance and `Posterior.loo` are those of the N functionals,
        `Posterior.latent` has f, and `Posterior.predict` takes covariances with f. QP's sites lie
        along the functionals. From N = 2 n on, inference takes n^3 + N n^2 operations instead of
        N^3.

    Returns
    -------
    Posterior

    Raises
    ------
    InputError
        If an argument is not usable; the message says which and what to do.
    NumericalError
        If double precision does not suffice.
    TableError
        If the table cannot be opened, or its data are damaged.

    Warns
    -----
    ConvergenceWarning
        If the sites have not settled after `max_sweeps`, or settled only with precisions held at
        zero, or if there are several fixed points.

    See Also
    --------
    qpruntime.Posterior, qpruntime.infer_series, qpruntime.infer_sparse,
    qpruntime.infer_precision, qpruntime.infer_classes, qpruntime.project

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime import infer
    >>> x = np.linspace(-1.0, 1.0, 5)
    >>> K = np.exp(-0.5 * (x[:, None] - x) ** 2)
    >>> post = infer(K, np.sign(x + 0.1), method="ep")
    >>> post.converged, round(post.log_evidence, 6)
    (True, -3.265058)
    """
    projector = Projector(likelihood, method, table, p)
    _check_memory(K)
    K, jitter = covariance(K)
    n = len(K)
    projector, y = projector.observing(y)
    rows = None if operator is None else Functionals(operator, n)
    prior = np.array(np.broadcast_to(check_mean(mean, (n,)), (n,)))
    n = n if rows is None else rows.n
    if y.shape != (n,):
        like = "like K" if rows is None else "like the rows of the operator"
        raise InputError(f"y must have shape ({n},) {like}, got {y.shape}")
    projector.check_outcomes(y)
    limits = Limits.checked(tol, max_sweeps, damping)
    if order is not None:
        choice(order, "order", ORDERS)
    restarts = whole(n_restarts, "n_restarts", 0)
    if method == "vb" and (restarts or order not in (None, "parallel")):
        idle = f"n_restarts={restarts}" if restarts else f"order={order!r}"
        raise InputError(
            f'{idle} cannot act: method "vb" is parallel and has one start; leave it out'
        )
    power, weights = check_powers(power, weights, projector, n)
    latent = rows is not None and takes_latent_side(rows, method)
    if rows is None:
        problem = Problem(DensePrior(K, prior), y, projector, power=power, weights=weights)
    else:
        functionals = functionals_prior(rows, K, prior, latent)
        problem = Problem(functionals, y, projector, power=power, weights=weights)
    if order is None:
        many = latent or n >= _PARALLEL_FROM
        order = "parallel" if many and problem.nonnegative else "sequential"
    width = len(K) if latent else n
    _announce(width, "parallel" if method == "vb" else order, limits.sweeps)
    start = check_sites(sites, n, problem.nonnegative)
    random = order == "random" or restarts
    rng = generator(random_state) if random else None
    if method == "vb":
        end = variational.settle(
            problem, tol=limits.tol, max_sweeps=limits.sweeps, damping=limits.damping, sites=start
        )
    else:
        end = settle(
            problem,
            limits,
            order=order,
            sites=start,
            rng=rng if order == "random" else None,
            restarts=rng.spawn(restarts) if rng else (),
        )
    warn_unsettled(end, limits.tol, n)
    post = replace(summarise(problem, end), jitter=jitter)
    return post if rows is None else along(post, rows, K, prior)


def _check_memory(K: ArrayLike) -> None:
    """Raise `InputError` if inference with this matrix cannot fit into memory."""
    shape: tuple[int, ...] = getattr(K, "shape", ())
    if len(shape) == 2 and shape[0] == shape[1]:
        copies = 0.0 if getattr(K, "dtype", None) == np.float64 else 1.0
        require(
            squares(int(shape[0]), _WORKSPACE_MATRICES + copies),
            f"inference with N = {shape[0]}",
            "infer_sparse takes inducing inputs instead, infer_series a series; or pass fewer rows",
        )


def _announce(n: int, order: str, max_sweeps: int) -> None:
    """Print a notice of the expected duration if inference will take long."""
    work = min(_FACTORISATIONS[order], 7.0 * max_sweeps)
    faster = 'order="parallel" costs less, ' if order != "parallel" else ""
    announce(
        f"inference with N = {n}",
        expected_seconds(n, work),
        f"{faster}the time grows with the cube of N",
    )
