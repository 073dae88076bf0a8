"""Parts of a kernel that the engines use, Markov representations, and kinds of inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import shown
from qpruntime.errors import InputError

__all__ = [
    "CONSTANT",
    "FOREIGN",
    "GENERAL",
    "LINE",
    "MATERN_1",
    "MATERN_3",
    "MATERN_5",
    "RBF",
    "TURN",
    "Factor",
    "KernelParts",
    "NotMarkov",
    "StateSpaceTerm",
    "States",
    "one_length",
]

# --- Codes of shapes and states

#: States that are stepped in closed form. MATERN_1, 3 and 5 are shapes too, and RBF is one.
CONSTANT, MATERN_1, MATERN_3, MATERN_5, LINE, RBF = 0, 1, 2, 3, 4, 5
#: GENERAL + j is the j-th factor of a state that is stepped by series.
GENERAL = 10
#: TURN + j is the j-th harmonic, whose rate is the period itself.
TURN = 100


# --- State-space form of a kernel of time
#
# A term is a variance times factors; the kernel is the sum of its terms. `state_space` makes one
# state of them, `transition_kernels` moves it over steps of time.

#: Covariances may be off by this share of their size; rounding leaves less.
_ROUNDING = 1e-12
#: Nothing is left of the past after so many times the time in which it is forgotten.
_GONE = 690.0
#: Longest step whose series are summed, times the norm of the generator.
_SHORT = 0.4


class NotMarkov(InputError):
    """A kernel has a part that no state of finite size stands for."""


@restorable("states/1")
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
        How `qpruntime.kernels.transition_kernels` steps: in closed form, or `GENERAL`.
    forgets : float, optional
        Rate of the slowest decay; 0 if there is none. From the eigenvalues of F if not given.
    short : float, optional
        Longest step whose series are summed.

    Raises
    ------
    InputError
        If shapes do not fit, or there is no such process.

    See Also
    --------
    qpruntime.kernels.Factor, qpruntime.kernels.KernelParts

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime.kernels import States
    >>> matern = States(generator=[[0.0, 1.0], [-1.0, -2.0]], stationary=np.eye(2))
    >>> np.shape(matern.generator)
    (2, 2)
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


@restorable("factor/1")
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

    See Also
    --------
    qpruntime.kernels.States, qpruntime.kernels.StateSpaceTerm

    Examples
    --------
    >>> from qpruntime.kernels import Factor, States
    >>> decay = States(generator=[[-1.0]], stationary=[[1.0]])
    >>> Factor(decay, rate=1.0 / 3.0, scaled="length_scale").rate < 0.34
    True
    """

    states: States
    rate: float
    scaled: str = ""
    harmonic: int = 0
    theta: int = -1

    @property
    def kind(self) -> int:
        """Number by which compiled kernels know the factor; general factors have another."""
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


@restorable("kernel-term/1")
@dataclass(frozen=True, eq=False)
class StateSpaceTerm:
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

    See Also
    --------
    qpruntime.kernels.Factor, qpruntime.kernels.KernelParts

    Examples
    --------
    >>> from qpruntime.kernels import Factor, States, StateSpaceTerm
    >>> decay = States(generator=[[-1.0]], stationary=[[1.0]])
    >>> term = StateSpaceTerm(variance=2.0, factors=(Factor(decay, rate=1.0),))
    >>> term.variance, len(term.factors)
    (2.0, 1)
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

    def placed(self, places: dict[str, int]) -> StateSpaceTerm:
        """Return the term with the places of the parameters that it names."""
        factors = tuple(replace(f, theta=places.get(f.scaled, -1)) for f in self.factors)
        slopes = tuple((places[name], value) for name, value in self.by if name in places)
        return replace(self, factors=factors, slopes=slopes)


def one_length(kernel: Kernel) -> float:
    """Length-scale of a kernel of time, or raise `NotMarkov`."""
    length = np.asarray(kernel.length_scale, dtype=float)
    if length.size != 1:
        raise NotMarkov(f"{shown(kernel)} has {length.size} length-scales: time is one input")
    return float(length.flat[0])


# --- `KernelParts`
#
# One object says it all, `KernelParts`; the file of a kernel makes one, and so does a user. Nothing
# here knows which classes there are: `registry` does.


