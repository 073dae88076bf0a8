"""From a scikit-learn kernel to a state space: sums of products of Markov factors.

A term is a variance times factors; sums of kernels are sums of terms, products are multiplied out.
White noise is no state: it widens observations. A derivative by a log parameter of the kernel is
one by the log variances of terms, by the log rates of factors, by white noise, or by the offset of
a line.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
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

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.inference.markov.transitions import (
    CONSTANT,
    LINE,
    MATERN_1,
    MATERN_3,
    MATERN_5,
    RBF_4,
    SMOOTH,
    TURN,
    smooth_states,
)
from qpruntime.validation import shown

__all__ = ["MOST_STATES", "NotMarkov", "StateSpace", "state_space"]

#: States at most: matrices of this size are multiplied at every observation.
MOST_STATES = 64
_MATERN = {0.5: (MATERN_1, 1.0), 1.5: (MATERN_3, math.sqrt(3.0)), 2.5: (MATERN_5, math.sqrt(5.0))}
_SIZE = {CONSTANT: 1, MATERN_1: 1, MATERN_3: 2, MATERN_5: 3, LINE: 2}
_SIZE |= {RBF_4 + k: 4 + 2 * k for k in range(len(SMOOTH))}
#: A Fourier series is cut where what is left out is below this share of the variance.
_PERIODIC = 1e-10
#: A step of so many 1/rate leaves nothing of a term: gradients by its length-scale have ended.
_ENDED = 80.0
#: Generators F and stationary covariances P of the factors.
_GENERATOR = {
    MATERN_1: [[-1.0]],
    MATERN_3: [[0.0, 1.0], [-1.0, -2.0]],
    MATERN_5: [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [-1.0, -3.0, -3.0]],
    TURN: [[0.0, -1.0], [1.0, 0.0]],
}
_STATIONARY = {
    CONSTANT: [[1.0]],
    MATERN_1: [[1.0]],
    MATERN_3: [[1.0, 0.0], [0.0, 1.0]],
    MATERN_5: [[1.0, 0.0, -1.0 / 3.0], [0.0, 1.0 / 3.0, 0.0], [-1.0 / 3.0, 0.0, 1.0]],
    TURN: [[1.0, 0.0], [0.0, 1.0]],
}
for _k in range(len(SMOOTH)):
    _GENERATOR[RBF_4 + _k], _STATIONARY[RBF_4 + _k] = smooth_states(_k)
#: States of an approximate squared exponential forget at this rate, by their slowest pole.
_SLOWEST = 1.16


class NotMarkov(InputError):
    """A kernel has a part that no state of finite size stands for."""


@dataclass(frozen=True)
class Factor:
    """One factor of variance 1; `rate` as `transitions` wants it, `theta` where its log scale is.

    For a line the rate is sigma_0.
    """

    kind: int
    rate: float
    theta: int = -1

    @property
    def size(self) -> int:
        """States."""
        return _SIZE[self.kind] if self.kind < TURN else 2

    @property
    def speed(self) -> float:
        """Generator per time of F of this factor."""
        return 2.0 * math.pi * (self.kind - TURN) / self.rate if self.kind > TURN else self.rate

    @property
    def forgets(self) -> float:
        """Rate at which the past is forgotten, 0 if it is not."""
        if self.kind in (MATERN_1, MATERN_3, MATERN_5):
            return self.rate
        return _SLOWEST * self.rate if RBF_4 <= self.kind < TURN else 0.0

    @property
    def generator(self) -> Array:
        """F, per time."""
        return self.speed * np.array(_GENERATOR[min(self.kind, TURN)])

    @property
    def stationary(self) -> Array:
        """P of variance 1."""
        return np.array(_STATIONARY[min(self.kind, TURN)])


@dataclass(frozen=True)
class Term:
    """A variance times factors; `slopes` are derivatives of its log by log parameters."""

    variance: float
    factors: tuple[Factor, ...] = ()
    slopes: tuple[tuple[int, float], ...] = ()
    white: bool = False

    @property
    def size(self) -> int:
        """States."""
        return math.prod(f.size for f in self.factors)


@dataclass(frozen=True)
class StateSpace:
    """A kernel as a state space.

    Attributes
    ----------
    terms : tuple of Term
    noise : float
        Variance of the white noise.
    noises : tuple of Term
        What it is made of.
    n_theta : int
        Free parameters of the kernel.
    error : float
        Bound of the error of the covariance, where a part is approximated.
    approximate : float or None
        The error that was allowed of squared exponentials.
    """

    terms: tuple[Term, ...]
    noises: tuple[Term, ...]
    n_theta: int
    error: float = 0.0
    approximate: float | None = None

    @property
    def noise(self) -> float:
        """Variance of the white noise."""
        return float(sum(t.variance for t in self.noises))

    @property
    def dimension(self) -> int:
        """Size of the state."""
        return sum(t.size for t in self.terms)

    @property
    def pair(self) -> tuple[int, float, float] | None:
        """Kind, rate and variance of a kernel of the fast path; None if it is not of it."""
        if len(self.terms) == 1 and len(self.terms[0].factors) == 1:
            one = self.terms[0].factors[0]
            if one.kind in (MATERN_1, MATERN_3):
                return one.kind, one.rate, self.terms[0].variance
        return None

    @property
    def trio(self) -> tuple[float, float] | None:
        """Rate and variance of Matern 5/2, whose path is nearly as fast; None if it is not that."""
        if len(self.terms) == 1 and [f.kind for f in self.terms[0].factors] == [MATERN_5]:
            return self.terms[0].factors[0].rate, self.terms[0].variance
        return None

    @property
    def has_line(self) -> bool:
        """Whether there is a linear trend."""
        return any(f.kind == LINE for t in self.terms for f in t.factors)

    def arrays(self, begin: float) -> tuple[Any, ...]:
        """Return what kernels take of the terms; `begin` is the first time."""
        factors = [f for t in self.terms for f in t.factors]
        first = np.cumsum([0] + [len(t.factors) for t in self.terms])
        offset = np.cumsum([0] + [t.size for t in self.terms])
        heads = np.zeros(self.dimension)
        heads[offset[:-1]] = 1.0
        start = np.zeros((self.dimension, self.dimension))
        for term, low, high in zip(self.terms, offset, offset[1:], strict=False):
            start[low:high, low:high] = term.variance * self._start(term, begin)
        return (
            first.astype(np.int64),
            np.array([f.kind for f in factors], dtype=np.int64),
            np.array([f.rate for f in factors]),
            np.array([t.variance for t in self.terms]),
            offset.astype(np.int64),
            heads,
            start,
        )

    @staticmethod
    def _start(term: Term, begin: float) -> Array:
        """Covariance of the state of a term at the first time, for variance 1."""
        if term.factors[0].kind == LINE:
            s = term.factors[0].rate
            return np.array([[s * s + begin * begin, begin], [begin, 1.0]])
        return _kron([f.stationary for f in term.factors])

    def far(self) -> Array:
        """Step beyond which nothing is left of a term, shape (terms,)."""
        found = []
        for term in self.terms:
            rate = sum(f.forgets for f in term.factors)
            found.append(_ENDED / rate if rate > 0.0 else math.inf)
        return np.array(found)

    def memory(self) -> float:
        """Longest time over which a term forgets, of those that do."""
        rates = [sum(f.forgets for f in term.factors) for term in self.terms]
        return max((1.0 / rate for rate in rates if rate > 0.0), default=0.0)

    def gradient(self, sums: Array, noise_slope: float) -> Array:
        """Derivatives by the log parameters, from the sums of `wide_slope`."""
        found = np.zeros(self.n_theta)
        offset = np.cumsum([0] + [t.size for t in self.terms])
        for b, term in enumerate(self.terms):
            own = slice(offset[b], offset[b + 1])
            for place, slope in term.slopes:
                found[place] += slope * sums[2, b, 0]
            for k, one in enumerate(term.factors):
                if one.theta < 0:
                    continue
                if one.kind == LINE:
                    found[one.theta] += term.variance * one.rate**2 * sums[3, offset[b], offset[b]]
                    continue
                parts = [np.eye(f.size) for f in term.factors]
                parts[k] = one.generator
                F = _kron(parts)
                P = term.variance * self._start(term, 0.0)
                D = -(F @ P + P @ F.T)
                # The log length-scale up is time down.
                found[one.theta] -= np.sum(F * sums[0, own, own]) + 0.5 * np.sum(
                    D * sums[1, own, own]
                )
        for term in self.noises:
            for place, slope in term.slopes:
                found[place] += slope * term.variance * noise_slope
        return found


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
            remedy += ", of which 2.5 is nearest to it; approximate=1e-3"
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


def _kron(parts: list[Array]) -> Array:
    found: Array = np.ones((1, 1))
    for part in parts:
        found = np.asarray(np.kron(found, part), dtype=np.float64)
    return found


def _slope(place: int, value: float = 1.0) -> tuple[tuple[int, float], ...]:
    return ((place, value),) if place >= 0 else ()


_READERS: dict[type, Callable[..., list[Term]]] = {
    ConstantKernel: _constant,
    WhiteKernel: _white,
    Matern: _matern,
    DotProduct: _line,
    ExpSineSquared: _periodic,
}
