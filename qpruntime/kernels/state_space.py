"""From a scikit-learn kernel to a state space: sums of products of Markov factors.

A term is a variance times factors; sums of kernels are sums of terms, products are multiplied out.
White noise is no state: it widens observations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import Kernel

from qpruntime.errors import InputError
from qpruntime.kernels.constant import STATES as STILL
from qpruntime.kernels.kinds import LINE
from qpruntime.kernels.markov import Factor, NotMarkov, Term
from qpruntime.kernels.state import StateSpace
from qpruntime.kernels.tree import Added, Leaf, Multiplied, Node, raised, read
from qpruntime.validation import shown

__all__ = ["MOST_STATES", "NotMarkov", "StateSpace", "approximates", "state_space"]

#: States at most: matrices of this size are multiplied at every observation.
MOST_STATES = 64


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
    reading = _Reading(approximate)
    terms = _terms(read(kernel), reading)
    states = tuple(
        replace(t, factors=t.factors or (Factor(STILL, 0.0),)) for t in terms if not t.white
    )
    found = StateSpace(
        states,
        tuple(t for t in terms if t.white),
        reading.count,
        reading.error,
        approximate,
        reading.untold,
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


@dataclass
class _Reading:
    """What is found on the way: free parameters so far, the greatest error, what is not told."""

    approximate: float | None
    count: int = 0
    error: float = 0.0
    untold: str = ""

    def places(self, kernel: Any) -> dict[str, int]:
        """Return the places of the free parameters of a leaf in theta, which are counted."""
        found = {}
        for parameter in kernel.hyperparameters:
            if not parameter.fixed:
                self.count += parameter.n_elements
                found[parameter.name] = self.count - 1
        return found


def _terms(node: Node, reading: _Reading) -> list[Term]:
    if isinstance(node, Added):
        return _terms(node.one, reading) + _terms(node.two, reading)
    if isinstance(node, Multiplied):
        left, right = _terms(node.one, reading), _terms(node.two, reading)
        return [_times(a, b) for a in left for b in right]
    power = raised(node)
    if power is not None and power.exponent in (1, 2, 3):
        base = _terms(power.base, reading)
        found = base
        for _ in range(int(power.exponent) - 1):
            found = [_times(a, b) for a in found for b in base]
        return found
    return _leaf(node, reading)


def _leaf(leaf: Leaf, reading: _Reading) -> list[Term]:
    kernel, places = leaf.kernel, reading.places(leaf.kernel)
    found = _registered(leaf, reading.approximate)
    for term in found:
        numbers = [term.variance, *(f.rate for f in term.factors)]
        if not (np.isfinite(numbers).all() and min(numbers) >= 0.0):
            raise InputError(f"{shown(kernel)} has parameters beyond double precision")
    reading.error = max([reading.error, *(term.error for term in found)])
    named = {name for term in found for name, _ in term.by}
    named |= {factor.scaled for term in found for factor in term.factors}
    if unnamed := sorted(set(places) - named):
        reading.untold = f"{shown(kernel)} does not say how it depends on {unnamed[0]}, which"
    return [term.placed(places) for term in found]


def _registered(leaf: Leaf, approximate: float | None) -> Sequence[Term]:
    """What the kernel says of itself."""
    kernel, parts = leaf.kernel, leaf.parts
    if parts.state_space is not None:
        found = parts.state_space(kernel)
        return (Term(factors=(found,)),) if isinstance(found, Factor) else found
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
    factors = () if white else factors
    return Term(a.variance * b.variance, factors, white=white, slopes=slopes)
