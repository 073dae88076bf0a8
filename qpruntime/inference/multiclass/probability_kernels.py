"""Class probabilities of the multinomial probit model. Kernels only."""

from __future__ import annotations

import math

import numpy as np

from qpruntime._numba import kernel, summed
from qpruntime._special import HALF_LOG_2PI, log_ndtr, probit_series
from qpruntime._typing import Array, IntArray

__all__ = [
    "LEAST",
    "independent_variances",
    "log_largest",
    "log_orthants",
    "log_passes",
    "log_probabilities",
    "log_quadrant",
]

# --- Probability that several correlated probits are positive
#
# EP updates the posterior after each probit, of which there is one per latent value. The evidence
# is corrected by pairs of third and fourth cumulants of the tilted marginals (after Opper, Paquet &
# Winther, 2013, section 4.3).

# Tolerance of sites. The evidence is stationary in the sites, so that it errs by the square of
# their remaining change.
_TOL, _SWEEPS = 1e-5, 60
# Correlations reach 1 by rounding only if latent values are identical, so they are held below it.
_LARGEST = 0.999


@summed
def log_passes(prior: Array, covariance: Array, work: Array, rows: Array) -> float:
    """Return log E prod_j Phi(g_j) for g ~ N(prior, covariance), of k values.

    `work` (k, k) is room for a covariance and `rows` (6, k) for the sites.
    """
    k = prior.size
    V, (mean, tau, nu, kept, pull, spread) = work, rows
    for i in range(k):
        mean[i], tau[i], nu[i], kept[i], pull[i] = prior[i], 0.0, 0.0, 1.0, 0.0
        for j in range(k):
            V[i, j] = covariance[i, j]
    log_det = 0.0
    for _ in range(_SWEEPS):
        largest = 0.0
        for i in range(k):
            variance = V[i, i]
            square = variance / kept[i]
            centre = mean[i] - pull[i] * square
            wide = 1.0 + square
            z = centre / math.sqrt(wide)
            r, d, v = probit_series(z)
            a = r * d
            # This is 1/tilted variance - 1/cavity variance, without the difference.
            new_tau = a / (1.0 + square * v)
            gain = r / math.sqrt(wide)
            new_nu = gain + new_tau * (centre + square * gain)
            d_tau, d_nu = new_tau - tau[i], new_nu - nu[i]
            shrink = 1.0 + d_tau * variance
            if not (shrink > 0.0 and math.isfinite(d_nu)):
                continue
            scale, step = d_tau / shrink, (d_nu - d_tau * mean[i]) / shrink
            change = abs(d_tau) * variance + abs(d_nu) * math.sqrt(variance)
            largest = max(largest, change)
            tau[i], nu[i] = new_tau, new_nu
            log_det += math.log(shrink)
            own_kept, own_pull = kept[i] / shrink, pull[i] + step * kept[i]
            row = V[i]
            for j in range(k):
                spread[j] = row[j]
            for j in range(k):
                mean[j] += step * spread[j]
                pull[j] -= tau[j] * step * spread[j]
                kept[j] += tau[j] * scale * spread[j] * spread[j]
            kept[i], pull[i] = own_kept, own_pull
            for j in range(k):
                line, factor = V[j], scale * spread[j]
                for c in range(k):
                    line[c] -= factor * spread[c]
        if largest < _TOL:
            break
    return _evidence(prior, V, rows) - 0.5 * log_det


@kernel
def _evidence(prior: Array, V: Array, rows: Array) -> float:
    """Return site terms and pairs of cumulants; `nu` and `spread` are overwritten."""
    mean, tau, nu, kept, pull, spread = rows
    k = mean.size
    total = 0.0
    for i in range(k):
        square = V[i, i] / kept[i]
        centre = mean[i] - pull[i] * square
        wide = 1.0 + square
        z = centre / math.sqrt(wide)
        total += log_ndtr(z) + 0.5 * math.log1p(tau[i] * square)
        total -= 0.5 * pull[i] * (centre - prior[i])
        # Derivatives of log Phi are r, -a, a d - r v and so on.
        r, d, v = probit_series(z)
        a = r * d
        third = a * d - r * v
        fourth = 2.0 * a * v - third * (2.0 * r + z)
        # These are cumulants of the tilted density over powers of the marginal variance.
        unit = 1.0 / (kept[i] * math.sqrt(wide))
        nu[i] = third * unit**3
        spread[i] = fourth * unit**4
    for i in range(k):
        for j in range(i):
            c = V[i, j]
            limit = _LARGEST * math.sqrt(V[i, i] * V[j, j])
            c = min(max(c, -limit), limit)
            total += c**3 * (nu[i] * nu[j] / 6.0 + c * spread[i] * spread[j] / 48.0)
    return total


