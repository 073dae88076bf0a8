"""Joint classes with inducing points: `infer_sparse_classes`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NoReturn, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qpruntime._memory import in_blocks, require
from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import choice, finite, number
from qpruntime.errors import InputError, NumericalError
from qpruntime.inference.fixed_point.convergence import (
    DEFAULT_MAX_SWEEPS,
    DEFAULT_TOL,
    Limits,
    warn_unsettled,
)
from qpruntime.inference.fixed_point.iterate import log_evidence, settle
from qpruntime.inference.fixed_point.schedules import Settled
from qpruntime.inference.multiclass.infer import layout_of, left_out_of, start_of
from qpruntime.inference.multiclass.linalg import Layout
from qpruntime.inference.multiclass.posterior import ClassPosterior
from qpruntime.inference.multiclass.probability_kernels import log_probabilities
from qpruntime.inference.multiclass.solution import SettledClasses
from qpruntime.inference.multiclass.sparse_linalg import PointPrior, PointSolved, features_of
from qpruntime.inference.posterior import report_of
from qpruntime.inference.problem import Problem
from qpruntime.inference.sites import Sites
from qpruntime.inference.sparse.rows import InducingInputs
from qpruntime.projection.projector import Projector

if TYPE_CHECKING:
    from sklearn.gaussian_process.kernels import Kernel

__all__ = [
    "PointKept",
    "PointSolution",
    "SparseClassPosterior",
    "infer_sparse_classes",
    "settled_by_points",
]

# --- `infer_sparse_classes`


def infer_sparse_classes(
    X: ArrayLike,
    labels: ArrayLike,
    kernel: Kernel,
    Z: ArrayLike,
    method: Literal["qp", "ep"] = "qp",
    *,
    n_classes: int | None = None,
    tol: float = DEFAULT_TOL,
    max_sweeps: int = DEFAULT_MAX_SWEEPS,
    sites: Sites | Sequence[ArrayLike] | None = None,
    jitter: float = 1e-8,
) -> SparseClassPosterior:
    """Run `infer_classes` with inducing points: the same model with FITC's covariances.

    A sweep takes 2 N (C M)^2 operations, and memory of N (M + C^2) numbers.

    Parameters
    ----------
    X : array-like, shape (N, d)
    labels : array-like of int, shape (N,)
        Classes of the rows, from 0 to C - 1; some may have no rows.
    kernel : scikit-learn kernel or sequence of C
        Kernel of all classes, or one for each. Hyper-parameters are not changed.
    Z : array-like, shape (M, d)
        Inducing points of all classes.
    method : {"qp", "ep"}
    n_classes : int, optional
        Number of classes C, at least three; by default the number of kernels, or the largest label
        plus 1.
    tol, max_sweeps, sites
        As for `qpruntime.infer_classes`.
    jitter : float
        Least jitter on the diagonal of k(Z, Z), as for `qpruntime.infer_sparse`.

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

    See Also
    --------
    qpruntime.SparseClassPosterior, qpruntime.infer_classes, qpruntime.infer_sparse

    Notes
    -----
    A row's label adds a precision of rank C - 1 (Riihimaki, Jylanki & Vehtari, JMLR 2013). The sum
    over rows is a precision of the C M values at the inducing points, so that no N x N matrix is
    formed (Naish-Guzman & Holden, 2007, treat two classes).

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
    limits = Limits.checked(tol, max_sweeps)
    start = start_of(sites, layout)
    inducing = tuple(
        InducingInputs(class_kernel, points, number(jitter, "jitter")) for class_kernel in kernels
    )
    return settled_by_points(rows, layout, inducing, Projector("probit", method), limits, start)


def require_points(n: int, m: int, classes: int, kernels: int) -> None:
    """Raise `InputError` if the arrays of rows and points cannot fit into memory."""
    numbers = n * (m * kernels + 4.0 * classes**2 + 30.0 * classes) + 3.0 * (classes * m) ** 2
    require(
        8.0 * numbers,
        f"inference of {classes} classes jointly with N = {n} and M = {m}",
        "pass fewer inducing points, or fewer rows",
    )


