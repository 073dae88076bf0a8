"""Matérn 3/2, (1 + u) exp(-u) with u = sqrt(3) r, and its states f, f'/rate."""

from __future__ import annotations

import math
from typing import Any

from qpruntime.jit import contracted, kernel
from qpruntime.kernels.exponential import half_integer
from qpruntime.kernels.gamma import gamma_share
from qpruntime.kernels.kinds import MATERN_3
from qpruntime.kernels.markov import States

__all__ = ["PARTS", "step", "value_and_slope"]

STATES = States([[0.0, 1.0], [-1.0, -2.0]], [[1.0, 0.0], [0.0, 1.0]], MATERN_3, forgets=1.0)


def profile(u: Any, e: Any) -> tuple[Any, Any]:
    """f(r) and -f'(r)/r, e being exp(-u)."""
    return (1.0 + u) * e, 3.0 * e


#: `profile` for compiled loops.
value_and_slope = contracted(profile)
PARTS = half_integer(3, profile, STATES)


@kernel
def step(x):
    """(A00, A01, A10, A11, Q00, Q01, Q11) of variance 1 over x = rate times time."""
    decay = math.exp(-x)
    y, e = 2.0 * x, decay * decay
    third = gamma_share(3, y, e)
    return (
        decay * (1.0 + x),
        decay * x,
        -decay * x,
        decay * (1.0 - x),
        third,
        0.5 * y * y * e,
        third + 2.0 * y * e,
    )
