"""Points in blocks: their nearest places, what is known of these, and the sites put back on f."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.execution.blas_threads import one_blas_thread
from qpruntime.execution.calls import Threads
from qpruntime.inference.nearest.covariances import within
from qpruntime.inference.nearest.disk import in_parts
from qpruntime.inference.nearest.features import Features, Known
from qpruntime.inference.nearest.local import marginals, products, without_sites
from qpruntime.inference.nearest.metric import metric
from qpruntime.inference.nearest.neighbours import neighbours_of
from qpruntime.inference.nearest.places import Places
from qpruntime.inference.sites import Sites
from qpruntime.inference.sparse.rows import Columns
from qpruntime.kernels.cross import diagonal

__all__ = ["Ground", "check_rows"]

Numbers = NDArray[np.intp]

# Points whose neighbours are looked up together, and that are corrected together.
_TOGETHER, _BLOCK = 2048, 128


class Points(NamedTuple):
    """Points (b, d) and what the inducing inputs say of them; `own` are rows that are left out."""

    X: Array
    phi: Any
    psi: Any
    mean: Array
    own: Numbers | None = None


class Ground:
    """Rows with their sites about the prior mean, and what is made of them.

    Parameters
    ----------
    kernel : scikit-learn kernel
    known : Known
    columns : Columns
        With inputs (N, d) that are held.
    sites : Sites
    """

    def __init__(self, kernel: Any, known: Known, columns: Columns, sites: Sites) -> None:
        X = columns.X
        self.kernel, self.known, self.columns, self.sites = kernel, known, columns, sites
        places = Places.of(X, sites, in_parts(self._noise, X))
        scale = metric(kernel, X.shape[1])
        self._index = neighbours_of(places.X, known.inducing.Z, scale)
        order = self._index.taken()
        # Neighbours are read together: those of a cell are next to each other.
        self.places = places if order is None else places.ordered(order)
        self._features = Features(self.places, known)
        rows = np.arange(columns.n)
        tau, nu = self.places.own(rows)
        self._site = Sites(*(self.places.summed(rows, a) for a in (tau, nu)))
        self._lock = threading.Lock()

    def _noise(self, X: Array) -> Array:
        return diagonal(self.kernel, X) - diagonal(self.kernel, X, noise=False)

    def predict(self, X: Array, k: int) -> tuple[Array, Array]:
        """Mean about the prior and variance of f, noise included, at points (T, d)."""
        k = min(k, self.places.count)
        known = self._features.known

        def job(some: slice, nearest: Numbers, slots: Numbers) -> tuple[Array, Array]:
            phi, psi, _, mean = known.described(X[some])
            return self._corrected(Points(X[some], phi, psi, mean), nearest, slots)

        def nearest(some: slice) -> Numbers:
            return self._index.query(X[some], k)

        mean, variance = self._in_blocks(len(X), nearest, job)
        return mean, variance + self._noise(X)

    def without(self, rows: Numbers, k: int) -> tuple[Array, Array]:
        """Mean about the prior and variance of f, noise included, of rows left out, (n,).

        Where there is no such posterior the variance is not a positive number.
        """
        k = min(k, self.places.count - 1)
        at = self.places.of_row[rows]

        def job(some: slice, nearest: Numbers, slots: Numbers) -> tuple[Array, Array]:
            there, features = slots[:, 0], self._features
            phi, psi = features.phi[there], features.psi[there]
            points = Points(self.places.at(at[some]), phi, psi, features.mean[there], rows[some])
            return self._corrected(points, nearest, slots)

        def nearest(some: slice) -> Numbers:
            own = at[some]
            found = self._index.query(self.places.at(own), k + 1)
            others = found != own[:, None]
            others[others.all(axis=1), -1] = False
            return np.column_stack([own, found[others].reshape(len(own), k)])

        mean, variance = self._in_blocks(len(rows), nearest, job)
        return mean, variance + self.places.noise[at]

    def _in_blocks(self, n: int, nearest: Any, job: Any) -> tuple[Array, Array]:
        """Look up neighbours and features of many points, and correct these in small blocks."""
        found = np.empty((2, n))
        # Features move to other slots while others are made.
        with self._lock, one_blas_thread():
            for start in range(0, n, _TOGETHER):
                whole = slice(start, min(start + _TOGETHER, n))
                places = nearest(whole)
                slots = self._features.slots(places)
                begins = range(whole.start, whole.stop, _BLOCK)
                blocks = [slice(b, min(b + _BLOCK, whole.stop)) for b in begins]

                def call(some: slice, start: int = start, places: Any = places,
                         slots: Any = slots) -> Any:  # fmt: skip
                    inside = slice(some.start - start, some.stop - start)
                    return job(some, places[inside], slots[inside])

                def take(number: int, result: Any, blocks: Any = blocks) -> None:
                    found[:, blocks[number]] = result

                Threads(None).each([(partial(call), some) for some in blocks], take)
        return found[0], found[1]

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
        if points.own is not None:
            proper = self._leave_out(points.own, A, mean, (T, N, tau, nu), features.r[slots[:, 0]])
        left = without_sites(A, Q, K, mean, T, N)
        centre, variance = marginals(left, tau, nu)
        # What single precision leaves no factor for is left as the inducing inputs have it.
        last = A[:, -1, -1] + np.maximum(K[:, -1] - Q[:, -1, -1], 0.0)
        good = left.good & np.isfinite(centre) & np.isfinite(variance)
        centre, variance = np.where(good, centre, mean[:, -1]), np.where(good, variance, last)
        return centre, np.where(proper, np.maximum(variance, 0.0), -1.0)

    def _leave_out(self, own: Numbers, A: Array, mean: Array, sites: Any, r: Array) -> Any:
        """Take rows at the first place of their sets out of w, in place; say where that is proper.

        Here also sites of negative precision can go, of which the others know nothing.
        """
        T, N, tau, nu = sites
        share = 1.0 + self.known.power * r * self.sites.tau[own]
        t, n = self.sites.tau[own] / share, self.sites.nu[own] / share
        kept = 1.0 - t * A[:, 0, 0]
        proper = (kept > 0.0) & (share > 0.0)
        t, n, kept = (np.where(proper, a, b) for a, b in ((t, 0.0), (n, 0.0), (kept, 1.0)))
        ray = A[:, 0].copy()
        mean += ray * ((t * mean[:, 0] - n) / kept)[:, None]
        A += ray[:, :, None] * ray[:, None, :] * (t / kept)[:, None, None]
        counted = self.sites.tau[own] >= 0.0
        T[:, 0] = np.maximum(T[:, 0] - np.where(counted, t, 0.0), 0.0)
        N[:, 0] -= np.where(counted, n, 0.0)
        there = self.places.own(own)
        tau[:, 0] = np.maximum(tau[:, 0] - there.tau, 0.0)
        nu[:, 0] -= there.nu
        alone = np.bincount(self.places.of_row, minlength=self.places.count)
        single = alone[self.places.of_row[own]] == 1
        for array in sites:
            array[single, 0] = 0.0
        return proper


def check_rows(X: Array, n: int, d: int) -> None:
    """Raise `InputError` unless rows have shape (n, d)."""
    if X.shape != (n, d):
        raise InputError(f"X must be the {n} rows of the posterior, ({n}, {d}), got {X.shape}")
