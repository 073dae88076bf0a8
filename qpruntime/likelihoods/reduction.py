"""Coordinates of compact tables: what a likelihood may declare so that one is built of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from qpruntime.artifact.metadata import Axis
from qpruntime.jit import Pointer

__all__ = ["CLOSED", "INTEGRATE", "Reduction"]

#: Rows of `Reduction.coordinates` that no table has: integrate; u is the answer.
INTEGRATE, CLOSED = -1.0, -2.0


@dataclass(frozen=True, eq=False)
class Reduction:
    """Coordinates in which R = sigma*/sigma_EP is one small smooth function for every cavity.

    Parameters
    ----------
    coordinates : Pointer
        ``coordinates(mu, sigma, y, theta) -> (row, u, v)``. Arguments beyond the ends of an axis
        count as its end. Row `CLOSED` says that u is R itself; any other row that the table does
        not have is integrated.
    cavity : callable
        ``cavity(row, u, v) -> (mu, sigma, y)``: some cavity with these coordinates.
    u, v : Axis
        The axes of the shipped table; `u` is None for a function of `v` alone.
    outcomes : range
        The y of each row.
    largest : int
        The largest outcome the coordinates answer for.
    scale : Pointer, optional
        ``scale(mu, sigma, y, theta) -> (length, v, 0)``, if sigma*/length depends on the row and v
        alone, v being defined for every cavity. Dense grids are then expanded from one axis.
    """

    coordinates: Pointer
    cavity: Callable[[int, float, float], tuple[float, float, float]]
    v: Axis
    u: Axis | None = None
    outcomes: range = range(1, 2)
    largest: int = 1
    scale: Pointer | None = None
