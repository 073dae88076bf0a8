"""State spaces of scikit-learn kernels: sums of products of Markov factors.

A term is a variance times factors; sums of kernels are sums of terms, products are multiplied out.
White noise is no state: it widens observations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import shown
from qpruntime.errors import InputError
from qpruntime.kernels.base import (
    GENERAL,
    LINE,
    MATERN_1,
    MATERN_3,
    MATERN_5,
    Factor,
    NotMarkov,
    StateSpaceTerm,
)
from qpruntime.kernels.registry import Added, Leaf, Multiplied, Node, raised, read
from qpruntime.kernels.simple import CONSTANT_STATES as STILL
from qpruntime.kernels.transition_kernels import laws

__all__ = ["MOST_STATES", "NotMarkov", "StateSpace", "approximates", "state_space"]

# --- Kernel expressions as state spaces

#: States at most: matrices of this size are multiplied at every observation.
MOST_STATES = 64


def approximates(kernel: Kernel) -> bool:
    """Decide whether a kernel has states only where squared exponentials may be approximated."""
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
    reading = _Reading(approximate)
    terms = _terms(read(kernel), reading)
    states = tuple(
        replace(t, factors=t.factors or (Factor(STILL, 0.0),)) for t in terms if not t.white
    )
    model = StateSpace(
        states,
        tuple(t for t in terms if t.white),
        reading.count,
        reading.error,
        approximate,
        reading.untold,
    )
    if not states:
        raise NotMarkov(f"the kernel {shown(kernel)} is white noise alone: add what is to be found")
    if model.dimension > MOST_STATES:
        raise NotMarkov(
            f"the kernel {shown(kernel)} takes a state of {model.dimension} numbers, more than "
            f"{MOST_STATES}: a longer length-scale of ExpSineSquared, or a Matern kernel of "
            "smaller nu beside it, takes fewer"
        )
    return model


@dataclass
class _Reading:
    """Results on the way: free parameters so far, the greatest error, what is not told."""

    approximate: float | None
    count: int = 0
    error: float = 0.0
    untold: str = ""

    def places(self, kernel: Kernel) -> dict[str, int]:
        """Return the places of the free parameters of a leaf in theta, which are counted."""
        indices = {}
        for parameter in kernel.hyperparameters:
            if not parameter.fixed:
                self.count += parameter.n_elements
                indices[parameter.name] = self.count - 1
        return indices


def _terms(node: Node, reading: _Reading) -> list[StateSpaceTerm]:
    if isinstance(node, Added):
        return _terms(node.first, reading) + _terms(node.second, reading)
    if isinstance(node, Multiplied):
        first, second = _terms(node.first, reading), _terms(node.second, reading)
        return [_times(a, b) for a in first for b in second]
    power = raised(node)
    if power is not None and power.exponent in (1, 2, 3):
        base = _terms(power.base, reading)
        terms = base
        for _ in range(int(power.exponent) - 1):
            terms = [_times(a, b) for a in terms for b in base]
        return terms
    return _leaf(node, reading)


def _leaf(leaf: Leaf, reading: _Reading) -> list[StateSpaceTerm]:
    kernel, places = leaf.kernel, reading.places(leaf.kernel)
    terms = _registered(leaf, reading.approximate)
    for term in terms:
        numbers = [term.variance, *(f.rate for f in term.factors)]
        if not (np.isfinite(numbers).all() and min(numbers) >= 0.0):
            raise InputError(f"{shown(kernel)} has parameters beyond double precision")
    reading.error = max([reading.error, *(term.error for term in terms)])
    named = {name for term in terms for name, _ in term.by}
    named |= {factor.scaled for term in terms for factor in term.factors}
    if unnamed := sorted(set(places) - named):
        reading.untold = f"{shown(kernel)} does not say how it depends on {unnamed[0]}, which"
    return [term.placed(places) for term in terms]


def _registered(leaf: Leaf, approximate: float | None) -> Sequence[StateSpaceTerm]:
    """Return what the kernel says of itself."""
    kernel, parts = leaf.kernel, leaf.parts
    if parts.state_space is not None:
        model = parts.state_space(kernel)
        return (StateSpaceTerm(factors=(model,)),) if isinstance(model, Factor) else model
    if parts.approximate is not None and approximate is not None:
        return parts.approximate(kernel, approximate)
    remedy = "Matern of nu 0.5, 1.5 or 2.5"
    if parts.approximate is not None:
        remedy += ", of which 2.5 is nearest to it; approximate=1e-3 (of estimators Series(1e-3))"
    raise NotMarkov(
        f"{shown(kernel)} is no Markov process: sums and products of Matern (nu 0.5, 1.5, "
        "2.5), ExpSineSquared, ConstantKernel, WhiteKernel and DotProduct are, and classes that "
        f"qpruntime.kernels.register was told of; use {remedy}, or the dense solver"
    )


def _times(a: StateSpaceTerm, b: StateSpaceTerm) -> StateSpaceTerm:
    factors = a.factors + b.factors
    if any(f.kind == LINE for f in factors) and (len(factors) > 1 or a.white or b.white):
        raise NotMarkov(
            "DotProduct times anything but a constant is not supported: add it instead, or use "
            "the dense solver"
        )
    white = a.white or b.white
    # White noise times a stationary kernel is noise of their product at distance 0.
    slopes = tuple(s for s in a.slopes + b.slopes if s[0] >= 0)
    factors = () if white else factors
    return StateSpaceTerm(a.variance * b.variance, factors, white=white, slopes=slopes)


# --- Arrays and gradient of a state space
#
# A derivative by a log parameter of the kernel is one by the log variances of terms, by the log
# rates of factors, by white noise, or by the offset of a line. `state_space` reads all this from a
# kernel.

#: A step of so many 1/rate leaves nothing of a term: gradients by its length-scale have ended.
_ENDED = 80.0


@restorable("state-space/1")
@dataclass(frozen=True)
class StateSpace:
    """A kernel as a state space.

    Attributes
    ----------
    terms : tuple of StateSpaceTerm
    noise : float
        Variance of the white noise.
    noises : tuple of StateSpaceTerm
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

    terms: tuple[StateSpaceTerm, ...]
    noises: tuple[StateSpaceTerm, ...]
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
            factor = self.terms[0].factors[0]
            if factor.kind in (MATERN_1, MATERN_3):
                return factor.kind, factor.rate, self.terms[0].variance
        return None

    @property
    def trio(self) -> tuple[float, float] | None:
        """Rate and variance of Matern 5/2, whose path is nearly as fast; None if it is not that."""
        if len(self.terms) == 1 and [f.kind for f in self.terms[0].factors] == [MATERN_5]:
            return self.terms[0].factors[0].rate, self.terms[0].variance
        return None

    @property
    def has_line(self) -> bool:
        """True if there is a linear trend."""
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
            # The data of general factors follow the rates, because another array would cost time at
            # every row.
            np.concatenate([[f.rate for f in factors], laws(general, len(factors))]),
            np.array([t.variance for t in self.terms]),
            offset.astype(np.int64),
            heads,
            start,
        )

    @staticmethod
    def _start(term: StateSpaceTerm, begin: float) -> Array:
        """Covariance of the state of a term at the first time, for variance 1."""
        if term.factors[0].kind == LINE:
            s = term.factors[0].rate
            return np.array([[s * s + begin * begin, begin], [begin, 1.0]])
        return _kron([f.stationary for f in term.factors])

    def far(self) -> Array:
        """Step beyond which nothing is left of a term, shape (terms,)."""
        gaps = []
        for term in self.terms:
            rate = sum(f.forgets for f in term.factors)
            gaps.append(_ENDED / rate if rate > 0.0 else math.inf)
        return np.array(gaps)

    def memory(self) -> float:
        """Longest time over which a term forgets, of those that do."""
        rates = [sum(f.forgets for f in term.factors) for term in self.terms]
        return max((1.0 / rate for rate in rates if rate > 0.0), default=0.0)

    def gradient(self, sums: Array, noise_slope: float) -> Array:
        """Return derivatives by the log parameters, from the sums of `wide_slope`.

        Raises
        ------
        InputError
            If a parameter is free of which nobody said how states depend on it.
        """
        if self.untold:
            raise InputError(
                f"the state space of {self.untold} is free: name it in Factor(scaled=...) or "
                "StateSpaceTerm(by=...), or fix it"
            )
        slopes = np.zeros(self.n_theta)
        offset = np.cumsum([0] + [t.size for t in self.terms])
        for b, term in enumerate(self.terms):
            block = slice(offset[b], offset[b + 1])
            for place, slope in term.slopes:
                slopes[place] += slope * sums[2, b, 0]
            for k, factor in enumerate(term.factors):
                if factor.theta < 0:
                    continue
                if factor.kind == LINE:
                    slopes[factor.theta] += (
                        term.variance * factor.rate**2 * sums[3, offset[b], offset[b]]
                    )
                    continue
                parts = [np.eye(f.size) for f in term.factors]
                parts[k] = factor.generator
                F = _kron(parts)
                P = term.variance * self._start(term, 0.0)
                D = -(F @ P + P @ F.T)
                # The log length-scale up is time down.
                slopes[factor.theta] -= np.sum(F * sums[0, block, block]) + 0.5 * np.sum(
                    D * sums[1, block, block]
                )
        for term in self.noises:
            for place, slope in term.slopes:
                slopes[place] += slope * term.variance * noise_slope
        return slopes


_kron: Callable[[list[Array]], Array] = partial(reduce, np.kron)
