"""Linear algebra of C priors of N rows by M inducing points each: nothing is N x N.

f_ic = phi_ic' w_c + e_ic, w_c ~ N(0, I), e_ic ~ N(0, r_ic): FITC's prior. Sites are diagonal along
z_ic = f_ic + s_i with a flat s_i, as in `qpruntime.inference.classes.algebra`. With precisions D,
k = 1/(1 + r D), p = k D, S_i = sum_c p_ic and t = phi' w + s:

- a row tells of its C numbers phi' w with the precision diag p - p p'/S, of rank C - 1, so that the
  precision P of all w (C M x C M) has the blocks [c = d] I + sum_i (..)_cd phi_ic phi_id';
- log |I + K~ diag tau| = sum log(1 + r D) + log |P| + sum log S;
- Cov(t_i) = Q A_i Q' + 1 1'/S_i, Q = I - 1 p'/S_i, A_i the covariance of the numbers phi_ic' w_c;
- z_ic = k t + k r nu + noise of variance k r, and the prior precision times the mean of f is
  k nu - p t.

An evaluation takes N C^2 M^2 operations twice, and (C M)^3 once.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotri, dpotrs

from qpruntime.arrays import Array
from qpruntime.errors import NumericalError
from qpruntime.inference.classes.sparse.features import Features

__all__ = ["PointBlocks"]


class PointBlocks:
    """The posterior of given precisions.

    Parameters
    ----------
    features : Features
    D : ndarray, shape (C, N)
        Precisions along z, not negative, and 1 for the row's own class.

    Attributes
    ----------
    lower : ndarray, shape (C M, C M)
        Cholesky factor of P.
    log_det : float

    Raises
    ------
    NumericalError
        If P is not positive definite in double precision.
    """

    def __init__(self, features: Features, D: Array) -> None:
        self.features, self.D = features, D
        self.kept = 1.0 / (1.0 + features.rest * D)
        self.p = D * self.kept
        self.total = self.p.sum(axis=0)
        # p (S - p)/S, of a sum without the class itself: it does not cancel.
        others = np.array([np.delete(self.p, c, axis=0).sum(axis=0) for c in range(len(D))])
        self._others = others / self.total
        P = features.precision(self.p * self._others, self.p / np.sqrt(self.total))
        self.lower, info = dpotrf(P.T, lower=1, overwrite_a=1, clean=0)
        diagonal = self.lower.diagonal()
        if info != 0 or not np.isfinite(diagonal).all():
            raise NumericalError(
                "the precision of the values at the inducing points is not positive definite: the "
                "kernel or the sites are too large for double precision; rescale the kernel"
            )
        self.log_det = 2.0 * float(np.log(diagonal).sum()) + float(np.log(self.total).sum())
        self.log_det -= float(np.log(self.kept).sum())

    def solve(self, nu: Array) -> tuple[Array, Array, Array]:
        """Return prior precision times mean of f, that mean, both (C, N), and s, (N,).

        `nu` (C, N) are precision-weighted means along z.
        """
        pulled = self.kept * nu
        gathered = pulled.sum(axis=0)
        values = self.features.spread(self.weights(nu))
        shift = (gathered - (self.p * values).sum(axis=0)) / self.total
        by_class = pulled - self.p * (values + shift)
        return by_class, values + self.features.rest * by_class, shift

    def weights(self, nu: Array) -> Array:
        """Means of all w, shape (C M,)."""
        pulled = self.kept * nu
        told = pulled - self.p * (pulled.sum(axis=0) / self.total)
        found: Array = dpotrs(self.lower, self.features.collected(told), lower=1)[0]
        return found

    @cached_property
    def covariance(self) -> Array:
        """Covariance of all w, shape (C M, C M); blocks above the diagonal are as good as below."""
        found, _ = dpotri(self.lower, lower=1)
        whole = np.tril(found)
        return whole + np.tril(whole, -1).T

    @cached_property
    def _values(self) -> Array:
        """Covariances of the numbers phi_ic' w_c of rows, shape (N, C, C)."""
        return self.features.quadratic(self.covariance)

    def _relative(self) -> Array:
        """Those of phi_ic' w_c + s_i, but for the noise of s_i, shape (N, C, C)."""
        A, share = self._values, (self.p / self.total).T
        mixed = np.einsum("ncd,nd->nc", A, share)
        both = np.einsum("nc,nc->n", mixed, share)
        return A - mixed[:, :, None] - mixed[:, None, :] + both[:, None, None]

    def marginals(self) -> tuple[Array, Array]:
        """Return Cov(z_i)_cc and 1 - D_ic Cov(z_i)_cc, each of shape (N, C)."""
        spread = np.einsum("ncc->nc", self._relative())
        p, k, total = self.p.T, self.kept.T, self.total[:, None]
        noise = k * self.features.rest.T
        return noise + k**2 * (spread + 1.0 / total), k * (self._others.T - p * spread)

    def covariances(self) -> Array:
        """Return Cov(z_i), shape (N, C, C)."""
        k = self.kept.T
        found = self._relative() + 1.0 / self.total[:, None, None]
        found *= k[:, :, None] * k[:, None, :]
        np.einsum("ncc->nc", found)[...] += k * self.features.rest.T
        return found

    def of_values(self) -> Array:
        """Posterior covariances of f at the rows, shape (N, C, C)."""
        # f = phi' w - r p t and noise.
        C, h = len(self.D), (self.features.rest * self.p).T
        share = (self.p / self.total).T
        G = np.eye(C) - h[:, :, None] * (np.eye(C) - share[:, None, :])
        found: Array = G @ self._values @ G.transpose(0, 2, 1)
        found += h[:, :, None] * h[:, None, :] / self.total[:, None, None]
        np.einsum("ncc->nc", found)[...] += self.kept.T * self.features.rest.T
        return found
