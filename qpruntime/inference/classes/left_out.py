"""Probabilities of all classes of rows that are left out, their own sites gone.

`ClassPosterior.loo` has that of the row's own class alone. What a row says of its latent values is
a precision of rank C - 1, diag D - D D'/sum D, D its precisions along z, 1 at its own class; it is
taken off their posterior.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qpruntime.arrays import Array
from qpruntime.inference.classes.posterior import ClassPosterior
from qpruntime.inference.classes.probabilities import log_probabilities

__all__ = ["left_out_log_proba"]

# Rows whose posterior is nearly all their own have lost so many digits without it.
_LOST = 1e10


def left_out_log_proba(posterior: ClassPosterior, rows: NDArray[np.intp]) -> Array:
    """Log probabilities (n, C) of all classes of some rows, each without its own label.

    Rows that have no such posterior in double precision have NaN.
    """
    solution: Any = posterior._solution
    V, m = solution.covariance_of(rows), posterior.mean[rows]
    tau, nu = (part[rows] for part in posterior.sites)
    own = np.isnan(tau)
    D, told = np.where(own, 1.0, tau), np.where(own, 0.0, -nu)
    share = D / D.sum(axis=1, keepdims=True)
    precision = np.eye(D.shape[1]) * D[:, :, None] - D[:, :, None] * share[:, None, :]
    told = told - share * told.sum(axis=1, keepdims=True)
    found = np.full(m.shape, np.nan)
    left = np.eye(D.shape[1]) - V @ precision
    sound = np.linalg.cond(left) < _LOST
    left, V = left[sound], V[sound]
    covariance = np.linalg.solve(left, V)
    covariance = 0.5 * (covariance + covariance.transpose(0, 2, 1))
    gap = m[sound] - np.einsum("ncd,nd->nc", V, told[sound])
    mean = np.linalg.solve(left, gap[:, :, None])[:, :, 0]
    least, scale = np.linalg.eigvalsh(covariance)[:, 0], np.abs(covariance).max(axis=(1, 2))
    proper = least > -1e-9 * scale
    some = np.flatnonzero(sound)[proper]
    found[some] = log_probabilities(mean[proper], covariance[proper])
    return found
