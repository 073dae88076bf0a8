"""Probabilities of K classes from K processes, each of one class against the rest.

By process c a row is of class c with probability p_c. Scaled to sum to 1, what the others say of
not being theirs is left out. Given that exactly one of K independent statements is true, class c
has probability p_c/(1 - p_c), up to scale: that counts as K statements what is partly one. Between
the two lies p_c/(1 - p_c)^b, and b is learnt from what the processes say of their own rows, each
left out: no label is held back, and it is one number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from qpruntime.arrays import Array

__all__ = ["coupled", "coupling_of", "statements"]

#: Rows that are left out, at most: enough for one number.
_ROWS = 2000
#: Values of b, and the rate of its exponential prior.
_GRID, _RATE = np.linspace(0.0, 1.0, 51), 2.0
#: A log density left out is so far from 0: what rounding has left of 1 - p, and of p.
_LEAST, _MOST = 1e-15, 700.0


def coupled(minus: Array, plus: Array, b: float) -> Array:
    """Log probabilities of classes (T, K) from log(1 - p) and log p of each against the rest."""
    score = plus - b * minus
    found: Array = score - logsumexp(score, axis=1, keepdims=True)
    return found


def statements(said: Sequence[Array], own: NDArray[np.intp]) -> tuple[Array, Array]:
    """log(1 - p) and log p of each class against the rest, (T, K), by the class of each row (T,).

    From the log probability ``said[c]`` (T,) that process c has of whether the row is of class c.
    """
    minus, plus = np.empty((2, len(own), len(said)))
    for c, one in enumerate(said):
        known = np.clip(one, -_MOST, -_LEAST)
        other = np.log(-np.expm1(known))
        true = own == c
        plus[:, c], minus[:, c] = np.where(true, known, other), np.where(true, other, known)
    return minus, plus


def coupling_of(posteriors: Sequence[Any], codes: NDArray[np.intp], weights: Array | None) -> float:
    """Return b, from 0 to 1 in steps of 1/50, by leave-one-out log probabilities of classes.

    Their sum has to gain by two nats for each unit of b, and b is the least that is within one
    standard error of the best: few rows say little, and hyper-parameters were learnt from the same.

    Parameters
    ----------
    posteriors : sequence of Posterior
        Of each class against the rest, at the rows.
    codes : ndarray of int, shape (N,)
        Class of each row.
    weights : ndarray, shape (N,), optional
    """
    n = len(codes)
    some = np.arange(n)
    if n > _ROWS:
        some = np.sort(np.random.default_rng(0).choice(n, _ROWS, replace=False))
    own = codes[some]
    said = [posterior.loo(None if len(some) == n else some) for posterior in posteriors]
    minus, plus = statements(said, own)
    mass = np.ones(len(some)) if weights is None else weights[some]
    rows = np.arange(len(some))
    lost = np.array([-mass * coupled(minus, plus, b)[rows, own] for b in _GRID])
    total = lost.sum(axis=1) + _RATE * _GRID
    best = int(np.argmin(total))
    error = np.sqrt(len(some)) * (lost - lost[best]).std(axis=1)
    return float(_GRID[np.argmax(total <= total[best] + error)])
