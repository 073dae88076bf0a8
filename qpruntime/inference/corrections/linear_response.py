"""Linear response of marginals, and corrections by cumulants."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.linalg.blas import dtrmm
from scipy.linalg.lapack import dgetrf, dgetrs

from qpruntime._numba import summed
from qpruntime._typing import Array
from qpruntime.errors import NumericalError
from qpruntime.inference.corrections.ep_fixed_point import FixedPoint
from qpruntime.inference.corrections.tilted import TiltedMoments

__all__ = [
    "Evidence",
    "Response",
    "pair_sums",
    "respond",
    "tilted_variances",
]

# --- Variances as second derivatives of the corrected evidence
#
# A linear term lambda f_* added to the log density moves the prior mean by lambda K_*, and the
# second derivative of the log evidence by lambda is the variance of f_*. The first derivative of
# EP's own evidence is EP's mean, which is differenced once. The sums over pairs are differenced
# twice.

#: Step of the differences, in units of one over the standard deviation.
_STEP = 0.1


def tilted_variances(fixed_point: FixedPoint, K_star: Array, prior: Array, std: Array) -> Array:
    """Return variances of T points with covariances `K_star` (T, N) and prior variances (T,).

    Raises
    ------
    NumericalError
        If EP does not settle near the fixed point, or a variance is not positive.
    """
    observed = fixed_point.observed
    middle = pair_sums(fixed_point.V, fixed_point.fixed, fixed_point.tilted.hermite).shift
    out = np.empty(std.size)
    for i in range(std.size):
        step = _STEP / std[i]
        means, shifts = [], []
        for sign in (1.0, -1.0):
            moved = fixed_point.moved(observed.prior + sign * step * K_star[i])
            means.append(sign * (step * prior[i]) + K_star[i] @ moved.factor.weights)
            shifts.append(pair_sums(moved.V, moved.fixed, moved.tilted.hermite).shift)
        first = (means[0] - means[1]) / (2.0 * step)
        out[i] = first + (shifts[0] - 2.0 * middle + shifts[1]) / step**2
    if not (out > 0.0).all():
        raise NumericalError(
            f'a variance of correction "tilt" is {out.min():.3g}: densities jump or EP is not '
            'accurate enough here; use "blend" or "sample"'
        )
    return out


# --- Linear response of EP's fixed point
#
# The evidence is EP's plus sums over pairs of sites of their third and fourth Hermite moments
# (after Opper, Paquet & Winther, JMLR 2013). Half of the fourth-order terms agrees best with long
# chains of sampling. The variances are derivatives of EP's means by linear terms added to the log
# density, and the means are derivatives of the corrected evidence. The evidence takes N^2
# operations, the others N^3.

#: Weights of third- and fourth-order terms.
_THIRD, _FOURTH = 1.0, 0.5


class Evidence(NamedTuple):
    """Correction of EP's log evidence, and the size of all fourth-order terms."""

    shift: float
    spread: float


class Response(NamedTuple):
    """Response of EP's fixed point to linear terms added to the log density.

    variance : (N,), the diagonal of S = V + V A B, the derivatives of the means
    push : (N,), u: corrected means are m + V u
    A : (N, N)
    factor : of the transpose of Mx, by LAPACK
    drive : (N,), s h3: B = -inverse(Mx) diag(drive) V
    """

    variance: Array
    push: Array
    A: Array
    factor: tuple[Array, Array]
    drive: Array

    def at(self, V_star: Array, variance: Array) -> Array:
        """Return the response of EP's variances (T,), given EP's covariances (T, N)."""
        B, _ = dgetrs(*self.factor, (V_star * -self.drive).T, trans=1, overwrite_b=1)
        return np.asarray(variance + np.einsum("ij,ij->i", V_star @ self.A, B.T))


