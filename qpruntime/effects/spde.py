"""A smooth effect over the plane: a Matern field by finite elements (Lindgren et al. 2011).

Linear triangles and lumped masses C, stiffness G: with kappa^2 = 8/range^2,
Q = (kappa^2 C + G) C^-1 (kappa^2 C + G)/(4 pi kappa^2 sd^2), smoothness 1. Correlations at a
distance of the range are about .14.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from scipy.linalg import eigvalsh

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import choice
from qpruntime.dataframes.readers import DataColumns
from qpruntime.effects.mesh import Mesh, mesh_over
from qpruntime.effects.term import (
    DEVIATION,
    LOG_DEVIATION,
    BlockPattern,
    EffectBlock,
    Term,
    deviation_prior,
    range_prior,
)
from qpruntime.errors import InputError
from qpruntime.inference.precision.cholesky import Factorised, analyse, filled
from qpruntime.inference.precision.pattern_kernels import places

__all__ = ["Plane", "PlaneBlock", "ShiftedDeterminant"]

#: P(range < a tenth of the extent) = .05.
_RANGE = (0.1, 0.05)


@restorable("plane/1")
class Plane(Term):
    """A Matern field of smoothness 1 over two coordinates.

    Parameters
    ----------
    x, y : str or int
        Columns of coordinates, in one unit.
    mesh : Mesh, optional
        Triangles of your own; otherwise they are made from what follows.
    spacing, boundary, holes, extension
        As of `mesh_over`.
    outside : {"refuse", "nearest"}
        What becomes of points in no triangle: an error, or the value at the nearest node.
    prior : (limit, probability)
        P(sd > limit) = probability.
    prior_range : (limit, probability), optional
        P(range < limit) = probability, by default a tenth of the points' extent and .05.

    See Also
    --------
    qpruntime.effects.mesh_over, qpruntime.plotting.EffectMapDisplay

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime.effects import EffectsModel, Plane
    >>> rng = np.random.default_rng(0)
    >>> data = {"east": rng.uniform(0.0, 1.0, 80), "north": rng.uniform(0.0, 1.0, 80)}
    >>> y = rng.poisson(np.exp(1.0 + np.sin(6.0 * data["east"])))
    >>> model = EffectsModel([Plane("east", "north", spacing=0.15)], "poisson").fit(data, y)
    >>> model.names_
    ('plane(east, north): log sd', 'plane(east, north): log range')
    """

    def __init__(
        self,
        x: Hashable,
        y: Hashable,
        *,
        mesh: Mesh | None = None,
        spacing: float | None = None,
        boundary: ArrayLike | None = None,
        holes: Sequence[ArrayLike] = (),
        extension: float | None = None,
        outside: str = "refuse",
        prior: tuple[float, float] = DEVIATION,
        prior_range: tuple[float, float] | None = None,
    ) -> None:
        self.x, self.y, self.mesh, self.spacing = x, y, mesh, spacing
        self.boundary, self.holes, self.extension = boundary, holes, extension
        self.outside, self.prior, self.prior_range = outside, prior, prior_range

    def __repr__(self) -> str:
        return f"Plane({self.x!r}, {self.y!r})"

    @property
    def name(self) -> str:
        """Name of the part."""
        return f"plane({self.x}, {self.y})"

    def bind(self, data: DataColumns, weights: Array | None = None) -> PlaneBlock:
        """Return the block on a mesh around the points of these rows."""
        choice(self.outside, "outside", ("refuse", "nearest"))
        return PlaneBlock(self, data)


@restorable("plane-block/1")
class PlaneBlock(EffectBlock):
    """Values at the K nodes of a mesh."""

    def __init__(self, term: Plane, data: DataColumns) -> None:
        self.name, self.over, self.outside = term.name, (term.x, term.y), term.outside
        points = self._points(data)
        mesh = term.mesh
        if mesh is None:
            mesh = mesh_over(
                points,
                spacing=term.spacing,
                boundary=term.boundary,
                holes=term.holes,
                extension=term.extension,
            )
        elif not isinstance(mesh, Mesh):
            raise InputError(f"mesh of Plane must be a Mesh(nodes, triangles), got {mesh!r:.80}")
        self.mesh = mesh
        extent = float(np.ptp(points, axis=0).max())
        if not extent > 0.0:
            raise InputError(f"all rows of {self.name} are at one place: leave it out")
        C, G = mesh.mass(), mesh.stiffness()
        third = sparse.coo_array(G @ sparse.diags_array(1.0 / C) @ G)
        diagonal = np.arange(mesh.size)
        stiffness = sparse.coo_array(G)
        self.pattern = BlockPattern(
            np.concatenate([diagonal, stiffness.row, third.row]),
            np.concatenate([diagonal, stiffness.col, third.col]),
            mesh.size,
        )
        parts = [C, np.zeros(stiffness.nnz), np.zeros(third.nnz)]
        self.first = self.pattern.added(np.concatenate(parts))
        self.second = self.pattern.added(np.concatenate([0.0 * C, stiffness.data, parts[2]]))
        self.third = self.pattern.added(np.concatenate([0.0 * C, parts[1], third.data]))
        self.shifted = ShiftedDeterminant(C, G)
        self.labels = diagonal
        limit, probability = (
            (0.1 * extent, _RANGE[1]) if term.prior_range is None else term.prior_range
        )
        self.range_tail = limit, probability
        self.priors = (deviation_prior(term.prior), range_prior(self.range_tail))
        self.parameters = ("log sd", "log range")
        self.start = np.array([np.log(0.5), np.log(0.4 * extent)])
        # A range below the spacing is not that of the mesh; beyond ten extents it is a constant.
        least = np.sqrt(float(np.median(mesh.areas)))
        self.bounds = np.array([LOG_DEVIATION, (np.log(least), np.log(10.0 * extent))])

    def _points(self, data: DataColumns) -> Array:
        return np.column_stack([data.numbers(name) for name in self.over])

    def columns(self, data: DataColumns) -> sparse.csr_array:
        """Barycentric coordinates of every row's point in its triangle."""
        points = self._points(data)
        triangles, inside = self.mesh.located(points)
        corners = self.mesh.triangles[triangles]
        lost = triangles < 0
        if lost.any():
            if self.outside == "refuse":
                i = int(np.argmax(lost))
                at = ", ".join(f"{v:g}" for v in points[i])
                raise InputError(
                    f"{int(lost.sum())} of {len(points)} points are outside the mesh of "
                    f"{self.name}, the first at ({at}) in row {i}: use a larger extension or "
                    'boundary, or outside="nearest"'
                )
            corners[lost] = self.mesh.nearest(points[lost])[:, None]
            inside[lost] = (1.0, 0.0, 0.0)
        rows = np.repeat(np.arange(len(points)), 3)
        shape = (len(points), self.size)
        design = sparse.coo_array((inside.ravel(), (rows, corners.ravel())), shape=shape)
        design = sparse.csr_array(design)
        design.eliminate_zeros()
        return design

    def entries(self, theta: Array) -> tuple[Array, Array]:
        """(kappa^2 C + 2 G + G C^-1 G/kappa^2)/(4 pi sd^2)."""
        scale = np.exp(-2.0 * theta[0]) / (4.0 * np.pi)
        kappa2 = 8.0 * np.exp(-2.0 * theta[1])
        first, third = scale * kappa2 * self.first, scale / kappa2 * self.third
        entries = first + 2.0 * scale * self.second + third
        return entries, np.array([-2.0 * entries, -2.0 * (first - third)])

    def log_det(self, theta: Array) -> tuple[float, Array]:
        """Return the log determinant, which follows from |kappa^2 C + G|."""
        K = self.size
        kappa2 = 8.0 * np.exp(-2.0 * theta[1])
        value, slope = self.shifted(float(kappa2))
        whole = 2.0 * value - self.shifted.log_mass - K * np.log(4.0 * np.pi * kappa2)
        return float(whole - 2.0 * K * theta[0]), np.array([-2.0 * K, 2.0 * K - 4.0 * slope])

    def deviations(self, theta: Array) -> dict[str, Array]:
        """Return the standard deviation, and range in units of the coordinates."""
        return {"sd": np.exp(theta[0]), "range": np.exp(theta[1])}


