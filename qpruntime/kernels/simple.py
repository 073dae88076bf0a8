"""A periodic kernel, exp(-2 sin^2(pi r/T)/l^2) of distances r, scikit-learn's ExpSineSquared.

In time it is a constant and harmonics, whose variances are Bessel functions.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.special import ive

from qpruntime.arrays import Array
from qpruntime.kernels.kernel_parts import KernelParts
from qpruntime.kernels.kinds import TURN
from qpruntime.kernels.markov import Factor, NotMarkov, States, Term
from qpruntime.validation import shown

__all__ = ["LEFT_OUT", "MOST_HARMONICS", "PARTS"]

#: The series is cut where what is left out is below this share of the variance.
LEFT_OUT = 1e-10
MOST_HARMONICS = 64
STATES = States([[0.0, -1.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]], TURN)


def shape(kernel: Any, squares: Array, slope: bool) -> tuple[Array, Array]:
    """Value, and -f'(r)/r = 2 pi/(T l^2) sin(2 pi r/T)/r f, as finite as the first at 0."""
    turn = math.pi / float(kernel.periodicity)
    rate = 2.0 / float(kernel.length_scale) ** 2
    r = np.sqrt(squares)
    f = np.exp(-rate * np.sin(turn * r) ** 2)
    # sinc(x) = sin(pi x)/(pi x).
    return f, 2.0 * rate * turn**2 * np.sinc(2.0 * turn / math.pi * r) * f if slope else f


def by_length(kernel: Any, r: Array) -> Array:
    """Derivative by the log length-scale, which is one of the sine."""
    turn = math.pi / float(kernel.periodicity)
    rate = 2.0 / float(kernel.length_scale) ** 2
    square = np.sin(turn * r) ** 2
    found: Array = 2.0 * rate * square * np.exp(-rate * square)
    return found


def by_period(kernel: Any, r: Array) -> Array:
    """Derivative by the log period: that by r, with its sign changed, times r."""
    return shape(kernel, r * r, True)[1] * r * r


def state_space(kernel: Any) -> tuple[Term, ...]:
    """A constant and harmonics.

    Raises
    ------
    NotMarkov
        If there are more than `MOST_HARMONICS`.
    """
    length, period = float(kernel.length_scale), float(kernel.periodicity)
    z, most = 1.0 / (length * length), MOST_HARMONICS
    values = ive(np.arange(most + 2), z)
    shares = np.where(np.arange(most + 2) == 0, 1.0, 2.0) * values
    left = np.append(np.cumsum(shares[::-1])[::-1], 0.0)
    count = int(np.argmax(left <= LEFT_OUT)) if (left <= LEFT_OUT).any() else most + 1
    if count > most:
        raise NotMarkov(
            f"{shown(kernel)} takes more than {most} harmonics to 1e-10: it is too rough for a "
            "state; use a longer length-scale, or the dense solver"
        )
    terms = []
    for j in range(max(count, 1)):
        if not shares[j] > 0.0:
            continue
        # d ive_j/dz = (ive_{j-1} + ive_{j+1})/2 - ive_j, and dz/d log l = -2 z.
        slope = 0.5 * (values[abs(j - 1)] + values[j + 1]) - values[j]
        own = (("length_scale", -2.0 * z * slope / values[j]),)
        factors = (Factor(STATES, period, "periodicity", harmonic=j),) if j else ()
        terms.append(Term(float(shares[j]), factors, own, error=float(left[count])))
    return tuple(terms)


PARTS = KernelParts(
    shape=shape,
    slopes={"length_scale": by_length, "periodicity": by_period},
    scaled=False,
    state_space=state_space,
)
