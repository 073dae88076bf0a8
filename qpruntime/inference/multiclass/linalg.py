"""Block algebra of C classes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrs

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime.errors import NumericalError
from qpruntime.inference.dense import blas
from qpruntime.inference.dense.cholesky_kernels import scaled_upper
from qpruntime.inference.multiclass.site_kernels import products_of_rows, scale_and_add

__all__ = ["Blocks", "Layout", "slope_of"]

# --- Layout of sites
#
# Site (i, j) sees g_ij = u_i + f_own,i - f_j,i by a probit, where u_i is a unit normal of the row:
# the row is of its own class if that value with unit noise is the largest (Riihimaki, Jylanki &
# Vehtari, 2013). Sites are numbered by rows, and within a row by classes.


@restorable("layout/1")
class Layout:
    """Rows with their classes.

    Parameters
    ----------
    own : ndarray of int, shape (N,)
        Class of each row, from 0 to C - 1.
    classes : int
        C.

    Attributes
    ----------
    rows, others : ndarray of int, shape (N (C - 1),)
        Row and class of each site.
    """

    def __init__(self, own: NDArray[np.intp], classes: int) -> None:
        self.own, self.classes = own, classes
        free = np.ones((own.size, classes), dtype=bool)
        free[np.arange(own.size), own] = False
        self.rows, self.others = np.nonzero(free)

    @property
    def n(self) -> int:
        """Number of rows."""
        return self.own.size

    @property
    def sites(self) -> int:
        """Number of sites."""
        return self.rows.size

    def whole(self, flat: Array, at_own: float) -> Array:
        """Return values of all classes, (N, C), from those of sites; `at_own` is for own ones."""
        filled = np.full((self.n, self.classes), at_own)
        filled[self.rows, self.others] = flat
        return filled

    def flat(self, whole: Array) -> Array:
        """Return values of sites from those of all classes, shape (N, C)."""
        return whole[self.rows, self.others]

    def contrasts(self, K: Array) -> Array:
        """Return the prior covariance of g from those of classes, shape (C, N, N) or (1, N, N)."""
        covariance = np.equal.outer(self.rows, self.rows).astype(float)
        own_class = self.own[self.rows]
        for c in range(self.classes):
            sign = 1.0 * (own_class == c) - (self.others == c)
            sites = np.flatnonzero(sign)
            rows = self.rows[sites]
            covariance[np.ix_(sites, sites)] += (
                np.outer(sign[sites], sign[sites]) * (K[c % len(K)][np.ix_(rows, rows)])
            )
        return covariance

    def crossed(self, K_star: Array, target: int) -> Array:
        """Return prior covariances of f_target at T points with g, from those with the rows."""
        sign = 1.0 * (self.own[self.rows] == target) - (self.others == target)
        return np.asarray(K_star[:, self.rows] * sign)

    def words(self, text: str) -> str:
        """Return the message with sites replaced by row and class."""

        def named(match: re.Match[str]) -> str:
            site = int(match[1])
            if site >= self.sites:
                return match[0]
            return f"the site of row {self.rows[site]} and class {self.others[site]}"

        return re.sub(r"\bsite (\d+)", named, text)

    @contextmanager
    def naming_sites(self) -> Iterator[None]:
        """Replace sites by row and class in the message of a `NumericalError`."""
        try:
            yield
        except NumericalError as error:
            raise NumericalError(self.words(str(error))) from error


# --- Linear algebra under diagonal sites
#
# It takes C + 1 factorisations of N x N matrices.
#
# Along z_ic = f_ic + s_i, with a flat s_i, all sites are diagonal. Their precisions D_c are those
# of the sites for classes other than the row's own, and 1 for the own class, which is the density
# of u. Let B_c = I + R_c K_c R_c, R_c^2 = D_c, E_c = R_c B_c^-1 R_c and O = sum E_c = L L':
#
# - log |I + K~ diag tau| = sum log |B_c| + log |O| for the covariance K~ of g;
# - K^-1 (mean of f_c) = E_c (nu_c/D_c - s), s = O^-1 sum E_c (nu_c/D_c), which does not cancel as
#   nu - E K nu does;
# - Cov(z_i)_cd = delta_cd (K_c E_c)_ii/D_ic + (Y_c' Y_d)_ii/(D_ic D_id), Y_c = L^-1 E_c.

# Below this value 1 - (B^-1)_ii has lost too many digits to give a variance.
_LOST = 1e-4


class Blocks:
    """Factorisations for given precisions.

    Parameters
    ----------
    K : ndarray, shape (C, N, N) or (1, N, N)
        Prior covariances, one for each class or one for all.
    D : ndarray, shape (C, N)
        Precisions along z, all positive.
    own : ndarray of int, shape (N,)
        Class of each row.

    Attributes
    ----------
    E : ndarray, shape (C, N, N)
    lower : ndarray, shape (N, N)
        Factor L, Fortran-ordered; the part above its diagonal is not read.
    log_det : float

    Raises
    ------
    NumericalError
        If one of the matrices is not positive definite in double precision.
    """

    def __init__(self, K: Array, D: Array, own: NDArray[np.intp]) -> None:
        self.K, self.D, self.own = K, D, own
        (C, n), root = D.shape, np.sqrt(D)
        self.E, self._share = np.empty((C, n, n)), np.empty((C, n))
        total, self.log_det = np.zeros((n, n)), 0.0
        for c in range(C):
            lower, info = blas.cholesky(scaled_upper(K[c % len(K)], root[c]).T)
            self._check(info, lower, f"I + R K R of class {c}")
            self.log_det += 2.0 * float(np.log(lower.diagonal()).sum())
            inverse = blas.square(blas.inverse_triangle(lower))
            self._share[c] = inverse.diagonal()
            scale_and_add(inverse.T, root[c], self.E[c], total)
        self.lower, info = blas.cholesky(total.T)
        self._check(info, self.lower, "the sum of the precisions of all classes")
        self.log_det += 2.0 * float(np.log(self.lower.diagonal()).sum())

    @staticmethod
    def _check(info: int, lower: Array, what: str) -> None:
        if info != 0 or not np.isfinite(lower.diagonal()).all():
            raise NumericalError(
                f"{what} is not positive definite (row {abs(info)}): K has eigenvalues below zero, "
                "or K or the sites are too large for double precision; add jitter to its diagonal"
            )

    def solve(self, nu: Array) -> tuple[Array, Array, Array]:
        """Return K^-1 m, m, both of shape (C, N), and s, (N,), for precision-weighted means of z.

        `nu` has shape (C, N).
        """
        right = nu / self.D
        weights = np.array([E @ row for E, row in zip(self.E, right, strict=True)])
        shift = dpotrs(self.lower, weights.sum(axis=0), lower=1)[0]
        for c in range(len(nu)):
            weights[c] -= self.E[c] @ shift
        return weights, self.spread(weights), shift

    def spread(self, weights: Array) -> Array:
        """Return K_c times the weights of each class, shape (C, N)."""
        if len(self.K) == 1:
            return np.asarray(weights @ self.K[0])
        return np.array([K @ b for K, b in zip(self.K, weights, strict=True)])

    def marginals(self) -> tuple[Array, Array]:
        """Return Cov(z_i)_cc and the shares 1 - D_ic Cov(z_i)_cc, each of shape (N, C).

        Entries of a row's own class are not filled, because no site is along it.
        """
        C, n = self.D.shape
        variance, kept = np.zeros((n, C)), np.ones((n, C))
        for c in range(C):
            rows, half = self._half(c)
            gained = products_of_rows(half, half) / self.D[c][rows]
            kept[rows, c] = self._share[c][rows] - gained
            variance[rows, c] = self.alone(c)[rows] + gained / self.D[c][rows]
        return variance, kept

    def covariances(self) -> Array:
        """Return Cov(z_i), shape (N, C, C), without entries of a row's own class."""
        C, n = self.D.shape
        halves, covariance = np.zeros((C, n, n)), np.empty((n, C, C))
        for c in range(C):
            rows, half = self._half(c)
            halves[c][rows] = half
            for d in range(c + 1):
                shared = products_of_rows(halves[c], halves[d]) / (self.D[c] * self.D[d])
                covariance[:, c, d] = covariance[:, d, c] = shared
            covariance[:, c, c] += self.alone(c)
        return covariance

    def _half(self, c: int) -> tuple[NDArray[np.intp], Array]:
        """Return the rows of other classes, and those rows of Y_c', C-ordered."""
        rows = np.flatnonzero(self.own != c)
        return rows, blas.solve_lower(self.lower, self.E[c][rows].T).T

    def alone(self, c: int) -> Array:
        """Return (K_c E_c)_ii/D_ic, shape (N,): the variances of f_c under its own sites."""
        lost = np.flatnonzero(1.0 - self._share[c] < _LOST)
        variance: Array = (1.0 - self._share[c]) / self.D[c]
        if lost.size:
            K, E = self.K[c % len(self.K)][lost], self.E[c][lost]
            variance[lost] = np.einsum("ij,ij->i", K, E) / self.D[c][lost]
        return variance


def slope_of(E: Array, lower: Array, weights: Array) -> Array:
    """Return the derivative of the log evidence by K_c with the sites fixed, shape (N, N)."""
    # The rows of Y_c' = E_c L^-T are those of the data.
    half = blas.solve_lower(lower, E.T.copy(order="F")).T
    slope = half @ half.T
    slope -= E
    slope += np.outer(weights, weights)
    slope *= 0.5
    return slope
