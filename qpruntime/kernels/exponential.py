"""What Matérn kernels of half-integer nu have in common: a polynomial times an exponential.

Their files say the polynomials once, `profile`, for arrays and compiled loops alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.kernels.kernel_parts import KernelParts
from qpruntime.kernels.markov import Factor, States, one_length

__all__ = ["half_integer", "student"]

# Beyond, the exponential is 0 and the distance may be infinite.
_FAR = 1e4


def half_integer(
    twice_nu: int, profile: Callable[[Any, Any], tuple[Any, Any]], states: States
) -> KernelParts:
    """Return the parts of a Matérn kernel; `profile` takes u = sqrt(2 nu) r and exp(-u)."""
    rate = math.sqrt(float(twice_nu))

    def shape(kernel: Any, squares: Array, slope: bool) -> tuple[Array, Array]:
        u = np.sqrt(squares, out=squares)
        u *= rate
        e = np.exp(-u)
        np.minimum(u, _FAR, out=u)
        return profile(u, e)

    def state_space(kernel: Any) -> Factor:
        return Factor(states, rate / one_length(kernel), "length_scale")

    def frequencies(kernel: Any, count: int, rng: np.random.Generator) -> Array:
        return student(float(twice_nu), count, rng)

    return KernelParts(
        shape=shape, state_space=state_space, frequencies=frequencies, compiled=states.kind
    )


def student(freedom: float, count: int, rng: np.random.Generator) -> Array:
    """Draws of what makes normals those of Student's t, the spectrum of a Matérn kernel."""
    drawn: Array = np.sqrt(freedom / rng.chisquare(freedom, count))
    return drawn