# --- Three classes: an exact integral over one variable
#
# The contrasts of three latent values have the covariance of three independent ones, whose
# variances may be negative. With the unit noise of each they are normals. The probability that the
# first is the largest is the mean of the product of the other two distribution functions at it. If
# a variance is too small, the two contrasts of each class are split instead into a shared (or
# opposed) part and independent remainders.

#: Least variance of an independent latent value with its noise, below which contrasts are split.
LEAST = 0.1
# The trapezoidal rule for a product of normal curves with deviations s is exact to rounding at
# steps below .73 of 1/sqrt(sum 1/s^2): exp(-2 pi^2/.73^2) = 8e-17. Values below exp(-_REACH) of the
# top are left out.
_STEP, _REACH = 0.7, 39.0
_STEPS = 200
# Correlations are kept at least this far from 0 and 1, which does not change the probability.
_NONE = 1e-12


@kernel
def independent_variances(covariance: Array) -> tuple[float, float, float]:
    """Return variances of three independent latents, with noise, from these contrasts."""
    S = covariance
    cross = S[0, 1], S[0, 2], S[1, 2]
    return (
        (S[0, 0] - cross[0]) + (cross[2] - cross[1]) + 1.0,
        (S[1, 1] - cross[0]) + (cross[1] - cross[2]) + 1.0,
        (S[2, 2] - cross[1]) + (cross[0] - cross[2]) + 1.0,
    )


@kernel
def log_largest(
    gap_1: float, gap_2: float, square: float, square_1: float, square_2: float, sign: float = 1.0
) -> float:
    """Return log E Phi((x + gap_1)/s_1) Phi((sign x + gap_2)/s_2) for x ~ N(0, square).

    If `sign` is 1 it is the probability that the first of three independent normals is the largest:
    the first has variance `square`, and the gaps are its mean minus those of the others.
    """
    s1, s2 = math.sqrt(square_1), math.sqrt(square_2)
    # Newton's method finds the mode of the log-concave integrand, within bounds that enclose it.
    z, low, high = 0.0, -math.inf, math.inf
    for _ in range(_STEPS):
        r1, d1, _ = probit_series((z + gap_1) / s1)
        r2, d2, _ = probit_series((sign * z + gap_2) / s2)
        curvature = 1.0 / square + r1 * d1 / square_1 + r2 * d2 / square_2
        slope = r1 / s1 + sign * r2 / s2 - z / square
        if slope > 0.0:
            low = z
        else:
            high = z
        step = slope / curvature
        if not low <= z + step <= high:
            step = 0.5 * (low + high) - z
        z += step
        if abs(step) * math.sqrt(curvature) < 1e-3:
            break
    top = _log_integrand(z, gap_1, gap_2, square, s1, s2, sign)
    h = _STEP / math.sqrt(1.0 / square + 1.0 / square_1 + 1.0 / square_2)
    total = 1.0
    for side in (-1.0, 1.0):
        at = z
        while True:
            at += side * h
            depth = _log_integrand(at, gap_1, gap_2, square, s1, s2, sign) - top
            if not depth > -_REACH:
                break
            total += math.exp(depth)
    return top + math.log(total * h) - 0.5 * math.log(square) - HALF_LOG_2PI


@kernel
def _log_integrand(
    z: float, gap_1: float, gap_2: float, square: float, s1: float, s2: float, sign: float
) -> float:
    ends = log_ndtr((z + gap_1) / s1) + log_ndtr((sign * z + gap_2) / s2)
    return ends - 0.5 * z * z / square


