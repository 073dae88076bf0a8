"""Probabilities of three classes: one integral over one variable, exact.

The contrasts of three latents have the covariance of three independent ones, whose variances may be
below zero. With the unit noise of each they are normals, of which the first is the largest with the
expectation of the two other distributions at it. Where a variance is too small, the two contrasts
of each class are taken apart instead: into what they share, or oppose, and the rest of each.
"""

from __future__ import annotations

import math

from qpruntime.jit import kernel
from qpruntime.special import log_ndtr, probit_series

__all__ = ["LEAST", "independent_variances", "log_largest", "log_quadrant"]

#: Least variance of an independent latent with its noise, below which contrasts are taken apart.
LEAST = 0.1
# The product of normal curves of deviations s is sampled without loss at steps below .73 of
# 1/sqrt(sum 1/s^2): exp(-2 pi^2/.73^2) = 8e-17. What is below exp(-_REACH) of the top is left out.
_STEP, _REACH = 0.7, 39.0
_STEPS = 200
# Correlations nearer to 0 or 1 are this far from it, which is nothing in the probability.
_NONE = 1e-12
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


@kernel
def independent_variances(covariance):
    """Variances of three independent latents, noise included, that have these contrasts."""
    S = covariance
    cross = S[0, 1], S[0, 2], S[1, 2]
    return (
        (S[0, 0] - cross[0]) + (cross[2] - cross[1]) + 1.0,
        (S[1, 1] - cross[0]) + (cross[1] - cross[2]) + 1.0,
        (S[2, 2] - cross[1]) + (cross[0] - cross[2]) + 1.0,
    )


@kernel
def log_largest(gap_1, gap_2, square, square_1, square_2, sign=1.0):
    """log E Phi((x + gap_1)/s_1) Phi((sign x + gap_2)/s_2) for x ~ N(0, square).

    That one of three independent normals is the largest where `sign` is 1: the first has variance
    `square`, and the gaps are its mean less those of the others.
    """
    s1, s2 = math.sqrt(square_1), math.sqrt(square_2)
    # Newton's method for the mode of what is log-concave, within what is known to enclose it.
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
    return top + math.log(total * h) - 0.5 * math.log(square) - _HALF_LOG_2PI


@kernel
def _log_integrand(z, gap_1, gap_2, square, s1, s2, sign):
    ends = log_ndtr((z + gap_1) / s1) + log_ndtr((sign * z + gap_2) / s2)
    return ends - 0.5 * z * z / square


@kernel
def log_quadrant(mean_1, mean_2, variance_1, variance_2, covariance):
    """log P(x > 0 and y > 0) for two correlated normals, whatever the sign of their covariance."""
    s1, s2 = math.sqrt(variance_1), math.sqrt(variance_2)
    r = covariance / (s1 * s2)
    shared = min(max(abs(r), _NONE), 1.0 - _NONE)
    own, sign = 1.0 - shared, 1.0 if r > 0.0 else -1.0
    return log_largest(mean_1 / s1, mean_2 / s2, shared, own, own, sign)
