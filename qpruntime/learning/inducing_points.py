"""Starting positions of inducing points, and how many of them a tolerance needs.

If their number is known, they are cluster centres of a sample. If only the share of the variance
that they may leave is known, they are rows selected by a pivoted Cholesky factorisation, which
takes the row with the largest residual variance next.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dgemv
from sklearn.cluster import MiniBatchKMeans
from sklearn.gaussian_process.kernels import Kernel
from threadpoolctl import threadpool_limits

from qpruntime._typing import Array
from qpruntime.kernels.cross_covariance import cross_covariance, diagonal
from qpruntime.kernels.registry import Added, Leaf, Multiplied, Node, Seen, read

__all__ = ["SAMPLE", "choose_inducing_points", "clusters", "first", "pivots", "sample", "tell"]

_LOG = logging.getLogger("qpruntime")

#: Default numbers of inducing points, ``inducing="auto"``: kernels are compared with the first, and
#: doubling ends at the second.
FIRST_INDUCING, MAX_INDUCING = 300, 4800
#: Share of the prior variance that ``inducing="variance"`` may leave of the rows of a sample, and
#: the limits of its number of inducing points.
TOLERANCE, MIN_POINTS, MAX_POINTS = 0.05, 50, 1000

#: Largest number of rows that inducing points are chosen from.
SAMPLE = 20_000
# Rows of a batch of the clustering, and passes over the sample.
_BATCH, _PASSES = 2048, 10
# Inducing points with equal features are moved apart by this share of the features' spread.
_SEPARATION = 1e-3
_NONE: Mapping[int, float] = MappingProxyType({})


def sample(n: int, most: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Return numbers of at most so many of n rows, in ascending order."""
    if n <= most:
        return np.arange(n)
    return np.sort(rng.choice(n, most, replace=False))


def clusters(
    X: Array,
    count: int,
    rng: np.random.Generator,
    units: Array | None = None,
    levels: Mapping[int, float] = _NONE,
) -> Array:
    """Return centres (M, d) of the rows of X (N, d), by k-means++ and mini-batches.

    A centre has the most frequent level of its rows in each categorical column.

    Parameters
    ----------
    X : ndarray, shape (N, d)
    count : int
        Number M of centres, at most N.
    rng : Generator
    units : ndarray, shape (d,), optional
        Units of distances, such as length-scales; 1 by default.
    levels : mapping of int to float, optional
        Squared distance of two different levels by column, from `levels_of`.
    """
    scale = np.ones(X.shape[1]) if units is None else units
    with np.errstate(invalid="ignore"):
        points = X[sample(len(X), SAMPLE, rng)]
        spelt = [Spelt.of(points[:, k], k, square) for k, square in levels.items()]
        points = np.delete(points, list(levels), axis=1) / np.delete(scale, list(levels))
        points = (
            np.column_stack([points, *(encoding.rows for encoding in spelt)]) if levels else points
        )
    clustering = MiniBatchKMeans(
        count, batch_size=_BATCH, max_iter=_PASSES, n_init=1, random_state=int(rng.integers(2**31))
    )
    # Threads of OpenMP do not survive a fork, and the child would wait for them without end.
    # If there are fewer distinct rows than centres, some coincide and are moved apart below.
    with threadpool_limits(1, "openmp"), warnings.catch_warnings(action="ignore"):
        centres = clustering.fit(points).cluster_centers_
    if levels:
        return _at_levels(centres, X, scale, spelt, rng)
    is_finite = np.isfinite(scale)
    centres = np.where(is_finite, centres * np.where(is_finite, scale, 1.0), X[0])
    return _apart(centres, X.std(axis=0), rng)


@dataclass(frozen=True, eq=False)
class Spelt:
    """A column of levels as points as far from each other as the kernel says.

    Attributes
    ----------
    column : int
    known : ndarray, shape (L,)
        Its codes.
    rows : ndarray, shape (N, L)
    """

    column: int
    known: Array
    rows: Array

    @classmethod
    def of(cls, codes: Array, column: int, square: float) -> Spelt:
        """Return points of the codes of rows; different ones are the root of `square` apart."""
        known = np.unique(codes)
        return cls(column, known, np.sqrt(0.5 * square) * (codes[:, None] == known))


def _at_levels(
    centres: Array, X: Array, scale: Array, spelt: Sequence[Spelt], rng: np.random.Generator
) -> Array:
    """Return centres with codes in categorical columns.

    Centres that coincide are moved apart in their numeric columns.
    """
    Z = np.tile(X[:1], (len(centres), 1))
    numeric_columns = [
        k for k in range(X.shape[1]) if k not in {encoding.column for encoding in spelt}
    ]
    for position, k in enumerate(numeric_columns):
        if np.isfinite(scale[k]):
            Z[:, k] = centres[:, position] * scale[k]
    first = len(numeric_columns)
    for encoding in spelt:
        Z[:, encoding.column] = encoding.known[
            centres[:, first : first + encoding.known.size].argmax(axis=1)
        ]
        first += encoding.known.size
    spread = np.zeros(X.shape[1])
    spread[numeric_columns] = X[:, numeric_columns].std(axis=0)
    # Categorical columns alone allow no more centres than distinct rows.
    return _apart(Z, spread, rng) if spread.any() else np.unique(Z, axis=0)


def levels_of(kernel: Kernel) -> dict[int, float]:
    """Return the squared distance of two levels, -2 log k, for each categorical column."""
    squared_distances: dict[int, float] = {}
    _collect(read(kernel), squared_distances)
    return squared_distances


