"""A state space as sums of products of Markov factors: its size, its arrays, its gradient.

A term is a variance times factors. A derivative by a log parameter of the kernel is one by the log
variances of terms, by the log rates of factors, by white noise, or by the offset of a line.
`state_space` reads these from a kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from qpruntime.arrays import Array
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

__all__ = ["Factor", "StateSpace", "Term"]

_SIZE = {CONSTANT: 1, MATERN_1: 1, MATERN_3: 2, MATERN_5: 3, LINE: 2}
_SIZE |= {RBF_4 + k: 4 + 2 * k for k in range(len(SMOOTH))}
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


def _kron(parts: list[Array]) -> Array:
    found: Array = np.ones((1, 1))
    for part in parts:
        found = np.asarray(np.kron(found, part), dtype=np.float64)
    return found
