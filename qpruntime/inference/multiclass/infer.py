"""`infer_classes`: joint posterior of all classes from prior covariances and labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from qpruntime._memory import require, squares
from qpruntime._typing import Array
from qpruntime._validation import choice, finite, shown, unmasked, whole
from qpruntime.errors import InputError, NumericalError
from qpruntime.execution.threads import sized
from qpruntime.inference.fixed_point.convergence import (
    DEFAULT_MAX_SWEEPS,
    DEFAULT_TOL,
    Limits,
    warn_unsettled,
)
from qpruntime.inference.fixed_point.iterate import log_evidence, settle
from qpruntime.inference.fixed_point.schedules import Settled
from qpruntime.inference.infer import infer
from qpruntime.inference.multiclass.linalg import Layout
from qpruntime.inference.multiclass.posterior import ClassPosterior
from qpruntime.inference.multiclass.site_kernels import leave_rows_out
from qpruntime.inference.multiclass.solution import ClassSolution, priors
from qpruntime.inference.multiclass.solver import ClassPrior, ClassSolved
from qpruntime.inference.posterior import Posterior, report_of
from qpruntime.inference.problem import Problem, check_sites
from qpruntime.inference.sites import Sites
from qpruntime.projection.projector import Projector

__all__ = [
    "concluded",
    "infer_classes",
    "joined",
    "layout_of",
    "left_out_of",
    "problem_of",
    "require_blocks",
    "signs",
    "single",
    "solution_of",
    "start_of",
]

# --- `infer_classes`


def _rows(K: object, *_: object, **__: object) -> int:
    """Return the number of rows of K, if it is like a matrix."""
    shape = getattr(K, "shape", (0,))
    return int(shape[-1]) if len(shape) else 0


@sized(_rows)
def infer_classes(
    K: ArrayLike,
    labels: ArrayLike,
    method: Literal["qp", "ep"] = "qp",
    *,
    n_classes: int | None = None,
    tol: float = DEFAULT_TOL,
    max_sweeps: int = DEFAULT_MAX_SWEEPS,
    sites: Sites | Sequence[ArrayLike] | None = None,
) -> ClassPosterior:
    """Approximate the joint posterior of C Gaussian processes, one for each class, by EP or QP.

    The label of a row is the class whose latent value is the largest, with unit normal noise on
    each value: the multinomial probit. All classes are inferred at once, with C + 1 factorisations
    of N x N matrices per sweep. Two classes are one binary problem, whose posterior is brought to
    the same form.

    Parameters
    ----------
    K : array-like, shape (N, N) or (C, N, N)
        Prior covariance of the latent functions: one for all classes, or one for each.
    labels : array-like of int, shape (N,)
        Classes of the rows, from 0 to C - 1; some may have no rows.
    method : {"qp", "ep"}
    n_classes : int, optional
        Number of classes C; by default the number of covariances, or the largest label plus 1 if
        there is one covariance for all.
    tol, max_sweeps
        As for `qpruntime.infer`.
    sites : (tau, nu), optional
        Sites to start from, each of shape (N, C), as in `ClassPosterior.sites`.

    Returns
    -------
    ClassPosterior

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

    See Also
    --------
    qpruntime.ClassPosterior, qpruntime.infer_sparse_classes, qpruntime.infer

    Notes
    -----
    The sites are those of nested EP (Riihimaki, Jylanki & Vehtari, JMLR 2013), found without its
    inner loop: the schedule of `qpruntime.infer` runs on N (C - 1) one-dimensional probits.

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime import infer_classes
    >>> x = np.linspace(-1.0, 1.0, 6)
    >>> K = 4.0 * np.exp(-2.0 * (x[:, None] - x) ** 2)
    >>> post = infer_classes(K, [0, 0, 1, 1, 2, 2], method="ep")
    >>> post.converged, post.mean.argmax(axis=1).tolist()
    (True, [0, 0, 1, 1, 2, 2])
    """
    choice(method, "method", ("qp", "ep"))
    require_blocks(K, n_classes)
    covariances, jitter = priors(K)
    several = len(covariances) if len(covariances) > 1 else None
    layout = layout_of(labels, covariances.shape[1], several, n_classes)
    limits = Limits.checked(tol, max_sweeps)
    start = start_of(sites, layout)
    if layout.classes == 2:
        half, start_of_half = covariances.mean(axis=0), single(start, layout)
        post = infer(
            half, signs(layout), method=method, tol=tol, max_sweeps=max_sweeps, sites=start_of_half
        )
        return replace(joined(post, covariances, layout), jitter=jitter)
    problem = problem_of(covariances, layout, Projector("probit", method, None, None))
    with layout.naming_sites():
        end = settle(problem, limits, order="parallel", sites=start)
        warn_unsettled(end, limits.tol, layout.sites, words=layout.words)
        return concluded(problem, end, jitter)


def require_blocks(K: ArrayLike, n_classes: int | None = None) -> None:
    """Raise `InputError` if the matrices of all classes cannot fit into memory."""
    shape: tuple[int, ...] = getattr(K, "shape", ())
    if len(shape) in (2, 3):
        several = len(shape) == 3
        C = shape[0] if several else n_classes if isinstance(n_classes, int) else 3
        what = f"inference of {C} classes jointly with N = {shape[-1]}"
        require(squares(shape[-1], 2.0 * C + 2.0), what, "pass fewer rows")


def layout_of(labels: ArrayLike, n: int, several: int | None, n_classes: int | None) -> Layout:
    """Return the layout of labels of n rows; `several` is the number of covariances if not one.

    Raises
    ------
    InputError
        If the labels are not usable.
    """
    classes = np.asarray(unmasked(labels, "labels"))
    if classes.shape != (n,):
        raise InputError(f"labels must have shape ({n},), one for each row, got {classes.shape}")
    if classes.dtype.kind not in "iu":
        raise InputError(
            f"labels must be whole numbers from 0, the classes of the rows; got {classes.dtype}: "
            "numpy.unique(labels, return_inverse=True) makes them of any other"
        )
    least, most = int(classes.min()), int(classes.max())
    count = several or most + 1
    if n_classes is not None:
        count = whole(n_classes, "n_classes", 2)
        if several not in (None, count):
            raise InputError(f"n_classes={count} and {several} covariances: leave n_classes out")
    if least < 0 or most >= count:
        raise InputError(f"labels must be from 0 to {count - 1}, got {least} to {most}")
    if count < 2:
        raise InputError(
            "labels are all 0, which is one class: say of how many with n_classes, or hand over a "
            "covariance for each"
        )
    return Layout(classes.astype(np.intp), count)


def start_of(sites: Sites | Sequence[ArrayLike] | None, layout: Layout) -> Sites | None:
    """Return flat sites to start from, or raise `InputError`."""
    if sites is None:
        return None
    try:
        parts = [np.asarray(part, dtype=float) for part in sites]
    except (TypeError, ValueError) as error:
        raise InputError(f"sites must be a pair (tau, nu), got {shown(sites)}") from error
    shape = layout.n, layout.classes
    if len(parts) != 2 or any(part.shape != shape for part in parts):
        raise InputError(f"sites must be a pair (tau, nu) of arrays of shape {shape}")
    return check_sites(tuple(finite(layout.flat(p), "sites") for p in parts), layout.sites)


# --- Two classes as one binary problem
#
# The model is p(y = 1) = Phi(h) for h = (f_1 - f_0)/sqrt(2), whose covariance is (K_0 + K_1)/2. EP
# is the same along h and along g = u +- sqrt(2) h. QP is not, and is more accurate along h. A site
# of h becomes the site of g that gives the same posterior of h once u is integrated out.


def signs(layout: Layout) -> Array:
    """Return labels of the binary problem: +1 for the second class."""
    return np.where(layout.own == 1, 1.0, -1.0)


def single(sites: Sites | None, layout: Layout) -> Sites | None:
    """Return sites of h from those of g."""
    if sites is None:
        return None
    tau, nu = sites
    share = 1.0 / (1.0 + tau)
    return Sites(2.0 * tau * share, math.sqrt(2.0) * nu * share * signs(layout))


def joined(post: Posterior, K: Array, layout: Layout) -> ClassPosterior:
    """Return the joint posterior of both classes from that of h.

    Raises
    ------
    NumericalError
        If a site of h is narrower than the noise allows.
    """
    tau, nu = post.sites
    if not (tau < 2.0).all():
        row = int(np.argmax(tau))
        raise NumericalError(
            f"the site of row {row} has precision {tau[row]:.3g}, and the noise of two classes "
            "leaves less than 2: the sites have not settled; raise max_sweeps"
        )
    class_tau = tau / (2.0 - tau)
    sites = Sites(class_tau, nu * signs(layout) * (1.0 + class_tau) / math.sqrt(2.0))
    solved = ClassPrior(K, layout).factor(sites)
    return ClassPosterior._of(post, solution_of(solved, layout, K, sites, post.loo))


# --- Problems and posteriors of classes


def problem_of(K: Array, layout: Layout, projector: Projector) -> Problem:
    """Return the problem in which each site sees by a probit that the row's own class is larger."""
    return Problem(ClassPrior(K, layout), np.ones(layout.sites), projector)


