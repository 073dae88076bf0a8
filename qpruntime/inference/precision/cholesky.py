"""Sparse Cholesky factors of a precision: patterns, and values in double or single precision."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache, cached_property, partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.linalg import lapack

from qpruntime._memory import require
from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import number, shown
from qpruntime.errors import InputError
from qpruntime.inference.precision.cholesky_kernels import (
    factorise,
    log_determinant,
    routines,
    selected_inverse,
    solve,
    solve_upper,
)
from qpruntime.inference.precision.pattern_kernels import pair_places, placed, places, sort_rows
from qpruntime.inference.precision.symbolic_kernels import (
    count_rows,
    elimination_order,
    fill_rows,
    join,
    postorder,
    tree,
)

__all__ = [
    "Factorised",
    "MatrixLike",
    "Pattern",
    "Shape",
    "SparseRows",
    "Symbolic",
    "analyse",
    "as_precision",
    "as_rows",
    "raise_kept",
    "single_routines",
]

# --- Sparsity patterns of rows and a precision, and the layout of their Cholesky factor.
#
# A pattern has the order of elimination, the shape of the factor, and the places in the factor of
# the precision's entries and of the pairs of each row's columns. It is made once and serves all
# values of hyper-parameters.
#
# A supernode is a run of columns with the same rows below them. Its panel has these columns with
# their own rows first, then the `rows` below; panels are column-major in one array. Columns are
# numbered in the order of elimination.

# --- Symbolic analysis: the layout of the factor

Index = NDArray[np.int64]

#: Supernodes of up to so many columns are joined, if at most this share of the joint panel is
#: zeros.
_JOINED = ((4, 0.5), (16, 0.3), (48, 0.1), (1 << 62, 0.05))
#: Number of operations above which a factorisation is refused.
_MOST = 5e10


@restorable("shape/1")
class Shape(NamedTuple):
    """Layout that kernels take from the symbolic analysis; S supernodes of n columns.

    first : (S + 1,), first columns
    panels : (S + 1,), where panels begin
    below : (S + 1,), where the rows below begin in `rows`
    rows : ascending in every supernode
    owner : (n,), the supernode of every column
    children : (S,), how many supernodes hand their update to this one
    """

    first: Index
    panels: Index
    below: Index
    rows: Index
    owner: Index
    children: Index


@restorable("symbolic/1")
class Symbolic(NamedTuple):
    """Analysis of one pattern.

    order : (n,), columns in the order of their elimination; `place` is its inverse
    shape : Shape
    stack : numbers that the stack of update matrices takes at most
    flops : operations of a factorisation
    """

    order: Index
    place: Index
    shape: Shape
    stack: int
    flops: float

    @property
    def size(self) -> int:
        """Numbers in all panels."""
        return int(self.shape.panels[-1])


def analyse(
    pattern: sparse.csr_array,
    order: Index | None = None,
    operations: float | None = None,
) -> Symbolic:
    """Analyse a symmetric pattern (n, n) that has its diagonal.

    Parameters
    ----------
    pattern : csr_array
    order : ndarray, optional
        Known order of elimination, by default that of minimum degree.
    operations : float, optional
        Largest number of operations of a factorisation, by default 5e10.

    Raises
    ------
    InputError
        If the factorisation would take more operations, or more memory than there is.
    """
    n = pattern.shape[0]
    indptr, indices = (np.asarray(a, dtype=np.int64) for a in (pattern.indptr, pattern.indices))
    if order is None:
        order = elimination_order(pattern)
    order = np.asarray(order, dtype=np.int64)
    place = np.empty(n, dtype=np.int64)
    place[order] = np.arange(n)
    parent = tree(indptr, indices, order, place)
    post = postorder(parent)
    order = order[post]
    place[order] = np.arange(n)
    back = np.empty(n, dtype=np.int64)
    back[post] = np.arange(n)
    parent = np.where(parent[post] < 0, -1, back[parent[post]])
    most = _MOST if operations is None else operations
    counts, done = count_rows(indptr, indices, order, place, parent, most)
    flops = float((counts.astype(float) ** 2).sum())
    if not done or flops > most:
        _refuse(n, counts, order, flops, most)
    first = join(parent, counts, _JOINED)
    owner = np.repeat(np.arange(first.size - 1), np.diff(first))
    below_count = counts[first[1:] - 1] - 1
    widths = np.diff(first)
    panels = np.concatenate([[0], np.cumsum(widths * (widths + below_count))])
    below = np.concatenate([[0], np.cumsum(below_count)])
    require(16.0 * float(panels[-1]), f"the factor of {n} columns", _REMEDY)
    rows, children, stack = fill_rows(indptr, indices, order, place, first, below, owner)
    # SciPy sorts: a sort within a kernel takes a second to compile.
    by_supernode = sparse.csr_array(
        (np.empty(rows.size, bool), rows, below), shape=(first.size - 1, n)
    )
    by_supernode.sort_indices()
    rows = by_supernode.indices.astype(np.int64)
    shape = Shape(first, panels, below, rows, owner, children)
    return Symbolic(order, place, shape, int(stack), flops)


_REMEDY = "leave out terms that meet all levels of another one, or merge levels"


def _refuse(n: int, counts: Index, order: Index, flops: float, most: float) -> None:
    full = int(np.count_nonzero(counts >= np.arange(n, 0, -1)))
    # If counting ended early, the operations are those of the counted columns.
    raise InputError(
        f"the factor of {n} columns takes {flops:.2g} operations at least, more than {most:.0e}: "
        f"elimination couples the last {max(full, int(counts.max()))} columns, column "
        f"{int(order[-1])} among them, with each other; {_REMEDY}, of crossed terms those of the "
        "smaller, or allow more by operations="
    )


# --- Patterns of rows and precisions

#: Matrices of users, dense or sparse.
MatrixLike: TypeAlias = ArrayLike | sparse.sparray | sparse.spmatrix

#: Two mirrored entries of a precision differ if their gap exceeds this share of the larger one.
_SYMMETRIC = 1e-8


@restorable("sparse-rows/1")
class SparseRows(NamedTuple):
    """Rows as kernels take them: columns in the order of elimination, and places of their pairs."""

    indptr: NDArray[np.int64]
    columns: NDArray[np.int32]
    values: Array
    pairs: NDArray[np.integer]


class _RowPattern(NamedTuple):
    """Rows without values: `order` says where these are in the data of A."""

    indptr: NDArray[np.int64]
    columns: NDArray[np.int32]
    order: NDArray[np.integer]
    pairs: NDArray[np.integer]

    def of(self, A: sparse.csr_array) -> SparseRows:
        """Return the rows with the values of A."""
        return SparseRows(self.indptr, self.columns, A.data[self.order], self.pairs)


def as_rows(A: MatrixLike, name: str = "A") -> sparse.csr_array:
    """Return sparse rows of finite numbers, or raise `InputError`."""
    try:
        rows = A if isinstance(A, sparse.csr_array) else sparse.csr_array(A)
        if rows.dtype != np.float64:
            rows = rows.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be a matrix of numbers, got {shown(A)}") from error
    if rows.ndim != 2:
        raise InputError(f"{name} must have two dimensions, got {rows.ndim}")
    if not rows.has_canonical_format:
        rows = sparse.csr_array(rows, copy=rows is A)
        rows.sum_duplicates()
    if not np.isfinite(rows.data).all():
        row = int(np.searchsorted(rows.indptr, np.argmin(np.isfinite(rows.data)), "right")) - 1
        raise InputError(f"{name} must be finite, and row {row} is not")
    return rows


def as_precision(Q: MatrixLike) -> sparse.csr_array:
    """Return a square sparse matrix of finite numbers, or raise `InputError`."""
    precision = as_rows(Q, "Q")
    if precision.shape[0] != precision.shape[1] or not precision.shape[0]:
        raise InputError(f"Q must be square, a precision of K latent values; got {precision.shape}")
    return precision


@restorable("precision-pattern/1")
class Pattern:
    """Analysis of rows A (N, K) and a precision Q (K, K) of any values.

    Parameters
    ----------
    A : sparse array, shape (N, K)
    Q : sparse array, shape (K, K)
        Symmetric. Stored entries are part of the pattern, even if they are zero.
    operations : float, optional
        Largest number of operations of a factorisation, by default 5e10, which take two to three
        seconds on one core.
    order : ndarray, shape (K,), optional
        Known order of elimination, by default that of minimum degree.

    Attributes
    ----------
    symbolic : Symbolic
    n, k : int
        Numbers of rows and columns of A.

    Raises
    ------
    InputError
        If A and Q do not match, Q's pattern is not symmetric, or the factor would be too large.

    See Also
    --------
    qpruntime.infer_precision, qpruntime.inference.precision.iterate.Nearby

    Examples
    --------
    >>> import numpy as np
    >>> from scipy import sparse
    >>> from qpruntime import infer_precision
    >>> from qpruntime.inference.precision.cholesky import Pattern
    >>> A = sparse.csr_array(np.repeat(np.eye(4), 5, axis=0))
    >>> Q = sparse.eye_array(4) / 2.0**2
    >>> y = np.where(np.arange(20) % 4 < 1 + np.arange(20) // 5 % 2, 1, -1)
    >>> pattern = Pattern(A, Q)
    >>> scales = (0.5, 1.0, 2.0)
    >>> posteriors = [infer_precision(A, s * Q, y, "logistic", pattern=pattern) for s in scales]
    >>> [round(post.log_evidence, 2) for post in posteriors]
    [-17.15, -16.13, -15.31]
    """

    def __init__(
        self,
        A: MatrixLike,
        Q: MatrixLike,
        *,
        operations: float | None = None,
        order: NDArray[np.int64] | None = None,
    ) -> None:
        if operations is not None:
            operations = number(operations, "operations", above=0.0)
        a, q = as_rows(A), as_precision(Q)
        if a.shape[1] != q.shape[0]:
            raise InputError(f"A has {a.shape[1]} columns, and Q {q.shape[0]}: they must agree")
        self.n, self.k = a.shape
        self._a, self._q = (a.indptr, a.indices), (q.indptr, q.indices)
        ones_of_a = sparse.csr_array((np.ones(a.nnz), a.indices, a.indptr), shape=a.shape)
        ones_of_q = sparse.csr_array((np.ones(q.nnz), q.indices, q.indptr), shape=q.shape)
        mirrored = ones_of_q.T.tocsr()
        mirrored.sort_indices()
        if not _same(self._q, mirrored):
            raise InputError("Q must be symmetric: some of its entries have no mirror image")
        identity = sparse.eye_array(self.k, format="csr")
        joined = sparse.csr_array(ones_of_a.T @ ones_of_a + ones_of_q + identity)
        joined.sort_indices()
        self.symbolic: Symbolic = analyse(joined, order, operations)
        shape, place = self.symbolic.shape, self.symbolic.place
        self._kind = np.dtype(np.int32 if self.symbolic.size < 2**31 else np.int64)
        row = place[np.repeat(np.arange(self.k), np.diff(q.indptr))]
        column = place[q.indices]
        self.entries = np.empty(q.nnz, dtype=self._kind)
        places(tuple(shape), row, column, self.entries)
        self.lower_entries, self.mirrored_entries = self._halves(row, column)
        self.lower = self.entries[self.lower_entries]
        #: Results of other modules on these rows, by name.
        self.held: dict[str, Any] = {}
        self._subset: tuple[NDArray[np.intp] | None, _RowPattern] | None = None

    def _halves(
        self, row: NDArray[np.integer], column: NDArray[np.integer]
    ) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
        """Return entries of the lower triangle, and their mirror images."""
        low, high = np.flatnonzero(row >= column), np.flatnonzero(row <= column)
        low = low[np.argsort(self.entries[low], kind="stable")]
        high = high[np.argsort(self.entries[high], kind="stable")]
        return low, high

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "held": {}, "_subset": None}

    def pairs_of(
        self, indptr: NDArray[np.integer], columns: NDArray[np.integer]
    ) -> NDArray[np.integer]:
        """Return places of the pairs of rows whose columns are in the order of elimination."""
        widths = np.diff(indptr)
        pair_entries: NDArray[np.integer] = np.empty(
            int((widths * (widths + 1) // 2).sum()), dtype=self._kind
        )
        if pair_places(tuple(self.symbolic.shape), indptr, columns, pair_entries) >= 0:
            return pair_entries[:0]
        return pair_entries

    def fits(self, A: sparse.csr_array, Q: sparse.csr_array) -> bool:
        """Decide whether this is the pattern of these matrices."""
        return _same(self._a, A) and _same(self._q, Q) and (self.n, self.k) == A.shape

    def rows(self, A: sparse.csr_array, chosen: NDArray[np.intp] | None = None) -> SparseRows:
        """Return rows of this pattern, all or chosen ones in any order, for kernels."""
        known = self._subset
        if known is None or not _alike(known[0], chosen):
            wanted = np.arange(A.shape[0]) if chosen is None else chosen
            known = self._subset = chosen, self._sorted(A, wanted)
        return known[1].of(A)

    def _sorted(self, A: sparse.csr_array, chosen: NDArray[np.intp]) -> _RowPattern:
        starts = np.zeros(chosen.size + 1, dtype=np.int64)
        np.cumsum(np.diff(A.indptr)[chosen], out=starts[1:])
        columns = np.empty(starts[-1], dtype=np.int32)
        order = np.empty(starts[-1], dtype=np.int32 if A.nnz < 2**31 else np.int64)
        place = self.symbolic.place
        sort_rows(A.indptr, A.indices, place, chosen, starts, columns, order)
        return _RowPattern(starts, columns, order, self.pairs_of(starts, columns))

    def new_rows(self, A: sparse.csr_array) -> SparseRows:
        """Return other rows; they have no pairs if some pair has no place in the factor."""
        return self._sorted(A, np.arange(A.shape[0])).of(A)

    def placed(self, rows: SparseRows) -> NDArray[np.bool_]:
        """Return which rows have places in the factor for all their pairs, shape (N,)."""
        is_placed = np.empty(rows.indptr.size - 1, dtype=np.bool_)
        placed(tuple(self.symbolic.shape), rows.indptr, rows.columns, is_placed)
        return is_placed

    def halves(self, Q: sparse.csr_array) -> Array:
        """Return values of the lower triangle, in the order of `lower`, or raise `InputError`."""
        lower: Array = Q.data[self.lower_entries]
        mirrored = Q.data[self.mirrored_entries]
        gap = np.abs(lower - mirrored)
        if gap.size and not (gap <= _SYMMETRIC * np.abs(Q.data).max()).all():
            raise InputError(f"Q must be symmetric: mirrored entries differ by {gap.max():g}")
        return lower

    @property
    def of_q(self) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
        """First entry of each row, and columns, of Q's entries."""
        return self._q

    @cached_property
    def diagonal(self) -> NDArray[np.integer]:
        """Places of the diagonal, in the given order of columns."""
        diagonal_entries = np.empty(self.k, dtype=self._kind)
        place = self.symbolic.place
        places(tuple(self.symbolic.shape), place, place, diagonal_entries)
        return diagonal_entries

    @cached_property
    def coordinates(self) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
        """Rows and columns of Q's entries, in the given order of columns."""
        indptr, indices = self._q
        return np.repeat(np.arange(self.k), np.diff(indptr)), indices

    @cached_property
    def of_prior(self) -> tuple[Symbolic, NDArray[np.integer]]:
        """Analysis of Q alone in the same order, and the places of its lower triangle."""
        indptr, indices = self._q
        structure = sparse.csr_array(
            (np.ones(indices.size), indices, indptr), shape=(self.k, self.k)
        )
        structure = sparse.csr_array(structure + sparse.eye_array(self.k, format="csr"))
        structure.sort_indices()
        # The factor of Q alone takes no more operations than the one that was allowed.
        symbolic = analyse(structure, order=self.symbolic.order, operations=np.inf)
        row = np.repeat(np.arange(self.k), np.diff(indptr))[self.lower_entries]
        at = np.empty(self.lower_entries.size, dtype=np.int64)
        places(
            tuple(symbolic.shape),
            symbolic.place[row],
            symbolic.place[indices[self.lower_entries]],
            at,
        )
        return symbolic, at


def _same(known: tuple[NDArray[np.integer], NDArray[np.integer]], matrix: sparse.csr_array) -> bool:
    pairs = zip(known, (matrix.indptr, matrix.indices), strict=True)
    return all(a is b or (a.shape == b.shape and bool((a == b).all())) for a, b in pairs)


def _alike(known: NDArray[np.intp] | None, chosen: NDArray[np.intp] | None) -> bool:
    """Decide whether two choices of rows are the same."""
    if known is None or chosen is None:
        return known is chosen
    return known is chosen or np.array_equal(known, chosen)


# --- Factorised sparse matrix


@restorable("factorised/1")
class Factorised:
    """Cholesky factor of a matrix whose columns are in the order of elimination.

    Parameters
    ----------
    symbolic : Symbolic
    panels : ndarray
        The matrix at its places, with zeros elsewhere; the factor replaces it.
    single : bool
        Whether large dense blocks are factorised and inverted in single precision.

    Attributes
    ----------
    failed : int
        First column, in the order of elimination, at which the matrix is not positive definite; -1
        if there is none.
    """

    def __init__(self, symbolic: Symbolic, panels: Array, single: bool = False) -> None:
        self.symbolic, self.panels, self.single = symbolic, panels, single
        self._shape = tuple(symbolic.shape)
        stack = np.empty(max(symbolic.stack, 1))
        self.failed = int(factorise(self._shape, panels, self._routines(), stack))
        raise_kept()

    @cached_property
    def log_det(self) -> float:
        """Log determinant of the matrix."""
        return float(log_determinant(self._shape, self.panels))

    def solve(self, right: Array) -> Array:
        """Return the inverse times `right`, (n,) or (n, T)."""
        solution = np.ascontiguousarray(right).reshape(len(right), -1).copy()
        solve(self._shape, self.panels, solution)
        return solution.reshape(right.shape)

    def root(self, right: Array) -> Array:
        """Return L^-T times `right` (n, T): draws with this precision from normals."""
        draws = right.copy()
        solve_upper(self._shape, self.panels, draws)
        return draws

    def inverse(self) -> Array:
        """Return the panels of the inverse at the places of the factor's numbers."""
        panels = np.zeros(self.panels.size)
        shape = self.symbolic.shape
        rows, columns = np.diff(shape.below), np.diff(shape.first)
        widest = int(rows.max(initial=0)), int((rows * columns).max(initial=0))
        selected_inverse(self._shape, self.panels, panels, self._routines(), widest)
        raise_kept()
        return panels

    def _routines(self) -> tuple[int, ...]:
        return single_routines() if self.single else routines()


def filled(size: int, places: NDArray[np.integer], values: Array) -> Array:
    """Return panels that hold these values at these places."""
    panels = np.zeros(size)
    panels[places] = values
    return panels


# --- Dense blocks in single precision
#
# Steps whose sites are needed to about 1e-4 use single precision. Kernels call these routines as
# they call those of LAPACK. A block is left to LAPACK if it is small, not definite in single
# precision, or if there is no memory for a copy. An interruption cannot pass through a kernel, so
# it is kept here and raised after the kernel has ended.

#: Sides from which on single precision pays for its copies.
_SIDE = 512
_KIND = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 5)
#: Exceptions that were raised while a kernel had to go on.
_KEPT: list[BaseException] = []


