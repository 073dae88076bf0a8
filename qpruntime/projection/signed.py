"""A likelihood of which some rows are signs: those have the probit, and all are one problem.

Kernels take one likelihood of all rows. This one tells rows apart by their observations: a sign is
encoded as an infinity of that sign, what is finite belongs to the likelihood itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from qpruntime.arrays import Array
from qpruntime.jit import Pointer
from qpruntime.likelihoods import Likelihood, get
from qpruntime.likelihoods.absent import ABSENT_LANDMARK
from qpruntime.likelihoods.contract import Powers
from qpruntime.projection.either import BY_RULE, POINTERS, POWERS, addresses
from qpruntime.quadrature.adaptive import adaptive_rule, location_rule

__all__ = ["Signed", "encoded", "signed"]


@dataclass(frozen=True, eq=False, repr=False)
class Signed(Likelihood):
    """A likelihood beside which signs are observed by the probit; `signed` makes it.

    Its name, parameters and limits are those of `own`, and so is what it says of itself. Powers of
    signs other than 1 are left to the adaptive rule.
    """

    own: Likelihood | None = None

    def with_parameters(self, **values: float) -> Likelihood:
        assert self.own is not None
        found = self.own.with_parameters(**values)
        return self if found is self.own else signed(found)

    def observing(self, y: ArrayLike) -> tuple[Likelihood, Array]:
        assert self.own is not None
        numbers = np.array(y, dtype=float)
        some = np.isfinite(numbers)
        numbers[some] = self.own.validate(numbers[some])
        return self, numbers

    def __post_init__(self) -> None:
        """Theta is as `signed` has made it, parameters, addresses and all."""

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return signed, (self.own,)


def signed(own: Likelihood) -> Signed:
    """Return a likelihood of rows that are finite, which have this one, and of infinite signs."""
    if type(own) is not Likelihood or own.columns > 1:
        raise TypeError(f"signs stand beside a likelihood of numbers, not beside {own!r:.80}")
    probit, powers = get("probit"), own.powers or Powers(whole=False)
    none = own.landmarks or ABSENT_LANDMARK
    # Where every row has a frame, the adaptive rule is not asked for, and not compiled.
    rules: tuple[Pointer | None, Pointer | None] = None, None
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
    moments, frame = (one and both for one, both in zip(to_power, POWERS, strict=True))
    return Signed(
        own.name,
        own.outcomes,
        validate=own.validate,
        theta=theta,
        log_concave=own.log_concave,
        parameters=own.parameters,
        limits=own.limits,
        powers=Powers(moments, frame, powers.whole) if own.powers else None,
        rule=BY_RULE if rules[0] else None,
        own=own,
        **has,
    )


def encoded(signs: Array) -> Array:
    """Signs -1 and +1 as a `Signed` likelihood takes them."""
    return np.where(signs > 0.0, np.inf, -np.inf)
