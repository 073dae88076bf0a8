"""What is known of a class of kernels, beyond the values that its objects compute.

One object says it all, `KernelParts`; the file of a kernel makes one, and so does a user. Nothing
here knows which classes there are: `registry` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.kernels.markov import Factor, Term

__all__ = ["FOREIGN", "KernelParts"]


@dataclass(frozen=True, eq=False)
class KernelParts:
    """What is known of a class of kernels; everything may be left out.

    With r the distance of two points in length-scales, a radial kernel is k = f(r), f(0) = 1.
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
    state_space : callable (kernel) -> Factor, or a sequence of Term
        The process in time, for series.
    approximate : callable (kernel, error) -> sequence of Term
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
        Number of the shape in `qpruntime.kernels.radial.fill_radial`, -1 if it has none.
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
    """

    radial: Callable[[Any, Array], Array] | None = None
    slope: Callable[[Any, Array], Array] | None = None
    slopes: Mapping[str, Callable[[Any, Array], Array]] = field(default_factory=dict)
    state_space: Callable[[Any], Factor | Sequence[Term]] | None = None
    approximate: Callable[[Any, float], Sequence[Term]] | None = None
    frequencies: Callable[[Any, int, np.random.Generator], Array] | None = None
    scaled: bool = True
    shape: Callable[[Any, Array, bool], tuple[Array, Array]] | None = None
    bends: Callable[[Any, Array], tuple[Array, Array, Array, Array]] | None = None
    compiled: int = -1
    constant: str = ""
    noise: str = ""
    levels: str = ""
    parameters: tuple[str, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        if (self.radial is None) != (self.slope is None):
            given, absent = ("radial", "slope") if self.slope is None else ("slope", "radial")
            raise InputError(
                f"KernelParts has {given} and no {absent}: give both, k = f(r) and -f'(r)/r, "
                "or neither"
            )
        if self.shape is None and self.radial is not None:
            object.__setattr__(self, "shape", self._shape)
        names = {name for name in (self.constant, self.noise, self.levels) if name}
        if self.shape is not None:
            names |= {*self.slopes} | ({"length_scale"} if self.scaled else set())
        object.__setattr__(self, "parameters", tuple(sorted(names)))

    def _shape(self, kernel: Any, squares: Array, slope: bool) -> tuple[Array, Array]:
        assert self.radial is not None
        assert self.slope is not None
        distance = np.sqrt(squares, out=squares)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            f = np.asarray(self.radial(kernel, distance))
            if not slope:
                return f, f
            return f, np.where(distance > 0.0, self.slope(kernel, distance), 0.0)


#: Of a class that nobody knows.
FOREIGN = KernelParts()
