"""Times as people have them, as spans that they are known to lie in."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.likelihoods.kinds.observed import spans
from qpruntime.validation import real

__all__ = ["spans_of"]


def spans_of(y: Any, event: ArrayLike | None) -> Array:
    """Return the first and the last time of each observation, shape (N, 2).

    Parameters
    ----------
    y : array-like
        Times (N,), beside `event`; or first and last times (N, 2); or a structured array of two
        fields, of which one is boolean and says whether the time of the other is that of an event.
    event : array-like of bool, shape (N,), or None
        Whether the time is that of an event, or the last at which there was none; all are by
        default.

    Raises
    ------
    InputError
        If that is not what was given.
    """
    names = getattr(getattr(y, "dtype", None), "names", None)
    if names is not None:
        kinds = [y.dtype[name].kind for name in names]
        if len(names) != 2 or sorted(kinds)[0] != "b" or sorted(kinds)[1] not in "fiu":
            raise InputError(
                f"a structured y has two fields, one of booleans and one of times, got {y.dtype}"
            )
        if event is not None:
            raise InputError("event= beside a structured y, which has its own: leave one out")
        y, event = y[names[kinds[0] == "b"]], y[names[kinds[0] != "b"]]
    if np.ma.is_masked(y):
        raise InputError("masked times cannot be fitted: leave them out")
    times = real(y, "y")
    if times.ndim == 2:
        if event is not None:
            raise InputError(
                "event= beside first and last times, which say it: the same time twice for an "
                "event, infinity as the last for none"
            )
        return spans(times)
    if times.ndim != 1:
        raise InputError(f"y must have shape (N,) or (N, 2), got {times.shape}")
    seen = np.ones(times.size, dtype=bool) if event is None else _booleans(event, times.size)
    # A time of 0 at which there was no event says nothing, and spans refuse it by its row.
    return spans(np.column_stack([times, np.where(seen, times, np.inf)]))


def _booleans(event: ArrayLike, n: int) -> Array:
    values = np.asarray(event)
    if values.shape != (n,) or values.dtype.kind not in "bfiu" or not np.isin(values, (0, 1)).all():
        raise InputError(f"event must be {n} booleans, one for each time")
    return values.astype(bool)