@kernel
def log_quadrant(
    mean_1: float, mean_2: float, variance_1: float, variance_2: float, covariance: float
) -> float:
    """Return log P(x > 0 and y > 0) for two normals of any correlation."""
    s1, s2 = math.sqrt(variance_1), math.sqrt(variance_2)
    r = covariance / (s1 * s2)
    shared = min(max(abs(r), _NONE), 1.0 - _NONE)
    unshared, sign = 1.0 - shared, 1.0 if r > 0.0 else -1.0
    return log_largest(mean_1 / s1, mean_2 / s2, shared, unshared, unshared, sign)


# --- Class probabilities of normal latent values
#
# The probabilities are p(c) = P(f_c + e_c > f_j + e_j for all j), with f ~ N(mean, covariance) and
# independent unit normals e. They depend on differences only, hence on the whole covariance, not
# its diagonal alone.


def log_probabilities(mean: Array, covariance: Array) -> Array:
    """Return normalised log probabilities of C >= 2 classes at T points, shape (T, C).

    They are closed for two classes and one integral for three, both exact to rounding. With more
    classes they are EP's evidence corrected by pairs of cumulants: within 3e-4 of the probability
    (test_probability_kernels.py).

    Parameters
    ----------
    mean : ndarray, shape (T, C)
    covariance : ndarray, shape (T, C, C)
        Moments of the latent values, without their noise.
    """
    out = np.empty(mean.shape)
    fill(np.ascontiguousarray(mean), np.ascontiguousarray(covariance), out)
    return out


@kernel
def fill(mean: Array, covariance: Array, out: Array) -> None:
    """Fill the log probabilities of all points."""
    points, C = mean.shape
    k = C - 1
    work, G, rows, prior = np.empty((k, k)), np.empty((k, k)), np.empty((6, k)), np.empty(k)
    for t in range(points):
        m, S, p = mean[t], covariance[t], out[t]
        if C == 2:
            spread = max(S[0, 0] - 2.0 * S[0, 1] + S[1, 1], 0.0)
            z = (m[0] - m[1]) / math.sqrt(spread + 2.0)
            p[0], p[1] = log_ndtr(z), log_ndtr(-z)
            continue
        done = False
        if C == 3:
            a, b, c = independent_variances(S)
            if min(a, b, c) > LEAST:
                p[0] = log_largest(m[0] - m[1], m[0] - m[2], a, b, c)
                p[1] = log_largest(m[1] - m[0], m[1] - m[2], b, a, c)
                p[2] = log_largest(m[2] - m[0], m[2] - m[1], c, a, b)
                done = True
        for c in range(0 if done else C):
            contrasts(m, S, c, prior, G)
            if C == 3:
                first, second = G[0, 0] + 1.0, G[1, 1] + 1.0
                p[c] = log_quadrant(prior[0], prior[1], first, second, G[0, 1])
            else:
                p[c] = log_passes(prior, G, work, rows)
        total, top = 0.0, p.max()
        for c in range(C):
            total += math.exp(p[c] - top)
        for c in range(C):
            p[c] -= top + math.log(total)


@kernel
def contrasts(m: Array, S: Array, own: int, prior: Array, G: Array) -> None:
    """Fill mean and covariance of u + f_own - f_j for all other j, with a unit normal u."""
    row = 0
    for j in range(m.size):
        if j == own:
            continue
        prior[row] = m[own] - m[j]
        column = 0
        for k in range(m.size):
            if k == own:
                continue
            G[row, column] = (S[own, own] - S[own, k]) + (S[j, k] - S[own, j]) + 1.0
            column += 1
        row += 1


@kernel
def log_orthants(mean: Array, covariance: Array, own: IntArray, out: Array) -> None:
    """Fill log p(own class) of N(mean, covariance), one class per point, not normalised."""
    points, C = mean.shape
    k = C - 1
    work, G, rows, prior = np.empty((k, k)), np.empty((k, k)), np.empty((6, k)), np.empty(k)
    for t in range(points):
        contrasts(mean[t], covariance[t], own[t], prior, G)
        out[t] = log_passes(prior, G, work, rows)
