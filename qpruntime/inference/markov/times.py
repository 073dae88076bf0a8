"""Times as users have them: any order, any unit, repeated, far from zero, or dates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.validation import real

__all__ = ["Clock"]


@dataclass(frozen=True)
class Clock:
    """Where times are counted from, and whether they are dates: then in seconds."""

    origin: Any
    dates: bool

    @classmethod
    def of(cls, t: ArrayLike) -> Clock:
        """Count from the first of these times if they are dates or whole numbers, else from 0."""
        given = np.asarray(t)
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
        given = np.asarray(t)
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
