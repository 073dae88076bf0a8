"""Hyper-parameters that other series have taught: held fixed, or the centre of a prior."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.effects.block import Block, Term
from qpruntime.effects.fixed import Fixed
from qpruntime.effects.frame import Frame
from qpruntime.likelihoods import Likelihood

__all__ = ["Around", "Held", "Learnt"]

# A prior is never narrower than this: a few series cannot know better.
_LEAST = 0.1


@dataclass(frozen=True)
class Around:
    """A normal density of theta.

    Attributes
    ----------
    mean, std : float
    """

    mean: float
    std: float

    def __call__(self, t: float) -> tuple[float, float]:
        """Log density at t, and its slope."""
        z = (t - self.mean) / self.std
        return -0.5 * z * z - np.log(self.std * np.sqrt(2.0 * np.pi)), -z / self.std


@dataclass(frozen=True, eq=False)
class Learnt:
    """Hyper-parameters by their names in `EffectsModel.names_`.

    Attributes
    ----------
    names : tuple of str
    centres : ndarray, shape (p,)
    stds : ndarray, shape (p,), or None
        How far single series are from the centres; None holds them there.
    """

    names: tuple[str, ...]
    centres: Array
    stds: Array | None = None

    def of(self, name: str) -> tuple[float, float | None]:
        """Centre and standard deviation of one."""
        k = self.names.index(name)
        return float(self.centres[k]), None if self.stds is None else float(self.stds[k])

    def family(self, likelihood: Likelihood, bounds: dict[str, Any]) -> tuple[Likelihood, Any]:
        """The likelihood at the centres, and bounds or "fixed" for its parameters."""
        known = {p: self.of(f"log {p}")[0] for p in bounds if f"log {p}" in self.names}
        values = {p: float(np.exp(v)) for p, v in known.items()}
        own = likelihood.with_parameters(**values)
        if self.stds is None:
            return own, dict.fromkeys(bounds, "fixed")
        return own, bounds


class Held(Term):
    """A term whose hyper-parameters start at given values, and stay there or near.

    Parameters
    ----------
    term : Term
    centres : ndarray, shape (p,)
    stds : ndarray, shape (p,), or None
    """

    def __init__(self, term: Term, centres: Array, stds: Array | None) -> None:
        self.term, self.centres, self.stds = term, centres, stds

    @classmethod
    def of(cls, term: Term, learnt: Learnt) -> Term:
        """Return a term held by what was learnt of it."""
        if isinstance(term, Fixed):
            return term
        known = [i for i, name in enumerate(learnt.names) if name.startswith(f"{term.name}: ")]
        stds = None if learnt.stds is None else learnt.stds[known]
        return cls(term, learnt.centres[known], stds)

    @property
    def name(self) -> str:
        """What the part is called."""
        return self.term.name

    def bind(self, data: Frame) -> Block:
        """Return the block of the term with its start, and its bounds or priors, replaced."""
        block = self.term.bind(data)
        block.start = np.clip(self.centres, *block.bounds.T)
        if self.stds is None:
            block.bounds = np.column_stack([block.start, block.start])
            return block
        own: Any = block
        priors = [
            Around(float(c), max(_LEAST, float(s)))
            for c, s in zip(self.centres, self.stds, strict=True)
        ]
        own.prior = priors[0]
        if len(priors) > 1:
            own.prior_of_rho = priors[1]
        return block
