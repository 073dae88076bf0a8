"""A likelihood of a user's log density: its arguments, checked, and what they make."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from numpy.typing import ArrayLike

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.likelihoods.claims import (
    Claims,
    Outcomes,
    called,
    check_claims,
    named_parameters,
    try_out,
)
from qpruntime.likelihoods.user_function import Landmarks, LogDensity

__all__ = ["from_log_prob", "reserve"]

_NAME = re.compile(r"[A-Za-z][\w.-]*")
#: Functions that return names which are taken.
_RESERVED: list[Callable[[], Iterable[str]]] = []


def reserve(names: Callable[[], Iterable[str]]) -> None:
    """Refuse these names to likelihoods of `from_log_prob`; asked for when one is made."""
    _RESERVED.append(names)


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
    even: bool = False,
    parameters: Mapping[str, float] | Sequence[str] | None = None,
    landmarks: Any = None,
) -> dict[str, Any]:
    """Return what the `Likelihood` is made of, its arguments checked."""
    if not callable(log_prob):
        raise InputError(f"log_prob must be a function log_prob(f, y, theta), got {log_prob!r}")
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise InputError(
            f"name must be letters, digits, '_', '.' or '-', a letter first, got {name!r}"
        )
    if any(name in names() for names in _RESERVED):
        raise InputError(f"the name {name!r} is that of a built-in likelihood; choose another")
    values, named = named_parameters(theta, parameters)
    allowed = Outcomes.of(outcomes)
    if validate is not None and not callable(validate):
        raise InputError(f"validate must be a function of the observations, got {validate!r}")
    try:
        density = LogDensity(log_prob, values)
    except TypeError as error:
        raise InputError(
            f"log_prob must take (f, y, theta) or (f, y), {called(log_prob)} does not: {error}"
        ) from error
    marks = None if landmarks is None else Landmarks(landmarks, density)
    try_out(density, marks, name, allowed, validate)
    claims = Claims(bool(log_concave), bool(mirror), bool(location), bool(even))
    check_claims(name, claims, density, allowed)
    return dict(
        name=name,
        outcomes=str(allowed)
        if validate is None or outcomes is not None
        else "checked by validate",
        split=density,
        validate=validate or allowed,
        theta=values,
        **claims._asdict(),
        parameters=named,
        landmarks=marks,
        recipe=(
            ("log_prob", log_prob),
            ("name", name),
            ("theta", tuple(values.tolist())),
            ("outcomes", allowed),
            ("validate", validate),
            *claims._asdict().items(),
            ("parameters", tuple(named)),
            ("landmarks", landmarks),
        ),
    )
