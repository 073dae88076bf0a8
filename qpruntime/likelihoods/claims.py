"""What a user says of a log density, read and checked before anything is integrated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.likelihoods.user_function import Landmarks, LogDensity, NotANumber
from qpruntime.validation import finite

__all__ = ["Claims", "Outcomes", "called", "check_claims", "named_parameters", "try_out"]

# Where a log density is tried out: both signs, zero, near and not so near.
_PROBES = (0.3, -0.5, 1.0, 0.0, -2.0, 3.0)
# ... and whether it is concave.
_LINE = tuple(0.5 * k for k in range(-16, 17))
# Relative; values at these places may differ by the rounding of exponents.
_ROUNDING = 1e-9


class Claims(NamedTuple):
    """What is said of a log density.

    Concave in f; p(y|f) = p(-y|-f); of f - y alone; p(y|f) = p(y|-f) for every y.
    """

    log_concave: bool
    mirror: bool
    location: bool
    even: bool


@dataclass(frozen=True)
class Outcomes:
    """What y may be: one of `values`, or any finite number from `low` to `high`.

    Calling it turns observations into a float array, or raises `InputError`.
    """

    values: tuple[float, ...] | None = None
    low: float = -np.inf
    high: float = np.inf

    @classmethod
    def of(cls, outcomes: Any) -> Outcomes:
        """Read ``outcomes`` of `Likelihood.from_log_prob`."""
        if outcomes is None:
            return cls()
        if isinstance(outcomes, cls):
            return outcomes
        try:
            given = [float(v) for v in outcomes]
        except (TypeError, ValueError) as error:
            raise InputError(
                f"outcomes must be None, a list of numbers or a tuple (low, high), got {outcomes!r}"
            ) from error
        if isinstance(outcomes, tuple) and len(given) == 2:
            low, high = given
            if not low < high:
                raise InputError(f"outcomes: low must be below high, got ({low:g}, {high:g})")
            return cls(None, low, high)
        if not given or not np.isfinite(given).all():
            raise InputError(f"outcomes must be finite numbers, at least one, got {outcomes!r}")
        return cls(tuple(sorted(set(given))))

    def __call__(self, y: ArrayLike) -> Array:
        array = finite(y, "y")
        if self.values is not None:
            wrong = ~np.isin(array, self.values)
        else:
            wrong = (array < self.low) | (array > self.high)
        if wrong.any():
            raise InputError(f"y must be {self}, got {array[wrong].flat[0]:g}")
        return array

    @property
    def all_reals(self) -> bool:
        """Whether nothing finite is refused."""
        return self.values is None and self.low == -np.inf and self.high == np.inf

    def __contains__(self, y: float) -> bool:
        return y in self.values if self.values is not None else self.low <= y <= self.high

    def __str__(self) -> str:
        if self.values is not None:
            return "one of " + ", ".join(f"{v:g}" for v in self.values)
        if self.low == -np.inf and self.high == np.inf:
            return "any finite number"
        return f"numbers from {self.low:g} to {self.high:g}"

    def examples(self) -> tuple[float, ...]:
        """All values, or some from inside the interval; whole numbers if there are any."""
        if self.values is not None:
            return self.values
        if self.low == -np.inf:
            return (1.0,) if self.high > 1.0 else (self.high - 1.0,)
        if self.high == np.inf:
            return (self.low + 1.0, self.low + 2.0)
        middle = 0.5 * (self.low + self.high)
        whole = round(middle)
        return (float(whole) if self.low < whole < self.high else middle,)


def called(log_prob: Callable[..., Any]) -> str:
    return getattr(log_prob, "__qualname__", repr(log_prob))


def named_parameters(theta: Any, parameters: Any) -> tuple[Array, dict[str, float]]:
    """Return the values as a read-only array, and by name if they have names."""
    if isinstance(theta, Mapping):
        if parameters is not None:
            raise InputError("give the parameters in theta or in parameters, not in both")
        theta, parameters = tuple(theta.values()), tuple(theta)
    values = np.array(finite(theta, "theta"), dtype=float).reshape(-1)
    names = () if parameters is None else tuple(parameters)
    if isinstance(parameters, Mapping):
        given = finite(list(parameters.values()), "parameters")
        if values.size and not np.array_equal(values, given):
            raise InputError(f"theta is {values.tolist()} but parameters are {dict(parameters)}")
        values = given
    if names and len(names) != values.size:
        raise InputError(f"parameters names {len(names)} entries, theta has {values.size}")
    values.flags.writeable = False
    return values, {str(k): float(v) for k, v in zip(names, values, strict=False)}


def try_out(
    density: LogDensity,
    marks: Landmarks | None,
    name: str,
    allowed: Outcomes,
    validate: Callable[..., Array] | None,
) -> None:
    """Call the density once for every outcome and probe, so that it fails here and in words."""
    for y in allowed.examples():
        if validate is not None:
            try:
                y = float(np.asarray(validate([y]), dtype=float)[0])
            except (ValueError, TypeError, IndexError):
                continue
        if marks is not None:
            try:
                marks.points(y)
            except Exception as error:
                raise InputError(
                    f"landmarks of {name} must be finite numbers, or a function of (y, theta) that "
                    f"returns them; for y = {y:g}: {error}"
                ) from error
        found = []
        for f in _PROBES:
            try:
                found.append(density.probe(f, y))
            except NotANumber as error:
                raise InputError(
                    f"log_prob of {name} returned {error} at f = {f:g}, y = {y:g}; "
                    "it must return one real number for one f"
                ) from error
            except Exception as error:
                raise InputError(
                    f"log_prob of {name} raised {type(error).__name__}: {error} "
                    f"at f = {f:g}, y = {y:g}; every real f is asked for: "
                    "return -inf where there is no density"
                ) from error
        if np.isnan(found).all():
            raise InputError(
                f"log_prob of {name} returned NaN for y = {y:g} at every f in {_PROBES}; "
                "check its parameters, or give the y there are with outcomes="
            )


def check_claims(name: str, claims: Claims, density: LogDensity, allowed: Outcomes) -> None:
    """Raise `InputError` where a few values contradict what is claimed of the likelihood.

    A wrong claim would give wrong results without a word.
    """

    def log_p(f: float, y: float) -> float:
        try:
            return density.value(f, y)
        except Exception:  # said elsewhere, if this is where anything is integrated
            return np.nan

    def refuse(claim: str, why: str) -> None:
        raise InputError(f"log_prob of {name} is not {claim}: {why}; leave out {claim}=True")

    def differ(a: float, b: float) -> bool:
        return abs(a - b) > _ROUNDING * (1.0 + abs(a))  # False for NaN and equal infinities

    for y in allowed.examples():
        for f in _PROBES:
            a = log_p(f, y)
            if claims.mirror and -y in allowed and differ(a, b := log_p(-f, -y)):
                refuse("mirror", f"{a:g} at f = {f:g}, y = {y:g} but {b:g} at {-f:g}, {-y:g}")
            if claims.even and differ(a, b := log_p(-f, y)):
                refuse("even", f"{a:g} at f = {f:g}, y = {y:g} but {b:g} at {-f:g}")
            if claims.location and y + 0.5 in allowed and differ(a, b := log_p(f + 0.5, y + 0.5)):
                refuse(
                    "location", f"{a:g} at f = {f:g}, y = {y:g} but {b:g} with 0.5 added to both"
                )
        if claims.log_concave:
            values = [log_p(f, y) for f in _LINE]
            for f, a, b, c in zip(_LINE[1:], values, values[1:], values[2:], strict=False):
                if 0.5 * (a + c) - b > _ROUNDING * (1.0 + abs(a) + abs(c)):
                    refuse("log_concave", f"it is convex around f = {f:g} for y = {y:g}")