def raise_kept() -> None:
    """Raise the exception that interrupted a kernel since the last call."""
    if _KEPT:
        error = _KEPT[0]
        _KEPT.clear()
        raise error


@cache
def single_routines() -> tuple[int, ...]:
    """Return the addresses of `routines`, with a factor and an inverse in single precision."""
    known = routines()
    single_addresses = [
        ctypes.cast(callback, ctypes.c_void_p).value or 0 for callback in _callbacks()
    ]
    return (*single_addresses, *known[2:])


@cache
def _callbacks() -> tuple[Any, Any]:
    """Return the callbacks, which have to live as long as their addresses are in use."""
    potrf, potri = routines()[:2]
    factor = partial(lapack.spotrf, lower=1, overwrite_a=1)
    inverse = partial(lapack.spotri, lower=1, overwrite_c=1)
    return _KIND(_in_single(potrf, factor)), _KIND(_in_single(potri, inverse))


def _in_single(exact: int, routine: Callable[..., tuple[Any, int]]) -> Callable[..., None]:
    """Return a routine (letter, n, a, lda, info) of pointers that works in single precision."""
    double = _KIND(exact)

    def run(letter: int, n: int, a: int, lda: int, info: int) -> None:
        """Replace a large matrix in single precision, a small or failing one in double."""
        try:
            side = ctypes.c_int.from_address(n).value
            if side >= _SIDE and _replaced(routine, side, a, ctypes.c_int.from_address(lda).value):
                ctypes.c_int.from_address(info).value = 0
                return
        except MemoryError:
            pass
        except BaseException as error:
            _KEPT.append(error)
        double(letter, n, a, lda, info)

    return run


def _replaced(routine: Callable[..., tuple[Any, int]], side: int, a: int, ld: int) -> bool:
    """Replace the matrix at an address by the routine's result; return whether it did."""
    size = ld * (side - 1) + side
    flat = np.ctypeslib.as_array((ctypes.c_double * size).from_address(a))
    steps = (flat.itemsize, ld * flat.itemsize)
    block = np.lib.stride_tricks.as_strided(flat, (side, side), steps)
    result, failed = routine(block.astype(np.float32, order="F"))
    if not failed:
        block[:] = result
    return not failed
