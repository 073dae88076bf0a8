"""Kernels over sparse rows: products with latent values, sums over pairs of a row's columns.

Rows are `indptr`, `columns`, `values` with columns ascending in the order of elimination. `pairs`
has, row after row, the places in the panels of all pairs of a row's columns: for each column those
at or after it.
"""

from __future__ import annotations

from qpruntime.jit import contracted, kernel

__all__ = [
    "add_rows",
    "back",
    "entry_coordinates",
    "pair_places",
    "place_of",
    "placed",
    "places",
    "sort_rows",
    "squares",
    "times",
]


@kernel
def place_of(shape, i, j):
    """Return where the entry of row i and column j <= i stands in the panels, or -1."""
    first, begins, below, rows, owner = shape[0], shape[1], shape[2], shape[3], shape[4]
    s = owner[j]
    c0, end = first[s], first[s + 1]
    nc, low, high = end - c0, below[s], below[s + 1]
    ld = nc + high - low
    start = begins[s] + (j - c0) * ld
    if i < end:
        return start + i - c0
    b0 = low
    while low < high:
        middle = (low + high) // 2
        if rows[middle] < i:
            low = middle + 1
        else:
            high = middle
    if low < below[s + 1] and rows[low] == i:
        return start + nc + low - b0
    return -1


@kernel
def places(shape, i, j, out):
    """Fill places of entries, of either triangle; -1 where the panels have none."""
    for k in range(i.size):
        out[k] = place_of(shape, max(i[k], j[k]), min(i[k], j[k]))


@kernel
def sort_rows(indptr, indices, place, chosen, starts, columns, order):
    """Fill columns of chosen rows by their places, ascending, and where their values are."""
    for k in range(chosen.size):
        begin = starts[k]
        end = begin
        for p in range(indptr[chosen[k]], indptr[chosen[k] + 1]):
            column, q = place[indices[p]], end
            while q > begin and columns[q - 1] > column:
                columns[q], order[q] = columns[q - 1], order[q - 1]
                q -= 1
            columns[q], order[q] = column, p
            end += 1


@kernel
def pair_places(shape, indptr, columns, out):
    """Fill the places of all pairs of every row; return a row with a pair that has none, or -1."""
    q = 0
    for n in range(indptr.size - 1):
        for a in range(indptr[n], indptr[n + 1]):
            for b in range(a, indptr[n + 1]):
                place = place_of(shape, columns[b], columns[a])
                if place < 0:
                    return n
                out[q] = place
                q += 1
    return -1


@kernel
def entry_coordinates(indptr, columns, index, i, j):
    """Fill row and column of the entries that pairs of rows stand for."""
    q = 0
    for n in range(indptr.size - 1):
        for a in range(indptr[n], indptr[n + 1]):
            for b in range(a, indptr[n + 1]):
                i[index[q]], j[index[q]] = columns[b], columns[a]
                q += 1


@kernel
def placed(shape, indptr, columns, found):
    """Fill whether all pairs of a row have places."""
    for n in range(found.size):
        found[n] = True
        for a in range(indptr[n], indptr[n + 1]):
            for b in range(a, indptr[n + 1]):
                if found[n] and place_of(shape, columns[b], columns[a]) < 0:
                    found[n] = False


@contracted
def add_rows(panels, indptr, values, pairs, tau):
    """Add A^T diag(tau) A."""
    q = 0
    for n in range(tau.size):
        end = indptr[n + 1]
        for a in range(indptr[n], end):
            weight = tau[n] * values[a]
            for b in range(a, end):
                panels[pairs[q]] += weight * values[b]
                q += 1


@contracted
def squares(inverse, indptr, values, pairs, out):
    """Fill a_n^T Z a_n of every row."""
    q = 0
    for n in range(out.size):
        end, total = indptr[n + 1], 0.0
        for a in range(indptr[n], end):
            own, others = values[a] * inverse[pairs[q]], 0.0
            q += 1
            for b in range(a + 1, end):
                others += values[b] * inverse[pairs[q]]
                q += 1
            total += values[a] * (own + 2.0 * others)
        out[n] = total


@contracted
def times(indptr, columns, values, x, out):
    """Fill A x."""
    for n in range(out.size):
        total = 0.0
        for p in range(indptr[n], indptr[n + 1]):
            total += values[p] * x[columns[p]]
        out[n] = total


@contracted
def back(indptr, columns, values, w, out):
    """Fill A^T w."""
    out[:] = 0.0
    for n in range(w.size):
        for p in range(indptr[n], indptr[n + 1]):
            out[columns[p]] += values[p] * w[n]
