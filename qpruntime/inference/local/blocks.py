"""Blocks of nearest neighbours, their features and covariances."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qpruntime._numba import summed
from qpruntime._typing import Array
from qpruntime.errors import InputError
from qpruntime.execution.threads import Threads, one_blas_thread
from qpruntime.inference.local.linalg import marginals, products, without_sites
from qpruntime.inference.local.neighbours import distinct, metric, neighbours_of
from qpruntime.inference.local.storage import in_parts, taken
from qpruntime.inference.sites import Sites, without_negative
from qpruntime.inference.sparse.rows import Held, InducingInputs, Rows, divide
from qpruntime.kernels.cross_covariance import cross_covariance, diagonal
from qpruntime.kernels.registry import Added, Multiplied, Node, Seen, read

if TYPE_CHECKING:
    from sklearn.gaussian_process.kernels import Kernel

__all__ = [
    "MEMORY",
    "Described",
    "NeighbourBlocks",
    "NeighbourFeatures",
    "PlaceSearch",
    "Places",
    "PredictiveWeights",
    "check_rows",
    "within",
]

# --- Blocks of points and their neighbours

# Numbers of points whose neighbours are searched together, and which are corrected together.
_POINTS_PER_SEARCH, _POINTS_PER_BLOCK = 2048, 128


class Points(NamedTuple):
    """Points (b, d) with features and means under the inducing posterior.

    `left_out` has the rows to leave out; with `places` all rows that equal them are left out too.
    """

    X: Array
    phi: Rows
    psi: Rows
    mean: Array
    left_out: Numbers | None = None
    places: bool = False


# Largest number of neighbours of left-out rows that are remembered, 8 MB.
_REMEMBERED_NUMBERS = 2**20


class PlaceSearch:
    """Index of the places of rows, and the neighbours of the rows that were left out last.

    Kernels that differ in their variances alone share it: the search takes a third of the time of
    leave-one-out densities.
    """

    def __init__(self, X: Array, places: Array, centres: Array, scale: Array) -> None:
        self._key = X, centres, scale
        self.index = neighbours_of(places, centres, scale)
        self.order = self.index.taken()
        self._last: tuple[Numbers, int, Numbers] | None = None

    def serves(self, X: Array, centres: Array, scale: Array) -> bool:
        """Decide whether the index has the same object as rows, equal centres and equal scales."""
        rows, *others = self._key
        return rows is X and all(map(np.array_equal, others, (centres, scale)))

    def remembered(self, places: Numbers, k: int) -> Numbers | None:
        """Return the neighbours that `remember` has for these places, or None."""
        last = self._last  # read once, as another thread may replace it
        if last is None or last[1] != k or not np.array_equal(last[0], places):
            return None
        return last[2]

    def remember(self, places: Numbers, k: int, nearest: Numbers) -> None:
        """Keep the neighbours of places, shape (n, k + 1), in memory."""
        self._last = places, k, nearest


class NeighbourBlocks:
    """Neighbour blocks of rows: their sites about the prior mean, places and features.

    Parameters
    ----------
    kernel : scikit-learn kernel
    known : PredictiveWeights
    columns : Held
        Columns with inputs (N, d) that are held.
    sites : Sites
    search : PlaceSearch or None
        Search of an earlier kernel, used if it serves.
    """

    def __init__(
        self,
        kernel: Kernel,
        known: PredictiveWeights,
        columns: Held,
        sites: Sites,
        search: PlaceSearch | None = None,
    ) -> None:
        X = columns.X
        self.kernel, self.known, self.columns, self.sites = kernel, known, columns, sites
        places = Places.of(X, sites, in_parts(self._noise, X))
        key = known.inducing.Z, metric(kernel, X.shape[1])
        if search is None or not search.serves(X, *key):
            search = PlaceSearch(X, places.X, *key)
        self.search, order = search, search.order
        # Places of a cell are stored together, because neighbours are read together.
        self.places = places if order is None else places.ordered(order)
        self._features = NeighbourFeatures(self.places, known)
        rows = np.arange(columns.n)
        tau, nu = self.places.own(rows)
        self._site = Sites(*(self.places.summed(rows, a) for a in (tau, nu)))
        self._lock = threading.Lock()

    def _noise(self, X: Array) -> Array:
        return diagonal(self.kernel, X) - diagonal(self.kernel, X, noise=False)

    def predict(self, X: Array, k: int) -> tuple[Array, Array]:
        """Return the mean about the prior and the variance of f with noise, at points (T, d)."""
        k = min(k, self.places.count)
        known = self._features.known

        def job(some: slice, nearest: Numbers, slots: Numbers) -> tuple[Array, Array]:
            phi, psi, _, mean = known.described(X[some])
            return self._corrected(Points(X[some], phi, psi, mean), nearest, slots)

        def nearest(some: slice) -> Numbers:
            return self.search.index.query(X[some], k)

        mean, variance = self._in_blocks(len(X), nearest, job)
        return mean, variance + self._noise(X)

    def without(self, rows: Numbers, k: int, places: bool = False) -> tuple[Array, Array]:
        """Return the mean about the prior and the variance of f with noise, of rows left out, (n,).

        If `places`, all rows that equal a row are left out with it. The variance is not positive if
        there is no proper posterior.
        """
        k = min(k, self.places.count - 1)
        at = self.places.of_row[rows]
        known = self.search.remembered(at, k)
        is_kept = known is None and at.size * (k + 1) <= _REMEMBERED_NUMBERS
        kept = np.empty((at.size if is_kept else 0, k + 1), np.intp)

        def job(block: slice, nearest: Numbers, slots: Numbers) -> tuple[Array, Array]:
            first_slots, features = slots[:, 0], self._features
            phi, psi = features.phi[first_slots], features.psi[first_slots]
            said = phi, psi, features.mean[first_slots]
            points = Points(self.places.at(at[block]), *said, rows[block], places)
            return self._corrected(points, nearest, slots)

        def nearest(block: slice) -> Numbers:
            """Return the place of each row of a block and its neighbours, shape (b, k + 1)."""
            if known is not None:
                return known[block]
            places_of_block = at[block]
            candidates = self.search.index.query(self.places.at(places_of_block), k + 1)
            others = candidates != places_of_block[:, None]
            others[others.all(axis=1), -1] = False
            neighbours = np.column_stack(
                [places_of_block, candidates[others].reshape(len(places_of_block), k)]
            )
            if is_kept:
                kept[block] = neighbours
            return neighbours

        mean, variance = self._in_blocks(len(rows), nearest, job)
        if is_kept:
            self.search.remember(at, k, kept)
        return mean, variance + self.places.noise[at]

    def _in_blocks(
        self,
        n: int,
        nearest: Callable[[slice], Numbers],
        job: Callable[[slice, Numbers, Numbers], tuple[Array, Array]],
    ) -> tuple[Array, Array]:
        """Find neighbours and features of many points, and correct them in small blocks."""
        moments = np.empty((2, n))
        # Computing features may move others to new slots, hence the lock.
        with self._lock, one_blas_thread():
            for start in range(0, n, _POINTS_PER_SEARCH):
                searched = slice(start, min(start + _POINTS_PER_SEARCH, n))
                places = nearest(searched)
                slots = self._features.slots(places)
                begins = range(searched.start, searched.stop, _POINTS_PER_BLOCK)
                blocks = [slice(b, min(b + _POINTS_PER_BLOCK, searched.stop)) for b in begins]

                def call(rows: slice, start: int = start, places: Numbers = places,
                         slots: Numbers = slots) -> tuple[Array, Array]:  # fmt: skip
                    inside = slice(rows.start - start, rows.stop - start)
                    return job(rows, places[inside], slots[inside])

                def take(
                    number: int, result: tuple[Array, Array], blocks: list[slice] = blocks
                ) -> None:
                    moments[:, blocks[number]] = result

                Threads(None).each([(partial(call), block) for block in blocks], take)
        return moments[0], moments[1]

    def _corrected(self, points: Points, places: Numbers, slots: Numbers) -> tuple[Array, Array]:
        features = self._features
        A = products(slots, features.psi, points.psi)
        Q = products(slots, features.phi, points.phi)
        sets = np.concatenate([self.places.at(places), points.X[:, None]], axis=1)
        K = within(self.kernel, sets)
        mean = np.column_stack([features.mean[slots], points.mean])
        T, N = features.T[slots], features.N[slots]
        tau, nu = self._site.tau[places], self._site.nu[places]
        proper = np.ones(len(places), np.bool_)
        if points.left_out is not None:
            sites = T, N, tau, nu
            r = features.r[slots[:, 0]]
            proper = self._leave_out(points.left_out, A, mean, sites, r, points.places)
        cavity = without_sites(A, Q, K, mean, T, N)
        centre, variance = marginals(cavity, tau, nu)
        # Points without a factor in single precision keep the prediction of the inducing inputs.
        inducing_variance = A[:, -1, -1] + np.maximum(K[:, -1] - Q[:, -1, -1], 0.0)
        good = cavity.good & np.isfinite(centre) & np.isfinite(variance)
        centre, variance = (
            np.where(good, centre, mean[:, -1]),
            np.where(good, variance, inducing_variance),
        )
        return centre, np.where(proper, np.maximum(variance, 0.0), -1.0)

    def _leave_out(
        self, rows: Numbers, A: Array, mean: Array, sites: tuple[Array, ...], r: Array, places: bool
    ) -> NDArray[np.bool_]:
        """Remove rows at the first place of their sets from w, in place; return where it is proper.

        Sites of negative precision can be removed as well, although `Places` leaves them out.
        """
        T, N, tau, nu = sites
        share = 1.0 + self.known.power * r * self.sites.tau[rows]
        t, n = self.sites.tau[rows] / share, self.sites.nu[rows] / share
        if places:
            share, t, n = np.ones(rows.size), T[:, 0].copy(), N[:, 0].copy()
        kept = 1.0 - t * A[:, 0, 0]
        proper = (kept > 0.0) & (share > 0.0)
        t, n, kept = (np.where(proper, a, b) for a, b in ((t, 0.0), (n, 0.0), (kept, 1.0)))
        ray = A[:, 0].copy()
        mean += ray * ((t * mean[:, 0] - n) / kept)[:, None]
        A += ray[:, :, None] * ray[:, None, :] * (t / kept)[:, None, None]
        counted = self.sites.tau[rows] >= 0.0
        T[:, 0] = np.maximum(T[:, 0] - np.where(counted, t, 0.0), 0.0)
        N[:, 0] -= np.where(counted, n, 0.0)
        row_site = self.places.own(rows)
        tau[:, 0] = np.maximum(tau[:, 0] - row_site.tau, 0.0)
        nu[:, 0] -= row_site.nu
        alone = np.bincount(self.places.of_row, minlength=self.places.count)
        single = places | (alone[self.places.of_row[rows]] == 1)
        for array in sites:
            array[single, 0] = 0.0
        return proper


def check_rows(X: Array, n: int, d: int) -> None:
    """Raise `InputError` unless rows have shape (n, d)."""
    if X.shape != (n, d):
        raise InputError(f"X must be the {n} rows of the posterior, ({n}, {d}), got {X.shape}")


# --- Prior covariances within blocks


def within(kernel: Kernel, X: Array) -> Array:
    """Return covariances of the points of b sets (b, k, d), without white noise.

    The result has the lower triangles row by row, shape (b, k (k + 1)/2), because exponentials are
    most of the cost.
    """
    k = X.shape[1]
    values = np.asarray(_values(read(kernel), X), dtype=float)
    return np.full((len(X), k * (k + 1) // 2), values) if values.ndim == 0 else values


def _values(node: Node, X: Array) -> Array | float:
    """Return covariances, or a number if they are constant."""
    if isinstance(node, Added):
        return _values(node.first, X) + _values(node.second, X)
    if isinstance(node, Multiplied):
        return _values(node.first, X) * _values(node.second, X)
    if isinstance(node, Seen):
        return _values(node.inner, np.ascontiguousarray(X[:, :, list(node.kernel.columns)]))
    kernel, parts = node.kernel, node.parts
    if parts.constant:
        return node.value
    if parts.noise:
        return 0.0
    if parts.shape is not None:
        squares = np.empty((len(X), X.shape[1] * (X.shape[1] + 1) // 2))
        length = np.asarray(kernel.length_scale if parts.scaled else 1.0, dtype=float)
        _squares(X / np.broadcast_to(length, X.shape[2:]), squares)
        return parts.shape(kernel, squares, False)[0]
    lower = np.tril_indices(X.shape[1])
    return np.stack([cross_covariance(kernel, points, points)[lower] for points in X])


@summed
def _squares(x: Array, out: Array) -> None:
    """Fill the squared distances in each set."""
    b, k, d = x.shape
    for s in range(b):
        position = 0
        for i in range(k):
            for j in range(i + 1):
                square = 0.0
                for f in range(d):
                    step = x[s, i, f] - x[s, j, f]
                    square += step * step
                out[s, position] = square
                position += 1


# --- Features of places

#: Memory for cached features, in bytes.
MEMORY = 2e9
# Features of more bytes are stored in single precision, which takes half the time. They are also
# computed in single precision if, on a sample of places, that changes predictions by less than this
# share of their standard deviations.
_DOUBLE_BYTES = 3e7
_SINGLE_TOLERANCE, _SAMPLED_PLACES = 1e-3, 256
# Number of features in a block.
_BLOCK_NUMBERS = 2**19


class PredictiveWeights(NamedTuple):
    """Posterior of w for predictions: root of B, mean, power of power EP."""

    inducing: InducingInputs
    root: Array
    weights: Array
    power: float

    def single(self) -> PredictiveWeights:
        """Return the posterior for features of single precision."""
        single = np.float32
        inducing, root, weights = self.inducing.in_dtype(single), self.root, self.weights
        return PredictiveWeights(inducing, root.astype(single), weights.astype(single), self.power)

    def described(self, X: Array, phi: Rows | None = None, psi: Rows | None = None) -> Described:
        """Describe points (n, d), in arrays (n, M) if they are given."""
        phi, r = self.inducing.features(X, phi)
        psi = np.empty_like(phi) if psi is None else psi
        psi[:] = phi
        return Described(phi, divide(psi, self.root), np.asarray(r, float), phi @ self.weights)


class Described(NamedTuple):
    """phi and psi = phi L_B^-T (n, M) of points, r and the mean of phi^T w (n,)."""

    phi: Rows
    psi: Rows
    r: Array
    mean: Array


class NeighbourFeatures:
    """Cache of features of places, with as many slots as places or as memory allows.

    Attributes
    ----------
    known : PredictiveWeights
        Posterior of w in the precision in which features are computed.
    phi, psi : ndarray, shape (slots, M)
    r, mean, T, N : ndarray, shape (slots,)
        Variance given the inducing inputs, with white noise; mean of phi^T w; and the sites of the
        rows there as the inducing posterior contains them.
    """

    def __init__(self, places: Places, known: PredictiveWeights) -> None:
        self._places = places
        P, M = places.count, known.inducing.size
        self.dtype = np.dtype(np.float64 if 16 * P * M <= _DOUBLE_BYTES else np.float32)
        self.known = known
        if self.dtype == np.float32:
            sample = places.at(np.arange(0, P, max(1, P // _SAMPLED_PLACES))[:_SAMPLED_PLACES])
            if _suffices(known, sample):
                self.known = known.single()
        self._make(int(min(P, MEMORY // (2 * M * self.dtype.itemsize))))

    def _make(self, slots: int) -> None:
        M = self.known.inducing.size
        self.phi, self.psi = (np.empty((slots, M), self.dtype) for _ in range(2))
        self.r, self.mean, self.T, self.N = np.zeros((4, slots))
        self._slot = np.full(self._places.count, -1, np.intp)
        self._used = 0

    def slots(self, places: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the slots of places, of any shape, which are valid until the next call."""
        wanted = np.unique(places)
        missing = wanted[self._slot[wanted] < 0]
        if self._used + len(missing) > len(self.r):
            if len(wanted) > len(self.r):
                self._make(len(wanted))
            self._slot[:], self._used, missing = -1, 0, wanted
        step = max(1, _BLOCK_NUMBERS // self.known.inducing.size)
        for start in range(0, len(missing), step):
            self._fill(missing[start : start + step])
        return self._slot[places]

    def _fill(self, places: NDArray[np.intp]) -> None:
        """Compute the features of places into free slots."""
        slots = slice(self._used, self._used + len(places))
        X = self._places.at(places)
        same = self.dtype == self.known.inducing.dtype
        described = self.known.described(X, *((self.phi[slots], self.psi[slots]) if same else ()))
        if not same:
            self.phi[slots], self.psi[slots] = described.phi, described.psi
        self.r[slots], self.mean[slots] = described.r, described.mean
        self.T[slots], self.N[slots] = self._places.sites_of(places, described.r, self.known.power)
        self._slot[places] = np.arange(slots.start, slots.stop)
        self._used = slots.stop


def _suffices(known: PredictiveWeights, X: Array) -> bool:
    """Decide whether single precision suffices to compute the features of points."""
    single, double = known.single().described(X), known.described(X)

    def variance(described: Described) -> Array:
        return np.asarray(described.r + np.einsum("nm,nm->n", described.psi, described.psi))

    typical_variance = float(variance(double).mean())
    errors = [np.abs(variance(single) - variance(double)), np.abs(single.mean - double.mean)]
    return bool(
        errors[0].max() <= _SINGLE_TOLERANCE * typical_variance
        and errors[1].max() <= _SINGLE_TOLERANCE * math.sqrt(typical_variance)
    )


# --- Sites summed by place
#
# Latent values are f_n = m_n + h(x_n) + noise with prior mean m_n. A site (tau, nu) of f_n is one
# of h(x_n) with tau/(1 + s tau) and nu/(1 + s tau), where s is the variance of the white noise;
# sites of h at one place add up. The inducing posterior contains a row as the site (T, N) =
# (tau, nu)/(1 + power r tau).

Numbers = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Places:
    """Distinct inputs (P, d) of N rows.

    Attributes
    ----------
    X : ndarray, shape (P, d)
    of_row : ndarray of int, shape (N,)
    rows, begin : ndarray of int, shapes (N,), (P + 1,)
        Rows sorted by place; those of place p are ``rows[begin[p]:begin[p + 1]]``.
    sites : Sites
        Sites of f at rows about the prior mean, without those of negative precision.
    noise : ndarray, shape (P,)
        Variance of the white noise.
    """

    X: Array
    of_row: Numbers
    rows: Numbers
    begin: Numbers
    sites: Sites
    noise: Array

    @property
    def count(self) -> int:
        """Number of places."""
        return len(self.X)

    @classmethod
    def of(cls, X: Array, sites: Sites, noise: Array) -> Places:
        """Merge rows X (N, d) with sites and white noise (N,) of these."""
        first, group = distinct(X)
        if len(first) == len(X):
            # All rows differ and keep their order.
            first = group = np.arange(len(X))
        order = np.argsort(group, kind="stable")
        begin = np.searchsorted(group[order], np.arange(len(first) + 1))
        return cls(taken(X, first), group, order, begin, without_negative(sites), noise[first])

    def ordered(self, order: Numbers) -> Places:
        """Return the places in a new order, with place ``order[p]`` as number p."""
        back = np.empty(len(order), np.intp)
        back[order] = np.arange(len(order))
        lengths = np.diff(self.begin)[order]
        begin = np.concatenate([[0], np.cumsum(lengths)])
        inside = np.arange(len(self.rows)) - np.repeat(begin[:-1], lengths)
        rows = self.rows[np.repeat(self.begin[order], lengths) + inside]
        X, of_row, noise = taken(self.X, order), back[self.of_row], self.noise[order]
        return Places(X, of_row, rows, begin, self.sites, noise)

    def at(self, places: Numbers) -> Array:
        """Return inputs of selected places, read from disk if needed."""
        return np.asarray(self.X[places])

    def own(self, rows: Numbers) -> Sites:
        """Return sites of h of chosen rows, without noise."""
        share = 1.0 + self.noise[self.of_row[rows]] * self.sites.tau[rows]
        return Sites(self.sites.tau[rows] / share, self.sites.nu[rows] / share)

    def summed(self, rows: Numbers, values: Array) -> Array:
        """Sum values of selected rows by place, shape (P,)."""
        return _sum_by_number(self.of_row[rows], values, self.count)

    def sites_of(self, places: Numbers, r: Array, power: float) -> tuple[Array, Array]:
        """Return T and N of selected places, whose variance given the inducing inputs is r."""
        lengths = self.begin[places + 1] - self.begin[places]
        owner = np.repeat(np.arange(len(places)), lengths)
        inside = np.arange(len(owner)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        rows = self.rows[self.begin[places][owner] + inside]
        tau, nu = self.sites.tau[rows], self.sites.nu[rows]
        share = 1.0 + power * r[owner] * tau
        return _sum_by_number(owner, tau / share, len(places)), _sum_by_number(
            owner, nu / share, len(places)
        )


def _sum_by_number(at: Numbers, values: Array, size: int) -> Array:
    """Return sums of values by number as floats; bincount of no values returns integers."""
    return np.bincount(at, values, minlength=size).astype(float)
