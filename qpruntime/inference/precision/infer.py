"""`infer_precision`: validate, iterate until the sites settle, hand over a PrecisionPosterior."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from qpruntime._typing import Array
from qpruntime._validation import choice, finite, flag, number
from qpruntime.errors import InputError
from qpruntime.execution.threads import alone
from qpruntime.inference.fixed_point.convergence import (
    DEFAULT_MAX_SWEEPS,
    DEFAULT_TOL,
    Limits,
    warn_unsettled,
)
from qpruntime.inference.fixed_point.iterate import log_evidence
from qpruntime.inference.posterior import report_of
from qpruntime.inference.precision.aggregation import observed_sites, read_offset
from qpruntime.inference.precision.cholesky import MatrixLike, Pattern, as_precision, as_rows
from qpruntime.inference.precision.iterate import settle
from qpruntime.inference.precision.posterior import PrecisionPosterior
from qpruntime.inference.precision.solution import PrecisionSolution
from qpruntime.inference.precision.solver import PrecisionPrior, PrecisionSolved
from qpruntime.inference.problem import Problem, check_powers, check_sites
from qpruntime.inference.sites import Sites
from qpruntime.likelihoods import Likelihood
from qpruntime.projection.projector import Projector
from qpruntime.projection.table import Table

__all__ = ["infer_precision"]


@alone
def infer_precision(
    A: MatrixLike,
    Q: MatrixLike,
    y: ArrayLike,
    likelihood: str | Likelihood | None = None,
    method: Literal["ep", "qp"] = "ep",
    table: Table | str | os.PathLike[str] | None = None,
    *,
    offset: ArrayLike = 0.0,
    constraint: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    collapse: bool = True,
    pattern: Pattern | None = None,
    log_det: float | None = None,
    tol: float = DEFAULT_TOL,
    max_sweeps: int = DEFAULT_MAX_SWEEPS,
    damping: float = 1.0,
    sites: Sites | Sequence[ArrayLike] | None = None,
) -> PrecisionPosterior:
    """Approximate the posterior of latent values with a sparse precision by EP or QP.

    The latent values are x ~ N(0, Q^-1), with C x = 0 if there is a constraint. Row n is observed
    at eta_n = offset_n + a_n' x, where a_n is a sparse row of A. The fixed point is that of `infer`
    with the covariance A Q^-1 A' and the offset as mean. Time and memory grow with the size of the
    Cholesky factor of Q + A'A.

    Parameters
    ----------
    A : sparse array or array-like, shape (N, K)
    Q : sparse array or array-like, shape (K, K)
        Prior precision: symmetric, positive definite. An intrinsic precision, as of a random walk,
        needs 1e-9 of its mean diagonal added, and a constraint on the directions that it leaves
        free.
    y : array-like, shape (N,)
        Observations; (N, 2) for ``"binomial"``.
    likelihood, table
        As for `infer`.
    method : {"ep", "qp"}
        EP by default here: QP's means and variances differ by thousandths of a standard deviation.
    offset : float or array-like, shape (N,)
        Known part of eta: logarithms of exposures, prior means. For counts, -inf means an exposure
        of 0: such a row says nothing if it counts 0, and is refused otherwise.
    constraint : array-like, shape (m, K) or (K,), optional
        Matrix C of few rows, which are linearly independent.
    weights : array-like, shape (N,), optional
        Powers of the single likelihoods, at least 0.
    collapse : bool
        Whether equal rows with equal offsets become one site. This is exact for labels of the
        logistic and probit, for binomial observations and for counts of ``"poisson-exp"``. For
        other likelihoods, and for weighted rows, only rows with equal observations are merged.
        Results are those of all rows. Rows are not merged if you give a table of your own.
    pattern : Pattern, optional
        The analysis of A and Q, ``qpruntime.inference.precision.cholesky.Pattern(A, Q)``, for
        several calls that have the same entries with other values.
    log_det : float, optional
        ``log |Q|``, plus ``log |C Q^-1 C'|`` with a constraint, if known; otherwise Q is
        factorised.
    tol, max_sweeps, damping
        As for `infer`.
    sites : (tau, nu), optional
        Sites to start from, as those of a posterior at similar hyper-parameters; by default the
        start is by Newton steps.

    Returns
    -------
    PrecisionPosterior

    Raises
    ------
    InputError
        If an argument is not usable, or the factor would be too large.
    NumericalError
        If double precision does not suffice; for an improper prior the message names the column.

    Warns
    -----
    ConvergenceWarning
        If the sites have not settled, or settled only with precisions held at zero.

    See Also
    --------
    qpruntime.PrecisionPosterior, qpruntime.inference.precision.cholesky.Pattern,
    qpruntime.effects.EffectsModel, qpruntime.infer

    Examples
    --------
    >>> import numpy as np
    >>> from scipy import sparse
    >>> from qpruntime import infer_precision
    >>> clinic = np.repeat(np.arange(4), 5)
    >>> A = sparse.csr_array((np.ones(20), (np.arange(20), clinic)), shape=(20, 4))
    >>> Q = sparse.eye_array(4) / 2.0**2
    >>> y = np.where(np.arange(20) % 4 < 1 + clinic % 2, 1, -1)
    >>> post = infer_precision(A, Q, y, "logistic")
    >>> post.converged, post.latent()[0].round(2).tolist()
    (True, [-0.38, 0.38, -1.24, -0.38])
    """
    projector = Projector(likelihood, choice(method, "method", ("ep", "qp")), table)
    of_rows = projector.likelihood
    A, Q = as_rows(A), as_precision(Q)
    n = A.shape[0]
    if pattern is not None and not pattern.fits(A, Q):
        raise InputError("pattern is of other entries than those of A and Q: make it of these")
    known = projector.likelihood.validate(y)
    if known.shape != (n,) + (known.shape[1:] if projector.likelihood.columns > 1 else ()):
        raise InputError(f"y must have shape ({n},) like the rows of A, got {np.shape(y)}")
    shift = read_offset(offset, known, projector.likelihood)
    limits = Limits.checked(tol, max_sweeps, damping)
    _, weights = check_powers(1.0, weights, projector, n)
    C = _constraint(constraint, Q.shape[0])
    known_log_det = None if log_det is None else number(log_det, "log_det")
    flag(collapse, "collapse")
    is_exact = table is None or (isinstance(table, str) and table == "exact")
    cache: dict[str, Any] = {} if pattern is None else pattern.held
    wanted = collapse and is_exact
    observed = observed_sites(A, shift, known, projector.likelihood, weights, wanted, cache)
    merged = observed.collapsed.merged
    if merged.likelihood is not projector.likelihood:
        projector = Projector(merged.likelihood, method, table)
    projector, numbers = projector.observing(merged.y)
    projector.check_outcomes(numbers)
    chosen = observed.chosen
    if pattern is None:
        if chosen is not None and chosen.size < n:
            A, chosen = A[chosen], None
        pattern = Pattern(A, Q)
        cache.clear()  # nobody will ask for it again
    rows = pattern.rows(A, chosen)
    del A, chosen  # a large part of what rows take
    prior = PrecisionPrior(pattern, rows, pattern.halves(Q), observed.offset, C, known_log_det)
    problem = Problem(prior, numbers, projector, weights=merged.weights)
    start = check_sites(sites, n, problem.nonnegative)
    end = settle(problem, limits, None if start is None else observed.sites_of(start))
    warn_unsettled(end, limits.tol, n)
    assert isinstance(end.factor, PrecisionSolved)
    evidence, log_z = log_evidence(problem, end)
    evidence += observed.constant
    solution = PrecisionSolution(
        sites_held=end.sites,
        here=end.marginals,
        log_z=log_z,
        solved=end.factor,
        seen=observed,
        problem=problem,
        of_rows=of_rows,
    )
    worst = observed.row_of(end.worst)
    outcome = report_of(problem.projector, end, n, evidence, worst=worst)
    return PrecisionPosterior._of(outcome, solution)


def _constraint(constraint: ArrayLike | None, k: int) -> Array | None:
    if constraint is None:
        return None
    rows = finite(
        constraint.toarray() if hasattr(constraint, "toarray") else constraint, "constraint"
    )
    rows = np.atleast_2d(rows)
    if rows.ndim != 2 or rows.shape[1] != k or not rows.shape[0]:
        raise InputError(f"constraint must have shape (m, {k}), got {rows.shape}")
    if len(rows) > k:
        raise InputError(f"{len(rows)} constraints on {k} latent values: some follow from others")
    return np.ascontiguousarray(rows)
