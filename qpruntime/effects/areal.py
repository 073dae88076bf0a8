"""Effects of areas: ICAR, BYM2 and adjacency graphs."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import choice, shown
from qpruntime.dataframes.levels import numbers_of, sorted_levels
from qpruntime.dataframes.readers import ColumnLike, DataColumns
from qpruntime.effects.intrinsic import ScaledStructure, scaled, stiffened
from qpruntime.effects.term import (
    DEVIATION,
    LOG_DEVIATION,
    BlockPattern,
    EffectBlock,
    Term,
    UniformShare,
    deviation_prior,
)
from qpruntime.errors import InputError

__all__ = [
    "Areas",
    "AreasBlock",
    "Graph",
]


#: A matrix of weights, the neighbours of each area, or pairs of neighbours.
Neighbours: TypeAlias = (
    ArrayLike
    | sparse.sparray
    | Mapping[Hashable, Iterable[Hashable]]
    | Iterable[tuple[Hashable, Hashable]]
)


@restorable("areas/1")
class Areas(Term):
    """Effects of areas on a map.

    Parameters
    ----------
    column : str or int
        The area of each row.
    graph : Graph, array-like or sparse (n, n), mapping, or sequence of pairs
        Which areas are neighbours; see `Graph`. Areas without rows have effects too.
    levels : array-like, shape (n,), optional
        Areas of a matrix's rows, by default 0, 1, ....
    model : {"bym2", "icar"}
        BYM2 (Riebler et al. 2016): a share phi of the variance resembles neighbours, the rest is
        independent. "icar" is the first part alone, without islands.
    prior : (limit, probability)
        P(sd > limit) = probability; phi is uniform between 0 and 1.

    See Also
    --------
    qpruntime.effects.Graph, qpruntime.plotting.EffectMapDisplay

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime.effects import Areas, EffectsModel
    >>> row = [("A", "B"), ("B", "C"), ("C", "D")]
    >>> data = {"area": np.repeat(["A", "B", "C", "D"], 5)}
    >>> y = np.random.default_rng(0).poisson(np.repeat([2.0, 3.0, 6.0, 8.0], 5))
    >>> model = EffectsModel([Areas("area", row)], "poisson").fit(data, y)
    >>> model.effects("area").names
    ('A', 'B', 'C', 'D')
    """

    def __init__(
        self,
        column: Hashable,
        graph: Neighbours | Graph,
        *,
        levels: ColumnLike | None = None,
        model: str = "bym2",
        prior: tuple[float, float] = DEVIATION,
    ) -> None:
        self.column, self.graph = column, Graph(graph, levels)
        self.model, self.prior = model, prior

    def __repr__(self) -> str:
        return f"Areas({self.column!r}, model={self.model!r})"

    @property
    def name(self) -> str:
        """Name of the part."""
        return f"{self.model}({self.column})"

    def bind(self, data: DataColumns, weights: Array | None = None) -> AreasBlock:
        """Return the block for all areas of the graph."""
        choice(self.model, "model of Areas", ("bym2", "icar"))
        return AreasBlock(self, data)


@restorable("areas-block/1")
class AreasBlock(EffectBlock):
    """A value that resembles neighbours' for every area that has any; then one of its own for all.

    The second kind is that of BYM2 alone.
    """

    def __init__(self, term: Areas, data: DataColumns) -> None:
        self.name, self.column = term.name, term.column
        graph = term.graph
        self.levels, self.mixed = graph.levels, term.model == "bym2"
        n = graph.size
        connected = np.flatnonzero(graph.part >= 0)
        if not connected.size:
            raise InputError(f"no two areas of {self.name} are neighbours: make it a term Groups")
        self.place = np.full(n, -1)
        self.place[connected] = np.arange(len(connected))
        self.island = graph.part < 0
        rows, columns, values, self.parts = [], [], [], []
        constraint = np.zeros((graph.parts, len(connected)))
        for k in range(graph.parts):
            R, where = graph.laplacian(k)
            R = scaled(R, 1)[0]
            self.parts.append(ScaledStructure(R, 1))
            size = R.shape[0]
            entries = sparse.coo_array(stiffened(R, np.full((1, size), 1.0 / np.sqrt(size))))
            at = self.place[where]
            rows.append(at[entries.row])
            columns.append(at[entries.col])
            values.append(entries.data)
            constraint[k, at] = 1.0 / np.sqrt(len(at))
        m = len(connected)
        size = m + (n if self.mixed else 0)
        diagonal = np.arange(size)
        self.pattern = BlockPattern(
            np.concatenate([*rows, diagonal]), np.concatenate([*columns, diagonal]), size
        )
        R = np.concatenate(values)
        zeros, none = np.zeros(size), np.zeros(len(R))
        self.R = self.pattern.added(np.concatenate([R, zeros]))
        epsilon = np.zeros(size)
        for k, part in enumerate(self.parts):
            epsilon[np.flatnonzero(constraint[k])] = part.epsilon
        self.epsilon = self.pattern.added(np.concatenate([none, epsilon]))
        own_part, lone = zeros.copy(), zeros.copy()
        if self.mixed:
            own_part[m:], lone[m:] = ~self.island, self.island
        self.own = self.pattern.added(np.concatenate([none, own_part]))
        self.lone = self.pattern.added(np.concatenate([none, lone]))
        self.constraint = np.pad(constraint, ((0, 0), (0, size - m)))
        self.labels = self.levels[connected]
        if self.mixed:
            self.labels = np.concatenate([self.labels, self.levels])
        self.parameters = ("log sd", "logit phi") if self.mixed else ("log sd",)
        self.priors = (deviation_prior(term.prior), UniformShare())[: len(self.parameters)]
        self.start = np.array([np.log(0.5), 0.0])[: len(self.parameters)]
        self.bounds = np.array([LOG_DEVIATION, (-6.0, 6.0)])[: len(self.parameters)]
        self._codes(data)

    def _codes(self, data: DataColumns) -> NDArray[np.intp]:
        """Return the number of the area of each row."""
        levels = data.levels(self.column)
        codes = numbers_of(levels, self.levels, f"column {shown(self.column)}")
        if (codes < 0).any():
            raise InputError(
                f"area {shown(levels[int(np.argmin(codes))])} of column {shown(self.column)} is "
                f"not in the graph, which has {len(self.levels)} areas such as "
                f"{shown(self.levels[0])}: add it, with its neighbours or as an island"
            )
        return codes

    def columns(self, data: DataColumns) -> sparse.csr_array:
        """One or two ones a row."""
        codes, rows = self._codes(data), np.arange(data.rows)
        near = self.place[codes] >= 0
        i, j = rows[near], self.place[codes[near]]
        if self.mixed:
            i, j = np.append(i, rows), np.append(j, self.size - len(self.levels) + codes)
        shape = (data.rows, self.size)
        return sparse.csr_array((np.ones(len(i)), (i, j)), shape=shape)

    def readings(self) -> tuple[NDArray[Any], sparse.csr_array]:
        """Return the whole effect of every area."""
        if not self.mixed:
            return super().readings()
        n, m = len(self.levels), self.size - len(self.levels)
        near = np.flatnonzero(self.place >= 0)
        i, j = np.append(near, np.arange(n)), np.append(self.place[near], m + np.arange(n))
        return self.levels, sparse.csr_array((np.ones(len(i)), (i, j)), shape=(n, self.size))

    def _shares(self, theta: Array) -> tuple[float, float]:
        """Return phi and 1 - phi."""
        if not self.mixed:
            return 1.0, 0.0
        return 1.0 / (1.0 + np.exp(-theta[1])), 1.0 / (1.0 + np.exp(theta[1]))

    def entries(self, theta: Array) -> tuple[Array, Array]:
        """R/(sd^2 phi), and 1/(sd^2 (1 - phi)) of the areas' own."""
        near, unstructured = self._shares(theta)
        scale = np.exp(-2.0 * theta[0])
        spatial = self.R * (scale / near)
        lone_precision = self.own * (scale / unstructured) if self.mixed else self.own
        lone = self.lone * scale
        slopes = [-2.0 * (spatial + lone_precision + lone)]
        if self.mixed:
            slopes.append(-unstructured * spatial + near * lone_precision)
        return spatial + lone_precision + lone + self.epsilon, np.array(slopes)

    def log_det(self, theta: Array) -> tuple[float, Array]:
        """Log determinant of all parts and of the areas' own effects, and its slope."""
        near, unstructured = self._shares(theta)
        values_and_slopes = [
            part.log_det(float(theta[0] + 0.5 * np.log(near))) for part in self.parts
        ]
        value, slope = sum(v for v, _ in values_and_slopes), sum(s for _, s in values_and_slopes)
        if not self.mixed:
            return value, np.array([slope])
        n, k = len(self.levels), int(self.island.sum())
        value += -2.0 * n * theta[0] - (n - k) * np.log(unstructured)
        return float(value), np.array(
            [slope - 2.0 * n, 0.5 * unstructured * slope + (n - k) * near]
        )

    def deviations(self, theta: Array) -> dict[str, Array]:
        """Return the standard deviation, and the share that resembles neighbours."""
        deviations = {"sd": np.exp(theta[0])}
        return deviations | ({"phi": self._shares(theta)[0]} if self.mixed else {})