def _collect(node: Node, squared_distances: dict[int, float]) -> None:
    if isinstance(node, (Added, Multiplied)):
        _collect(node.first, squared_distances)
        _collect(node.second, squared_distances)
    elif isinstance(node, Seen):
        inner: dict[int, float] = {}
        _collect(node.inner, inner)
        squared_distances |= {int(node.kernel.columns[k]): square for k, square in inner.items()}
    elif node.parts.levels:
        similar = np.maximum(node.kernel.similarity, 1e-20)
        pairs = zip(node.kernel.columns, -2.0 * np.log(similar), strict=True)
        squared_distances |= {int(k): float(square) for k, square in pairs}


def _apart(Z: Array, spread: Array, rng: np.random.Generator) -> Array:
    """Move inputs that coincide, which add nothing to each other."""
    _, first = np.unique(Z, axis=0, return_index=True)
    again = np.setdiff1d(np.arange(len(Z)), first)
    Z[again] += _SEPARATION * spread * rng.standard_normal((again.size, Z.shape[1]))
    return Z


def pivots(
    kernel: Kernel, X: Array, max_rows: int, tolerance: float, rng: np.random.Generator
) -> tuple[Array, float]:
    """Select rows until their residual prior variance is below a share of the whole.

    Parameters
    ----------
    kernel : scikit-learn kernel
        Kernel with its parameters.
    X : ndarray, shape (N, d)
        Rows; if there are more than `SAMPLE`, a sample of that size is used.
    max_rows : int
        Largest number of selected rows.
    tolerance : float
        Limit of sum r_n / sum k_nn, where r_n is the variance of f(x_n) given f(Z). Neither sum
        includes white noise.

    Returns
    -------
    Z : ndarray, shape (M, d)
    error : float
        Share of the prior variance that is left.
    """
    rows = X[sample(len(X), SAMPLE, rng)]
    n = len(rows)
    max_rows = min(max_rows, n)
    residual = diagonal(kernel, rows, noise=False)
    total, start = float(residual.sum()), residual.copy()
    # Columns of the pivoted factor, in the order that a product with its rows takes.
    factor = np.empty((n, max_rows), order="F")
    chosen: list[int] = []
    while len(chosen) < max_rows and residual.sum() > tolerance * total:
        best = int(np.argmax(residual))
        pivot = float(residual[best])
        if pivot <= 1e-10 * start[best]:
            break  # what is left is rounding
        k = len(chosen)
        column = cross_covariance(kernel, rows, rows[best : best + 1])[:, 0]
        if k:
            column = dgemv(-1.0, factor[:, :k], factor[best, :k], beta=1.0, y=column)
        column /= np.sqrt(pivot)
        factor[:, k] = column
        residual = np.maximum(residual - column * column, 0.0)
        residual[best] = 0.0
        chosen.append(best)
    return rows[chosen], float(residual.sum()) / total


def first(
    option: Array | int | str, kernel: Kernel, X: Array, spread: Array, rng: np.random.Generator
) -> Array:
    """Return the inducing inputs that parameters are first learnt with."""
    if isinstance(option, np.ndarray):
        return option
    count = min(MIN_POINTS * 4, len(X) // 4 or 1) if isinstance(option, str) else int(option)
    return clusters(X, count, rng, units(kernel, spread), levels_of(kernel))


def choose_inducing_points(
    kernel: Kernel, X: Array, spread: Array, rng: np.random.Generator
) -> tuple[Array, float]:
    """Return as many centres as `TOLERANCE` needs under a kernel, and the variance share left."""
    max_points = min(MAX_POINTS, len(X))
    pivot_rows, share = pivots(kernel, X, max_points, TOLERANCE, rng)
    count = max(len(pivot_rows), min(MIN_POINTS, max_points))
    return clusters(X, count, rng, units(kernel, spread), levels_of(kernel)), share


def tell(count: int, share: float) -> None:
    """Log what "variance" has chosen, and the error that it implies."""
    reached = "" if share <= TOLERANCE else ", the most there may be"
    _LOG.warning(
        "qpruntime: inducing='variance' takes M = %d%s: rows of the data leave at most %.2g of the "
        "prior variance out; inducing=%d would take twice as many",
        count,
        reached,
        share,
        2 * count,
    )


def units(kernel: Kernel, spread: Array) -> Array:
    """Return the units of input distances: length-scales of each feature, or else its spread."""
    length_scales = _lengths(read(kernel), spread.size)
    if length_scales is not None:
        return np.where(np.isnan(length_scales), np.where(spread > 0.0, spread, 1.0), length_scales)
    parameters = kernel.get_params()
    for name, value in parameters.items():
        if name.endswith("length_scale") and np.size(value) == spread.size > 1:
            return np.asarray(value, dtype=float)
    return np.where(spread > 0.0, spread, 1.0)


def _lengths(node: Node, count: int) -> Array | None:
    """Return the length-scales of a kernel beside categorical ones, or None for other kernels.

    A feature without a length-scale has NaN.
    """
    if isinstance(node, Added):
        first_length_scales = _lengths(node.first, count)
        return _lengths(node.second, count) if first_length_scales is None else first_length_scales
    if isinstance(node, Multiplied):
        pair = node.first, node.second
        for levels, numeric in (pair, pair[::-1]):
            similar = isinstance(levels, Leaf) and levels.parts.levels
            if similar and isinstance(numeric, Seen):
                length_scales = np.full(count, np.nan)
                length_scales[list(numeric.kernel.columns)] = getattr(
                    numeric.kernel.kernel, "length_scale", np.nan
                )
                return length_scales
        return _lengths(node.second, count)
    return None
