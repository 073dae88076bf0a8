"""Where inducing inputs begin, and how many of them a tolerance takes.

Clusters of a sample, if their number is known; rows of it by pivoted Cholesky, the one with the
largest residual variance next, if only the share of the variance is that they may leave out.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dgemv
from sklearn.cluster import MiniBatchKMeans
from sklearn.gaussian_process.kernels import Kernel
from threadpoolctl import threadpool_limits

from qpruntime._typing import Array
from qpruntime.inference.sparse.data import is_lazy
from qpruntime.inference.sparse.data import sample as read_rows
from qpruntime.kernels.cross_covariance import cross_covariance, diagonal
from qpruntime.kernels.expression import Added, Leaf, Multiplied, Node, Seen, read

__all__ = ["SAMPLE", "clusters", "enough", "first", "pivots", "rows_at", "sample", "tell"]

_LOG = logging.getLogger("qpruntime")

#: For "auto": the share of the prior variance that rows of a sample may be left with, and between
#: how many inducing inputs that is sought.
TOLERANCE, FEWEST, MOST = 0.05, 50, 1000

#: Rows that inducing inputs are chosen from, at most.
SAMPLE = 20_000
# Rows of a batch of the clustering, and passes over the sample.
_BATCH, _PASSES = 2048, 10
# Inducing inputs that coincide in the features are moved apart by this share of their spread.
_APART = 1e-3
_NONE: Mapping[int, float] = MappingProxyType({})


def sample(n: int, most: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Return numbers of at most so many of n rows, in ascending order."""
    if n <= most:
        return np.arange(n)
    return np.sort(rng.choice(n, most, replace=False))


def rows_at(X: Any, some: NDArray[np.intp]) -> Array:
    """Return some rows, in ascending order, of inputs of any kind."""
    return read_rows(X, some) if is_lazy(X) else X[some]


def clusters(
    X: Array,
    count: int,
    rng: np.random.Generator,
    units: Array | None = None,
    levels: Mapping[int, float] = _NONE,
) -> Array:
    """Return centres (M, d) of the rows of X (N, d), by k-means++ and mini-batches.

    In columns of levels a centre has the level that most of its rows have.

    Parameters
    ----------
    X : ndarray, shape (N, d)
    count : int
        M, at most N.
    rng : Generator
    units : ndarray, shape (d,), optional
        What distances are measured in, such as length-scales; 1 by default.
    levels : mapping of int to float, optional
        Squared distances of two levels that differ, by column; of `levels_of`.
    """
    scale = np.ones(X.shape[1]) if units is None else units
    with np.errstate(invalid="ignore"):
        points = X[sample(len(X), SAMPLE, rng)]
        spelt = [Spelt.of(points[:, k], k, square) for k, square in levels.items()]
        points = np.delete(points, list(levels), axis=1) / np.delete(scale, list(levels))
        points = np.column_stack([points, *(one.rows for one in spelt)]) if levels else points
    found = MiniBatchKMeans(
        count,
        batch_size=_BATCH,
        max_iter=_PASSES,
        n_init=1,
        random_state=int(rng.integers(2**31)),
    )
    # Threads of OpenMP do not survive a fork, and the child would wait for them without end.
    with threadpool_limits(1, "openmp"), warnings.catch_warnings():
        # Fewer distinct rows than centres: some coincide, and are moved apart below.
        warnings.simplefilter("ignore")
        centres = found.fit(points).cluster_centers_
    if levels:
        return _at_levels(centres, X, scale, spelt, rng)
    finite = np.isfinite(scale)
    centres = np.where(finite, centres * np.where(finite, scale, 1.0), X[0])
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
        """Points of the codes of some rows; two that differ are the root of `square` apart."""
        known = np.unique(codes)
        return cls(column, known, np.sqrt(0.5 * square) * (codes[:, None] == known))


def _at_levels(
    centres: Array, X: Array, scale: Array, spelt: Sequence[Spelt], rng: np.random.Generator
) -> Array:
    """Centres with codes in columns of levels; those that coincide are apart in their numbers."""
    Z = np.tile(X[:1], (len(centres), 1))
    numbers = [k for k in range(X.shape[1]) if k not in {one.column for one in spelt}]
    for at, k in enumerate(numbers):
        if np.isfinite(scale[k]):
            Z[:, k] = centres[:, at] * scale[k]
    first = len(numbers)
    for one in spelt:
        Z[:, one.column] = one.known[centres[:, first : first + one.known.size].argmax(axis=1)]
        first += one.known.size
    spread = np.zeros(X.shape[1])
    spread[numbers] = X[:, numbers].std(axis=0)
    # Levels alone have no more places than there are rows that differ.
    return _apart(Z, spread, rng) if spread.any() else np.unique(Z, axis=0)


def levels_of(kernel: Any) -> dict[int, float]:
    """Columns that a kernel takes for levels, and how far two of them are: twice -log k."""
    found: dict[int, float] = {}
    _collect(read(kernel), found)
    return found