def settled_by_points(
    X: Array,
    layout: Layout,
    inducing: tuple[InducingInputs, ...],
    projector: Projector,
    limits: Limits,
    start: Sites | None = None,
    of_estimator: bool = False,
) -> SparseClassPosterior:
    """Settle the sites of checked rows; return the posterior."""
    require_points(len(X), inducing[0].size, layout.classes, len(inducing))
    prior = PointPrior(features_of(inducing, X, layout.classes), layout)
    problem = Problem(prior, np.ones(layout.sites), projector)
    with layout.naming_sites():
        end = settle(problem, limits, order="parallel", sites=start)
        words, named = layout.words, of_estimator
        warn_unsettled(end, limits.tol, layout.sites, of_estimator=named, words=words)
        return _concluded(problem, end, layout, inducing)


def _concluded(
    problem: Problem, end: Settled, layout: Layout, inducing: tuple[InducingInputs, ...]
) -> SparseClassPosterior:
    """Return the posterior of settled sites."""
    solved = end.factor
    assert isinstance(solved, PointSolved)
    evidence, _ = log_evidence(problem, end)
    blocks = solved.blocks
    kept = PointKept(inducing, blocks.weights(solved.along_z()), blocks.covariance, layout.classes)
    mean = np.ascontiguousarray(solved.solution()[1].T)
    lifted, worst = max(points.jitter for points in inducing), int(layout.rows[end.worst])
    outcome = report_of(problem.projector, end, layout.n, evidence, worst=worst, jitter=lifted)
    left_out = left_out_of(layout, solved, end)
    solution = PointSolution(layout, end.sites, mean, left_out, blocks.of_values, kept)
    return SparseClassPosterior._of(outcome, solution)


# --- `SparseClassPosterior`