#: Nodes up to which eigenvalues are taken, once.
_DENSE_NODE_LIMIT = 800


@restorable("shifted-determinant/1")
class ShiftedDeterminant:
    """The determinant log |k C + G| for lumped masses C (K,) and a stiffness G (K, K).

    Few nodes use eigenvalues. More nodes use the sparse factor, whose selected inverse has the
    diagonal that the slope needs.
    """

    def __init__(self, C: Array, G: sparse.csc_array) -> None:
        self.log_mass = float(np.log(C).sum())
        self.values: Array | None = None
        root = sparse.diags_array(1.0 / np.sqrt(C))
        normalised = sparse.coo_array(root @ G @ root)
        self.size = len(C)
        self._entries: tuple[Any, Any, Any] | None = (
            normalised.data,
            normalised.row,
            normalised.col,
        )
        self._places: tuple[Any, Any, Any] | None = None
        self._last: tuple[float, tuple[float, float]] | None = None
        if len(C) <= _DENSE_NODE_LIMIT:
            self.values = np.maximum(eigvalsh(normalised.toarray()), 0.0)
            self._entries = None

    def __call__(self, k: float) -> tuple[float, float]:
        """Return the value at k and its slope by log k."""
        if self.values is not None:
            shifted = self.values + k
            return float(np.log(shifted).sum()) + self.log_mass, float((k / shifted).sum())
        assert self._entries is not None
        if self._last is not None and self._last[0] == k:
            return self._last[1]
        symbolic, at, diagonal = self._analysed()
        panels = filled(symbolic.size, at[0], self._entries[0][at[1]])
        panels[diagonal] += k
        factor = Factorised(symbolic, panels)
        value = factor.log_det + self.log_mass
        value_and_slope = value, float(k * factor.inverse()[diagonal].sum())
        self._last = k, value_and_slope
        return value_and_slope

    def _analysed(self) -> tuple[Any, Any, Any]:
        """Return the factor's shape, and the places of its lower triangle and of its diagonal."""
        if self._places is None:
            assert self._entries is not None
            values, row, column = self._entries
            entries = np.ones(len(values))
            pattern = sparse.csr_array((entries, (row, column)), shape=(self.size, self.size))
            symbolic = analyse(sparse.csr_array(pattern + sparse.eye_array(self.size)))
            i, j = symbolic.place[row], symbolic.place[column]
            lower = np.flatnonzero(i >= j)
            positions = np.empty(len(lower), dtype=np.int64)
            places(tuple(symbolic.shape), i[lower], j[lower], positions)
            diagonal = np.empty(self.size, dtype=np.int64)
            places(tuple(symbolic.shape), symbolic.place, symbolic.place, diagonal)
            self._places = symbolic, (positions, lower), diagonal
        return self._places

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_places": None}
