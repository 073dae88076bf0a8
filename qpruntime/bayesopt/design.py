"""The points that come first, before anything is modelled."""

from __future__ import annotations

import numpy as np

from qpruntime.arrays import Array
from qpruntime.bayesopt.minimisers import LARGEST, sobol
from qpruntime.bayesopt.space import Space
from qpruntime.errors import InputError

__all__ = ["design", "largest_design"]

#: Points of a design are kept in memory, 128 MB at most.
_NUMBERS = 2**24


def largest_design(space: Space, n: int) -> None:
    """Raise `InputError` if there is no design of n points."""
    if space.d > LARGEST:
        raise InputError(
            f"{len(space.variables)} variables make {space.d} coordinates, more than the {LARGEST} "
            "that Sobol's sequence has: leave out variables, or choices of a category, each of "
            "which is a coordinate"
        )
    most = max(_NUMBERS // space.d, space.d + 1)
    if n > most:
        raise InputError(f"n_initial must be at most {most} in {space.d} coordinates, got {n}")


def design(space: Space, n: int, rng: np.random.Generator) -> Array:
    """n points of the unit cube that the space has, different ones while there are any."""
    if space.loose.any():
        return space.snap(sobol(n, space.d, rng))
    U = space.snap(sobol(8 * n, space.d, rng))
    _, first = np.unique(U, axis=0, return_index=True)
    order = np.sort(first)
    return U[order[np.arange(n) % len(order)]]
