"""Layout of a sparse Cholesky factor: supernodes, their rows and the size of the stack.

A supernode is a run of columns with the same rows below them. Its panel has these columns with
their own rows first, then the `rows` below; panels are column-major in one array. Columns are
numbered in the order of elimination.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from qpruntime._memory import require
from qpruntime._restorable import restorable
from qpruntime.errors import InputError
from qpruntime.inference.precision.symbolic_kernels import (
    Ordering,
    count_rows,
    elimination_order,
    fill_rows,
    join,
    postorder,
    tree,
)

__all__ = ["Shape", "Symbolic", "analyse"]

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
    ordering: Ordering = "mmd",
    order: Index | None = None,
    operations: float | None = None,
) -> Symbolic:
    """Analyse a symmetric pattern (n, n) that has its diagonal.

    Parameters
    ----------
    pattern : csr_array
    ordering : {"mmd", "natural"}
    order : ndarray, optional
        Known order of elimination.
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
        order = elimination_order(pattern, ordering)
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