@summed
def pair_terms(
    V: Array, std: Array, hermite: Array, third: Array, fourth: Array, coupling: Array, along: Array
) -> None:
    """Fill the sums over pairs, in one pass over V.

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
            scale_k = 1.0 / std[k]
            r = row[k] * scale * scale_k
            r2 = r * r
            q3, q4 = hermite[k, 3] * (1.0 / 6.0), hermite[k, 4] * (1.0 / 24.0)
            sum3 += r2 * r * q3
            sum4 += r2 * r2 * q4
            d = r2 * (_THIRD * 3.0 * h3 * q3 + _FOURTH * 4.0 * r * h4 * q4)
            e += d * r
            out[k] = d * scale * scale_k
        # A site does not pair with itself, so r_jj counts as 0.
        r = row[j] * scale * scale
        q3, q4 = h3 / 6.0, h4 / 24.0
        d = r * r * (_THIRD * 3.0 * h3 * q3 + _FOURTH * 4.0 * r * h4 * q4)
        out[j] = 0.0
        third[j], fourth[j] = sum3 - r**3 * q3, sum4 - r**4 * q4
        along[j] = (e - d * r) * scale * scale


@summed
def couplings(V: Array, variance: Array, drive: Array, A: Array, x: Array) -> Array:
    """Fill A = -diag(drive) W/2, and return sum over j of V_ij^2 x_j."""
    n = variance.size
    out = np.empty(n)
    for i in range(n):
        scale, slope, total = 1.0 / (variance[i] * variance[i]), -0.5 * drive[i], 0.0
        for j in range(n):
            square = V[i, j] * V[i, j]
            total += square * x[j]
            A[i, j] = slope * (square * scale)
        A[i, i] -= slope
        out[i] = total
    return out


@summed
def system(V: Array, std: Array, hermite: Array, A: Array, reach: Array, Mx: Array) -> None:
    """Fill Mx, for V A in `reach`."""
    n = std.size
    for i in range(n):
        v = std[i] * std[i]
        fourth_weight, third_weight = -0.5 * hermite[i, 4], hermite[i, 3] * std[i]
        for j in range(n):
            Mx[i, j] = fourth_weight * (V[i, j] * V[i, j]) + third_weight * (
                reach[i, j] - v * A[i, j]
            )
        Mx[i, i] += v * v * (1.0 - fourth_weight)


@summed
def pair_evidence(V: Array, std: Array, hermite: Array) -> tuple[float, float]:
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


def pair_sums(V: Array, fixed: TiltedMoments, hermite: Array) -> Evidence:
    """Correct the log evidence by pairs."""
    three, four = pair_evidence(V, fixed.std, hermite)
    return Evidence(_THIRD * three + _FOURTH * four, abs(four))


def respond(V: Array, fixed: TiltedMoments, hermite: Array) -> Response | None:
    """Differentiate the fixed point and the corrected evidence; return None if it is not possible.

    The matrices are W_ij = V_ij^2/V_ii^2 - delta_ij, A = -diag(s h3) W/2, E = diag(1/V_ii) V A - A
    and Mx = diag(V_ii^2) (I - diag(h4) W/2 + diag(h3/s) E).
    """
    n = fixed.mean.size
    s = fixed.std
    v = s * s
    h = hermite.T
    h3 = h[3]
    third, fourth, along = np.empty((3, n))
    coupling, A, Mx = np.empty((3, n, n))
    pair_terms(V, s, hermite, third, fourth, coupling, along)
    p0, pt, pv = np.zeros((3, n))
    for order, weight, P in ((3, _THIRD, third), (4, _FOURTH, fourth)):
        Q = weight * P
        p0 += Q * h[order + 1] / s
        pt += Q * (
            0.5 * h3 * (h[order + 1] + order * h[order - 1])
            - 0.5 * (h[order + 2] + 2.0 * order * h[order] + order * (order - 1) * h[order - 2])
        )
        pv -= 0.5 * Q * order * (h[order] + (order - 1) * h[order - 2]) / v
    drive = s * h3
    c = couplings(V, v, drive, A, pt / v - pv + 0.5 * along)
    reach = V @ A
    system(V, s, hermite, A, reach, Mx)
    lu, pivots, info = dgetrf(Mx.T, overwrite_a=1)
    if info != 0 or not np.isfinite(lu.diagonal()).all():
        return None
    # The coupling is symmetric with zero diagonal, so half of it is enough.
    half = dtrmm(1.0, coupling.T, V.T, side=1, lower=1)
    c -= np.einsum("ij,ij->i", half, V) + v * pt
    right, _ = dgetrs(lu, pivots, c + reach.T @ p0)
    push = p0 - drive * right
    B, _ = dgetrs(lu, pivots, (V * -drive).T, trans=1, overwrite_b=1)
    variance = v + np.einsum("ij,ij->i", reach, B.T)
    if not (np.isfinite(variance).all() and (variance > 0.0).all() and np.isfinite(push).all()):
        return None
    return Response(variance, push, A, (lu, pivots), drive)
