"""Effects over time and place: one term's correlation times another's precision (Kronecker)."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime.dataframes.readers import DataColumns
from qpruntime.effects.autoregressive import Autoregressive, AutoregressiveBlock
from qpruntime.effects.spde import Plane, PlaneBlock
from qpruntime.effects.term import BlockPattern, EffectBlock, Term
from qpruntime.errors import InputError

__all__ = ["Product", "ProductBlock"]


@restorable("product/1")
class Product(Term):
    """A field in the plane that changes in time: separable, AR(1) between times.

    Parameters
    ----------
    time : Autoregressive
        Its standard deviation is 1: that of the field is the plane's.
    place : Plane

    See Also
    --------
    qpruntime.effects.Autoregressive, qpruntime.effects.Plane, qpruntime.effects.Areas

    Examples
    --------
    >>> from qpruntime.effects import Autoregressive, Plane, Product
    >>> Product(Autoregressive("week"), Plane("lon", "lat")).name
    'ar1(week) x plane(lon, lat)'
    """

    def __init__(self, time: Autoregressive, place: Plane) -> None:
        self.time, self.place = time, place

    def __repr__(self) -> str:
        return f"Product({self.time!r}, {self.place!r})"

    @property
    def name(self) -> str:
        """Name of the part."""
        return f"{self.time.name} x {self.place.name}"

    def bind(self, data: DataColumns, weights: Array | None = None) -> ProductBlock:
        """Return the block for all times and all nodes."""
        if not (isinstance(self.time, Autoregressive) and isinstance(self.place, Plane)):
            raise InputError(
                f"Product takes an Autoregressive and a Plane, got {self.time!r} and {self.place!r}"
            )
        return ProductBlock(self.name, self.time.bind(data), self.place.bind(data))


@restorable("product-block/1")
class ProductBlock(EffectBlock):
    """Values at K = times x nodes, time by time."""

    moves = True

    def __init__(self, name: str, time: AutoregressiveBlock, place: PlaneBlock) -> None:
        self.name, self.time, self.place = name, time, place
        first, second = time.pattern, place.pattern
        rows = first.indices.astype(np.int64)[:, None] * second.size + second.indices
        columns = first.columns[:, None] * second.size + second.columns
        self.pattern = BlockPattern(rows.ravel(), columns.ravel(), first.size * second.size)
        self.labels = np.arange(self.size)
        self.parameters = ("atanh rho", *place.parameters)
        self.start = np.concatenate([time.start[1:], place.start])
        self.bounds = np.vstack([time.bounds[1:], place.bounds])

    def _of_time(self, theta: Array) -> Array:
        return np.stack([np.zeros_like(theta[0]), theta[0]])

    def _joined(self, one: sparse.csr_array, two: sparse.csr_array) -> sparse.csr_array:
        """Products of the rows of two designs."""
        n = one.shape[0]
        rows = np.repeat(np.arange(n), np.diff(two.indptr))
        parts = []
        for k in range(int(np.diff(one.indptr).max(initial=0))):
            # The k-th entry of every row of the first, with all entries of the second's row.
            at = one.indptr[rows] + k
            has = at < one.indptr[rows + 1]
            place = one.indices[at[has]].astype(np.int64) * self.place.size + two.indices[has]
            parts.append((one.data[at[has]] * two.data[has], rows[has], place))
        values, i, j = (np.concatenate(part) for part in zip(*parts, strict=True))
        return sparse.csr_array(sparse.coo_array((values, (i, j)), shape=(n, self.size)))

    def columns(self, data: DataColumns) -> sparse.csr_array:
        """Barycentric coordinates at the time of the row."""
        return self._joined(self.time.columns(data), self.place.columns(data))

    def ahead(self, data: DataColumns, theta: Array) -> tuple[sparse.csr_array, Array]:
        """Predict new times from their neighbours at the same place.

        The innovation at a new time varies as the field does at the row's point: a'Q^-1 a of the
        plane, which is close to sd^2 inside the mesh.
        """
        design, variances = self.time.ahead(data, self._of_time(theta))
        place = self.place.columns(data)
        variance = np.zeros(data.rows)
        new = np.flatnonzero(variances > 0.0)
        if new.size:
            Q = self.place.precision(theta[1:])
            rows = sparse.csc_array(place[new].T)
            solved = sparse.linalg.splu(Q, permc_spec="MMD_AT_PLUS_A").solve(rows.toarray())
            variance[new] = variances[new] * (rows.toarray() * solved).sum(axis=0)
        return self._joined(design, place), variance

    def entries(self, theta: Array) -> tuple[Array, Array]:
        """Products of the entries of both."""
        first, by_one = self.time.entries(self._of_time(theta))
        second, by_two = self.place.entries(theta[1:])

        def joined(a: Array, b: Array) -> Array:
            return self.pattern.added(np.outer(a, b).ravel())

        slopes = [joined(by_one[1], second)] + [joined(first, slope) for slope in by_two]
        return joined(first, second), np.array(slopes)

    def log_det(self, theta: Array) -> tuple[float, Array]:
        """Return log |Q1| |Q2| by the sizes of each other."""
        first, by_one = self.time.log_det(self._of_time(theta))
        second, by_two = self.place.log_det(theta[1:])
        m, n = self.time.size, self.place.size
        return n * first + m * second, np.concatenate([[n * by_one[1]], m * by_two])

    def log_prior(self, theta: Array) -> tuple[float, Array]:
        """Log prior of the correlation and of the plane."""
        first, by_one = self.time.priors[1](float(theta[0]))
        second, by_two = self.place.log_prior(theta[1:])
        return first + second, np.concatenate([[by_one], by_two])

    def deviations(self, theta: Array) -> dict[str, Array]:
        """Correlation over a step, standard deviation and range."""
        rho = self.time.deviations(self._of_time(theta))["rho"]
        return {"rho": rho} | self.place.deviations(theta[1:])
