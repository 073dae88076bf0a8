"""Operations that an array library has to provide, and the normal distribution in them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from qpruntime._typing import ArrayLike

__all__ = ["MARGIN", "SQRT1_2", "SQRT_2_PI", "ArrayLibrary", "Normal", "Operations", "Tensor"]

SQRT1_2, SQRT_2_PI = math.sqrt(0.5), math.sqrt(2.0 / math.pi)


#: Distance of exponents from the largest one of the type.
MARGIN = 8.0


class Tensor(Protocol):
    """Array of NumPy, JAX or PyTorch, with the operators that the formulas use."""

    def __add__(self, other: Operand, /) -> Tensor: ...
    def __radd__(self, other: float, /) -> Tensor: ...
    def __sub__(self, other: Operand, /) -> Tensor: ...
    def __rsub__(self, other: float, /) -> Tensor: ...
    def __mul__(self, other: Operand, /) -> Tensor: ...
    def __rmul__(self, other: float, /) -> Tensor: ...
    def __truediv__(self, other: Operand, /) -> Tensor: ...
    def __rtruediv__(self, other: float, /) -> Tensor: ...
    def __pow__(self, other: float, /) -> Tensor: ...
    def __neg__(self, /) -> Tensor: ...
    def __eq__(self, other: object, /) -> Tensor: ...  # type: ignore[override]
    def __lt__(self, other: Operand, /) -> Tensor: ...
    def __le__(self, other: Operand, /) -> Tensor: ...
    def __gt__(self, other: Operand, /) -> Tensor: ...
    def __ge__(self, other: Operand, /) -> Tensor: ...
    def __and__(self, other: Tensor, /) -> Tensor: ...
    def __or__(self, other: Tensor, /) -> Tensor: ...
    def __invert__(self, /) -> Tensor: ...
    def __getitem__(self, index: object, /) -> Tensor: ...
    def __iter__(self, /) -> Iterator[Tensor]: ...


Operand = Tensor | float


#: Array of one library.
A = TypeVar("A")


class ArrayLibrary(Generic[A]):
    """Element-wise functions and reductions of one library.

    Attributes are functions of arrays: ``exp log log1p expm1 sqrt abs tanh floor erf erfc lgamma``,
    ``where maximum minimum``.
    """

    exp: Callable[..., A]
    log: Callable[..., A]
    log1p: Callable[..., A]
    expm1: Callable[..., A]
    sqrt: Callable[..., A]
    abs: Callable[..., A]
    tanh: Callable[..., A]
    floor: Callable[..., A]
    erf: Callable[..., A]
    erfc: Callable[..., A]
    lgamma: Callable[..., A]
    where: Callable[..., A]
    maximum: Callable[..., A]
    minimum: Callable[..., A]

    def arrays(self, *values: ArrayLike) -> list[A]:
        """Arrays of one floating type, broadcast against each other."""
        raise NotImplementedError

    def constant(self, value: ArrayLike, like: A) -> A:
        """Return a constant array of the type and place of `like`."""
        raise NotImplementedError

    def exponent(self, like: A) -> float:
        """Exponent whose exponential and its inverse are far within the type of `like`."""
        raise NotImplementedError

    def stop_gradient(self, x: A) -> A:
        """Return the same numbers, through which nothing is derived."""
        raise NotImplementedError

    def take(self, table: A, index: A) -> A:
        """Entries of a flat array at floating whole numbers."""
        raise NotImplementedError

    def total(self, x: A) -> A:
        """Sum over the last axis."""
        raise NotImplementedError

    def largest(self, x: A) -> A:
        """Maximum over the last axis."""
        raise NotImplementedError

    def derived(self, value: Callable[[A], A], slope: Callable[[A], A]) -> Callable[[A], A]:
        """Return a function of one array whose derivative is another such function."""
        raise NotImplementedError

    def along(self, function: Callable[[A], A], x: A) -> tuple[A, A]:
        """Return an element-wise function at x, and its derivative, of the same structure."""
        raise NotImplementedError


#: A library as the formulas see it.
Operations = ArrayLibrary[Tensor]

_INV_SQRT_PI, _INV_SQRT_2PI = 1.0 / math.sqrt(math.pi), 1.0 / math.sqrt(2.0 * math.pi)
#: W. J. Cody's rational forms of erfc (1969), up to 4 and beyond.
_NEAR_ZERO = (
    (2.15311535474403846e-8, 1.0),
    (5.64188496988670089e-1, 1.57449261107098347e1),
    (8.88314979438837594e0, 1.17693950891312499e2),
    (6.61191906371416295e1, 5.37181101862009858e2),
    (2.98635138197400131e2, 1.62138957456669019e3),
    (8.81952221241769090e2, 3.29079923573345963e3),
    (1.71204761263407058e3, 4.36261909014324716e3),
    (2.05107837782607147e3, 3.43936767414372164e3),
    (1.23033935479799725e3, 1.23033935480374942e3),
)
_FAR = (
    (1.63153871373020978e-2, 1.0),
    (3.05326634961232344e-1, 2.56852019228982242e0),
    (3.60344899949804439e-1, 1.87295284992346725e0),
    (1.25781726111229246e-1, 5.27905102951428412e-1),
    (1.60837851487422766e-2, 6.05183413124413191e-2),
    (6.58749161529837803e-4, 2.33520497626869185e-3),
)
#: Below this z Laplace's continued fraction, of so many terms.
_LAPLACE, _TERMS = -5.0, 32


class Normal:
    """log Phi, r, s, v and w for one library, each with its derivative.

    Attributes
    ----------
    log_ndtr, r, s, v, w : callable
        Functions of an array z.
    log_scaled : callable
        log Phi(z) + z^2/2, for z <= 0.
    """

    def __init__(self, ops: Operations) -> None:
        self._ops = ops
        # Each names the others in its derivative, and they exist when that is asked for.
        self.log_ndtr = ops.derived(self._log_ndtr, lambda z: self.r(z))
        self.log_scaled = ops.derived(
            lambda z: ops.log(0.5 * self.erfcx(-z * SQRT1_2)), lambda z: self.s(z)
        )
        self.r = ops.derived(lambda z: self._series(z)[0], lambda z: -self.r(z) * self.s(z))
        self.s = ops.derived(lambda z: self._series(z)[1], lambda z: self.v(z))
        self.v = ops.derived(lambda z: self._series(z)[2], lambda z: self.r(z) * self.w(z))
        self.w = ops.derived(
            lambda z: self._series(z)[3],
            lambda z: 2.0 * self.s(z) * self.v(z) - self.r(z) * self.w(z),
        )

    def erfcx(self, x: Tensor) -> Tensor:
        """exp(x^2) erfc(x) for x >= 0."""
        ops = self._ops
        small, middle = ops.minimum(x, 0.46875), ops.minimum(x, 4.0)
        p, q = 0.0 * x, 0.0 * x
        for a, b in _NEAR_ZERO:
            p, q = p * middle + a, q * middle + b
        near = p / q
        far = ops.maximum(x, 4.0)
        s = 1.0 / far / far
        p, q = 0.0 * x, 0.0 * x
        for a, b in _FAR:
            p, q = p * s + a, q * s + b
        beyond = (_INV_SQRT_PI - s * p / q) / far
        level = ops.exp(small * small) * ops.erfc(small)
        return ops.where(x < 0.46875, level, ops.where(x <= 4.0, near, beyond))

    def _log_ndtr(self, z: Tensor) -> Tensor:
        ops = self._ops
        above = ops.log1p(-0.5 * ops.erfc(ops.maximum(z, 0.0) * SQRT1_2))
        negative_z = ops.minimum(z, 0.0)
        below = ops.log(0.5 * self.erfcx(-negative_z * SQRT1_2)) - 0.5 * negative_z * negative_z
        return ops.where(z > 0.0, above, below)

    def _series(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """r, s, v and w."""
        ops = self._ops
        up, down = ops.maximum(z, 0.0), ops.minimum(z, 0.0)
        right = _INV_SQRT_2PI * ops.exp(-0.5 * up * up) / (1.0 - 0.5 * ops.erfc(up * SQRT1_2))
        r = ops.where(z > 0.0, right, SQRT_2_PI / self.erfcx(-down * SQRT1_2))
        x = ops.maximum(-z, -_LAPLACE)
        before = x
        for n in range(_TERMS, 3, -1):
            before = x + n / before
        t = x + 3.0 / before
        e = 2.0 / t
        d = 1.0 / (x + e)
        far = z < _LAPLACE
        s = ops.where(far, d, r + z)
        v = ops.where(far, (e - d) / (x + e), 1.0 - r * s)
        # s^2 - v = d (2 d - e), and 2 d - e = 2 d (3/before - e)/t.
        bent = 2.0 * d / t * (d / t) * ((3.0 * t - 2.0 * before) / before)
        return ops.where(far, x + d, r), s, v, ops.where(far, bent, s * s - v)
