"""Stationary kernels: RBF, Matern, rational quadratic and gamma-exponential."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
from scipy.linalg import solve_continuous_lyapunov
from scipy.special import kv
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._numba import contracted, kernel
from qpruntime._typing import Array, Floats
from qpruntime._validation import shown
from qpruntime.kernels.base import (
    MATERN_1,
    MATERN_3,
    MATERN_5,
    RBF,
    Factor,
    KernelParts,
    NotMarkov,
    States,
    StateSpaceTerm,
    one_length,
)

__all__ = [
    "MATERN_1_PARTS",
    "MATERN_3_PARTS",
    "MATERN_5_PARTS",
    "RATIONAL_QUADRATIC_PARTS",
    "RBF_PARTS",
    "gamma_share",
    "half_integer",
    "matern",
    "matern_3_step",
    "matern_3_value_and_slope",
    "matern_5_step",
    "matern_5_value_and_slope",
    "student",
]

# --- Incomplete gamma functions
#
# The noise of a Matérn state over short steps is made of them.

#: Below this incomplete gamma functions are summed: 1 - e^-y (...) would cancel.
_SUMMED, _TERMS = 2.0, 21
#: Divisions one after the other take as long as all the rest.
_INVERSE = np.array([0.0] + [1.0 / j for j in range(1, 32)])


@kernel
def gamma_share(k: int, y: float, e: float) -> float:
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


# --- Rational quadratic: (1 + r^2/(2 alpha))^-alpha


def rational_quadratic_shape(kernel: Kernel, squares: Array, slope: bool) -> tuple[Array, Array]:
    """Return f and -f'(r)/r, which is f to a power that is larger by 1/alpha."""
    alpha = float(kernel.alpha)
    base = 1.0 + squares / (2.0 * alpha)
    f = base**-alpha
    return f, f / base if slope else f


def by_alpha(kernel: Kernel, r: Array) -> Array:
    """Return the derivative by log alpha."""
    alpha = float(kernel.alpha)
    share = r * r / (2.0 * alpha)
    base = 1.0 + share
    return alpha * base**-alpha * (share / base - np.log1p(share))


def rational_quadratic_frequencies(kernel: Kernel, count: int, rng: np.random.Generator) -> Array:
    """Precisions of the squared exponentials have a gamma distribution of mean 1."""
    alpha = float(kernel.alpha)
    return np.sqrt(rng.gamma(alpha, 1.0 / alpha, count))


RATIONAL_QUADRATIC_PARTS = KernelParts(
    shape=rational_quadratic_shape,
    slopes={"alpha": by_alpha},
    frequencies=rational_quadratic_frequencies,
)


# --- Matérn of half-integer nu
#
# `profile` says the polynomials once, for arrays and compiled loops alike.

# Distances beyond this may be infinite, and the exponential is 0.
_FAR = 1e4
Shape = Callable[[Kernel, Array, bool], tuple[Array, Array]]


def half_integer(twice_nu: int, shape: Shape, states: States) -> KernelParts:
    """Return the parts of a Matérn kernel with this `KernelParts.shape`."""
    rate = math.sqrt(float(twice_nu))

    def state_space(kernel: Kernel) -> Factor:
        return Factor(states, rate / one_length(kernel), "length_scale")

    def frequencies(kernel: Kernel, count: int, rng: np.random.Generator) -> Array:
        return student(float(twice_nu), count, rng)

    return KernelParts(
        shape=shape, state_space=state_space, frequencies=frequencies, compiled=states.kind
    )


def shape_of(twice_nu: int, profile: Callable[[Any, Any], tuple[Any, Any]]) -> Shape:
    """Return the shape of a `profile`, which takes u = sqrt(2 nu) r and exp(-u)."""
    rate = math.sqrt(float(twice_nu))

    def shape(kernel: Kernel, squares: Array, slope: bool) -> tuple[Array, Array]:
        u = np.sqrt(squares, out=squares)
        u *= rate
        e = np.exp(-u)
        np.minimum(u, _FAR, out=u)
        return profile(u, e)

    return shape


def student(freedom: float, count: int, rng: np.random.Generator) -> Array:
    """Draws of what makes normals those of Student's t, the spectrum of a Matérn kernel."""
    return np.sqrt(freedom / rng.chisquare(freedom, count))


# --- Matérn 5/2: (1 + u + u^2/3) exp(-u) with u = sqrt(5) r; states f, f'/rate, f''/rate^2

_THIRD, _ROOT_5 = 1.0 / 3.0, math.sqrt(5.0)
MATERN_5_STATES = States(
    [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [-1.0, -3.0, -3.0]],
    [[1.0, 0.0, -_THIRD], [0.0, _THIRD, 0.0], [-_THIRD, 0.0, 1.0]],
    MATERN_5,
    forgets=1.0,
)


def matern_5_profile(u: Any, e: Any) -> tuple[Any, Any]:
    """f(r) and -f'(r)/r, e being exp(-u)."""
    return (1.0 + u + u * u / 3.0) * e, (5.0 / 3.0) * (1.0 + u) * e


def matern_5_bends(kernel: Kernel, r: Array) -> tuple[Array, Array, Array, Array]:
    """f, g = 5/3 (1 + u) e, h = 25/3 e and q = 125/3 e/u, with e = exp(-u)."""
    u = _ROOT_5 * r
    e = np.exp(-u)
    f, g = matern_5_profile(u, e)
    return f, g, 25.0 / 3.0 * e, 125.0 / 3.0 * e / np.maximum(u, 1e-300)


