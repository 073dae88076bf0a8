"""Triangles over the plane: meshes, where points lie in them, and their finite elements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.spatial import Delaunay, QhullError, cKDTree

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import finite, number
from qpruntime.errors import InputError

__all__ = [
    "Mesh",
    "corners_of",
    "edges_of",
    "inside",
    "inside_of",
    "mesh_over",
    "spaced",
]

# Triangles whose centres are nearest are looked at first.
_NEAREST = 16
# Points this far outside a triangle count as inside, because of rounding.
_SLACK = 1e-9
# Products of points and triangles at a time, where the nearest did not do.
_PRODUCTS = 2_000_000


@restorable("mesh/1")
class Mesh:
    """Triangles that cover a part of the plane.

    Parameters
    ----------
    nodes : array-like, shape (K, 2)
        Each is a corner of a triangle.
    triangles : array-like of int, shape (T, 3)
        Numbers of their corners; any mesh library has these two arrays.

    Raises
    ------
    InputError
        If a corner does not exist, a node has no triangle, or a triangle has no area.

    See Also
    --------
    qpruntime.effects.mesh_over, qpruntime.effects.Plane

    Examples
    --------
    >>> from qpruntime.effects import Mesh
    >>> mesh = Mesh([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [[0, 1, 2], [1, 3, 2]])
    >>> mesh.nodes.shape, mesh.triangles.shape
    ((4, 2), (2, 3))
    """

    def __init__(self, nodes: ArrayLike, triangles: ArrayLike) -> None:
        self.nodes = finite(nodes, "nodes")
        self.triangles = np.asarray(triangles, dtype=np.int64)
        if self.nodes.ndim != 2 or self.nodes.shape[1] != 2:
            raise InputError(f"nodes must have shape (K, 2), got {self.nodes.shape}")
        if self.triangles.ndim != 2 or self.triangles.shape[1] != 3 or not len(self.triangles):
            raise InputError(f"triangles must have shape (T, 3), got {self.triangles.shape}")
        used = np.bincount(self.triangles.ravel().clip(0), minlength=self.size)
        if self.triangles.min() < 0 or self.triangles.max() >= self.size:
            raise InputError(f"triangles name corners beyond the {self.size} nodes")
        if not used.all():
            raise InputError(
                f"node {int(np.argmin(used))} is in no triangle: leave such nodes out, their "
                "effects would be without a prior"
            )
        span = float(np.ptp(self.nodes, axis=0).max())
        small = self.areas <= 1e-14 * span**2
        if small.any():
            raise InputError(f"triangle {int(np.argmax(small))} has no area: leave it out")

    @property
    def size(self) -> int:
        """Number of nodes."""
        return len(self.nodes)

    @property
    def areas(self) -> Array:
        """Areas of the triangles, shape (T,)."""
        a, b, c = (self.nodes[self.triangles[:, k]] for k in range(3))
        return 0.5 * np.abs(_crossed(b - a, c - a))

    @property
    def angles(self) -> Array:
        """Least angle of every triangle in degrees, shape (T,)."""
        corners = self.nodes[self.triangles]
        angles = []
        for k in range(3):
            u = corners[:, (k + 1) % 3] - corners[:, k]
            v = corners[:, (k + 2) % 3] - corners[:, k]
            cosine = (u * v).sum(axis=1) / (np.hypot(*u.T) * np.hypot(*v.T))
            angles.append(np.arccos(np.clip(cosine, -1.0, 1.0)))
        return np.asarray(np.degrees(np.min(angles, axis=0)))

    def mass(self) -> Array:
        """Lumped mass: a third of the area of a node's triangles, shape (K,)."""
        thirds = np.repeat(self.areas / 3.0, 3)
        return np.bincount(self.triangles.ravel(), thirds, self.size).astype(float, copy=False)

    def stiffness(self) -> sparse.csc_array:
        """Integrals of products of the linear elements' gradients, shape (K, K)."""
        corners = self.nodes[self.triangles]
        edges = corners[:, [2, 0, 1]] - corners[:, [1, 2, 0]]
        products = np.einsum("tid,tjd->tij", edges, edges) / (4.0 * self.areas)[:, None, None]
        rows = np.repeat(self.triangles, 3, axis=1)
        columns = np.tile(self.triangles, (1, 3))
        places = rows.ravel(), columns.ravel()
        shape = (self.size, self.size)
        return sparse.csc_array(sparse.coo_array((products.ravel(), places), shape=shape))

    def located(self, points: Array) -> tuple[NDArray[np.int64], Array]:
        """Triangle of every point (N,), -1 for none, and its barycentric coordinates (N, 3)."""
        centres = self.nodes[self.triangles].mean(axis=1)
        k = min(_NEAREST, len(centres))
        nearest = cKDTree(centres).query(points, k)[1].reshape(len(points), k)
        triangle = np.full(len(points), -1, dtype=np.int64)
        inside = np.zeros((len(points), 3))
        for column in nearest.T:
            unlocated = np.flatnonzero(triangle < 0)
            if not unlocated.size:
                break
            self._try(points, unlocated, column[unlocated], triangle, inside)
        self._everywhere(points, triangle, inside)
        return triangle, inside

    def _try(
        self,
        points: Array,
        rows: NDArray[np.intp],
        triangles: NDArray[np.int64],
        located: NDArray[np.int64],
        inside: Array,
    ) -> None:
        """Store the coordinates of these rows where they lie in these triangles."""
        coordinates = self._coordinates(points[rows], triangles)
        good = coordinates.min(axis=1) >= -_SLACK
        kept = np.clip(coordinates[good], 0.0, None)
        located[rows[good]] = triangles[good]
        inside[rows[good]] = kept / kept.sum(axis=1, keepdims=True)

    def _everywhere(self, points: Array, located: NDArray[np.int64], inside: Array) -> None:
        """Look in all triangles, for long ones have centres far away."""
        unlocated = np.flatnonzero(located < 0)
        low, high = self.nodes.min(axis=0), self.nodes.max(axis=0)
        near = ((points[unlocated] >= low) & (points[unlocated] <= high)).all(axis=1)
        unlocated = unlocated[near]
        count = len(self.triangles)
        batch = max(1, _PRODUCTS // count)
        every = np.arange(count)
        for start in range(0, len(unlocated), batch):
            batch_points = unlocated[start : start + batch]
            pairs = np.repeat(batch_points, count)
            coordinates = self._coordinates(points[pairs], np.tile(every, len(batch_points)))
            worst = coordinates.min(axis=1).reshape(len(batch_points), count)
            best = worst.argmax(axis=1)
            self._try(points, batch_points, best, located, inside)

    def _coordinates(self, points: Array, triangles: NDArray[np.int64]) -> Array:
        """Return barycentric coordinates (N, 3) of points in these triangles."""
        a, b, c = (self.nodes[self.triangles[triangles, k]] for k in range(3))
        u, v, w = b - a, c - a, points - a
        area = _crossed(u, v)
        second, third = _crossed(w, v) / area, _crossed(u, w) / area
        return np.column_stack([1.0 - second - third, second, third])

    def nearest(self, points: Array) -> NDArray[np.int64]:
        """Node that is nearest to every point."""
        return np.asarray(cKDTree(self.nodes).query(points)[1])


# --- Making a mesh -------------------------------------------------------------------------------

# Nodes across the larger extent of the points, by default.
_ACROSS = 30
# Default reach of the mesh beyond the points, as a share of their extent; the effect's
# variance is too large within a range of the edge.
_EXTENSION = 0.3
# Spacing outside over spacing inside.
_COARSER = 2.5
# Least distance of lattice nodes from those of a coast and of the inner lattice, in spacings.
_APART = 0.55
# Rounds of halving, and of nodes added in poor triangles.
_ROUNDS = 12
# Degrees below which a triangle's longest edge's circle gets a node.
_LEAST_ANGLE = 20.0
# Nodes from which on edges that coasts lack are looked for among the nodes near them alone, so many
# spacings away, before all are joined.
_LARGE, _NEAR = 20_000, 8.0
# Nodes that a mesh may have.
_MOST = 3_000_000


def mesh_over(
    points: ArrayLike,
    *,
    spacing: float | None = None,
    boundary: ArrayLike | None = None,
    holes: Sequence[ArrayLike] = (),
    extension: float | None = None,
) -> Mesh:
    """Triangulate the plane around points.

    Parameters
    ----------
    points : array-like, shape (N, 2)
    spacing : float, optional
        Distance of nodes near the points, by default a thirtieth of their extent. A quarter of the
        range that is expected is fine enough.
    boundary : array-like, shape (B, 2), optional
        Corners of a polygon, a coast, outside of which there is nothing.
    holes : sequence of array-like, shape (H, 2)
        Polygons in which there is nothing: lakes, or an island's outside.
    extension : float, optional
        How far the mesh reaches beyond the points where there is no boundary, in units of the
        coordinates; by default .3 of the extent. Nodes are 2.5 times further apart there.

    Returns
    -------
    Mesh

    Raises
    ------
    InputError
        If the points span no area, polygons are no such, or there would be too many nodes.

    See Also
    --------
    qpruntime.effects.Plane, qpruntime.effects.Mesh

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime.effects import mesh_over
    >>> points = np.random.default_rng(0).uniform(size=(50, 2))
    >>> mesh = mesh_over(points, spacing=0.1)
    >>> bool(mesh.angles.min() > 10.0)
    True
    """
    places = finite(points, "points")
    if places.ndim != 2 or places.shape[1] != 2:
        raise InputError(f"points must have shape (N, 2), got {places.shape}")
    coasts = [corners_of(hole, f"holes[{k}]") for k, hole in enumerate(holes)]
    outer = None if boundary is None else corners_of(boundary, "boundary")
    reach = places if outer is None else outer
    low, high = reach.min(axis=0), reach.max(axis=0)
    extent = float((high - low).max())
    if not extent > 0.0:
        raise InputError("points of a mesh must differ; these are all one place")
    step = extent / _ACROSS if spacing is None else number(spacing, "spacing", above=0.0)
    if outer is None:
        margin = _EXTENSION * extent
        if extension is not None:
            margin = number(extension, "extension", above=0.0)
        expected = float(np.prod((high - low) / step + 2.0))
    else:
        margin, expected = 0.0, extent**2 / step**2
    if expected > _MOST:
        raise InputError(
            f"a mesh of spacing {step:g} over {extent:g} would have {expected:.0f} nodes, more "
            f"than {_MOST}: use a larger spacing"
        )
    lattice, land, coarser = _lattice(low - step, high + step, step), outer, 1.0
    if land is None:
        (west, south), (east, north) = low - margin, high + margin
        land = np.array([[west, south], [east, south], [east, north], [west, north]])
        coarser = _COARSER
        around = _lattice(low - margin, high + margin, _COARSER * step)
        far = cKDTree(lattice).query(around)[0] > _COARSER * step * 0.7
        lattice = np.vstack([lattice, around[far]])
    rims = [spaced(land, coarser * step), *(spaced(coast, step) for coast in coasts)]
    return _triangulated(lattice, rims, land, coasts, step)


def _lattice(low: Array, high: Array, step: float) -> Array:
    """Corners of triangles of equal sides."""
    height = step * np.sqrt(0.75)
    rows = np.arange(low[1], high[1] + height, height)
    x = np.arange(low[0], high[0] + step, step)
    rows_of_points = [
        np.column_stack([x + 0.5 * step * (k % 2), np.full(len(x), y)]) for k, y in enumerate(rows)
    ]
    return np.vstack(rows_of_points)


def _triangulated(
    lattice: Array, rims: list[Array], land: Array, coasts: list[Array], step: float
) -> Mesh:
    """Join lattice and rims, keep rims' edges, and leave out what is no land."""
    edges = edges_of(rims)
    border = np.vstack(rims)
    _require_apart(border, step)
    most = 20 * len(border)
    lattice = lattice[inside_of(lattice, land, coasts)]
    lattice = lattice[cKDTree(border).query(lattice)[0] > _APART * step]
    done, near = False, len(lattice) >= _LARGE
    for _ in range(_ROUNDS + near):
        nodes = np.vstack([border, lattice])
        if near:
            near_border = (
                cKDTree(border).query(lattice, distance_upper_bound=_NEAR * step)[0] < np.inf
            )
            triangles = _joined(np.vstack([border, lattice[near_border]]))
        else:
            triangles = _joined(nodes)
        missing = _missing(edges, triangles, len(nodes))
        if near and not missing.any():
            near = False
            continue
        if not missing.any():
            poor = _poor(nodes, triangles, land, coasts, border)
            if not len(poor):
                done = True
                break
            lattice = np.vstack([lattice, poor])
            continue
        halves = border[edges[missing]].mean(axis=1)
        numbers = len(border) + np.arange(len(halves))
        old = edges[missing]
        new = np.vstack(
            [np.column_stack([old[:, 0], numbers]), np.column_stack([numbers, old[:, 1]])]
        )
        edges = np.vstack([edges[~missing], new])
        border = np.vstack([border, halves])
        _require_apart(border, step, most)
        lattice = (
            lattice[cKDTree(halves).query(lattice)[0] > 0.25 * step] if len(lattice) else lattice
        )
    if not done:
        nodes = np.vstack([border, lattice])
        triangles = _joined(nodes)
    kept = triangles[inside_of(nodes[triangles].mean(axis=1), land, coasts)]
    corners = nodes[kept]
    u, v = corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]
    kept = kept[np.abs(_crossed(u, v)) > 1e-9 * step**2]
    if not len(kept):
        raise InputError("nothing is left of the plane: the holes cover it")
    used, numbers = np.unique(kept, return_inverse=True)
    return Mesh(nodes[used], numbers.reshape(kept.shape))


def _crossed(u: Array, v: Array) -> Array:
    """Cross products of vectors (N, 2): twice the areas of triangles with these sides, signed."""
    return u[:, 0] * v[:, 1] - u[:, 1] * v[:, 0]


def _joined(nodes: Array) -> NDArray[np.int64]:
    """Return Delaunay's triangles."""
    try:
        return np.asarray(Delaunay(nodes).simplices)
    except QhullError as error:
        raise InputError("points of a mesh must span an area; these lie on a line") from error


def _require_apart(border: Array, step: float, most: int | None = None) -> None:
    """Raise if coasts have points in common, or edges that stay apart however short they are."""
    if len(cKDTree(border).query_pairs(1e-9 * step)) or len(border) > (most or len(border)):
        raise InputError(
            "boundary and holes of a mesh cross or touch each other or themselves: move them "
            "apart, or join those that touch to one polygon"
        )


def _missing(
    edges: NDArray[np.int64], triangles: NDArray[np.int64], count: int
) -> NDArray[np.bool_]:
    """Return the edges that no triangle has."""
    sides = np.sort(
        np.vstack([triangles[:, [0, 1]], triangles[:, [1, 2]], triangles[:, [2, 0]]]), axis=1
    )
    side_keys = np.unique(sides[:, 0].astype(np.int64) * count + sides[:, 1])
    wanted = np.sort(edges, axis=1)
    return ~np.isin(wanted[:, 0].astype(np.int64) * count + wanted[:, 1], side_keys)


def _poor(
    nodes: Array, triangles: NDArray[np.int64], land: Array, coasts: list[Array], border: Array
) -> Array:
    """Centres of the circles of triangles with a small angle, where they are well inside."""
    kept = triangles[inside_of(nodes[triangles].mean(axis=1), land, coasts)]
    corners = nodes[kept]
    u, v = corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]
    area = _crossed(u, v)
    sides = [np.hypot(*(corners[:, i] - corners[:, j]).T) for i, j in ((0, 1), (1, 2), (2, 0))]
    radius = sides[0] * sides[1] * sides[2] / (2.0 * np.maximum(np.abs(area), 1e-300))
    # The least angle stands opposite to the shortest side: 2 r sin(angle).
    poor = np.min(sides, axis=0) < 2.0 * radius * np.sin(np.radians(_LEAST_ANGLE))
    if not poor.any():
        return np.empty((0, 2))
    u, v, area, r = u[poor], v[poor], area[poor], radius[poor]
    uu, vv = (u * u).sum(axis=1), (v * v).sum(axis=1)
    centre = (
        corners[poor, 0]
        + np.column_stack([v[:, 1] * uu - u[:, 1] * vv, u[:, 0] * vv - v[:, 0] * uu])
        / (2.0 * area)[:, None]
    )
    good = inside_of(centre, land, coasts)
    good &= cKDTree(border).query(centre)[0] > 0.5 * r
    centre, r = centre[good], r[good]
    # One of several that fall together.
    kept_rows: list[int] = []
    tree = cKDTree(centre) if len(centre) else None
    covered = np.zeros(len(centre), dtype=bool)
    for k in range(len(centre)):
        if not covered[k] and tree is not None:
            kept_rows.append(k)
            covered[tree.query_ball_point(centre[k], r[k])] = True
    return np.asarray(centre[kept_rows])


