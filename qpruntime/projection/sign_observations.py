"""Functions of a likelihood beside signs: they look at an observation, and call one or the other.

Where a sign is, the probit's are called; else those of the likelihood. Their addresses stand at the
end of theta: whole numbers below 2^53, which a double holds exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from qpruntime.arrays import Array
from qpruntime.jit import (
    FRAME,
    INTERPRETED,
    LANDMARK,
    MOMENTS,
    RAISED_FRAME,
    RAISED_MOMENTS,
    RULE,
    SPLIT,
    Pointer,
    call_frame,
    call_landmark,
    call_moments,
    call_raised_frame,
    call_raised_moments,
    call_rule,
    call_split,
    kernel,
)

__all__ = ["BY_RULE", "POINTERS", "POWERS", "addresses"]

# Where addresses stand, counted from the end of theta: of the likelihood, then of signs.
_SPLIT, _MOMENTS, _FRAME, _EXPECTED, _RAISED, _RAISED_FRAME, _RULE, _LANDMARK = range(1, 9)
_SIGN_SPLIT, _SIGN_MOMENTS, _SIGN_FRAME, _SIGN_EXPECTED, _SIGN_RULE, _SIGN_LANDMARK = range(9, 15)

# With the jit off a handle is the function itself: theta has its place in this list then.
_HELD: list = []


def _stored(handle):
    if not INTERPRETED:
        return float(handle)
    _HELD.append(handle)
    return float(len(_HELD) - 1)


@kernel
def _handle(theta, place):
    return int(theta[theta.size - place])


def _held(theta, place):
    return _HELD[_handle(theta, place)]


_at = _held if INTERPRETED else _handle


def _split(f, y, theta):
    if math.isinf(y):
        return call_split(_at(theta, _SIGN_SPLIT), f, math.copysign(1.0, y), theta)
    return call_split(_at(theta, _SPLIT), f, y, theta)


def _moments(mu, sigma, y, theta):
    if math.isinf(y):
        sign = math.copysign(1.0, y)
        return call_moments(_at(theta, _SIGN_MOMENTS), mu, sigma, sign, theta)
    return call_moments(_at(theta, _MOMENTS), mu, sigma, y, theta)


def _frame(mu, sigma, y, theta):
    if math.isinf(y):
        return call_frame(_at(theta, _SIGN_FRAME), mu, sigma, math.copysign(1.0, y), theta)
    return call_frame(_at(theta, _FRAME), mu, sigma, y, theta)


def _expected(mean, std, y, theta):
    if math.isinf(y):
        sign = math.copysign(1.0, y)
        return call_moments(_at(theta, _SIGN_EXPECTED), mean, std, sign, theta)
    return call_moments(_at(theta, _EXPECTED), mean, std, y, theta)


def _raised_moments(mu, sigma, y, theta, power):
    if math.isinf(y):
        return math.nan, math.nan, math.nan
    return call_raised_moments(_at(theta, _RAISED), mu, sigma, y, theta, power)


def _raised_frame(mu, sigma, y, theta, power):
    if math.isinf(y):
        return math.nan, math.nan, math.nan, math.nan
    return call_raised_frame(_at(theta, _RAISED_FRAME), mu, sigma, y, theta, power)


def _rule(split, landmark, power, mu, sigma, y, theta):
    if math.isinf(y):
        sign, none = math.copysign(1.0, y), _at(theta, _SIGN_LANDMARK)
        own = _at(theta, _SIGN_SPLIT)
        return call_rule(_at(theta, _SIGN_RULE), own, none, power, mu, sigma, sign, theta)
    own, marks = _at(theta, _SPLIT), _at(theta, _LANDMARK)
    return call_rule(_at(theta, _RULE), own, marks, power, mu, sigma, y, theta)


def _landmark(y, theta, k):
    if math.isinf(y):
        return math.nan
    return call_landmark(_at(theta, _LANDMARK), y, theta, k)


POINTERS = {
    "split": Pointer(_split, SPLIT),
    "moments": Pointer(_moments, MOMENTS),
    "frame": Pointer(_frame, FRAME),
    "expected": Pointer(_expected, MOMENTS),
    "landmarks": Pointer(_landmark, LANDMARK),
}
POWERS = Pointer(_raised_moments, RAISED_MOMENTS), Pointer(_raised_frame, RAISED_FRAME)
BY_RULE = Pointer(_rule, RULE)


def addresses(own: Sequence[Pointer | None], of_signs: Sequence[Pointer | None]) -> Array:
    """What is to stand at the end of theta; zeros for functions that are absent or never called.

    Parameters
    ----------
    own : sequence of Pointer or None
        Split, moments, frame, expected, those two to a power, rule and landmark of the likelihood.
    of_signs : sequence of Pointer or None
        Split, moments, frame, expected, rule and landmark of signs.
    """
    pointers = reversed((*own, *of_signs))
    return np.array([0.0 if one is None else _stored(one.handle) for one in pointers])