@dataclass(frozen=True, eq=False)
class KernelParts:
    """Facts about a class of kernels; everything may be left out.

    A radial kernel is k = f(r), f(0) = 1, where r is the distance of two points in length-scales.
    Functions take a kernel of the class first.

    Attributes
    ----------
    radial : callable (kernel, r) -> f(r)
        For arrays r, not negative, and of the same shape and dtype.
    slope : callable (kernel, r) -> -f'(r)/r
        The same; it may be infinite at 0. With `radial` it gives slopes in length-scales and in
        inputs, so that inducing inputs can be learnt.
    slopes : mapping of str to callable (kernel, r) -> array
        For every further parameter the derivative of f by its logarithm.
    state_space : callable (kernel) -> Factor, or a sequence of StateSpaceTerm
        The process in time, for series.
    approximate : callable (kernel, error) -> sequence of StateSpaceTerm
        The same where there is none but for an error.
    frequencies : callable (kernel, count, generator) -> ndarray, shape (count,)
        Draws of what standard normals are multiplied by to be frequencies in length-scales; for
        functions drawn whole.
    scaled : bool
        Whether r is in units of ``kernel.length_scale``; otherwise it is in those of the inputs.
    shape : callable (kernel, r^2, slope) -> (f, -f'(r)/r)
        Both at once and in the place of the squares, where that is quicker; the second counts if
        `slope`. Made of `radial` and `slope` if it is not given.
    bends : callable (kernel, r) -> (f, g, h, q)
        f and three times -1/r d/dr of the one before, for covariances of slopes of functions; what
        is infinite at 0 may be anything there.
    compiled : int
        Number of the shape in `qpruntime.kernels.radial_kernels.fill_radial`, -1 if it has none.
    constant, noise : str
        Name of the parameter that is the value of the kernel everywhere, or on the diagonal alone.
    levels : str
        Name of the parameter of a kernel of levels, `qpruntime.kernels.Categories`.
    parameters : tuple of str
        Names of all parameters, in scikit-learn's order; empty if the class is not known so far.

    Raises
    ------
    InputError
        If of `radial` and `slope` only one is given.

    See Also
    --------
    qpruntime.kernels.register, qpruntime.kernels.States

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process.kernels import RBF
    >>> from qpruntime.kernels import KernelParts, register
    >>> class Smooth(RBF):
    ...     pass
    ...
    >>> def covariance(kernel, r):
    ...     return np.exp(-0.5 * r**2)
    ...
    >>> register(Smooth, KernelParts(radial=covariance, slope=covariance))
    """

    radial: Callable[[Kernel, Array], Array] | None = None
    slope: Callable[[Kernel, Array], Array] | None = None
    slopes: Mapping[str, Callable[[Kernel, Array], Array]] = field(default_factory=dict)
    state_space: Callable[[Kernel], Factor | Sequence[StateSpaceTerm]] | None = None
    approximate: Callable[[Kernel, float], Sequence[StateSpaceTerm]] | None = None
    frequencies: Callable[[Kernel, int, np.random.Generator], Array] | None = None
    scaled: bool = True
    shape: Callable[[Kernel, Array, bool], tuple[Array, Array]] | None = None
    bends: Callable[[Kernel, Array], tuple[Array, Array, Array, Array]] | None = None
    compiled: int = -1
    constant: str = ""
    noise: str = ""
    levels: str = ""
    parameters: tuple[str, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        if (self.radial is None) != (self.slope is None):
            present, absent = ("radial", "slope") if self.slope is None else ("slope", "radial")
            raise InputError(
                f"KernelParts has {present} and no {absent}: give both, k = f(r) and -f'(r)/r, "
                "or neither"
            )
        if self.shape is None and self.radial is not None:
            object.__setattr__(self, "shape", self._shape)
        names = {name for name in (self.constant, self.noise, self.levels) if name}
        if self.shape is not None:
            names |= {*self.slopes} | ({"length_scale"} if self.scaled else set())
        object.__setattr__(self, "parameters", tuple(sorted(names)))

    def _shape(self, kernel: Kernel, squares: Array, slope: bool) -> tuple[Array, Array]:
        assert self.radial is not None
        assert self.slope is not None
        distance = np.sqrt(squares, out=squares)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            f = np.asarray(self.radial(kernel, distance))
            if not slope:
                return f, f
            return f, np.where(distance > 0.0, self.slope(kernel, distance), 0.0)


#: Parts of a kernel class that is not registered.
FOREIGN = KernelParts()
