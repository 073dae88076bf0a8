"""Block algebra of C classes with inducing points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NoReturn

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotri, dpotrs

from qpruntime._typing import Array
from qpruntime.errors import InputError, NumericalError
from qpruntime.inference.multiclass.linalg import Layout
from qpruntime.inference.multiclass.solver import ClassPrior, ClassSolved
from qpruntime.inference.sites import Sites
from qpruntime.inference.sparse.rows import InducingInputs

__all__ = [
    "ClassFeatures",
    "PointBlocks",
    "PointPrior",
    "PointSolved",
    "SharedFeatures",
    "features_of",
]

# --- Priors and posteriors by inducing points


class PointPrior(ClassPrior):
    """FITC's priors of C latent functions at N rows, all with mean 0."""

    def __init__(self, features: ClassFeatures, layout: Layout) -> None:
        self.features, self.layout = features, layout
        squares = [np.einsum("nm,nm->n", phi, phi) for phi in features.phi]
        self.squares = np.broadcast_to(squares + features.rest, (layout.classes, layout.n))

    def factor(self, sites: Sites) -> PointSolved:
        """Return the posterior of these sites."""
        return PointSolved(self, sites)


class PointSolved(ClassSolved):
    """Posterior of given sites; see `ClassSolved`, which has dense algebra."""

    _prior: PointPrior

    @cached_property
    def blocks(self) -> PointBlocks:  # type: ignore[override]
        """The factorisation."""
        D = np.ascontiguousarray(self._layout.whole(self.tau, 1.0).T)
        return PointBlocks(self._prior.features, D)

    def along_z(self) -> Array:
        """Return the sites' precision-weighted means along z, shape (C, N)."""
        return np.ascontiguousarray(-self._layout.whole(self._nu, 0.0).T)

    def slope(self) -> NoReturn:
        """Raise `InputError`: there is none."""
        raise InputError("inducing points of classes have no slope of the evidence")


# --- Linear algebra of C priors with M inducing points each
#
# FITC's prior is f_ic = phi_ic' w_c + e_ic, with w_c ~ N(0, I) and e_ic ~ N(0, r_ic). Sites are
# diagonal along z_ic = f_ic + s_i with a flat s_i, as in `qpruntime.inference.multiclass.linalg`.
# Let D be precisions, k = 1/(1 + r D), p = k D, S_i = sum_c p_ic and t = phi' w + s:
#
# - a row tells of its C numbers phi' w with the precision diag p - p p'/S, of rank C - 1, so that
# the
#   precision P of all w (C M x C M) has the blocks [c = d] I + sum_i (..)_cd phi_ic phi_id';
# - log |I + K~ diag tau| = sum log(1 + r D) + log |P| + sum log S;
# - Cov(t_i) = Q A_i Q' + 1 1'/S_i, Q = I - 1 p'/S_i, A_i the covariance of the numbers phi_ic' w_c;
# - z_ic = k t + k r nu + noise of variance k r, and the prior precision times the mean of f is
#   k nu - p t.
#
# An evaluation takes 2 N C^2 M^2 operations, and (C M)^3 once.


