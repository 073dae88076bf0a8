"""Observations and times of a series."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import real, unmasked
from qpruntime.errors import InputError
from qpruntime.projection.open import shipped
from qpruntime.projection.projector import Projector

__all__ = [
    "Clock",
    "SortedSeries",
]

# --- Times of users


@restorable("series-clock/1")
@dataclass(frozen=True)
class Clock:
    """Origin of times, and whether they are dates, which are counted in seconds."""

    origin: Any
    dates: bool

    @classmethod
    def of(cls, t: ArrayLike) -> Clock:
        """Count from the first of these times if they are dates or whole numbers, else from 0."""
        given = np.asarray(unmasked(t, "t"))
        if given.dtype.kind == "M":
            if given.size == 0 or np.isnat(given).any():
                raise InputError("t has no time (NaT), or is empty: leave such rows out")
            return cls(given.min(), True)
        if given.dtype.kind in "iu" and given.size:
            # Nanoseconds since 1970 are beyond 2^53.
            return cls(int(given.min()), False)
        return cls(0, False)

    def read(self, t: ArrayLike, name: str = "t") -> Array:
        """Return times as floats of shape (N,), or raise `InputError`."""
        given = np.asarray(unmasked(t, name))
        if (given.dtype.kind == "M") != self.dates:
            other = "dates" if self.dates else "numbers"
            raise InputError(f"{name} must be {other}, like the times of the data")
        if self.dates:
            if np.isnat(given).any():
                raise InputError(f"{name} has no time (NaT): leave such rows out")
            passed = given - self.origin
            found = passed / np.timedelta64(1, "s")
        elif given.dtype.kind in "iu" and self.origin:
            # As Python's integers where the difference does not fit.
            if given.size and (abs(int(given.max())) | abs(int(given.min()))) < 2**62:
                found = (given.astype(np.int64) - self.origin).astype(float)
            else:
                found = np.array([float(int(v) - self.origin) for v in given.flat])
                found = found.reshape(given.shape)
        else:
            found = real(t, name) - float(self.origin)
        if found.ndim == 2 and found.shape[1] == 1:
            found = found[:, 0]
        if found.ndim != 1:
            raise InputError(f"{name} must have shape (N,), got {found.shape}")
        if not np.isfinite(found).all():
            where = int(np.argmax(~np.isfinite(found)))
            raise InputError(f"{name}[{where}] is {found[where]}: times must be finite")
        with np.errstate(over="ignore"):
            if found.size and not np.isfinite(found.max() - found.min()):
                raise InputError(f"{name} spans more than double precision: use another unit")
        return found


# --- Series in order of time


@restorable("series-data/1")
@dataclass(frozen=True)
class SortedSeries:
    """A series, sorted: times t, observations y, prior means of g = scale f + noise (N,).

    `power` is that of power EP, `weights` (N,) are powers of the single likelihoods; `bounded`
    holds precisions at zero or above also where the likelihood is not log-concave. Where rows go on
    from others, `before` is the time of the last of these.
    """

    t: Array
    y: Array
    projector: Projector
    prior: Array
    weights: Array | None = None
    scale: Array | None = None
    power: float = 1.0
    bounded: bool = False
    before: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Addresses of compiled functions mean nothing in another process, and predictions need no
        # likelihood: it is kept where it can be, for rows that are still to come.
        found = {name: getattr(self, name) for name in _FIELDS}
        own, kept = self.projector, None
        if own is not None and (own.table is None or own.table is shipped(own.likelihood)):
            kept = own.likelihood, own.method, "exact" if own.table is None else None, own.p
        try:
            pickle.dumps(kept)
        except Exception:  # of a user's function, whatever it is
            kept = None
        return {**found, "projector": kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        kept = state["projector"]
        projector = None if kept is None else Projector(*kept)
        for name, value in {**state, "projector": projector}.items():
            object.__setattr__(self, name, value)

    @cached_property
    def steps(self) -> Array:
        """Time to the first row from what is before it, between rows, and 0, shape (N + 1,)."""
        found = np.zeros(self.t.size + 1)
        np.subtract(self.t[1:], self.t[:-1], out=found[1:-1])
        if self.before is not None:
            found[0] = self.t[0] - self.before
        return found

    def part(self, some: slice) -> SortedSeries:
        """Rows in a row, as a series that goes on from those before."""

        def cut(values: Array | None) -> Array | None:
            return None if values is None else values[some]

        return replace(
            self,
            t=self.t[some],
            y=self.y[some],
            prior=self.prior[some],
            weights=cut(self.weights),
            scale=cut(self.scale),
            before=self.before if some.start == 0 else float(self.t[some.start - 1]),
        )

    @cached_property
    def scales(self) -> Array:
        """`scale`, 1 by default."""
        return np.ones(self.t.size) if self.scale is None else self.scale

    @cached_property
    def exponents(self) -> Array:
        """`weights`, 1 by default."""
        if self.weights is not None:
            return self.weights
        return self.scales if self.scale is None else np.ones(self.t.size)

    @property
    def plain(self) -> bool:
        """True if likelihoods are taken as they are."""
        return self.power == 1.0 and self.weights is None

    @property
    def nonnegative(self) -> bool:
        """True if no site precision can be negative."""
        concave = self.projector.likelihood.log_concave and self.projector.method != "wp"
        return bool(self.bounded or concave)

    @property
    def functions(self) -> tuple[Any, ...]:
        """What kernels take of the likelihood; powers other than 1 need another rule."""
        if self.plain:
            return self.projector.functions
        return self.projector.likelihood.functions(powers=True)


_FIELDS = ("t", "y", "prior", "weights", "scale", "power", "bounded", "before")
