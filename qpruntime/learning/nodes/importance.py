"""Hyper-parameters by importance: draws of a Student t around the mode, weighted by the density.

Each half axis has a scale of its own, by two values of the density an axis; draws are those of a
scrambled Sobol sequence.
"""

from __future__ import annotations

import numpy as np
from scipy.special import gammaln
from scipy.stats import chi2, norm, qmc

from qpruntime.arrays import Array

__all__ = ["draws"]

# Degrees of freedom: tails that are heavier than those of evidences.
_FREEDOM = 5.0


def draws(p: int, n: int, stretch: Array, seed: int) -> tuple[Array, Array]:
    """Places z (n, p) and the logarithms of their density (n,).

    Parameters
    ----------
    p, n : int
    stretch : ndarray, shape (2, p)
        Scales below and above the mode along each axis.
    seed : int
    """
    uniform = qmc.Sobol(2 * p + 1, rng=np.random.default_rng(seed)).random(n)
    uniform = np.clip(uniform, 1e-12, 1.0 - 1e-12)
    share = np.sqrt(chi2.ppf(uniform[:, 0], _FREEDOM) / _FREEDOM)
    size = norm.ppf(0.5 + 0.5 * uniform[:, 1 : p + 1]) / share[:, None]
    above = uniform[:, p + 1 :] < stretch[1] / stretch.sum(axis=0)
    z = np.where(above, stretch[1] * size, -stretch[0] * size)
    # Of a t of p dimensions on the positive orthant, times the chance of each side over its scale.
    constant = gammaln(0.5 * (_FREEDOM + p)) - gammaln(0.5 * _FREEDOM)
    constant -= 0.5 * p * np.log(_FREEDOM * np.pi)
    logs = constant - 0.5 * (_FREEDOM + p) * np.log1p((size**2).sum(axis=1) / _FREEDOM)
    return z, logs + p * np.log(2.0) - np.log(stretch.sum(axis=0)).sum()
