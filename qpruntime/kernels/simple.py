"""Constant, linear, white and periodic kernels."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ive
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._typing import Array
from qpruntime._validation import shown
from qpruntime.kernels.base import (
    CONSTANT,
    LINE,
    TURN,
    Factor,
    KernelParts,
    NotMarkov,
    States,
    StateSpaceTerm,
)

__all__ = [
    "CONSTANT_PARTS",
    "CONSTANT_STATES",
    "LEFT_OUT",
    "LINE_PARTS",
    "LINE_STATES",
    "MOST_HARMONICS",
    "PERIODIC_PARTS",
    "WHITE_PARTS",
]

# --- Periodic: exp(-2 sin^2(pi r/T)/l^2)
#
# It is a constant and harmonics in time, whose variances are Bessel functions.

#: The series is cut where what is left out is below this share of the variance.
LEFT_OUT = 1e-10
MOST_HARMONICS = 64
PERIODIC_STATES = States([[0.0, -1.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]], TURN)


def periodic_shape(kernel: Kernel, squares: Array, slope: bool) -> tuple[Array, Array]:
    """Value, and -f'(r)/r = 2 pi/(T l^2) sin(2 pi r/T)/r f, as finite as the first at 0."""
    turn = math.pi / float(kernel.periodicity)
    rate = 2.0 / float(kernel.length_scale) ** 2
    r = np.sqrt(squares)
    f = np.exp(-rate * np.sin(turn * r) ** 2)
    # sinc(x) = sin(pi x)/(pi x).
    return f, 2.0 * rate * turn**2 * np.sinc(2.0 * turn / math.pi * r) * f if slope else f


def by_length(kernel: Kernel, r: Array) -> Array:
    """Return the derivative by the log length-scale, which is one of the sine."""
    turn = math.pi / float(kernel.periodicity)
    rate = 2.0 / float(kernel.length_scale) ** 2
    square = np.sin(turn * r) ** 2
    return 2.0 * rate * square * np.exp(-rate * square)


def by_period(kernel: Kernel, r: Array) -> Array:
    """Return the derivative by the log period: that by r, with its sign changed, times r."""
    return periodic_shape(kernel, r * r, True)[1] * r * r


def periodic_state_space(kernel: Kernel) -> tuple[StateSpaceTerm, ...]:
    """Return a constant and harmonics.

    Raises
    ------
    NotMarkov
        If there are more than `MOST_HARMONICS`.
    """
    length, period = float(kernel.length_scale), float(kernel.periodicity)
    z, most = 1.0 / (length * length), MOST_HARMONICS
    values = ive(np.arange(most + 2), z)
    shares = np.where(np.arange(most + 2) == 0, 1.0, 2.0) * values
    tail_sums = np.append(np.cumsum(shares[::-1])[::-1], 0.0)
    count = int(np.argmax(tail_sums <= LEFT_OUT)) if (tail_sums <= LEFT_OUT).any() else most + 1
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
        slopes = (("length_scale", -2.0 * z * slope / values[j]),)
        factors = (Factor(PERIODIC_STATES, period, "periodicity", harmonic=j),) if j else ()
        terms.append(
            StateSpaceTerm(float(shares[j]), factors, slopes, error=float(tail_sums[count]))
        )
    return tuple(terms)


PERIODIC_PARTS = KernelParts(
    shape=periodic_shape,
    slopes={"length_scale": by_length, "periodicity": by_period},
    scaled=False,
    state_space=periodic_state_space,
)


# --- White noise


def white_state_space(kernel: Kernel) -> tuple[StateSpaceTerm, ...]:
    """Noise of what is observed."""
    return (StateSpaceTerm(float(kernel.noise_level), by=(("noise_level", 1.0),), white=True),)


WHITE_PARTS = KernelParts(noise="noise_level", state_space=white_state_space)


# --- Linear: sigma_0^2 + x z

# It is not stationary: where it begins is for whoever knows the first time.
LINE_STATES = States([[0.0, 1.0], [0.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]], LINE)


def linear_state_space(kernel: Kernel) -> Factor:
    """State of a line, whose rate is sigma_0."""
    return Factor(LINE_STATES, float(kernel.sigma_0), "sigma_0")


LINE_PARTS = KernelParts(state_space=linear_state_space)


# --- Constant

CONSTANT_STATES = States([[0.0]], [[1.0]], CONSTANT)


def constant_state_space(kernel: Kernel) -> tuple[StateSpaceTerm, ...]:
    """State of a constant: a variance without factors."""
    return (StateSpaceTerm(float(kernel.constant_value), by=(("constant_value", 1.0),)),)


CONSTANT_PARTS = KernelParts(constant="constant_value", state_space=constant_state_space)
