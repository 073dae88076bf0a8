"""`infer_sparse_classes`: rows, labels and inducing points in, the joint posterior out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from qpruntime.arrays import Array
from qpruntime.errors import InputError, NumericalError
from qpruntime.inference.classes.conclude import left_out_of
from qpruntime.inference.classes.infer import layout_of, start_of
from qpruntime.inference.classes.layout import Layout
from qpruntime.inference.classes.sparse.features import features_of
from qpruntime.inference.classes.sparse.posterior import SparseClassPosterior
from qpruntime.inference.classes.sparse.prior import PointPrior, PointSolved
from qpruntime.inference.classes.sparse.stored import PointKept, PointSolution
from qpruntime.inference.evidence import log_evidence
from qpruntime.inference.fixed_point.complaints import warn_unsettled
from qpruntime.inference.fixed_point.ended import Limits
from qpruntime.inference.fixed_point.schedules import Settled
from qpruntime.inference.fixed_point.settle import settle
from qpruntime.inference.problem import Problem
from qpruntime.inference.sites import Sites
from qpruntime.inference.sparse.inducing import Inducing
from qpruntime.inference.summary import outcome_of
from qpruntime.memory import require
from qpruntime.projection.projector import Projector
from qpruntime.validation import choice, finite, number, whole

__all__ = ["infer_sparse_classes", "settled_by_points"]


def infer_sparse_classes(
    X: ArrayLike,
    labels: ArrayLike,
    kernel: Any,
    Z: ArrayLike,
    method: Literal["qp", "ep"] = "qp",
    *,
    n_classes: int | None = None,
    tol: float = 1e-6,
    max_sweeps: int = 100,
    sites: Sites | Sequence[ArrayLike] | None = None,
    jitter: float = 1e-8,
) -> SparseClassPosterior:
    """`infer_classes` by inducing points: the same model under FITC's covariances.

    A sweep takes N (C M)^2 operations, twice, and memory of N (M + C^2) numbers.

    Parameters
    ----------
    X : array-like, shape (N, d)
    labels : array-like of int, shape (N,)
        Classes of the rows, from 0 to C - 1; some may have no rows.
    kernel : scikit-learn kernel or sequence of C
        Of all classes, or of each. Hyper-parameters stay as they are.
    Z : array-like, shape (M, d)
        Inducing points, of all classes.
    method : {"qp", "ep"}
    n_classes : int, optional
        C, three at least; by default the number of kernels, or the largest label and 1.
    tol, max_sweeps, sites
        As of `qpruntime.infer_classes`.
    jitter : float
        Least lift of the diagonal of k(Z, Z), as of `qpruntime.infer_sparse`.

    Returns
    -------
    SparseClassPosterior

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

    Notes
    -----
    What a row says of its classes has rank C - 1 (Riihimaki, Jylanki & Vehtari, JMLR 2013); summed
    over rows it is a precision of the C M values at the inducing points, and no matrix of rows is
    formed (Naish-Guzman & Holden, 2007, have two classes).

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process.kernels import RBF
    >>> from qpruntime import infer_sparse_classes
    >>> X = np.linspace(-1.0, 1.0, 60)[:, None]
    >>> post = infer_sparse_classes(X, np.arange(60) // 20, 9.0 * RBF(0.5), X[::10])
    >>> post.converged, post.predict_log_proba([[-0.9], [0.9]]).argmax(axis=1).tolist()
    (True, [0, 2])
    """
    choice(method, "method", ("qp", "ep"))
    rows, points = finite(X, "X"), finite(Z, "Z")
    if rows.ndim != 2 or not len(rows):
        raise InputError(f"X must have shape (N, d), got {rows.shape}")
    if points.ndim != 2 or not len(points) or points.shape[1] != rows.shape[1]:
        raise InputError(f"Z must have shape (M, {rows.shape[1]}), got {points.shape}")
    kernels = tuple(kernel) if isinstance(kernel, (list, tuple)) else (kernel,)
    several = len(kernels) if len(kernels) > 1 else None
    layout = layout_of(labels, len(rows), several, n_classes)
    if layout.classes == 2:
        raise InputError("two classes are one function: infer_sparse takes labels -1 and +1")
    tol, max_sweeps = number(tol, "tol", above=0.0), whole(max_sweeps, "max_sweeps", 1)
    start = start_of(sites, layout)
    inducing = tuple(Inducing(one, points, number(jitter, "jitter")) for one in kernels)
    return settled_by_points(
        rows, layout, inducing, Projector("probit", method), Limits(tol, max_sweeps, 1.0), start
    )


def require_points(n: int, m: int, classes: int, kernels: int) -> None:
    """Raise `InputError` if what rows and points take cannot fit into memory."""
    numbers = n * (m * kernels + 4.0 * classes**2 + 30.0 * classes) + 3.0 * (classes * m) ** 2
    require(
        8.0 * numbers,
        f"inference of {classes} classes jointly with N = {n} and M = {m}",
        "pass fewer inducing points, or fewer rows",
    )


def settled_by_points(
    X: Array,
    layout: Layout,
    inducing: tuple[Inducing, ...],
    projector: Projector,
    limits: Limits,
    start: Sites | None = None,
    of_estimator: bool = False,
) -> SparseClassPosterior:
    """Settle the sites of checked rows, and conclude."""
    require_points(len(X), inducing[0].size, layout.classes, len(inducing))
    found = [one.features(X) for one in inducing]
    rest = np.array([r for _, r in found])
    features = features_of([phi for phi, _ in found], rest, layout.classes)
    problem = Problem(PointPrior(features, layout), np.ones(layout.sites), projector)
    try:
        end = settle(problem, limits, order="parallel", sites=start)
        words, named = layout.words, of_estimator
        warn_unsettled(end, limits.tol, layout.sites, of_estimator=named, words=words)
        return _concluded(problem, end, layout, inducing)
    except NumericalError as error:
        raise NumericalError(layout.words(str(error))) from error


def _concluded(
    problem: Problem, end: Settled, layout: Layout, inducing: tuple[Inducing, ...]
) -> SparseClassPosterior:
    """Return the posterior of settled sites."""
    solved = end.factor
    assert isinstance(solved, PointSolved)
    evidence, _ = log_evidence(problem, end)
    blocks = solved.blocks
    kept = PointKept(inducing, blocks.weights(solved.along_z()), blocks.covariance, layout.classes)
    mean = np.ascontiguousarray(solved.solution()[1].T)
    told = outcome_of(problem, end, evidence)
    lifted = max(one.jitter for one in inducing)
    outcome = told.but(n=layout.n, worst=int(layout.rows[end.worst]), jitter=lifted)
    left_out = left_out_of(layout, solved, end)
    solution = PointSolution(layout, end.sites, mean, left_out, blocks.of_values, kept)
    return SparseClassPosterior._of(outcome, solution)
