"""Class probabilities of normal latents: which of C values is the largest under unit noise of each.

p(c) = P(f_c + e_c > f_j + e_j for all j), f ~ N(mean, covariance), e independent unit normals. Only
differences count: the whole covariance does, not its diagonal.
"""

from __future__ import annotations

import math

import numpy as np

from qpruntime.arrays import Array
from qpruntime.inference.classes.orthant import log_passes
from qpruntime.inference.classes.three_classes import (
    LEAST,
    independent_variances,
    log_largest,
    log_quadrant,
)
from qpruntime.jit import kernel
from qpruntime.special import log_ndtr

__all__ = ["log_orthants", "log_probabilities"]


def log_probabilities(mean: Array, covariance: Array) -> Array:
    """Log probabilities of C >= 2 classes at T points, shape (T, C); each row's sum to 1.

    Two classes are closed and three one integral, both exact to rounding. More are EP's evidence
    corrected by pairs of cumulants: within 3e-4 of the probability (test_class_probabilities.py).

    Parameters
    ----------
    mean : ndarray, shape (T, C)
    covariance : ndarray, shape (T, C, C)
        Of the latent values, without their noise.
    """
    out = np.empty(mean.shape)
    fill(np.ascontiguousarray(mean), np.ascontiguousarray(covariance), out)
    return out


@kernel
def fill(mean, covariance, out):
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
def contrasts(m, S, own, prior, G):
    """Fill means and covariance of u + f_own - f_j for all other j, u a unit normal."""
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
def log_orthants(mean, covariance, own, out):
    """Fill log p(own class), not scaled, of N(mean, covariance), one class for each point."""
    points, C = mean.shape
    k = C - 1
    work, G, rows, prior = np.empty((k, k)), np.empty((k, k)), np.empty((6, k)), np.empty(k)
    for t in range(points):
        contrasts(mean[t], covariance[t], own[t], prior, G)
        out[t] = log_passes(prior, G, work, rows)
