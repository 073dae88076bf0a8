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
from qpruntime.quadrature.sigma_star_kernels import PlainFunctions

__all__ = ["Clock", "SortedSeries"]

# --- Times of users


@restorable("series-clock/1")
@dataclass(frozen=True)
class Clock:
    """Origin of times, and whether they are dates, which are converted to seconds."""

    origin: Any
    dates: bool

    @classmethod
    def of(cls, t: ArrayLike) -> Clock:
        """Return a clock from the first of these dates or whole numbers, or from 0."""
        times = np.asarray(unmasked(t, "t"))
        if times.dtype.kind == "M":
            if times.size == 0 or np.isnat(times).any():
                raise InputError("t has no time (NaT), or is empty: leave such rows out")
            return cls(times.min(), True)
        if times.dtype.kind in "iu" and times.size:
            # Nanoseconds since 1970 exceed 2^53, so that floats would lose digits.
            return cls(int(times.min()), False)
        return cls(0, False)

    def read(self, t: ArrayLike, name: str = "t") -> Array:
        """Return times as floats of shape (N,), or raise `InputError`."""
        times = np.asarray(unmasked(t, name))
        if (times.dtype.kind == "M") != self.dates:
            expected = "dates" if self.dates else "numbers"
            raise InputError(f"{name} must be {expected}, like the times of the data")
        if self.dates:
            if np.isnat(times).any():
                raise InputError(f"{name} has no time (NaT): leave such rows out")
            passed = times - self.origin
            passed_time: Array = passed / np.timedelta64(1, "s")
        elif times.dtype.kind in "iu" and self.origin:
            # Python's integers are used if the difference does not fit into 64 bits.
            if times.size and (abs(int(times.max())) | abs(int(times.min()))) < 2**62:
                passed_time = (times.astype(np.int64) - self.origin).astype(float)
            else:
                passed_time = np.array([float(int(v) - self.origin) for v in times.flat])
                passed_time = passed_time.reshape(times.shape)
        else:
            passed_time = real(t, name) - float(self.origin)
        if passed_time.ndim == 2 and passed_time.shape[1] == 1:
            passed_time = passed_time[:, 0]
        if passed_time.ndim != 1:
            raise InputError(f"{name} must have shape (N,), got {passed_time.shape}")
        if not np.isfinite(passed_time).all():
            where = int(np.argmax(~np.isfinite(passed_time)))
            raise InputError(f"{name}[{where}] is {passed_time[where]}: times must be finite")
        with np.errstate(over="ignore"):
            if passed_time.size and not np.isfinite(passed_time.max() - passed_time.min()):
                raise InputError(f"{name} spans more than double precision: use another unit")
        return passed_time


# --- Series in order of time


@restorable("series-data/1")
@dataclass(frozen=True)
class SortedSeries:
    """Sorted series: times t, observations y, prior means of g = scale f + noise (N,).

    `power` is that of power EP, `weights` (N,) are powers of the single likelihoods. `bounded`
    holds precisions at zero or above even if the likelihood is not log-concave. If the rows
    continue others, `before` is the time of the last of these.
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

    def __getstate__(self) -> dict[str, object]:
        # Addresses of compiled functions mean nothing in another process, and predictions need no
        # likelihood. It is kept if it can be pickled, for rows that may be appended.
        state = {name: getattr(self, name) for name in _FIELDS}
        projector, kept = self.projector, None
        if projector is not None and (
            projector.table is None or projector.table is shipped(projector.likelihood)
        ):
            kept = (
                projector.likelihood,
                projector.method,
                "exact" if projector.table is None else None,
                projector.p,
            )
        try:
            pickle.dumps(kept)
        except Exception:  # of a user's function, whatever it is
            kept = None
        return {**state, "projector": kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        kept = state["projector"]
        projector = None if kept is None else Projector(*kept)
        for name, value in {**state, "projector": projector}.items():
            object.__setattr__(self, name, value)

    @cached_property
    def steps(self) -> Array:
        """Times from the row before to each row, and 0 at the end, shape (N + 1,)."""
        steps = np.zeros(self.t.size + 1)
        np.subtract(self.t[1:], self.t[:-1], out=steps[1:-1])
        if self.before is not None:
            steps[0] = self.t[0] - self.before
        return steps

    def part(self, block: slice) -> SortedSeries:
        """Return consecutive rows as a series that continues the rows before."""

        def cut(values: Array | None) -> Array | None:
            return None if values is None else values[block]

        return replace(
            self,
            t=self.t[block],
            y=self.y[block],
            prior=self.prior[block],
            weights=cut(self.weights),
            scale=cut(self.scale),
            before=self.before if block.start == 0 else float(self.t[block.start - 1]),
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
        """True if likelihoods have power and weights 1."""
        return self.power == 1.0 and self.weights is None

    @property
    def nonnegative(self) -> bool:
        """True if no site precision can be negative."""
        return self.bounded or self.projector.nonnegative

    @property
    def functions(self) -> PlainFunctions:
        """Functions of the likelihood for kernels; powers other than 1 need another rule."""
        return self.projector.functions_of(self.plain)


_FIELDS = ("t", "y", "prior", "weights", "scale", "power", "bounded", "before")