def solution_of(
    solved: ClassSolved, layout: Layout, K: Array, sites: Sites, left_out: Callable[[], Array]
) -> ClassSolution:
    """Return the solution of a posterior; `left_out` computes its leave-one-out densities."""
    mean = np.ascontiguousarray(solved.solution()[1].T)
    return ClassSolution(layout, sites, mean, left_out, solved.keep(), K)


def left_out_of(layout: Layout, solved: ClassSolved, end: Settled) -> Callable[[], Array]:
    """Return a function that computes the leave-one-out log probabilities of rows."""

    def left_out() -> Array:
        """Return the log probability of every label without its row."""
        log_z = np.empty(layout.n)
        sites = tuple(end.marginals), tuple(end.sites)
        row = leave_rows_out(solved.rows(), layout.others, *sites, log_z)
        if row >= 0:
            raise NumericalError(
                f"row {row} has no posterior without its own sites: K is too close to singular "
                "there for double precision; add jitter to its diagonal"
            )
        return log_z

    return left_out


def concluded(problem: Problem, end: Settled, jitter: float = 0.0) -> ClassPosterior:
    """Return the posterior of settled sites.

    Raises
    ------
    NumericalError
        If a site has no proper cavity, or the evidence is not finite.
    """
    solved, prior = end.factor, problem.prior
    assert isinstance(solved, ClassSolved)
    assert isinstance(prior, ClassPrior)
    layout = prior.layout
    evidence, _ = log_evidence(problem, end)
    left_out = left_out_of(layout, solved, end)
    # The report counts rows, each of which has a site for every other class.
    worst = int(layout.rows[end.worst])
    outcome = report_of(problem.projector, end, layout.n, evidence, worst=worst, jitter=jitter)
    return ClassPosterior._of(outcome, solution_of(solved, layout, prior.K, end.sites, left_out))
