"""Linear response of EP's fixed point, evidence by pairs of cumulants, means by its gradient.

The evidence is EP's plus sums over pairs of sites of their third and fourth Hermite moments (after
Opper, Paquet & Winther, JMLR 2013); half of the fourth-order terms is what agrees with long chains
of sampling. The variances are derivatives of EP's means by linear terms added to the log density,
and the means that of the corrected evidence. N^2 operations for the evidence, N^3 for the others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.linalg.lapack import dgetrf, dgetrs

from qpruntime.arrays import Array
from qpruntime.inference.corrections.sites import Fixed
from qpruntime.jit import summed

__all__ = ["Evidence", "Response", "pair_sums", "respond"]

#: Weights of third- and fourth-order terms.
_THIRD, _FOURTH = 1.0, 0.5


class Evidence(NamedTuple):
    """What is added to EP's log evidence, and the size of all fourth-order terms."""

    shift: float
    spread: float


class Response(NamedTuple):
    """How EP's fixed point answers a push on the latent function.

    variance : (N,), the diagonal of S = V + V A B, the derivatives of the means
    push : (N,), u: corrected means are m + V u
    A : (N, N)
    factor : of Mx, by LAPACK
    drive : (N,), s h3: B = -inverse(Mx) diag(drive) V
    """

    variance: Array
    push: Array
    A: Array
    factor: tuple[Array, Array]
    drive: Array

    def at(self, V_star: Array, variance: Array) -> Array:
        """Response at T new points of EP's variances (T,), with EP's covariances (T, N)."""
        B, _ = dgetrs(*self.factor, -self.drive[:, None] * V_star.T)
        return variance + np.einsum("ij,ji->i", V_star @ self.A, B)


@summed
def pair_terms(V, std, hermite, third, fourth, coupling, along):
    """Sums over pairs, in one pass over V.

    `third` and `fourth` are P_jl of the gradient without their weights, `coupling` is
    G_jk = D_jk/(s_j s_k), and `along` has the sums of D_jk r_jk/V_jj.
    """
    n = std.size
    for j in range(n):
        h3, h4 = hermite[j, 3], hermite[j, 4]
        sum3, sum4, e = 0.0, 0.0, 0.0
        scale = 1.0 / std[j]
        row, out = V[j], coupling[j]
        for k in range(n):
            other = 1.0 / std[k]
            r = row[k] * scale * other
            r2 = r * r
            q3, q4 = hermite[k, 3] * (1.0 / 6.0), hermite[k, 4] * (1.0 / 24.0)
            sum3 += r2 * r * q3
            sum4 += r2 * r2 * q4
            d = r2 * (_THIRD * 3.0 * h3 * q3 + _FOURTH * 4.0 * r * h4 * q4)
            e += d * r
            out[k] = d * scale * other
        # r_jj := 0.
        r = row[j] * scale * scale
        q3, q4 = h3 / 6.0, h4 / 24.0
        d = r * r * (_THIRD * 3.0 * h3 * q3 + _FOURTH * 4.0 * r * h4 * q4)
        out[j] = 0.0
        third[j], fourth[j] = sum3 - r**3 * q3, sum4 - r**4 * q4
        along[j] = (e - d * r) * scale * scale


@summed
def pair_evidence(V, std, hermite):
    """Return the sums over pairs j < k of the third- and of the fourth-order terms."""
    three, four = 0.0, 0.0
    for j in range(std.size):
        sum3, sum4 = 0.0, 0.0
        for k in range(j):
            r = V[j, k] / (std[j] * std[k])
            r3 = r * r * r
            sum3 += r3 * hermite[k, 3]
            sum4 += r3 * r * hermite[k, 4]
        three += sum3 * hermite[j, 3]
        four += sum4 * hermite[j, 4]
    return three / 6.0, four / 24.0


def pair_sums(V: Array, fixed: Fixed, hermite: Array) -> Evidence:
    """Correct the log evidence by pairs."""
    three, four = pair_evidence(V, fixed.std, hermite)
    return Evidence(_THIRD * three + _FOURTH * four, abs(four))


def respond(V: Array, fixed: Fixed, hermite: Array) -> Response | None:
    """Differentiate the fixed point and the corrected evidence; None where it has no derivative.

    With W_ij = V_ij^2/V_ii^2 - delta_ij and A = -diag(s h3) W/2, E = diag(1/V_ii) V A - A and
    Mx = diag(V_ii^2) (I - diag(h4) W/2 + diag(h3/s) E).
    """
    n = fixed.mean.size
    s = fixed.std
    v = s * s
    h = hermite.T
    h3, h4 = h[3], h[4]
    third, fourth, along = np.empty((3, n))
    coupling = np.empty((n, n))
    pair_terms(V, s, hermite, third, fourth, coupling, along)

    W = V * V
    squares_along = W @ along
    W /= (v * v)[:, None]
    W.flat[:: n + 1] -= 1.0
    A = W * (-0.5 * s * h3)[:, None]
    reach = V @ A
    Mx = reach / v[:, None]
    Mx -= A
    Mx *= (h3 / s)[:, None]
    W *= (0.5 * h4)[:, None]
    Mx -= W
    Mx.flat[:: n + 1] += 1.0
    Mx *= (v * v)[:, None]
    lu, pivots, info = dgetrf(Mx)
    if info != 0 or not np.isfinite(lu).all():
        return None
    drive = s * h3

    p0 = np.zeros(n)
    pt, pv = np.zeros(n), np.zeros(n)
    for order, weight, P in ((3, _THIRD, third), (4, _FOURTH, fourth)):
        Q = weight * P
        p0 += Q * h[order + 1] / s
        pt += Q * (
            0.5 * h3 * (h[order + 1] + order * h[order - 1])
            - 0.5 * (h[order + 2] + 2.0 * order * h[order] + order * (order - 1) * h[order - 2])
        )
        pv -= 0.5 * Q * order * (h[order] + (order - 1) * h[order - 2]) / v
    squares = V * V
    c = -0.5 * np.einsum("ij,ij->i", V @ coupling, V) + 0.5 * squares_along
    c += squares @ (pt / v - pv) - v * pt
    right, _ = dgetrs(lu, pivots, c + reach.T @ p0, trans=1)
    push = p0 - drive * right
    B, _ = dgetrs(lu, pivots, -drive[:, None] * V)
    variance = v + np.einsum("ij,ji->i", reach, B)
    if not (np.isfinite(variance).all() and (variance > 0.0).all() and np.isfinite(push).all()):
        return None
    return Response(variance, push, A, (lu, pivots), drive)