#: `profile` for compiled loops.
matern_5_value_and_slope = contracted(matern_5_profile)
MATERN_5_PARTS = replace(
    half_integer(5, shape_of(5, matern_5_profile), MATERN_5_STATES), bends=matern_5_bends
)


@kernel
def matern_5_step(x: float) -> Floats:
    """Return (A by rows, Q00, Q01, Q02, Q11, Q12, Q22) of variance 1."""
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


# --- Matérn 3/2: (1 + u) exp(-u) with u = sqrt(3) r; states f, f'/rate

MATERN_3_STATES = States(
    [[0.0, 1.0], [-1.0, -2.0]], [[1.0, 0.0], [0.0, 1.0]], MATERN_3, forgets=1.0
)


def matern_3_profile(u: Any, e: Any) -> tuple[Any, Any]:
    """f(r) and -f'(r)/r, e being exp(-u)."""
    return (1.0 + u) * e, 3.0 * e


#: `profile` for compiled loops.
matern_3_value_and_slope = contracted(matern_3_profile)
MATERN_3_PARTS = half_integer(3, shape_of(3, matern_3_profile), MATERN_3_STATES)


@kernel
def matern_3_step(x: float) -> Floats:
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


# --- Matérn 1/2: exp(-r); state f

MATERN_1_STATES = States([[-1.0]], [[1.0]], MATERN_1, forgets=1.0)


def matern_1_shape(kernel: Kernel, squares: Array, slope: bool) -> tuple[Array, Array]:
    """Return exp(-r) and exp(-r)/r, the second 0 at r = 0."""
    r = np.sqrt(squares, out=squares)
    e = np.exp(-r)
    g = np.divide(e, r, out=np.zeros_like(r), where=r > 0.0) if slope else e
    return e, g


MATERN_1_PARTS = half_integer(1, matern_1_shape, MATERN_1_STATES)


# --- Squared exponential: exp(-r^2/2); approximate states

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


def rbf_shape(kernel: Kernel, squares: Array, slope: bool) -> tuple[Array, Array]:
    """Value and slope are the same, and one array."""
    squares *= -0.5
    f = np.exp(squares, out=squares)
    return f, f


def rbf_bends(kernel: Kernel, r: Array) -> tuple[Array, Array, Array, Array]:
    """All derivatives are the value."""
    f = np.exp(-0.5 * r * r)
    return f, f, f, f


def rbf_frequencies(kernel: Kernel, count: int, rng: np.random.Generator) -> Array:
    """Scales of normal frequencies: all are 1."""
    return np.ones(count)


def approximate(kernel: Kernel, error: float) -> tuple[StateSpaceTerm, ...]:
    """Return the fewest states whose covariance is off by this at most.

    Raises
    ------
    NotMarkov
        If there are none.
    """
    length = one_length(kernel)
    for k, (_, off) in enumerate(_SECTIONS):
        if off <= error:
            return (
                StateSpaceTerm(
                    factors=(Factor(_states(k), 1.0 / length, "length_scale"),), error=off
                ),
            )
    raise NotMarkov(
        f"{shown(kernel)}: the error of its approximations is {_SECTIONS[-1][1]:g} at least, got "
        f"approximate={error:g}; use the dense solver for less"
    )


@cache
def _states(k: int) -> States:
    return _filter(_SECTIONS[k][0])


def _filter(sections: Sequence[tuple[float, float]]) -> States:
    """Return the process whose spectral density is 1 / prod ((a - w^2)^2 + b^2 w^2).

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


RBF_PARTS = KernelParts(
    shape=rbf_shape,
    frequencies=rbf_frequencies,
    bends=rbf_bends,
    compiled=RBF,
    approximate=approximate,
)


# --- Matérn of any nu

# Distances between: Bessel functions are infinite at 0, where the kernel is 1, and 0 far away.
_NEAR, _MATERN_FAR = 1e-10, 1e4


def matern(kernel: Kernel) -> KernelParts:
    """Return what is known of this Matérn kernel."""
    return _BY_NU.get(float(kernel.nu), _OTHERS)


def matern_shape(kernel: Kernel, squares: Array, slope: bool) -> tuple[Array, Array]:
    """u^nu K_nu(u), scaled to 1 at 0; its derivative is -u^nu K_(nu - 1)(u), u = sqrt(2 nu) r."""
    nu = float(kernel.nu)
    u = np.clip(math.sqrt(2.0 * nu) * np.sqrt(squares), _NEAR, _MATERN_FAR)
    front = 2.0 ** (1.0 - nu) / math.gamma(nu)
    f = front * u**nu * kv(nu, u)
    return f, 2.0 * nu * front * u ** (nu - 1.0) * kv(nu - 1.0, u) if slope else f


def matern_frequencies(kernel: Kernel, count: int, rng: np.random.Generator) -> Array:
    """They have Student's t distribution of 2 nu degrees of freedom."""
    return student(2.0 * float(kernel.nu), count, rng)


def matern_state_space(kernel: Kernel) -> Factor:
    """Refuse: the state of other smoothnesses is not finite."""
    raise NotMarkov(
        f"{shown(kernel)}: of Matern kernels those of nu = 0.5, 1.5 and 2.5 are Markov here; "
        "use one of these, or the dense solver"
    )


_OTHERS = KernelParts(
    shape=matern_shape, frequencies=matern_frequencies, state_space=matern_state_space
)
_BY_NU = {
    0.5: MATERN_1_PARTS,
    1.5: MATERN_3_PARTS,
    2.5: MATERN_5_PARTS,
    math.inf: KernelParts(
        shape=RBF_PARTS.shape,
        frequencies=RBF_PARTS.frequencies,
        state_space=matern_state_space,
    ),
}
