"""Matérn 5/2, (1 + u + u^2/3) exp(-u) with u = sqrt(5) r, and its states f, f'/rate, f''/rate^2."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.jit import contracted, kernel
from qpruntime.kernels.exponential import half_integer
from qpruntime.kernels.gamma import gamma_share
from qpruntime.kernels.kinds import MATERN_5
from qpruntime.kernels.markov import States

__all__ = ["PARTS", "step", "value_and_slope"]

_THIRD, _ROOT_5 = 1.0 / 3.0, math.sqrt(5.0)
STATES = States(
    [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [-1.0, -3.0, -3.0]],
    [[1.0, 0.0, -_THIRD], [0.0, _THIRD, 0.0], [-_THIRD, 0.0, 1.0]],
    MATERN_5,
    forgets=1.0,
)


def profile(u: Any, e: Any) -> tuple[Any, Any]:
    """f(r) and -f'(r)/r, e being exp(-u)."""
    return (1.0 + u + u * u / 3.0) * e, (5.0 / 3.0) * (1.0 + u) * e


def bends(kernel: Any, r: Array) -> tuple[Array, Array, Array, Array]:
    """f, g = 5/3 (1 + u) e, h = 25/3 e and q = 125/3 e/u, with e = exp(-u)."""
    u = _ROOT_5 * r
    e = np.exp(-u)
    f, g = profile(u, e)
    return f, g, 25.0 / 3.0 * e, 125.0 / 3.0 * e / np.maximum(u, 1e-300)


#: `profile` for compiled loops.
value_and_slope = contracted(profile)
PARTS = replace(half_integer(5, profile, STATES), bends=bends)


@kernel
def step(x):
    """(A by rows, Q00, Q01, Q02, Q11, Q12, Q22) of variance 1, of which that of 3/2 is less."""
    decay = math.exp(-x)
    half = 0.5 * x * x
    y, e, q = 2.0 * x, decay * decay, 16.0 / 3.0
    fifth = gamma_share(5, y, e)
    g0, g1 = decay * half, decay * (x - half)
    y3 = y * y * y
    middle = q * (y3 * e * (1.0 / 24.0 - y / 192.0) + fifth / 16.0)
    # exp(-x) (I + x N + x^2/2 N^2), N = F + I.
    return (
        decay * (1.0 + x + half),
        decay * (x + 2.0 * half),
        g0,
        -g0,
        decay * (1.0 + x - 2.0 * half),
        g1,
        -g1,
        decay * (2.0 * half - 3.0 * x),
        decay * (1.0 - 2.0 * x + half),
        fifth,
        0.5 * q * g0 * g0,
        q * g0 * g1 - middle,
        middle,
        0.5 * q * g1 * g1,
        q * (e * (0.5 * y - 0.25 * y * y + 0.125 * y3) + 3.0 * fifth / 16.0),
    )