# --- Polygons of coasts --------------------------------------------------------------------------


def corners_of(polygon: ArrayLike, name: str) -> Array:
    """Corners (B, 2) of a polygon, the first not repeated at the end."""
    corners = finite(polygon, name)
    if corners.ndim != 2 or corners.shape[1] != 2:
        raise InputError(f"{name} must be corners of shape (B, 2), got {corners.shape}")
    if len(corners) > 1 and (corners[0] == corners[-1]).all():
        corners = corners[:-1]
    if len(corners) < 3:
        raise InputError(f"{name} must have 3 corners or more, got {len(corners)}")
    following = np.roll(corners, -1, axis=0)
    if (corners == following).all(axis=1).any():
        raise InputError(f"{name} has the same corner twice in a row: leave one out")
    return corners


def spaced(corners: Array, step: float) -> Array:
    """Corners, and points between them at most `step` apart."""
    parts = []
    for a, b in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        count = max(1, int(np.ceil(np.hypot(*(b - a)) / step)))
        parts.append(a + np.linspace(0.0, 1.0, count, endpoint=False)[:, None] * (b - a))
    return np.vstack(parts)


def edges_of(rings: list[Array]) -> NDArray[np.int64]:
    """Pairs of neighbours in rings whose points are numbered one ring after the other."""
    parts, start = [], 0
    for ring in rings:
        numbers = start + np.arange(len(ring))
        parts.append(np.column_stack([numbers, np.roll(numbers, -1)]))
        start += len(ring)
    return np.vstack(parts)


def inside(points: Array, corners: Array) -> NDArray[np.bool_]:
    """Decide which points are in a polygon, by the number of edges that a ray crosses."""
    x, y = points.T
    is_inside = np.zeros(len(points), dtype=bool)
    for (ax, ay), (bx, by) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        if ay == by:
            continue
        crosses = (ay > y) != (by > y)
        is_inside ^= crosses & (x < ax + (y - ay) * (bx - ax) / (by - ay))
    return is_inside


def inside_of(points: Array, land: Array, holes: list[Array]) -> NDArray[np.bool_]:
    """Decide which points are in a polygon and in none of its holes."""
    is_inside = inside(points, land)
    for hole in holes:
        is_inside &= ~inside(points, hole)
    return is_inside
