"""All functions at all observed points, which every x* shares, and with it: what NFCPD begins with.

Posterior means and covariances, their roots continued by x*; no sites yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dpstrf

from qpruntime.arrays import Array
from qpruntime.bayesopt.surrogate import Surrogate
from qpruntime.errors import InputError

__all__ = ["Base", "Frame", "Parts", "begin", "checked", "least_gap", "stacked"]

#: What is left of a variance is dropped below this part of the prior variance, as rounding.
_RANK = 1e-14
#: Var(f_n - f(x*)) below this part of the variances says that the points are one, so does this
#: part of the prior variance, to which posterior variances are rounded.
_SAME, _ROUNDED = 1e-12, 1e-14


class Base(NamedTuple):
    """Every function at T points, given its own data alone.

    mean, variance (K + 1, T); cross (K + 1, T, N) with the N observed points; white, a list of
    K + 1 arrays (n_j, T), as of `Surrogate.whiten`.
    """

    X: Array
    mean: Array
    variance: Array
    cross: Array
    white: list[Array]


def checked(surrogates: Sequence[Surrogate]) -> list[Surrogate]:
    """Return functions, the objective first, that agree about d; or raise `InputError`."""
    found = list(surrogates)
    if not found or not all(isinstance(s, Surrogate) for s in found):
        raise InputError(
            "surrogates must be a list of Surrogate, the objective first, then the constraints"
        )
    widths = [s.X.shape[1] for s in found]
    if len(set(widths)) > 1:
        raise InputError(f"surrogates must have points of one width, got {widths}")
    return found


class Frame:
    """Functions (the objective first) at the union of their observed points.

    Attributes
    ----------
    points : ndarray, shape (N, d)
        Every observed point once: a factor counted twice makes variances 3 % too small.
    mean : ndarray, shape (K + 1, N)
    roots : list of ndarray, shape (N, r_j)
        Of the posterior covariances, r_j their numerical rank.
    """

    def __init__(self, surrogates: Sequence[Surrogate]) -> None:
        self.surrogates = checked(surrogates)
        everywhere = np.vstack([s.X for s in self.surrogates]) + 0.0
        self.points = np.unique(everywhere, axis=0)
        self._white = [s.whiten(self.points) for s in self.surrogates]
        self.mean = np.array([s.posterior_mean(self.points) for s in self.surrogates])
        self.roots: list[Array] = []
        self._leading: list[tuple[NDArray[np.intp], Array]] = []
        for s, Z in zip(self.surrogates, self._white, strict=True):
            V = s.covariance(self.points, self.points) - Z.T @ Z
            root, pivots, leading = _root(V, _RANK * s.scale)
            self.roots.append(root)
            self._leading.append((pivots, leading))

    def base(self, X: Array) -> Base:
        """All functions at the points X, shape (T, d)."""
        mean, variance, cross, white = [], [], [], []
        for s, Z in zip(self.surrogates, self._white, strict=True):
            W = s.whiten(X)
            white.append(W)
            mean.append(s.posterior_mean(X))
            variance.append(np.maximum(s.prior_variance(X) - np.einsum("nt,nt->t", W, W), 0.0))
            cross.append(s.covariance(X, self.points) - W.T @ Z)
        return Base(X, np.array(mean), np.array(variance), np.array(cross), white)

    def between(self, one: Base, other: Base) -> Array:
        """Posterior covariances of all functions between two sets of points, (K + 1, T, M)."""
        return np.array(
            [
                s.covariance(one.X, other.X) - a.T @ b
                for s, a, b in zip(self.surrogates, one.white, other.white, strict=True)
            ]
        )

    def rows(self, base: Base) -> tuple[list[Array], Array]:
        """Continue the roots by the points of a base: rows (T, r_j) each, and what is left.

        A point's covariance is root = [row, sqrt(left)], of which the last is its own.
        """
        rows, left = [], np.empty(base.variance.shape)
        for j, (pivots, leading) in enumerate(self._leading):
            row = solve_triangular(leading, base.cross[j][:, pivots].T, lower=True).T
            rows.append(row)
            left[j] = np.maximum(base.variance[j] - np.einsum("tr,tr->t", row, row), 0.0)
        return rows, left


def _root(V: Array, least: float) -> tuple[Array, NDArray[np.intp], Array]:
    """Pivoted Cholesky root of V to its numerical rank: root, pivots, and its leading triangle."""
    if not len(V):
        return np.zeros((0, 0)), np.zeros(0, dtype=np.intp), np.zeros((0, 0))
    factor, order, rank, _ = dpstrf(0.5 * (V + V.T), tol=least, lower=1)
    rank = int(rank) if factor[0, 0] > 0.0 and V.diagonal().max() > least else 0
    order = np.asarray(order, dtype=np.intp) - 1
    lower = np.tril(factor)[:, :rank]
    root = np.empty_like(lower)
    root[order] = lower
    return root, order[:rank], lower[:rank]


class Parts(NamedTuple):
    """Sites of all functions at x* (first) and the observed points, for M x*.

    root (M, K + 1, N + 1, r) and mean (M, K + 1, N + 1) of the coordinates before conditioning;
    silent (M, N + 1): points that are x*; tau, nu (M, K + 1, N + 1).
    """

    root: Array
    mean: Array
    silent: NDArray[np.bool_]
    tau: Array
    nu: Array


def least_gap(frame: Frame, variances: Array) -> Any:
    """Least Var(f_n - f(x*)) of points that are not one, given the sum of both variances."""
    return np.maximum(_SAME * variances, _ROUNDED * frame.surrogates[0].scale)


def begin(frame: Frame, base: Base) -> Parts:
    """Roots and means of g and c at x* and the observed points, for every x* of the base."""
    rows, left = frame.rows(base)
    M, n = len(base.X), len(frame.points) + 1
    widest = max(r.shape[1] for r in frame.roots) + 1
    root = np.zeros((M, len(frame.roots), n, widest))
    mean = np.empty((M, len(frame.roots), n))
    for j, own in enumerate(frame.roots):
        r = own.shape[1]
        root[:, j, 0, :r], root[:, j, 0, r] = rows[j], np.sqrt(left[j])
        root[:, j, 1:, :r] = own
        mean[:, j, 0], mean[:, j, 1:] = base.mean[j], frame.mean[j]
    variance = np.einsum("mnr,mnr->mn", root[:, 0], root[:, 0])
    root[:, 0] -= root[:, 0, :1].copy()
    mean[:, 0] -= mean[:, 0, :1].copy()
    gap = np.einsum("mnr,mnr->mn", root[:, 0], root[:, 0])
    same = gap <= least_gap(frame, variance + variance[:, :1])
    zero = np.zeros(mean.shape)
    return Parts(root, mean, same, zero, zero.copy())


def stacked(starts: list[Parts]) -> Parts:
    """Return the x* of all parts as one, with roots as wide as the widest."""
    if len(starts) == 1:
        return starts[0]
    widest = max(s.root.shape[-1] for s in starts)
    padded = [
        np.pad(s.root, ((0, 0), (0, 0), (0, 0), (0, widest - s.root.shape[-1]))) for s in starts
    ]
    rest = [np.concatenate(arrays) for arrays in zip(*(s[1:] for s in starts), strict=True)]
    return Parts(np.concatenate(padded), *rest)
