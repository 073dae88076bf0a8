"""The state of a kernel of time: what its terms are together, their arrays, their gradient.

A derivative by a log parameter of the kernel is one by the log variances of terms, by the log rates
of factors, by white noise, or by the offset of a line. `state_space` reads all this from a kernel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.kernels.general_step import laws
from qpruntime.kernels.kinds import GENERAL, LINE, MATERN_1, MATERN_3, MATERN_5
from qpruntime.kernels.markov import Term

__all__ = ["StateSpace"]

#: A step of so many 1/rate leaves nothing of a term: gradients by its length-scale have ended.
_ENDED = 80.0


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
    untold : str
        What a gradient lacks: a free parameter that its kernel's states do not name; "" if none.
    """

    terms: tuple[Term, ...]
    noises: tuple[Term, ...]
    n_theta: int
    error: float = 0.0
    approximate: float | None = None
    untold: str = ""

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
        general = [f.states for f in factors if f.kind == GENERAL]
        kinds = np.array([f.kind for f in factors], dtype=np.int64)
        kinds[kinds == GENERAL] += np.arange(len(general))
        return (
            first.astype(np.int64),
            kinds,
            # What general factors need follows the rates: an array more costs time at every row.
            np.concatenate([[f.rate for f in factors], laws(general, len(factors))]),
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
        """Derivatives by the log parameters, from the sums of `wide_slope`.

        Raises
        ------
        InputError
            If a parameter is free of which nobody said how states depend on it.
        """
        if self.untold:
            raise InputError(
                f"the state space of {self.untold} is free: name it in Factor(scaled=...) or "
                "Term(by=...), or fix it"
            )
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