@restorable("sparse-class-posterior/1", root=True)
@dataclass(frozen=True, eq=False, repr=False)
class SparseClassPosterior(ClassPosterior):
    """Gaussian approximation of the posterior of C latent functions with M inducing points each.

    Attributes are those of `ClassPosterior`; the log evidence is that of FITC's covariances.
    Predictions take points themselves. Corrections and slopes of the evidence are not available.
    Pickles leave `covariance` out.

    Attributes
    ----------
    kernels : tuple of scikit-learn kernel
        Kernel of all classes, or one for each.
    Z : ndarray, shape (M, d)

    See Also
    --------
    qpruntime.infer_sparse_classes, qpruntime.ClassPosterior

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process.kernels import RBF
    >>> from qpruntime import infer_sparse_classes
    >>> X = np.linspace(-1.0, 1.0, 60)[:, None]
    >>> post = infer_sparse_classes(X, np.arange(60) // 20, 9.0 * RBF(0.5), X[::10])
    >>> post.Z.shape, len(post.kernels)
    ((6, 1), 1)
    >>> np.exp(post.predict_log_proba([[-0.9], [0.9]])).round(2).tolist()
    [[0.98, 0.01, 0.01], [0.01, 0.01, 0.98]]
    """

    @property
    def _by_points(self) -> PointSolution:
        # `ClassPosterior` declares the solution by matrices, whose members this one shares.
        return cast("PointSolution", self._solution)

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Kernel of all classes, or one for each."""
        return tuple(points.kernel for points in self._by_points.kept.inducing)

    @property
    def Z(self) -> Array:
        """Inducing points, shape (M, d)."""
        return self._by_points.kept.inducing[0].Z

    def predict(self, X: ArrayLike) -> tuple[Array, Array]:  # type: ignore[override]
        """Return latent means (T, C) and covariances (T, C, C) at points.

        Parameters
        ----------
        X : array-like, shape (T, d)

        Raises
        ------
        InputError
            If the points are not usable.
        """
        solution = self._by_points
        return solution.kept.predict(solution.at(X))

    def predict_log_proba(  # type: ignore[override]
        self, X: ArrayLike, *, correction: Literal["ratio"] | None = None
    ) -> Array:
        """Return log probabilities of all classes at T points, shape (T, C); see `ClassPosterior`.

        Parameters
        ----------
        X : array-like, shape (T, d)
        correction : None
            Corrections are not available with inducing points.

        Raises
        ------
        InputError
            If an argument is not usable.
        """
        if correction is not None:
            raise InputError(
                f"correction={correction!r} takes a covariance matrix: use infer_classes, or leave "
                "it out"
            )
        return log_probabilities(*self.predict(X))

    def _predict_once(self) -> tuple[Array, ...]:
        return (self.predict_log_proba(self.Z[:2]),)

    def on(self, kernels: tuple[Kernel, ...], unscaled: Callable[[Array], Array]) -> Self:
        """Return the same posterior in other units: with these kernels and `unscaled` points."""
        return self._of(self, self._by_points.on(kernels, unscaled))


# --- What a sparse posterior of classes keeps

_NEEDED = "needs the covariance of all rows, which inducing points do without: use infer_classes"


@restorable("point-kept/1")
@dataclass(frozen=True, eq=False)
class PointKept:
    """Posterior of the whitened values at the inducing points.

    Attributes
    ----------
    inducing : tuple of InducingInputs
        Inducing points of all classes, or for each class.
    mean : ndarray, shape (C M,)
    covariance : ndarray, shape (C M, C M)
    classes : int
    """

    inducing: tuple[InducingInputs, ...]
    mean: Array
    covariance: Array
    classes: int

    def predict(self, X: Array) -> tuple[Array, Array]:
        """Return latent means (T, C) and covariances (T, C, C) at points (T, d)."""

        def one(block: slice) -> tuple[Array, Array]:
            features = features_of(self.inducing, X[block], self.classes)
            covariance = features.quadratic(self.covariance)
            np.einsum("tcc->tc", covariance)[...] += features.rest.T
            return features.spread(self.mean).T, covariance

        mean, covariance = in_blocks(one, len(X), self.mean.size)
        if not (np.isfinite(mean).all() and np.isfinite(covariance).all()):
            raise NumericalError("a prediction is beyond double precision: rescale the kernel")
        return mean, covariance


@restorable("point-solution/1")
@dataclass(frozen=True, eq=False)
class PointSolution(SettledClasses):
    """Settled sites by inducing points.

    Attributes
    ----------
    of_values : callable or None
        Function that computes covariances (N, C, C) of the latent values; pickles leave it out.
    kept : PointKept
    """

    of_values: Callable[[], Array] | None
    kept: PointKept
    K: None = None

    def covariance(self) -> Array:
        """Return posterior covariances at the rows, shape (N, C, C)."""
        if self.of_values is None:
            raise InputError("pickles leave the covariances of rows out: predict at these rows")
        return self.of_values()

    def covariance_of(self, rows: NDArray[np.intp]) -> Array:
        """Return posterior covariances at chosen rows, shape (n, C, C)."""
        return self.covariance()[rows]

    def at(self, X: ArrayLike) -> Array:
        """Return checked points (T, d)."""
        points, width = finite(X, "X"), self.kept.inducing[0].Z.shape[1]
        if points.ndim != 2 or points.shape[1] != width:
            raise InputError(f"X must have shape (T, {width}), got {points.shape}")
        return points

    def on(self, kernels: tuple[Kernel, ...], unscaled: Callable[[Array], Array]) -> PointSolution:
        """Return the same solution in other units: with these kernels, and points `unscaled`."""
        pairs = zip(self.kept.inducing, kernels, strict=True)
        moved = tuple(points.on(kernel, unscaled(points.Z)) for points, kernel in pairs)
        return replace(self, kept=replace(self.kept, inducing=moved))

    def gradient(self, change: ArrayLike | None) -> NoReturn:
        """Raise `InputError`: this engine has no covariance matrix of the rows."""
        raise InputError(f"evidence_gradient {_NEEDED}")

    def observed(self) -> NoReturn:
        """Raise `InputError`: this engine has no covariance matrix of the rows."""
        raise InputError(f"a correction {_NEEDED}")

    def with_covariance(self, K: ArrayLike) -> PointSolution:
        """Raise `InputError`: this engine has no covariance matrix of the rows."""
        raise InputError("inducing points take no covariance of rows: leave with_covariance out")

    def __getstate__(self) -> dict[str, object]:
        self.loo()
        return {**vars(self), "left_out": None, "of_values": None}
