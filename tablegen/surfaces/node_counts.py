"""Number of nodes of a table of surfaces, doubled along lines until its tolerance is met.

Splines along one axis at a time, on lines through the domain: what they need, the tensor needs. The
power law between the last two doublings says how many cells would just do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from qpruntime._typing import Array
from qpruntime.projection.interpolation import quintic_weights
from qpruntime.table_format.metadata import Axis
from tablegen import splines
from tablegen.surfaces.samples import SampledCavities, Sampler

__all__ = ["FIRST", "LARGEST", "cells_needed", "deviation", "evaluate"]

#: Cells to begin with, and those beyond which no line is refined.
FIRST, LARGEST = 12, 6144
# Lines share the allowed error between the axes of the tensor, and miss its worst place.
_SHARE = 0.25
# Errors fall by half or more when cells are halved, even beside a jump in the slope.
_STUCK = 0.7
# Rows of lines, from end to end of the other axes.
_LINES = (0.0, 0.09, 0.21, 0.33, 0.46, 0.5, 0.58, 0.71, 0.84, 0.93, 1.0)


def deviation(found: Array, truth: Array) -> Array:
    """Errors of stored values, shape (..., 4), in the order of `surfaces.NAMES`.

    The deviation of log Z is relative if log Z is large, else absolute; that of the mean is in
    tilted standard deviations, and those of the standard deviations are relative.
    """
    gap = found - truth
    return np.stack(
        [
            np.abs(gap[..., 0]) / np.maximum(1.0, np.abs(truth[..., 0])),
            np.abs(gap[..., 1] + truth[..., 1] * gap[..., 2]),
            np.abs(gap[..., 2]),
            np.abs(gap[..., 2] + gap[..., 3]),
        ],
        axis=-1,
    )


def evaluate(coefficients: Array, axis: Axis, where: Array) -> Array:
    """Return splines along the first dimension of `coefficients` at the places `where`."""
    t = (where - axis.start) / axis.step
    first = np.clip(t.astype(int), 0, axis.size - 2)
    weights = np.array([quintic_weights(s) for s in (t - first).tolist()])
    values = np.zeros((where.size, *coefficients.shape[1:]))
    for k in range(6):
        shape = (-1,) + (1,) * (coefficients.ndim - 1)
        values += weights[:, k].reshape(shape) * coefficients[first + k]
    return values


class _Lines:
    """Samples along one axis, on several lines at once; no place is integrated twice."""

    def __init__(self, sample: Sampler, axes: Sequence[Axis], which: int, others: Array) -> None:
        self._sample = sample
        self._which = which
        self._others = others
        self._known: dict[float, Array] = {}
        self._axis = axes[which]

    def __call__(self, places: Array) -> Array:
        """Return values of shape (places, lines, 4)."""
        missing = np.array([x for x in places.tolist() if x not in self._known])
        if missing.size:
            blocks = []
            for other_values in self._others:
                columns = [np.full(missing.size, v) for v in other_values]
                columns.insert(self._which, missing)
                mu, log10_sigma, y = columns
                blocks.append(SampledCavities(mu, 10.0**log10_sigma, y))
            values = np.stack(self._sample(blocks), axis=1)
            self._known.update(zip(missing.tolist(), values, strict=True))
        return np.array([self._known[x] for x in places.tolist()])


def cells_needed(
    sample: Sampler, axes: Sequence[Axis], which: int, outcomes: Sequence[float], tolerance: float
) -> tuple[int, float]:
    """Return how many cells axis `which` needs, and the error of splines along it with so many.

    Of the axes, with y if it is continuous, only the ends matter; else `outcomes` are those of the
    rows.
    """
    lines = _Lines(sample, axes, which, _others(axes, which, outcomes))
    ends = axes[which]
    allowed = _SHARE * tolerance
    before, stuck = math.inf, 0
    cells = FIRST
    while True:
        axis = Axis(ends.name, ends.start, ends.stop, cells + 1)
        coefficients = splines.along(lines(splines.points(axis)), 0, axis)
        between = _places(axis, np.arange(0.5, cells))
        error = float(deviation(evaluate(coefficients, axis, between), lines(between)).max())
        if not error > allowed or cells >= LARGEST:
            break
        stuck = stuck + 1 if error > _STUCK * before else 0
        if stuck == 2:
            # More nodes would not help, because the integrals themselves are no better.
            return cells // 4, error
        before = error
        cells *= 2
    if cells == FIRST or not error <= allowed:
        return cells, error
    power = min(max(math.log2(before / max(error, 1e-300)), 1.0), 6.0)
    enough = math.ceil(0.5 * cells * (before / allowed) ** (1.0 / power))
    return min(max(enough, cells // 2), cells), min(allowed, before)


def _places(axis: Axis, cells: Array) -> Array:
    """Positions in cells as the collocation points have them: bit for bit where they coincide."""
    return np.asarray(axis.start + cells / (axis.size - 1) * (axis.stop - axis.start))


def _others(axes: Sequence[Axis], which: int, outcomes: Sequence[float]) -> Array:
    """Return places on the other axes, one row a line."""
    parts = []
    for k in (0, 1, 2):
        if k == which:
            continue
        if k < len(axes):
            a = axes[k]
            few = _LINES if len(axes) == 2 else _LINES[::2]
            parts.append([a.start + p * (a.stop - a.start) for p in few])
        else:
            indices = {round(p * (len(outcomes) - 1)) for p in (0.0, 0.1, 0.3, 0.6, 1.0)}
            parts.append([outcomes[i] for i in sorted(indices)])
    return np.array([(a, b) for a in parts[0] for b in parts[1]])