# --- Adjacency graphs ----------------------------------------------------------------------------


@restorable("graph/1")
class Graph:
    """Neighbourhood of areas, and the connected parts in which they lie.

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

    See Also
    --------
    qpruntime.effects.Areas

    Examples
    --------
    >>> from qpruntime.effects import Graph
    >>> graph = Graph([("A", "B"), ("B", "C")])
    >>> graph.levels.tolist(), graph.weights.toarray().sum(axis=0).tolist()
    (['A', 'B', 'C'], [1.0, 2.0, 1.0])
    """

    def __init__(self, graph: Neighbours | Graph, levels: ColumnLike | None = None) -> None:
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
                f"a graph must be symmetric, and {shown(a)} and {shown(b)} are neighbours one way "
                "only: take the larger of W and its transpose"
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
        return np.asarray(self.levels[self.part < 0])

    def laplacian(self, part: int) -> tuple[sparse.csc_array, NDArray[np.intp]]:
        """Degrees less weights of one connected part, and the numbers of its areas."""
        where = np.flatnonzero(self.part == part)
        W = self.weights[where][:, where]
        return sparse.csc_array(sparse.diags_array(np.asarray(W.sum(axis=1)).ravel()) - W), where


def _read(graph: Neighbours, levels: ColumnLike | None) -> tuple[NDArray[Any], sparse.csr_array]:
    if isinstance(graph, Mapping):
        names = list(graph)
        known = set(names)
        for area, neighbours in graph.items():
            for neighbour in neighbours:
                if neighbour not in known:
                    raise InputError(
                        f"{shown(area)} has the neighbour {shown(neighbour)}, which the graph lacks"
                    )
        labels = sorted_levels(np.array(names))
        pairs = [(a, b) for a, others in graph.items() for b in others]
        return labels, _of_pairs(pairs, labels, both=False)
    if sparse.issparse(graph) or _is_square(graph):
        W = sparse.csr_array(
            graph if sparse.issparse(graph) else np.asarray(graph, dtype=float), dtype=float
        )
        if W.shape[0] != W.shape[1]:
            raise InputError(f"a graph's matrix must be square, got {W.shape}")
        labels = np.arange(W.shape[0]) if levels is None else np.asarray(levels)
        if labels.shape != (W.shape[0],) or len(sorted_levels(labels)) != len(labels):
            raise InputError(
                f"levels must name each of the graph's {W.shape[0]} rows once, got shape "
                f"{labels.shape} with {len(sorted_levels(labels))} different ones"
            )
        return labels, W
    try:
        pairs = [(a, b) for a, b in cast("Iterable[tuple[Hashable, Hashable]]", graph)]
    except (TypeError, ValueError) as error:
        raise InputError(
            "graph must be a square matrix, a mapping of areas to their neighbours, or pairs"
        ) from error
    flat: list[Any] = [area for pair in pairs for area in pair]
    labels = sorted_levels(np.array(flat + ([] if levels is None else list(levels))))
    return labels, _of_pairs(pairs, labels, both=True)


def _is_square(graph: Neighbours) -> bool:
    try:
        shape = np.shape(cast("ArrayLike", graph))
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
