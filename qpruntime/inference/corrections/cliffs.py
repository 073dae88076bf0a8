"""Points where even ones are too few: cliffs and narrow peaks of densities on a wide grid.

Under a wide prior a label cuts a density off within a unit of f, and its grid has steps of
thousands.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from qpruntime.arrays import Array

__all__ = ["marked", "resolved"]

#: Likelihoods turn within about one unit of f around 0: with longer steps points close in on it,
#: from here on outwards by doubling.
_UNIT = 0.5
#: An interval is divided where the log density changes by more than this and is not so far below
#: its top: what is beyond weighs 1e-6 times an interval.
_CHANGE, _DEPTH = 0.7, 14.0
#: Into so many parts, so often at most: 4^26 is 2^52.
_PARTS, _ROUNDS = 4, 26
_ROUNDING = 1e-13


def inserted(points: Array, more: Array) -> Array:
    """Return the points with more in their places; those outside repeat the last one."""
    low, high = points[:, :1], points[:, -1:]
    return np.sort(np.hstack([points, np.where((more > low) & (more < high), more, high)]), axis=1)


def marked(points: Array, peaks: Array) -> Array:
    """Put points around 0 into even ones (T, G) that are far from each other there, and on peaks.

    `peaks` is (T,), NaN where there is none.
    """
    step = points[:, 1] - points[:, 0]
    wide = (step > _UNIT) & (points[:, 0] < 0.0) & (points[:, -1] > 0.0)
    if not wide.any():
        return points
    count = math.ceil(math.log2(step[wide].max() / _UNIT)) + 1
    out = _UNIT * 2.0 ** np.arange(count)
    marks = np.concatenate([-out, [0.0], out])
    near = wide[:, None] & (np.abs(marks) < 2.0 * step[:, None])
    own = np.where(wide, peaks, math.nan)
    return inserted(points, np.column_stack([np.where(near, marks, math.nan), own]))


def resolved(
    points: Array, logs: Array, levels: Callable[[NDArray[np.intp], Array], Array]
) -> tuple[Array, Array]:
    """Divide intervals in which a density changes much; return points and log densities.

    Parameters
    ----------
    levels : callable
        ``levels(rows, points)``: log densities of these rows (R,) at points (R, P).
    """
    for _ in range(_ROUNDS):
        with np.errstate(invalid="ignore"):  # -inf less itself
            change = np.abs(np.diff(logs))
        steep = ~(change <= _CHANGE)
        if not steep.any():
            break
        high = np.maximum(logs[:, 1:], logs[:, :-1]) > logs.max(axis=1, keepdims=True) - _DEPTH
        wide = np.diff(points) > _ROUNDING * (np.abs(points[:, 1:]) + np.abs(points[:, :-1]))
        wrong = high & wide & steep
        rows = np.flatnonzero(wrong.any(axis=1))
        if not rows.size:
            break
        wrong = wrong[rows]
        most = int(wrong.sum(axis=1).max())
        first = np.argsort(~wrong, axis=1, kind="stable")[:, :most]
        used = np.take_along_axis(wrong, first, axis=1)
        left = np.take_along_axis(points[rows], first, axis=1)
        right = np.take_along_axis(points[rows], first + 1, axis=1)
        parts = np.arange(1, _PARTS) / _PARTS
        last = points[:, -1:]
        more = np.where(used[..., None], left[..., None] + (right - left)[..., None] * parts, 0.0)
        more = more.reshape(rows.size, -1)
        used = np.repeat(used, _PARTS - 1, axis=1)
        more = np.where(used, more, last[rows])
        found = np.where(used, levels(rows, more), logs[rows, -1:])
        new, new_logs = (np.repeat(a, more.shape[1], axis=1) for a in (last, logs[:, -1:]))
        new[rows], new_logs[rows] = more, found
        points, logs = np.hstack([points, new]), np.hstack([logs, new_logs])
        order = np.argsort(points, axis=1, kind="stable")
        points, logs = (np.take_along_axis(a, order, axis=1) for a in (points, logs))
    return points, logs