def _collect(node: Node, found: dict[int, float]) -> None:
    if isinstance(node, (Added, Multiplied)):
        _collect(node.one, found)
        _collect(node.two, found)
    elif isinstance(node, Seen):
        inner: dict[int, float] = {}
        _collect(node.inner, inner)
        found |= {int(node.kernel.columns[k]): square for k, square in inner.items()}
    elif node.parts.levels:
        similar = np.maximum(node.kernel.similarity, 1e-20)
        pairs = zip(node.kernel.columns, -2.0 * np.log(similar), strict=True)
        found |= {int(k): float(square) for k, square in pairs}


def _apart(Z: Array, spread: Array, rng: np.random.Generator) -> Array:
    """Move inputs that coincide, which add nothing to each other."""
    _, first = np.unique(Z, axis=0, return_index=True)
    again = np.setdiff1d(np.arange(len(Z)), first)
    Z[again] += _APART * spread * rng.standard_normal((again.size, Z.shape[1]))
    return Z


def pivots(
    kernel: Any, X: Array, most: int, tolerance: float, rng: np.random.Generator
) -> tuple[Array, float]:
    """Choose rows until what they leave of the prior variance is below a share of it.

    Parameters
    ----------
    kernel : scikit-learn kernel
        With the parameters that the inputs are chosen for.
    X : ndarray, shape (N, d)
        Of more than `SAMPLE` rows, so many are drawn.
    most : int
        Rows chosen at most.
    tolerance : float
        Of sum r_n / sum k_nn, where r_n is the variance of f(x_n) given f(Z). White noise is in
        neither.

    Returns
    -------
    Z : ndarray, shape (M, d)
    error : float
        The share reached.
    """
    some = X[sample(len(X), SAMPLE, rng)]
    n = len(some)
    most = min(most, n)
    residual = diagonal(kernel, some, noise=False)
    total, start = float(residual.sum()), residual.copy()
    # Columns of the pivoted factor, in the order that a product with its rows takes.
    factor = np.empty((n, most), order="F")
    chosen: list[int] = []
    while len(chosen) < most and residual.sum() > tolerance * total:
        best = int(np.argmax(residual))
        pivot = float(residual[best])
        if pivot <= 1e-10 * start[best]:
            break  # what is left is rounding
        k = len(chosen)
        column = cross_covariance(kernel, some, some[best : best + 1])[:, 0]
        if k:
            column = dgemv(-1.0, factor[:, :k], factor[best, :k], beta=1.0, y=column)
        column /= np.sqrt(pivot)
        factor[:, k] = column
        residual = np.maximum(residual - column * column, 0.0)
        residual[best] = 0.0
        chosen.append(best)
    return some[chosen], float(residual.sum()) / total


def first(
    given: Array | int | str, kernel: Kernel, X: Array, spread: Array, rng: np.random.Generator
) -> Array:
    """Return the inducing inputs that parameters are first learnt with; "auto" begins with 200."""
    if isinstance(given, np.ndarray):
        return given
    count = min(FEWEST * 4, len(X) // 4 or 1) if isinstance(given, str) else int(given)
    return clusters(X, count, rng, units(kernel, spread), levels_of(kernel))


def enough(
    kernel: Kernel, X: Array, spread: Array, rng: np.random.Generator
) -> tuple[Array, float]:
    """Return as many centres as `TOLERANCE` takes under a kernel, and the share that is left."""
    most = min(MOST, len(X))
    found, share = pivots(kernel, X, most, TOLERANCE, rng)
    count = max(len(found), min(FEWEST, most))
    return clusters(X, count, rng, units(kernel, spread), levels_of(kernel)), share


def tell(count: int, share: float) -> None:
    """Say what "auto" has chosen, and the error that it implies."""
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
    """What distances of inputs are measured in: length-scales of each feature, else its spread."""
    seen = _lengths(read(kernel), spread.size)
    if seen is not None:
        return np.where(np.isnan(seen), np.where(spread > 0.0, spread, 1.0), seen)
    parameters = kernel.get_params()
    for name, value in parameters.items():
        if name.endswith("length_scale") and np.size(value) == spread.size > 1:
            return np.asarray(value, dtype=float)
    return np.where(spread > 0.0, spread, 1.0)


def _lengths(node: Node, count: int) -> Array | None:
    """Length-scales of a kernel beside one of levels, NaN where it has none; None for others."""
    if isinstance(node, Added):
        one = _lengths(node.one, count)
        return _lengths(node.two, count) if one is None else one
    if isinstance(node, Multiplied):
        pair = node.one, node.two
        for levels, other in (pair, pair[::-1]):
            similar = isinstance(levels, Leaf) and levels.parts.levels
            if similar and isinstance(other, Seen):
                found = np.full(count, np.nan)
                found[list(other.kernel.columns)] = getattr(
                    other.kernel.kernel, "length_scale", np.nan
                )
                return found
        return _lengths(node.two, count)
    return None
