"""Check of a precision posterior read from a file: kernels follow its indices without checks."""

from __future__ import annotations

from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from qpruntime._typing import Array
from qpruntime.inference.precision.cholesky import Factorised, Pattern, Symbolic
from qpruntime.inference.precision.solution import PrecisionSolution
from qpruntime.inference.precision.solver import PrecisionPrior

__all__ = ["check_indices"]

#: Largest number of operations that the inference was allowed.
_ANY = 1e300

Indices = NDArray[np.integer]


def check_indices(solution: PrecisionSolution) -> None:
    """Raise `ValueError` unless all indices are those of an analysis of A and Q.

    A wrong index would make a kernel read or write beyond an array. The analysis takes a fraction
    of the time of a factorisation.
    """
    solved = solution.solved
    for prior in (solved.prior, solution.problem.prior):
        if not isinstance(prior, PrecisionPrior):
            raise ValueError("the prior of another model")
        _check_prior(prior)
    _check_factor(solved.factor, solved.prior.pattern.symbolic)
    count = len(solved.prior.offset)
    for values in (*solution.sites_held, *solution.here, solution.log_z, solved.tau, solved._nu):
        _require(values.shape == (count,), "sites")
    _require(len(solution.problem.y) == count, "observations")


def _check_prior(prior: PrecisionPrior) -> None:
    pattern, rows = prior.pattern, prior.rows
    fresh = _analysed_again(pattern)
    for name, value in vars(pattern).items():
        if name not in ("held", "_subset"):
            _require(_equal(value, getattr(fresh, name)), f"the pattern's {name}")
    begins, columns = rows.indptr, rows.columns
    _require(_ascends(begins, columns.size) and columns.shape == rows.values.shape, "rows")
    _require(bool(((columns >= 0) & (columns < pattern.k)).all()), "columns")
    _require(_equal(rows.pairs, fresh.pairs_of(begins, columns)), "pairs of columns")
    _require(prior.q.shape == pattern.lower.shape, "the precision")
    _require(prior.offset.shape == (begins.size - 1,), "offsets")
    if prior.constraint is not None:
        _require(prior.constraint.shape[1:] == (pattern.k,), "constraints")
    if "own" in vars(prior):
        _check_factor(prior.own, fresh.of_prior[0])


def _analysed_again(pattern: Pattern) -> Pattern:
    """Return the pattern of the same A and Q in the same order of elimination."""
    A, Q = (_ones(begins, columns, pattern.k) for begins, columns in (pattern._a, pattern.of_q))
    _require(A.shape == (pattern.n, pattern.k) and Q.shape[0] == pattern.k, "sizes")
    order = pattern.symbolic.order
    _require(np.array_equal(np.sort(order), np.arange(pattern.k)), "the order of elimination")
    return Pattern(A, Q, operations=_ANY, order=order)


def _ones(begins: Indices, columns: Indices, width: int) -> sparse.csr_array:
    _require(_ascends(begins, columns.size), "rows")
    _require(bool(((columns >= 0) & (columns < width)).all()), "columns")
    return sparse.csr_array((np.ones(columns.size), columns, begins), (begins.size - 1, width))


def _ascends(begins: Indices, end: int) -> bool:
    """Decide whether rows begin at 0, ascend and end at `end`."""
    known = begins.ndim == 1 and begins.size > 0 and begins[0] == 0 and begins[-1] == end
    return bool(known) and bool((np.diff(begins) >= 0).all())


def _check_factor(factor: Factorised, symbolic: Symbolic) -> None:
    _require(_equal(factor.symbolic, symbolic), "the factor's pattern")
    _require(_equal(factor._shape, tuple(symbolic.shape)), "the factor's shape")
    _require(_equal_kind(factor.panels, np.empty(symbolic.size)), "the factor")


def _equal_kind(one: object, other: Array) -> TypeGuard[Array]:
    return isinstance(one, np.ndarray) and one.shape == other.shape and one.dtype == other.dtype


def _equal(one: object, other: object) -> bool:
    """Decide whether two trees of tuples, arrays and numbers are equal."""
    if isinstance(other, tuple):
        return isinstance(one, tuple) and len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(other, np.ndarray):
        return _equal_kind(one, other) and bool((one == other).all())
    return bool(one == other)


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"{what} of another model")
