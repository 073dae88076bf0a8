"""A likelihood from a user's log density: checks what it returns before anything is integrated."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qpruntime.callback import Landmarks, LogDensity
from qpruntime.errors import InputError
from qpruntime.likelihoods.base import Likelihood
from qpruntime.validation import finite

__all__ = ["Outcomes", "from_log_prob", "restore"]

Array = NDArray[np.float64]

# Where a log density is tried out: both signs, zero, near and not so near.
_PROBES = (0.3, -0.5, 1.0, 0.0, -2.0, 3.0)
_NAME = re.compile(r"[A-Za-z][\w.-]*")


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


def from_log_prob(
    log_prob: Callable[..., Any],
    *,
    name: str,
    theta: ArrayLike | Mapping[str, float] = (),
    outcomes: ArrayLike | tuple[float, float] | None = None,
    validate: Callable[[ArrayLike], Array] | None = None,
    log_concave: bool = False,
    mirror: bool = False,
    location: bool = False,
    parameters: Mapping[str, float] | Sequence[str] | None = None,
    landmarks: Any = None,
) -> Likelihood:
    """Carry out `Likelihood.from_log_prob`."""
    if not callable(log_prob):
        raise InputError(f"log_prob must be a function log_prob(f, y, theta), got {log_prob!r}")
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise InputError(
            f"name must be letters, digits, '_', '.' or '-', a letter first, got {name!r}"
        )
    _refuse_registered(name)
    values, named = _parameters(theta, parameters)
    allowed = Outcomes.of(outcomes)
    if validate is not None and not callable(validate):
        raise InputError(f"validate must be a function of the observations, got {validate!r}")
    try:
        density = LogDensity(log_prob, values)
    except TypeError as error:
        raise InputError(
            f"log_prob must take (f, y, theta) or (f, y), {_called(log_prob)} does not: {error}"
        ) from error
    marks = None if landmarks is None else Landmarks(landmarks, density)
    _try_out(density, marks, name, allowed, validate)
    return Likelihood(
        name=name,
        outcomes=str(allowed)
        if validate is None or outcomes is not None
        else "checked by validate",
        split=density,
        validate=validate or allowed,
        theta=values,
        mirror=bool(mirror),
        location=bool(location),
        log_concave=bool(log_concave),
        parameters=named,
        landmarks=marks,
        recipe=(
            ("log_prob", log_prob),
            ("name", name),
            ("theta", tuple(values.tolist())),
            ("outcomes", allowed),
            ("validate", validate),
            ("log_concave", bool(log_concave)),
            ("mirror", bool(mirror)),
            ("location", bool(location)),
            ("parameters", tuple(named)),
            ("landmarks", landmarks),
        ),
    )


def restore(recipe: tuple[tuple[str, Any], ...]) -> Likelihood:
    """Unpickle: the same likelihood, and so the same machine code, for equal recipes."""
    try:
        return _restored(recipe)
    except TypeError:  # something in it has no hash
        return from_log_prob(**dict(recipe))


@lru_cache(maxsize=64)
def _restored(recipe: tuple[tuple[str, Any], ...]) -> Likelihood:
    return from_log_prob(**dict(recipe))


def _called(log_prob: Callable[..., Any]) -> str:
    return getattr(log_prob, "__qualname__", repr(log_prob))


def _refuse_registered(name: str) -> None:
    from qpruntime import likelihoods

    if name in likelihoods.names():
        raise InputError(f"the name {name!r} is that of a built-in likelihood; choose another")


def _parameters(theta: Any, parameters: Any) -> tuple[Array, dict[str, float]]:
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


def _try_out(
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
            except TypeError as error:
                raise InputError(
                    f"log_prob of {name} returned or met {error} at f = {f:g}, y = {y:g}; "
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
