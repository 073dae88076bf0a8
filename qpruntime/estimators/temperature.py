"""How sure a joint model of classes is to be: one exponent on its probabilities, by rows left out.

The kernel that makes the evidence of all classes highest may leave probabilities too low, as it
does on written digits: the posterior of ten functions under one kernel is wide. p_c^a, scaled to
sum to 1, is as sure as the model is right about its own rows, each left out: no label is held back,
and it is one number.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from qpruntime.arrays import Array
from qpruntime.inference.classes.left_out import left_out_log_proba
from qpruntime.inference.classes.posterior import ClassPosterior

__all__ = ["exponent_of", "exponents", "tempered"]

#: Rows that are left out, at most: enough for one number.
_ROWS = 1000
#: Values of a, and the rate of the exponential prior of the distance of its logarithm from 0.
_GRID, _RATE = np.exp(np.linspace(np.log(0.5), np.log(5.0), 61)), 2.0


def tempered(log_p: Array, a: float) -> Array:
    """Log probabilities (T, C) to this power, scaled."""
    if a == 1.0:
        return log_p
    found: Array = a * log_p - logsumexp(a * log_p, axis=1, keepdims=True)
    return found


def exponents(log_p: Array, own: NDArray[np.intp]) -> tuple[float, float]:
    """Return the best a, and the nearest to 1 of all that are within one standard error of it.

    Parameters
    ----------
    log_p : ndarray, shape (n, C)
        Log probabilities of rows left out.
    own : ndarray of int, shape (n,)
        Their classes.
    """
    rows = np.arange(len(own))
    # 1 itself is among them.
    grid = np.sort(np.append(_GRID, 1.0))
    lost = np.array([-tempered(log_p, a)[rows, own] for a in grid])
    away = np.abs(np.log(grid))
    total = lost.sum(axis=1) + _RATE * away
    best = int(np.argmin(total))
    error = np.sqrt(len(own)) * (lost - lost[best]).std(axis=1)
    near = np.argmin(np.where(total <= total[best] + error, away, np.inf))
    return float(grid[best]), float(grid[near])


def exponent_of(posterior: ClassPosterior, codes: NDArray[np.intp]) -> float:
    """Return a, by leave-one-out log probabilities of the labels: 1 where they say too little.

    That nearest to 1 within one standard error: few rows say little, and hyper-parameters were
    learnt from the same.

    Parameters
    ----------
    posterior : ClassPosterior
    codes : ndarray of int, shape (N,)
        Class of each row.
    """
    n = len(codes)
    some = np.arange(n)
    if n > _ROWS:
        some = np.sort(np.random.default_rng(0).choice(n, _ROWS, replace=False))
    log_p = left_out_log_proba(posterior, some)
    sound = np.isfinite(log_p).all(axis=1)
    return exponents(log_p[sound], codes[some][sound])[1] if sound.any() else 1.0
