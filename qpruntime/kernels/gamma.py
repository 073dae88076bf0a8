"""Incomplete gamma functions: what noise of a Matérn state over short steps is made of."""

from __future__ import annotations

import numpy as np

from qpruntime.jit import kernel

__all__ = ["gamma_share"]

#: Below this incomplete gamma functions are summed: 1 - e^-y (...) would cancel.
_SUMMED, _TERMS = 2.0, 21
#: Divisions one after the other take as long as all the rest.
_INVERSE = np.array([0.0] + [1.0 / j for j in range(1, 32)])


@kernel
def gamma_share(k, y, e):
    """Regularised lower incomplete gamma function P(k, y) for k = 3 or 5; e = exp(-y)."""
    if y < _SUMMED:
        total = 1.0
        for j in range(_TERMS if y > 0.25 else 9, 0, -1):
            total = 1.0 + total * y * _INVERSE[k + j]
        power = y * y * y
        return power * e * total * _INVERSE[6] if k == 3 else power * y * y * e * total / 120.0
    if k == 3:
        return 1.0 - e * (1.0 + y + 0.5 * y * y)
    return 1.0 - e * (1.0 + y * (1.0 + y * (0.5 + y * (1.0 / 6.0 + y / 24.0))))
