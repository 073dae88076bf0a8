"""Processes in time whose past is in a state: what a kernel says of itself to be used for series.

A term is a variance times factors; the kernel is the sum of its terms. `state_space` makes one
state of them, `transitions` moves it over steps of time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.kernels.kinds import GENERAL, TURN
from qpruntime.validation import shown

__all__ = ["Factor", "NotMarkov", "States", "Term", "one_length"]

#: Covariances may be off by this share of their size; rounding leaves less.
_ROUNDING = 1e-12
#: Nothing is left of the past after so many times the time in which it is forgotten.
_GONE = 690.0
#: Longest step whose series are summed, times the norm of the generator.
_SHORT = 0.4


class NotMarkov(InputError):
    """A kernel has a part that no state of finite size stands for."""


@dataclass(frozen=True, eq=False)
class States:
    """The law of a stationary state: dx = F x dt + noise, f = x[0] of variance 1, time has no unit.

    Parameters
    ----------
    generator : array-like, shape (d, d)
        F.
    stationary : array-like, shape (d, d)
        P, the covariance of x; P[0, 0] = 1. That of the noise is -(F P + P F').
    kind : int
        How `qpruntime.kernels.transitions` steps: in closed form, or `GENERAL`.
    forgets : float, optional
        Rate of the slowest decay; 0 if there is none. From the eigenvalues of F if not given.
    short : float, optional
        Longest step whose series are summed.

    Raises
    ------
    InputError
        If shapes do not fit, or there is no such process.
    """

    generator: ArrayLike
    stationary: ArrayLike
    kind: int = GENERAL
    forgets: float | None = None
    short: float | None = None
    noise: Array = field(init=False)

    def __post_init__(self) -> None:
        F = np.array(self.generator, dtype=float)
        P = np.array(self.stationary, dtype=float)
        if F.ndim != 2 or F.shape[0] != F.shape[1] or P.shape != F.shape or not F.size:
            raise InputError(
                "generator and stationary must be square and of one size, got shapes "
                f"{F.shape} and {P.shape}"
            )
        noise = -(F @ P + P @ F.T)
        size = np.abs(F).max() * np.abs(P).max()
        noise[np.abs(noise) <= _ROUNDING * size] = 0.0
        object.__setattr__(self, "generator", F)
        object.__setattr__(self, "stationary", P)
        object.__setattr__(self, "noise", noise)
        slowest = float(np.linalg.eigvals(F).real.max())
        if self.kind == GENERAL:
            least = min(np.linalg.eigvalsh(0.5 * (M + M.T))[0] for M in (P, noise / max(size, 1.0)))
            symmetric = np.abs(P - P.T).max() <= _ROUNDING * np.abs(P).max()
            if not (symmetric and least > -1e-9 * np.abs(P).max() and slowest <= _ROUNDING * size):
                raise InputError(
                    "stationary is no covariance that this generator keeps: it must be symmetric, "
                    "and neither it nor -(F P + P F') may have negative eigenvalues"
                )
            if abs(P[0, 0] - 1.0) > _ROUNDING:
                raise InputError(
                    f"stationary[0, 0] is the variance of f, which must be 1, got {P[0, 0]:g}: "
                    "divide by it, and let the term have the variance"
                )
        if self.forgets is None:
            object.__setattr__(self, "forgets", max(-slowest, 0.0))
        if self.short is None:
            object.__setattr__(self, "short", _SHORT / max(float(np.linalg.norm(F, 2)), 1e-300))

    @property
    def size(self) -> int:
        """Numbers in the state."""
        return len(self.noise)

    @property
    def gone(self) -> float:
        """Step after which nothing is left of the past."""
        return _GONE / self.forgets if self.forgets else math.inf


@dataclass(frozen=True, eq=False)
class Factor:
    """One factor of variance 1, in time.

    Attributes
    ----------
    states : States
    rate : float
        Times of `states` per time.
    scaled : str
        Name of the parameter of the kernel that the rate is inverse to; "" for none.
    harmonic : int
        Of a turn: how often it comes round in ``rate``, which is then the period.
    theta : int
        Place of the parameter among the free ones; -1 if it is none. Readers fill it in.
    """

    states: States
    rate: float
    scaled: str = ""
    harmonic: int = 0
    theta: int = -1

    @property
    def kind(self) -> int:
        """What kernels are told, but for the number of a general one."""
        return self.states.kind + self.harmonic

    @property
    def size(self) -> int:
        """States."""
        return self.states.size

    @property
    def speed(self) -> float:
        """Generator per time of F of this factor."""
        return 2.0 * math.pi * self.harmonic / self.rate if self.kind > TURN else self.rate

    @property
    def forgets(self) -> float:
        """Rate at which the past is forgotten, 0 if it is not."""
        return self.rate * self.states.forgets if self.states.forgets else 0.0

    @property
    def generator(self) -> Array:
        """F, per time."""
        return self.speed * np.asarray(self.states.generator)

    @property
    def stationary(self) -> Array:
        """P of variance 1."""
        return np.array(self.states.stationary)


@dataclass(frozen=True, eq=False)
class Term:
    """A variance times factors.

    Attributes
    ----------
    variance : float
    factors : tuple of Factor
        None are a constant.
    by : tuple of (str, float)
        Derivatives of the log variance by logarithms of parameters of the kernel, by their names.
    white : bool
        Whether it is noise, which is no state.
    error : float
        By how much the correlation of the whole kernel is off, where this is an approximation.
    slopes : tuple of (int, float)
        `by`, by the places of free parameters. Readers fill it in.
    """

    variance: float = 1.0
    factors: tuple[Factor, ...] = ()
    by: tuple[tuple[str, float], ...] = ()
    white: bool = False
    error: float = 0.0
    slopes: tuple[tuple[int, float], ...] = ()

    @property
    def size(self) -> int:
        """States."""
        return math.prod(f.size for f in self.factors)

    def placed(self, places: dict[str, int]) -> Term:
        """Return the term with the places of the parameters that it names."""
        factors = tuple(replace(f, theta=places.get(f.scaled, -1)) for f in self.factors)
        slopes = tuple((places[name], value) for name, value in self.by if name in places)
        return replace(self, factors=factors, slopes=slopes)


def one_length(kernel: Any) -> float:
    """Length-scale of a kernel of time, or raise `NotMarkov`."""
    length = np.asarray(kernel.length_scale, dtype=float)
    if length.size != 1:
        raise NotMarkov(f"{shown(kernel)} has {length.size} length-scales: time is one input")
    return float(length.flat[0])
