"""From a scikit-learn kernel to a state space: sums of products of Markov factors.

A term is a variance times factors; sums of kernels are sums of terms, products are multiplied out.
White noise is no state: it widens observations. A derivative by a log parameter of the kernel is
one by the log variances of terms, by the log rates of factors, by white noise, or by the offset of
a line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from scipy.special import ive
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    DotProduct,
    Exponentiation,
    ExpSineSquared,
    Kernel,
    Matern,
    Product,
    Sum,
    WhiteKernel,
)

from qpruntime.errors import InputError
from qpruntime.inference.markov.terms import Factor, StateSpace, Term
from qpruntime.inference.markov.transitions import (
    CONSTANT,
    LINE,
    MATERN_1,
    MATERN_3,
    MATERN_5,
    RBF_4,
    SMOOTH,
    TURN,
)
from qpruntime.validation import shown

__all__ = ["MOST_STATES", "NotMarkov", "StateSpace", "approximates", "state_space"]

#: States at most: matrices of this size are multiplied at every observation.
MOST_STATES = 64
_MATERN = {0.5: (MATERN_1, 1.0), 1.5: (MATERN_3, math.sqrt(3.0)), 2.5: (MATERN_5, math.sqrt(5.0))}
#: A Fourier series is cut where what is left out is below this share of the variance.
_PERIODIC = 1e-10


class NotMarkov(InputError):
    """A kernel has a part that no state of finite size stands for."""


def approximates(kernel: Kernel) -> bool:
    """Whether a kernel has states only where squared exponentials may be approximated."""
    try:
        state_space(kernel)
    except NotMarkov:
        return True
    return False


def state_space(kernel: Kernel, approximate: float | None = None) -> StateSpace:
    """Return the state space of a scikit-learn kernel of one input.

    `approximate` is the error that is allowed of a squared exponential of variance 1, which has
    none.

    Raises
    ------
    NotMarkov
        Naming the part of the kernel that has none, and what to use instead.
    """
    counter = iter(range(10_000))
    errors: list[float] = []
    terms = _terms(kernel, counter, errors, approximate)
    states = tuple(
        replace(t, factors=t.factors or (Factor(CONSTANT, 0.0),)) for t in terms if not t.white
    )
    found = StateSpace(
        states,
        tuple(t for t in terms if t.white),
        next(counter),
        max(errors, default=0.0),
        approximate,
    )
    if not states:
        raise NotMarkov(f"the kernel {shown(kernel)} is white noise alone: add what is to be found")
    if found.dimension > MOST_STATES:
        raise NotMarkov(
            f"the kernel {shown(kernel)} takes a state of {found.dimension} numbers, more than "
            f"{MOST_STATES}: a longer length-scale of ExpSineSquared, or a Matern kernel of "
            "smaller nu beside it, takes fewer"
        )
    return found


def _terms(
    kernel: Any, counter: Iterator[int], errors: list[float], approximate: float | None
) -> list[Term]:
    kind = type(kernel)
    if kind in (Sum, Product):
        left = _terms(kernel.k1, counter, errors, approximate)
        right = _terms(kernel.k2, counter, errors, approximate)
        return left + right if kind is Sum else [_times(a, b) for a in left for b in right]
    if kind is Exponentiation and kernel.exponent in (1, 2, 3):
        base = _terms(kernel.kernel, counter, errors, approximate)
        power = base
        for _ in range(int(kernel.exponent) - 1):
            power = [_times(a, b) for a in power for b in base]
        return power
    reader: Callable[..., list[Term]] | None = _READERS.get(kind)
    if kind is RBF and approximate is not None:
        reader = partial(_squared, approximate)
    if reader is None:
        remedy = "Matern of nu 0.5, 1.5 or 2.5"
        if kind is RBF:
            remedy += (
                ", of which 2.5 is nearest to it; approximate=1e-3 (of estimators Series(1e-3))"
            )
        raise NotMarkov(
            f"{shown(kernel)} is no Markov process: sums and products of Matern (nu 0.5, 1.5, "
            "2.5), ExpSineSquared, ConstantKernel, WhiteKernel and DotProduct are; use "
            f"{remedy}, or the dense solver"
        )
    found = reader(kernel, [_place(p, counter) for p in kernel.hyperparameters], errors)
    for term in found:
        numbers = [term.variance, *(f.rate for f in term.factors)]
        if not (np.isfinite(numbers).all() and min(numbers) >= 0.0):
            raise InputError(f"{shown(kernel)} has parameters beyond double precision")
    return found


def _place(parameter: Any, counter: Iterator[int]) -> int:
    """Index of a hyper-parameter in theta, -1 if it is fixed."""
    if parameter.fixed:
        return -1
    for _ in range(parameter.n_elements - 1):
        next(counter)
    return next(counter)


def _times(a: Term, b: Term) -> Term:
    factors = a.factors + b.factors
    if any(f.kind == LINE for f in factors) and (len(factors) > 1 or a.white or b.white):
        raise NotMarkov(
            "DotProduct times anything but a constant is not supported: add it instead, or use "
            "the dense solver"
        )
    white = a.white or b.white
    # White noise times a stationary kernel is noise of their product at distance 0.
    slopes = tuple(s for s in a.slopes + b.slopes if s[0] >= 0)
    return Term(a.variance * b.variance, () if white else factors, slopes, white)


def _constant(kernel: Any, places: list[int], errors: list[float]) -> list[Term]:
    return [Term(float(kernel.constant_value), (), _slope(places[0]))]


def _white(kernel: Any, places: list[int], errors: list[float]) -> list[Term]:
    return [Term(float(kernel.noise_level), (), _slope(places[0]), white=True)]


def _matern(kernel: Any, places: list[int], errors: list[float]) -> list[Term]:
    found = _MATERN.get(float(kernel.nu))
    length = np.asarray(kernel.length_scale, dtype=float)
    if found is None:
        raise NotMarkov(
            f"{shown(kernel)}: of Matern kernels those of nu = 0.5, 1.5 and 2.5 are Markov here; "
            "use one of these, or the dense solver"
        )
    if length.size != 1:
        raise NotMarkov(f"{shown(kernel)} has {length.size} length-scales: time is one input")
    return [Term(1.0, (Factor(found[0], found[1] / float(length.flat[0]), places[0]),))]


def _squared(approximate: float, kernel: Any, places: list[int], errors: list[float]) -> list[Term]:
    length = np.asarray(kernel.length_scale, dtype=float)
    if length.size != 1:
        raise NotMarkov(f"{shown(kernel)} has {length.size} length-scales: time is one input")
    for k, (_, error) in enumerate(SMOOTH):
        if error <= approximate:
            errors.append(error)
            return [Term(1.0, (Factor(RBF_4 + k, 1.0 / float(length.flat[0]), places[0]),))]
    raise NotMarkov(
        f"{shown(kernel)}: the error of its approximations is {SMOOTH[-1][1]:g} at least, got "
        f"approximate={approximate:g}; use the dense solver for less"
    )


def _line(kernel: Any, places: list[int], errors: list[float]) -> list[Term]:
    return [Term(1.0, (Factor(LINE, float(kernel.sigma_0), places[0]),))]


def _periodic(kernel: Any, places: list[int], errors: list[float]) -> list[Term]:
    """exp(-2 sin^2(pi t/T)/l^2) as a constant and harmonics; coefficients are Bessel functions."""
    length_place, period_place = places
    length, period = float(kernel.length_scale), float(kernel.periodicity)
    z = 1.0 / (length * length)
    most = MOST_STATES
    values = ive(np.arange(most + 2), z)
    shares = np.where(np.arange(most + 2) == 0, 1.0, 2.0) * values
    left = np.append(np.cumsum(shares[::-1])[::-1], 0.0)
    count = int(np.argmax(left <= _PERIODIC)) if (left <= _PERIODIC).any() else most + 1
    if count > most:
        raise NotMarkov(
            f"{shown(kernel)} takes more than {most} harmonics to 1e-10: it is too rough for a "
            "state; use a longer length-scale, or the dense solver"
        )
    errors.append(float(left[count]))
    terms = []
    for j in range(max(count, 1)):
        if not shares[j] > 0.0:
            continue
        # d ive_j/dz = (ive_{j-1} + ive_{j+1})/2 - ive_j, and dz/d log l = -2 z.
        slope = 0.5 * (values[abs(j - 1)] + values[j + 1]) - values[j]
        own = _slope(length_place, -2.0 * z * slope / values[j])
        factors = (Factor(TURN + j, period, period_place),) if j else ()
        terms.append(Term(float(shares[j]), factors, own))
    return terms


def _slope(place: int, value: float = 1.0) -> tuple[tuple[int, float], ...]:
    return ((place, value),) if place >= 0 else ()


_READERS: dict[type, Callable[..., list[Term]]] = {
    ConstantKernel: _constant,
    WhiteKernel: _white,
    Matern: _matern,
    DotProduct: _line,
    ExpSineSquared: _periodic,
}
