"""Likelihood with constraints on the sign of f or of its slope at some rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike

from qpruntime._numba import INTERPRETED, kernel
from qpruntime._pointers import (
    FRAME,
    LANDMARK,
    MOMENTS,
    RAISED_FRAME,
    RAISED_MOMENTS,
    RULE,
    SPLIT,
    LatePointer,
    Pointer,
    call_frame,
    call_landmark,
    call_moments,
    call_raised_frame,
    call_raised_moments,
    call_rule,
    call_split,
)
from qpruntime._restorable import restorable_call
from qpruntime._typing import Array, Floats
from qpruntime.likelihoods import Likelihood, get
from qpruntime.likelihoods.base import ABSENT_LANDMARK, Powers
from qpruntime.quadrature.adaptive_kernels import adaptive_rule, location_rule

__all__ = [
    "BY_RULE",
    "POINTERS",
    "POWERS",
    "Signed",
    "addresses",
    "encoded",
    "signed",
]

# --- `Signed`
#
# Kernels take one likelihood for all rows. This likelihood tells rows apart by their observations:
# a sign is encoded as an infinity of that sign, and finite observations belong to the likelihood
# itself.


@dataclass(frozen=True, eq=False, repr=False)
class Signed(Likelihood):
    """Likelihood with additional observations of signs by the probit; `signed` makes it.

    Name, parameters, limits and messages are those of `own`. Powers of signs other than 1 use the
    adaptive rule.
    """

    own: Likelihood | None = None

    def with_parameters(self, **values: float) -> Likelihood:
        """Return the same with other parameters of `own`."""
        assert self.own is not None
        inner = self.own.with_parameters(**values)
        return self if inner is self.own else signed(inner)

    def observing(self, y: ArrayLike) -> tuple[Likelihood, Array]:
        """Return the likelihood and observations, of which `own` checks the finite ones."""
        assert self.own is not None
        numbers = np.array(y, dtype=float)
        finite_rows = np.isfinite(numbers)
        numbers[finite_rows] = self.own.validate(numbers[finite_rows])
        return self, numbers

    def __post_init__(self) -> None:
        """Return theta as `signed` made it, with parameters and addresses."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[object, ...]:
        return signed, (self.own,)


@restorable_call("signed-likelihood/1")
def signed(own: Likelihood) -> Signed:
    """Return a likelihood whose finite rows have this one, and whose infinite rows are signs."""
    if type(own) is not Likelihood or own.columns > 1:
        raise TypeError(f"signs stand beside a likelihood of numbers, not beside {own!r:.80}")
    probit, powers = get("probit"), own.powers or Powers(whole=False)
    none = own.landmarks or ABSENT_LANDMARK
    # If every row has a frame, the adaptive rule is not needed, and is not compiled.
    rules: tuple[LatePointer | None, LatePointer | None] = None, None
    if own.frame is None or own.rule is not None or not powers.whole:
        rules = own.rule or (location_rule if own.moves else adaptive_rule), adaptive_rule
    to_power = powers.moments, powers.frame
    tail = addresses(
        (own.split, own.moments, own.frame, own.expected, *to_power, rules[0], none),
        (probit.split, probit.moments, probit.frame, probit.expected, rules[1], ABSENT_LANDMARK),
    )
    theta = np.concatenate([own.theta, tail])
    theta.flags.writeable = False
    has: dict[str, Any] = {
        name: pointer for name, pointer in POINTERS.items() if getattr(own, name) is not None
    }
    moments, frame = (
        raised and pointer_pair for raised, pointer_pair in zip(to_power, POWERS, strict=True)
    )
    return Signed(
        own.name,
        own.outcomes,
        validate=own.validate,
        theta=theta,
        log_concave=own.log_concave,
        parameters=own.parameters,
        limits=own.limits,
        ranges=own.ranges,
        powers=Powers(moments, frame, powers.whole) if own.powers else None,
        rule=BY_RULE if rules[0] else None,
        own=own,
        **has,
    )


def encoded(signs: Array) -> Array:
    """Return signs -1 and +1 in the encoding of a `Signed` likelihood."""
    return np.where(signs > 0.0, np.inf, -np.inf)


# --- Functions beside signs
#
# Signs call the functions of the probit, other observations those of the likelihood. Their
# addresses are at the end of theta: whole numbers below 2^53, which a double holds exactly.

