"""The squared exponential, exp(-r^2/2), scikit-learn's RBF, and states that stand for it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from scipy.linalg import solve_continuous_lyapunov

from qpruntime.arrays import Array
from qpruntime.kernels.kernel_parts import KernelParts
from qpruntime.kernels.kinds import RBF
from qpruntime.kernels.markov import Factor, NotMarkov, States, Term, one_length
from qpruntime.validation import shown

__all__ = ["PARTS"]

#: Approximations of exp(-x^2/2) by 4, 6 and 8 states: sections fitted to the least error, error.
_SECTIONS = (
    (((1.574774, 0.841774), (0.667597, 0.928062)), 2.3e-3),
    (((2.141847, 0.893209), (1.417496, 1.006433), (0.819837, 1.0472)), 1.9e-4),
    (
        (
            (2.52407545, 0.90985014),
            (1.94077227, 1.04313004),
            (1.37599112, 1.10485469),
            (0.94895192, 1.13108118),
        ),
        1.3e-5,
    ),
)
#: They forget at this rate, by their slowest pole.
_SLOWEST = 1.16
#: Longest step whose series are summed, times the norm of F (40 at most); longer ones by doubling.
_SHORT = 0.01


def shape(kernel: Any, squares: Array, slope: bool) -> tuple[Array, Array]:
    """Value and slope are the same, and one array."""
    squares *= -0.5
    f = np.exp(squares, out=squares)
    return f, f


def bends(kernel: Any, r: Array) -> tuple[Array, Array, Array, Array]:
    """All derivatives are the value."""
    f = np.exp(-0.5 * r * r)
    return f, f, f, f


def frequencies(kernel: Any, count: int, rng: np.random.Generator) -> Array:
    """Scales of normal frequencies: all are 1."""
    return np.ones(count)


def approximate(kernel: Any, error: float) -> tuple[Term, ...]:
    """Return the fewest states whose covariance is off by this at most.

    Raises
    ------
    NotMarkov
        If there are none.
    """
    length = one_length(kernel)
    for k, (_, off) in enumerate(_SECTIONS):
        if off <= error:
            return (Term(factors=(Factor(_states(k), 1.0 / length, "length_scale"),), error=off),)
    raise NotMarkov(
        f"{shown(kernel)}: the error of its approximations is {_SECTIONS[-1][1]:g} at least, got "
        f"approximate={error:g}; use the dense solver for less"
    )


@cache
def _states(k: int) -> States:
    return _filter(_SECTIONS[k][0])


def _filter(sections: Sequence[tuple[float, float]]) -> States:
    """The process whose spectral density is 1 / prod ((a - w^2)^2 + b^2 w^2).

    Sections are (log a, log b). States are f^(k) / 3^k, which are of like size.
    """
    p = np.array([1.0])
    for a, b in np.exp(sections):
        p = np.polymul(p, [1.0, b, a])
    d = p.size - 1
    scale = 3.0 ** np.arange(d)
    F = np.diag(np.ones(d - 1), 1)
    F[-1] = -p[:0:-1]
    F *= scale / scale[:, None]
    noise = np.zeros((d, d))
    noise[-1, -1] = 1.0
    P = solve_continuous_lyapunov(F, -noise)
    P *= (np.add.outer(np.arange(d), np.arange(d)) % 2 == 0) / P[0, 0]
    return States(F, 0.5 * (P + P.T), forgets=_SLOWEST, short=_SHORT)


PARTS = KernelParts(
    shape=shape, frequencies=frequencies, bends=bends, compiled=RBF, approximate=approximate
)