class PointBlocks:
    """Posterior of given precisions.

    Parameters
    ----------
    features : ClassFeatures
    D : ndarray, shape (C, N)
        Precisions along z, at least 0, and 1 for the row's own class.

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

    def __init__(self, features: ClassFeatures, D: Array) -> None:
        self.features, self.D = features, D
        self.kept = 1.0 / (1.0 + features.rest * D)
        self.p = D * self.kept
        self.total = self.p.sum(axis=0)
        # The term p (S - p)/S uses a sum without the class itself, so that it does not cancel.
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
        """Return means of all w, shape (C M,)."""
        pulled = self.kept * nu
        message = pulled - self.p * (pulled.sum(axis=0) / self.total)
        return np.asarray(dpotrs(self.lower, self.features.collected(message), lower=1)[0])

    @cached_property
    def covariance(self) -> Array:
        """Covariance of all w, shape (C M, C M), symmetric."""
        lower, _ = dpotri(self.lower, lower=1)
        whole: Array = np.tril(lower)
        return whole + np.tril(whole, -1).T

    @cached_property
    def _values(self) -> Array:
        """Return covariances of the numbers phi_ic' w_c of rows, shape (N, C, C)."""
        return self.features.quadratic(self.covariance)

    def _relative(self) -> Array:
        """Return covariances of phi_ic' w_c + s_i without the noise of s_i, shape (N, C, C)."""
        A, share = self._values, (self.p / self.total).T
        mixed = np.einsum("ncd,nd->nc", A, share)
        mean_product = np.einsum("nc,nc->n", mixed, share)
        return np.asarray(A - mixed[:, :, None] - mixed[:, None, :] + mean_product[:, None, None])

    def marginals(self) -> tuple[Array, Array]:
        """Return Cov(z_i)_cc and 1 - D_ic Cov(z_i)_cc, each of shape (N, C)."""
        spread = np.einsum("ncc->nc", self._relative())
        p, k, total = self.p.T, self.kept.T, self.total[:, None]
        noise = k * self.features.rest.T
        return noise + k**2 * (spread + 1.0 / total), k * (self._others.T - p * spread)

    def covariances(self) -> Array:
        """Return Cov(z_i), shape (N, C, C)."""
        k = self.kept.T
        covariance: Array = self._relative() + 1.0 / self.total[:, None, None]
        covariance *= k[:, :, None] * k[:, None, :]
        np.einsum("ncc->nc", covariance)[...] += k * self.features.rest.T
        return covariance

    def of_values(self) -> Array:
        """Return posterior covariances of f at the rows, shape (N, C, C)."""
        # Here f = phi' w - r p t + noise.
        C, h = len(self.D), (self.features.rest * self.p).T
        share = (self.p / self.total).T
        G = np.eye(C) - h[:, :, None] * (np.eye(C) - share[:, None, :])
        covariance: Array = G @ self._values @ G.transpose(0, 2, 1)
        covariance += h[:, :, None] * h[:, None, :] / self.total[:, None, None]
        np.einsum("ncc->nc", covariance)[...] += self.kept.T * self.features.rest.T
        return covariance


# --- Features of rows
#
# Both sums run over pairs of classes: sums over rows of w_i phi_ic phi_id', and phi_ic' V_cd phi_id
# of a row. If all classes share a kernel, the M (M + 1)/2 numbers of phi phi' of a row are formed
# once for all pairs of classes. This takes half the operations, in one matrix product.

# Largest number of products that are formed at once.
_TOGETHER = 1_500_000


class ClassFeatures:
    """Features of N rows by inducing points.

    Parameters
    ----------
    phi : sequence of ndarray, shape (N, M)
        Features of each class, or of all classes.
    rest : ndarray, shape (C, N) or (1, N)
        Variances that the features leave out.
    classes : int
        C.
    """

    def __init__(self, phi: Sequence[Array], rest: Array, classes: int) -> None:
        self.phi, self.rest, self.classes = tuple(phi), rest, classes

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers N of rows and M of inducing points."""
        n, m = self.phi[0].shape
        return n, m

    def of(self, c: int) -> Array:
        """Return the features of a class."""
        return self.phi[c % len(self.phi)]

    def chunks(self, width: int) -> Iterator[slice]:
        """Yield slices of rows that are multiplied at once, with so many numbers each."""
        step = max(64, _TOGETHER // width)
        for first in range(0, self.shape[0], step):
            yield slice(first, first + step)

    def precision(self, own_weight: Array, shared: Array) -> Array:
        """Return I + sum_i w_icd phi_ic phi_id', (C M, C M), with the upper blocks filled.

        The weight of a pair of classes is -shared_c shared_d, and that of a class with itself
        `own_weight`, both of shape (C, N).
        """
        C, (_, m) = self.classes, self.shape
        P = np.zeros((C * m, C * m))
        for chunk in self.chunks(C * m):
            for c in range(C):
                weights = -shared[c, chunk] * shared[c:, chunk]
                weights[0] = own_weight[c, chunk]
                scaled = [self.of(c + k)[chunk] * w[:, None] for k, w in enumerate(weights)]
                P[c * m : (c + 1) * m, c * m :] += self.of(c)[chunk].T @ np.hstack(scaled)
        P.flat[:: C * m + 1] += 1.0
        return P

    def quadratic(self, covariance: Array) -> Array:
        """Return covariances phi_ic' V_cd phi_id of rows, shape (N, C, C), for V (C M, C M)."""
        C, (n, m) = self.classes, self.shape
        forms = np.empty((n, C, C))
        for chunk in self.chunks(C * m):
            for c in range(C):
                reached = self.of(c)[chunk] @ covariance[c * m : (c + 1) * m, c * m :]
                for d in range(c, C):
                    part = reached[:, (d - c) * m : (d - c + 1) * m]
                    forms[chunk, c, d] = np.einsum("nm,nm->n", part, self.of(d)[chunk])
                    forms[chunk, d, c] = forms[chunk, c, d]
        return forms

    def collected(self, values: Array) -> Array:
        """Return the sum of phi_ic values_ic over rows, one class after the other, shape (C M,)."""
        return np.concatenate([self.of(c).T @ row for c, row in enumerate(values)])

    def spread(self, weights: Array) -> Array:
        """Return phi_ic' w_c, shape (C, N)."""
        parts = weights.reshape(self.classes, -1)
        return np.array([self.of(c) @ row for c, row in enumerate(parts)])