# Positions of addresses, counted from the end of theta: of the likelihood, then of signs.
_SPLIT, _MOMENTS, _FRAME, _EXPECTED, _RAISED, _RAISED_FRAME, _RULE, _LANDMARK = range(1, 9)
_SIGN_SPLIT, _SIGN_MOMENTS, _SIGN_FRAME, _SIGN_EXPECTED, _SIGN_RULE, _SIGN_LANDMARK = range(9, 15)

# A handle is the function itself while the jit is off; theta then has its index in this list.
_HELD: list = []


def _stored(handle: object) -> float:
    if not INTERPRETED:
        return float(handle)  # type: ignore[arg-type]
    _HELD.append(handle)
    return float(len(_HELD) - 1)


@kernel
def _handle(theta: Array, place: int) -> int:
    return int(theta[theta.size - place])


def _held(theta: Array, place: int) -> object:
    return _HELD[_handle(theta, place)]


_at = _held if INTERPRETED else _handle


def _split(f: float, y: float, theta: Array) -> tuple[float, float]:
    if math.isinf(y):
        return call_split(_at(theta, _SIGN_SPLIT), f, math.copysign(1.0, y), theta)
    return call_split(_at(theta, _SPLIT), f, y, theta)


def _moments(mu: float, sigma: float, y: float, theta: Array) -> tuple[float, float, float]:
    if math.isinf(y):
        sign = math.copysign(1.0, y)
        return call_moments(_at(theta, _SIGN_MOMENTS), mu, sigma, sign, theta)
    return call_moments(_at(theta, _MOMENTS), mu, sigma, y, theta)


def _frame(mu: float, sigma: float, y: float, theta: Array) -> Floats:
    if math.isinf(y):
        return call_frame(_at(theta, _SIGN_FRAME), mu, sigma, math.copysign(1.0, y), theta)
    return call_frame(_at(theta, _FRAME), mu, sigma, y, theta)


def _expected(mean: float, std: float, y: float, theta: Array) -> tuple[float, float, float]:
    if math.isinf(y):
        sign = math.copysign(1.0, y)
        return call_moments(_at(theta, _SIGN_EXPECTED), mean, std, sign, theta)
    return call_moments(_at(theta, _EXPECTED), mean, std, y, theta)


def _raised_moments(
    mu: float, sigma: float, y: float, theta: Array, power: float
) -> tuple[float, float, float]:
    if math.isinf(y):
        return math.nan, math.nan, math.nan
    return call_raised_moments(_at(theta, _RAISED), mu, sigma, y, theta, power)


def _raised_frame(mu: float, sigma: float, y: float, theta: Array, power: float) -> Floats:
    if math.isinf(y):
        return math.nan, math.nan, math.nan, math.nan
    return call_raised_frame(_at(theta, _RAISED_FRAME), mu, sigma, y, theta, power)


def _rule(
    split: int, landmark: int, power: float, mu: float, sigma: float, y: float, theta: Array
) -> Floats:
    if math.isinf(y):
        sign, none = math.copysign(1.0, y), _at(theta, _SIGN_LANDMARK)
        split_handle = _at(theta, _SIGN_SPLIT)
        return call_rule(_at(theta, _SIGN_RULE), split_handle, none, power, mu, sigma, sign, theta)
    split_handle, marks = _at(theta, _SPLIT), _at(theta, _LANDMARK)
    return call_rule(_at(theta, _RULE), split_handle, marks, power, mu, sigma, y, theta)


def _landmark(y: float, theta: Array, k: int) -> float:
    if math.isinf(y):
        return math.nan
    return call_landmark(_at(theta, _LANDMARK), y, theta, k)


POINTERS = {
    "split": Pointer(_split, SPLIT),
    "moments": Pointer(_moments, MOMENTS),
    "frame": LatePointer(_frame, FRAME),
    "expected": Pointer(_expected, MOMENTS),
    "landmarks": Pointer(_landmark, LANDMARK),
}
POWERS = Pointer(_raised_moments, RAISED_MOMENTS), Pointer(_raised_frame, RAISED_FRAME)
BY_RULE = LatePointer(_rule, RULE)


def addresses(
    own: Sequence[Pointer | LatePointer | None], of_signs: Sequence[Pointer | LatePointer | None]
) -> Array:
    """Return the numbers at the end of theta, with zeros for absent functions.

    Parameters
    ----------
    own : sequence of Pointer or None
        Split, moments, frame, expected, moments and frame to a power, rule and landmark of the
        likelihood.
    of_signs : sequence of Pointer or None
        Split, moments, frame, expected, rule and landmark of signs.
    """
    pointers = reversed((*own, *of_signs))
    return np.array([0.0 if pointer is None else _stored(pointer.handle) for pointer in pointers])
