"""The tilted density of one cavity, relative to an anchor: its log at any distance.

Far from the mode that log is the difference of large numbers; relative to an anchor near the mode
it is not. Where the mass lies is found in `qpruntime.quadrature.support`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from qpruntime.arrays import Array
from qpruntime.jit import call_split, kernel

__all__ = [
    "DECAY",
    "EXHAUSTED",
    "NOT_A_NUMBER",
    "NO_MASS",
    "OK",
    "Anchor",
    "Raised",
    "anchored",
    "level",
    "powered",
    "relative_log",
    "rounding",
]

OK, DECAY, NO_MASS, NOT_A_NUMBER, EXHAUSTED = 0, 1, 2, 3, 4

#: Distance of 1 from the next double.
EPS = 2.0**-52


class Raised(NamedTuple):
    """The likelihood of one observation, raised to a power; `split` is its handle."""

    split: Any
    power: float
    y: float
    theta: Array


class Anchor(NamedTuple):
    """Where a tilted density is measured from.

    `f` is the place itself, `rest` and `curvature` are the split of log p there, `inverse` is
    1/sigma^2 and `pull` is (f - mu)/sigma^2.
    """

    f: float
    rest: float
    curvature: float
    inverse: float
    pull: float


@kernel
def powered(raised, f):
    """`split` of the likelihood raised to a power."""
    rest, curvature = call_split(raised.split, f, raised.y, raised.theta)
    return raised.power * rest, raised.power * curvature


@kernel
def anchored(raised, mu, sigma, f):
    """Return the `Anchor` at f; one without mass counts as of level 0."""
    rest, curvature = powered(raised, f)
    if not abs(rest) < math.inf:
        rest = 0.0
    return Anchor(f, rest, curvature, 1.0 / (sigma * sigma), (f - mu) / sigma / sigma)


@kernel
def relative_log(raised, anchor, d):
    """log of the tilted density at anchor + d over that at the anchor, less its part linear in mu.

    The full value is this minus d (anchor - mu)/sigma^2. Where both have the same Gaussian factor
    it is never formed and subtracted: only its difference over d is.
    """
    f = anchor.f + d
    rest, curvature = powered(raised, f)
    if curvature != anchor.curvature:
        gauss = curvature * f * f - anchor.curvature * anchor.f * anchor.f
        return rest - anchor.rest - 0.5 * (d * d * anchor.inverse + gauss), 0.0
    return rest - anchor.rest - 0.5 * d * d * (curvature + anchor.inverse), curvature * anchor.f


@kernel
def level(raised, anchor, d):
    """Log of the tilted density at a distance d over that at the anchor."""
    e, tilt = relative_log(raised, anchor, d)
    return e - d * (tilt + anchor.pull)


@kernel
def rounding(anchor, e, d):
    """What rounding may have done to `level`, roughly."""
    size = abs(d) * (abs(anchor.pull) + abs(anchor.curvature * anchor.f))
    size += d * d * (anchor.curvature + anchor.inverse)
    return EPS * (4.0 + abs(anchor.rest) + abs(e) + 2.0 * size)
