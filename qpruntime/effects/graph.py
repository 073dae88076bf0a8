"""Neighbours of areas: as a matrix, as a mapping, or as pairs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from qpruntime.effects.levels import numbers_of, sorted_levels
from qpruntime.errors import InputError

__all__ = ["Graph"]


class Graph:
    """Which areas are neighbours, and in which connected parts they lie.

    Parameters
    ----------
    graph : array-like or sparse (n, n), mapping, or sequence of pairs
        Symmetric weights, 0 for no neighbours; or the neighbours of every area; or pairs of
        neighbours.
    levels : array-like, shape (n,), optional
        Areas of a matrix's rows, by default 0, 1, ...; with pairs, areas besides those in them.

    Attributes
    ----------
    levels : ndarray, shape (n,)
    weights : sparse (n, n)
    part : ndarray of int, shape (n,)
        Number of the connected part of every area, -1 for an island, which has no neighbours.
    parts : int
    """

    def __init__(self, graph: Any, levels: Any = None) -> None:
        if isinstance(graph, Graph):
            vars(self).update(vars(graph))
            return
        self.levels, W = _read(graph, levels)
        if not (np.isfinite(W.data).all() and (W.data >= 0.0).all()):
            raise InputError("weights of a graph must be finite numbers of at least 0")
        W = sparse.csr_array(W - sparse.diags_array(W.diagonal()))
        W.eliminate_zeros()
        gap = sparse.coo_array(abs(W - W.T))
        if gap.nnz and gap.data.max() > 1e-12 * W.data.max():
            k = int(np.argmax(gap.data))
            a, b = self.levels[gap.row[k]], self.levels[gap.col[k]]
            raise InputError(
                f"a graph must be symmetric, and {a!r} and {b!r} are neighbours one way only: take "
                "the larger of W and its transpose"
            )
        self.weights = sparse.csr_array(W)
        count, part = connected_components(self.weights, directed=False)
        sizes = np.bincount(part, minlength=count)
        number = np.where(sizes > 1, np.cumsum(sizes > 1) - 1, -1)
        self.part, self.parts = number[part], int((sizes > 1).sum())

    def __getstate__(self) -> dict[str, Any]:
        W = self.weights
        return {**vars(self), "weights": (W.data, W.indices, W.indptr)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        n = len(self.levels)
        self.weights = sparse.csr_array(state["weights"], shape=(n, n))
        self.weights.check_format(full_check=True)

    @property
    def size(self) -> int:
        """Number of areas."""
        return len(self.levels)

    @property
    def islands(self) -> NDArray[Any]:
        """Areas without neighbours."""
        return self.levels[self.part < 0]

    def laplacian(self, part: int) -> tuple[sparse.csc_array, NDArray[np.intp]]:
        """Degrees less weights of one connected part, and the numbers of its areas."""
        where = np.flatnonzero(self.part == part)
        W = self.weights[where][:, where]
        return sparse.csc_array(sparse.diags_array(np.asarray(W.sum(axis=1)).ravel()) - W), where


def _read(graph: Any, levels: Any) -> tuple[NDArray[Any], sparse.csr_array]:
    if isinstance(graph, Mapping):
        names = list(graph)
        known = set(names)
        for area, neighbours in graph.items():
            for one in neighbours:
                if one not in known:
                    raise InputError(f"{area!r} has the neighbour {one!r}, which the graph lacks")
        found = sorted_levels(np.array(names))
        pairs = [(a, b) for a, own in graph.items() for b in own]
        return found, _of_pairs(pairs, found, both=False)
    if sparse.issparse(graph) or _is_square(graph):
        W = sparse.csr_array(
            graph if sparse.issparse(graph) else np.asarray(graph, dtype=float), dtype=float
        )
        if W.shape[0] != W.shape[1]:
            raise InputError(f"a graph's matrix must be square, got {W.shape}")
        found = np.arange(W.shape[0]) if levels is None else np.asarray(levels)
        if found.shape != (W.shape[0],) or len(sorted_levels(found)) != len(found):
            raise InputError(
                f"levels must name each of the graph's {W.shape[0]} rows once, got shape "
                f"{found.shape} with {len(sorted_levels(found))} different ones"
            )
        return found, W
    try:
        pairs = [(a, b) for a, b in graph]
    except (TypeError, ValueError) as error:
        raise InputError(
            "graph must be a square matrix, a mapping of areas to their neighbours, or pairs"
        ) from error
    flat = [one for pair in pairs for one in pair]
    found = sorted_levels(np.array(flat + ([] if levels is None else list(levels))))
    return found, _of_pairs(pairs, found, both=True)


def _is_square(graph: Any) -> bool:
    try:
        shape = np.shape(graph)
    except ValueError:
        return False
    return len(shape) == 2 and (shape[0] == shape[1] != 2 or isinstance(graph, np.ndarray))


def _of_pairs(pairs: list[Any], levels: NDArray[Any], both: bool) -> sparse.csr_array:
    first = numbers_of(np.array([a for a, _ in pairs]), levels)
    second = numbers_of(np.array([b for _, b in pairs]), levels)
    n = len(levels)
    W = sparse.csr_array((np.ones(len(pairs)), (first, second)), shape=(n, n))
    W.data[:] = 1.0
    if both:
        W = sparse.csr_array(W.maximum(W.T))
    return W
