"""The seam of acquisitions: what makes a point worth evaluating, and those that have a name.

An acquisition is one function. It is handed what is known and returns worths, itself a function of
points; the optimiser looks for the best point. A new one with a name is a line in `NAMED`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.bayesopt.asking import Knowledge
from qpruntime.bayesopt.improvement import log_improvement, log_mean
from qpruntime.bayesopt.information import gains_of
from qpruntime.bayesopt.minimisers import draw
from qpruntime.bayesopt.search import maximise
from qpruntime.bayesopt.surrogate import points
from qpruntime.errors import InputError
from qpruntime.validation import shown

__all__ = [
    "NAMED",
    "Acquisition",
    "Aim",
    "Worths",
    "acquisition_of",
    "best_point",
    "check_apart",
    "named",
]

#: Worths of points (T, d) of the unit cube: (T,), or (K + 1, T), one row a function, where the
#: knowledge has prices. The largest is best.
Worths = Callable[[Array], Array]

#: How many of the points of least mean the search begins at where an acquisition names none.
_NEAR = 5


@dataclass(frozen=True)
class Aim:
    """Worths, and points (n, d) near which the best may be: what an acquisition may return too."""

    worths: Worths
    near: Array


#: From what is known to worths.
Acquisition = Callable[[Knowledge], Worths | Aim]


def pesc(known: Knowledge) -> Aim:
    """Predictive entropy search: what an observation tells about the constrained minimiser.

    Per price, where functions are evaluated alone.
    """
    posts, prices = known.given.posts, known.prices

    def worths(U: Array) -> Array:
        each = known.failing.expected(known.groups, gains_of(posts, U), U, prices is not None)
        return each if prices is None else each / prices[:, None]

    return Aim(worths, np.array([post.x_star for post in posts]))


def expected_improvement(known: Knowledge) -> Worths:
    """Log expected improvement times the probability that constraints hold and nothing fails.

    Pending evaluations are taken to give their means; draws of hyper-parameters are averaged.
    """
    each = [log_improvement(group) for group in known.believed]
    return lambda U: log_mean([one(U) for one in each])


def thompson(known: Knowledge) -> Aim:
    """The constrained minimiser of one draw of all functions."""
    group = known.groups[int(known.rng.integers(len(known.groups)))]
    d = known.space.d
    drawn, _ = draw([group], np.zeros(d), np.ones(d), 1, known.rng, space=known.space)
    return Aim(lambda U: -((U - drawn.X_star) ** 2).sum(axis=1), drawn.X_star)


NAMED: dict[str, Acquisition] = {"pesc": pesc, "ei": expected_improvement, "thompson": thompson}
#: Those that weigh points, and not single functions.
_TOGETHER = ("ei", "thompson")


def acquisition_of(acquisition: Any) -> Acquisition:
    """Return the acquisition of a name, or a user's own, or raise `InputError`."""
    if isinstance(acquisition, str) and acquisition in NAMED:
        return NAMED[acquisition]
    if isinstance(acquisition, str) or not callable(acquisition):
        raise InputError(
            f"acquisition must be one of {', '.join(NAMED)} or a function of what is known, got "
            f"{shown(acquisition)}"
        )
    found: Acquisition = acquisition
    return found


def named(acquisition: Any) -> str:
    """How a file names an acquisition: its name, or module and name of a user's own."""
    if isinstance(acquisition, str):
        return acquisition
    kind = acquisition if hasattr(acquisition, "__qualname__") else type(acquisition)
    return f"{kind.__module__}.{kind.__qualname__}"


def check_apart(acquisition: Any) -> None:
    """Raise `InputError` if functions cannot be asked for alone by this one."""
    if isinstance(acquisition, str) and acquisition in _TOGETHER:
        raise InputError(
            f'acquisition {acquisition!r} weighs points, not single functions: "pesc" can be asked '
            "with decoupled=True"
        )


def best_point(acquisition: Acquisition, known: Knowledge) -> tuple[Array, int]:
    """Point (d,) of the unit cube of the largest worth, and the function that it is of.

    Raises
    ------
    InputError
        If an acquisition of a user does not give what it should.
    """
    found = acquisition(known)
    aim = found if isinstance(found, Aim) else Aim(found, _likely(known))
    if not callable(aim.worths):
        raise InputError(
            f"an acquisition must return a function of points (T, d), got {shown(aim.worths)}"
        )
    near = points(aim.near, "near of an acquisition's aim", known.space.d)
    rows = 1 if known.prices is None else len(known.prices)

    def checked(U: Array) -> Array:
        values = np.asarray(aim.worths(U), dtype=float)
        if values.shape == (len(U),):
            values = values[None]
        if values.shape != (rows, len(U)):
            raise InputError(
                f"an acquisition must give worths of shape ({rows}, T){_KINDS[rows > 1]} at "
                f"T = {len(U)} points, got {values.shape}"
            )
        if np.isnan(values).any():
            raise InputError("an acquisition must give numbers, got NaN: -inf is worth nothing")
        return values

    return maximise(checked, near, known.space.d, known.rng, known.space)


#: What the rows of worths are, together and alone.
_KINDS = {False: " or (T,)", True: ", one row a function, as decoupled=True asks"}


def _likely(known: Knowledge) -> Array:
    """Observed points of least mean objective."""
    objective = known.groups[0][0]
    return objective.X[np.argsort(objective.posterior_mean(objective.X), kind="stable")[:_NEAR]]
