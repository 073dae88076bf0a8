"""`infer`: validate, iterate until the sites settle, and hand over a Posterior."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from qpruntime.arrays import Array
from qpruntime.errors import ConvergenceWarning, InputError, warn
from qpruntime.inference import variational
from qpruntime.inference.covariance import covariance
from qpruntime.inference.dense.solver import DensePrior
from qpruntime.inference.evidence import log_evidence
from qpruntime.inference.fixed_point import ORDERS, Order, settle
from qpruntime.inference.observed import Observed
from qpruntime.inference.posterior import Lookups, Posterior
from qpruntime.inference.problem import Problem
from qpruntime.inference.schedules import Limits, Settled
from qpruntime.inference.sites import Sites
from qpruntime.likelihoods import Likelihood
from qpruntime.notice import announce, expected_seconds
from qpruntime.projection.projector import Inference, Projector
from qpruntime.projection.table import Table
from qpruntime.validation import choice, finite, generator, number, whole

__all__ = ["check_powers", "infer", "summarise", "warn_unsettled"]

# From here on the parallel order is the default where there is one fixed point only. It takes half
# the time from N = 200 on; below this nobody waits, and results stay those of the plain loop.
_MANY = 1000
# A run takes as long as so many Cholesky factorisations; measured 14 and 28 at N = 1600, and more
# where it takes more iterations.
_WORK = {"parallel": 20.0, "sequential": 35.0, "random": 40.0}


def infer(
    K: ArrayLike,
    y: ArrayLike,
    likelihood: str | Likelihood | None = None,
    method: Inference = "qp",
    table: Table | str | os.PathLike[str] | None = None,
    mean: ArrayLike = 0.0,
    *,
    tol: float = 1e-6,
    max_sweeps: int = 100,
    damping: float = 1.0,
    power: float = 1.0,
    weights: ArrayLike | None = None,
    p: float | None = None,
    order: Order | None = None,
    sites: Sites | Sequence[ArrayLike] | None = None,
    n_restarts: int = 0,
    random_state: int | np.random.Generator | None = None,
) -> Posterior:
    """Approximate the posterior of a Gaussian process by EP, QP or a variational Gaussian.

    Parameters
    ----------
    K : array-like, shape (N, N)
        Prior covariance, from any library: symmetric, positive semi-definite, finite. What is
        narrower than float64 has to be so to its own precision: it is made symmetric, and if need
        be its diagonal is lifted by `post.jitter`.
    y : array-like, shape (N,)
        Observations; -1 and +1 for ``"probit"``.
    likelihood : str or Likelihood, optional
        By default the one of the table, ``"probit"`` without a table.
    method : {"qp", "ep", "wp", "vb"}
        Quantile or expectation propagation, projections by the L_p Wasserstein distance, of which
        QP is p = 2, or the Gaussian that maximises a lower bound of the
        evidence (Opper & Archambeau, 2009), whose `log_evidence` is that bound.
    table : None, "exact", path, name or Table
        Where QP finds sigma*: None is the table shipped with the likelihood, "exact" integrates. A
        table of surfaces serves EP too, and needs no code of the likelihood.
    mean : float or array-like, shape (N,)
        Prior mean.
    tol : float
        Stop when the root mean squared change of the site parameters in a sweep is below `tol`,
        both as it stands (the paper's rule) and measured in posterior standard deviations.
    max_sweeps : int
        Sweeps at most; running out of them warns and is the status "not converged". Where that
        leaves sites without a proper cavity, as many again with precisions held at zero, and up to
        100 for each of four damped attempts without; `n_sweeps` counts them all.
    damping : float in (0, 1]
        Fraction of every site update that is taken. Sites that oscillate are damped further.
    power : float in (0, 1]
        Power EP (and QP): cavities are without this fraction of a site only, and what is projected
        has the likelihood to this power. Smaller powers come closer to variational inference.
    weights : array-like, shape (N,), optional
        Powers of the single likelihoods, not negative; an observation of weight 0 is dropped.
        Weights and powers other than 1 are integrated.
    p : float, optional
        Order of method "wp", from 1 to 10; by default that of the table.
    order : {None, "sequential", "random", "parallel"}
        How the sites are visited; the fixed point is the same for likelihoods that are log-concave.
        Others may have several, and orders may find different ones: of counts with the square link
        the mirror image, for one. Parallel iterations cost least, and end in sequential ones where
        they lose their way. None is sequential, but parallel for log-concave likelihoods from
        N = 1000 on. Method "vb" is always parallel.
    sites : (tau, nu), optional
        Start from these sites instead of from the prior.
    n_restarts : int
        Further starts, at functions drawn from the prior, in search of other fixed points:
        ``post.fixed_points``. None are made where there can be one only, as with likelihoods that
        are log-concave.
    random_state : int, Generator or None
        Seed of ``order="random"`` and of restarts.

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
        If the table cannot be opened, or what it holds is damaged.

    Warns
    -----
    ConvergenceWarning
        If the sites have not settled after `max_sweeps`, or only with precisions held at zero, or
        if there are several fixed points.

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
    K, jitter = covariance(K)
    n = len(K)
    projector, y = projector.observing(y)
    if y.shape != (n,):
        raise InputError(f"y must have shape ({n},) like K, got {y.shape}")
    projector.check_outcomes(y)
    prior = finite(mean, "mean")
    if prior.shape not in ((), (n,)):
        raise InputError(f"mean must be a number or have shape ({n},), got {prior.shape}")
    damping = number(damping, "damping", above=0.0, most=1.0)
    tol = number(tol, "tol", above=0.0)
    if order is not None:
        choice(order, "order", ORDERS)
    max_sweeps = whole(max_sweeps, "max_sweeps", 1)
    power, weights = check_powers(power, weights, projector, n)
    dense = DensePrior(K, np.array(np.broadcast_to(prior, (n,))))
    problem = Problem(dense, y, projector, power=power, weights=weights)
    if order is None:
        order = "parallel" if n >= _MANY and problem.nonnegative else "sequential"
    _announce(n, "parallel" if method == "vb" else order, max_sweeps)
    start = check_sites(sites, n, problem.nonnegative)
    restarts = whole(n_restarts, "n_restarts", 0)
    random = order == "random" or restarts
    rng = generator(random_state) if random else None
    if method == "vb":
        end = variational.settle(
            problem, tol=tol, max_sweeps=max_sweeps, damping=damping, sites=start
        )
    else:
        end = settle(
            problem,
            Limits(tol, max_sweeps, damping),
            order=order,
            sites=start,
            rng=rng if order == "random" else None,
            restarts=rng.spawn(restarts) if rng else (),
        )
    warn_unsettled(end, tol)
    return replace(summarise(problem, end), jitter=jitter)


def _announce(n: int, order: str, max_sweeps: int) -> None:
    """Say how long inference will take, if that is long."""
    work = min(_WORK[order], 7.0 * max_sweeps)
    faster = 'order="parallel" costs less, ' if order != "parallel" else ""
    announce(
        f"inference with N = {n}",
        expected_seconds(n, work),
        f"{faster}the time grows with the cube of N, and more BLAS threads help",
    )


def warn_unsettled(end: Settled, tol: float, *, of_estimator: bool = False) -> None:
    """Warn if the sites have not settled freely, or may in several ways.

    Remedies are arguments that the caller has: those of `infer`, or those `of_estimator`.
    """
    for text in _complaints(end, tol, of_estimator):
        warn(text, ConvergenceWarning)


def _complaints(end: Settled, tol: float, of_estimator: bool) -> Iterator[str]:
    """What is to be said of the way in which sites have settled."""
    history = end.trace.history
    if not end.settled:
        # Changes that no longer shrink go round in circles, which damping ends.
        circling = len(history) >= 20 and min(history[-10:]) > 0.5 * min(history[:-10])
        if of_estimator:
            remedy = "raise max_sweeps,"
        elif circling:
            remedy = "the changes no longer shrink: try damping=0.3,"
        else:
            remedy = "raise max_sweeps, lower damping,"
        yield (
            f"not converged after {len(history)} sweeps: the sites still change by "
            f"{history[-1]:.2g} (tol {tol:g}), most of all site {end.worst}; "
            f"{remedy} or check that observation and the kernel; the evidence of "
            "sites that have not settled may be anything"
        )
    move = "move the prior mean away from zero or lower the prior variance"
    if of_estimator:
        move = "bound the kernel's variance further down, or move the mean away from zero if one "
        move += "can be given"
    peaks = ", ".join(f"{value:.6g}" for value in end.peaks)
    if end.held:
        lesser = ""
        if peaks:
            lesser = f" (fixed points of lesser peaks have been found, of log evidence {peaks})"
        yield (
            f"{end.held} of {end.variance.size} site precisions are held at zero: they would be "
            "negative and leave other sites without a proper cavity, because the posterior has "
            f"several peaks{lesser}; {move}"
        )
    elif len(end.peaks) > 1:
        yield (
            f"{len(end.peaks)} fixed points found, of log evidence {peaks}: the posterior has "
            f"several peaks, and this is the highest that was found; {move}"
        )


def summarise(problem: Problem, end: Settled) -> Posterior:
    """Compute evidence and cavities of settled sites."""
    evidence, log_z = log_evidence(problem, end)
    if end.bound is not None:
        evidence = end.bound
    trace = end.trace
    return Posterior(
        sites=end.sites,
        mean=end.factor.mean,
        variance=end.variance,
        log_evidence=evidence,
        status=end.status,
        n_sweeps=len(trace.history),
        history=tuple(trace.history),
        lookups=Lookups(int(trace.counts[0]), int(trace.counts[1])),
        skipped=int(trace.counts[2]),
        damped=trace.damped,
        held=end.held,
        fixed_points=end.peaks or ((evidence,) if end.status == "converged" else ()),
        worst=int(end.worst),
        likelihood=problem.projector.likelihood.spelt,
        method=problem.projector.method,
        log_z=log_z,
        factor=end.factor.keep(),
        observed=Observed(
            problem.prior.covariance,
            problem.y,
            problem.prior.mean,
            problem.projector.likelihood,
            problem.power,
            problem.weights,
        ),
    )


def check_powers(
    power: float, weights: ArrayLike | None, projector: Projector, n: int
) -> tuple[float, Array | None]:
    """Return power and weights, None for weights of 1, or raise `InputError`."""
    power = number(power, "power", above=0.0, most=1.0)
    checked = None if weights is None else finite(weights, "weights", (n,))
    if checked is not None and (checked < 0.0).any():
        raise InputError(f"weights must not be negative, got {checked.min():g}")
    if checked is not None and (checked == 1.0).all():
        checked = None
    if power != 1.0 or checked is not None:
        if projector.method == "wp" and projector.table is not None:
            raise InputError(
                f"weights and powers are integrated, which the table {projector.table.path} of L_p "
                "projections does not do: leave it out"
            )
        projector.need_density("weights and powers are integrated")
        if projector.method == "vb":
            raise InputError('method "vb" takes neither weights nor a power; use "ep" or "qp"')
    return power, checked


def check_sites(
    sites: Sites | Sequence[ArrayLike] | None, n: int, log_concave: bool = True
) -> Sites | None:
    """Return starting sites as float arrays, or raise `InputError`."""
    if sites is None:
        return None
    try:
        first, second = sites
    except (TypeError, ValueError) as error:
        raise InputError(f"sites must be a pair (tau, nu) of arrays of shape ({n},)") from error
    tau, nu = finite(first, "tau", (n,)), finite(second, "nu", (n,))
    if log_concave and (tau < 0.0).any():
        raise InputError(f"site precisions must not be negative, got {tau.min():g}")
    return Sites(tau, nu)