class SharedFeatures(ClassFeatures):
    """Features of one kernel that all classes share."""

    def _products(self) -> Iterator[tuple[slice, Array]]:
        """Yield rows, and their products phi_k phi_l for k <= l, shape (M (M + 1)/2, n)."""
        m = self.shape[1]
        for chunk in self.chunks(m * (m + 1) // 2):
            phi = np.ascontiguousarray(self.phi[0][chunk].T)
            products, first = np.empty((m * (m + 1) // 2, phi.shape[1])), 0
            for k in range(m):
                np.multiply(phi[k:], phi[k], out=products[first : first + m - k])
                first += m - k
            yield chunk, products

    def precision(self, own_weight: Array, shared: Array) -> Array:
        """Return the full precision; see `ClassFeatures.precision`."""
        C, (_, m) = self.classes, self.shape
        class_1, class_2 = np.triu_indices(C)
        diagonal = class_1 == class_2
        # The longer side goes first, which is three times as fast as the other order.
        sums = np.zeros((m * (m + 1) // 2, class_1.size))
        for chunk, products in self._products():
            weights = -shared[class_1, chunk] * shared[class_2, chunk]
            weights[diagonal] = own_weight[:, chunk]
            sums += products @ np.ascontiguousarray(weights.T)
        P, (low, high) = np.zeros((C * m, C * m)), np.triu_indices(m)
        for c, d, row in zip(class_1, class_2, sums.T, strict=True):
            block = P[c * m : (c + 1) * m, d * m : (d + 1) * m]
            block[low, high] = block[high, low] = row
        P.flat[:: C * m + 1] += 1.0
        return P

    def quadratic(self, covariance: Array) -> Array:
        """Return the quadratic forms; see `ClassFeatures.quadratic`."""
        C, (n, m) = self.classes, self.shape
        class_1, class_2 = np.triu_indices(C)
        low, high = np.triu_indices(m)
        packed = np.empty((class_1.size, low.size))
        for row, c, d in zip(packed, class_1, class_2, strict=True):
            block = covariance[c * m : (c + 1) * m, d * m : (d + 1) * m]
            row[:] = np.where(low == high, 0.5, 1.0) * (block[low, high] + block[high, low])
        forms, across = np.empty((n, C * C)), np.ascontiguousarray(packed.T)
        for chunk, products in self._products():
            values = products.T @ across
            forms[chunk, class_1 * C + class_2] = values
            forms[chunk, class_2 * C + class_1] = values
        return forms.reshape(n, C, C)


def features_of(inducing: Sequence[InducingInputs], X: Array, classes: int) -> ClassFeatures:
    """Return the features of rows by the inducing points of all classes, or of each class."""
    phi, variances = zip(*(points.features(X) for points in inducing), strict=True)
    kind = SharedFeatures if len(inducing) == 1 else ClassFeatures
    return kind(phi, np.array(variances), classes)
