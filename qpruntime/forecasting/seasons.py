"""Which periods a series of counts has: those of the calendar, and those that its values show."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qpruntime.arrays import Array

__all__ = ["find_seasons"]

#: Periods that are looked for end here, and at so many repetitions; so many are taken at most.
_LONGEST, _REPEATED, _MOST = 1000, 3, 3
#: Of the calendar a period is taken from so many repetitions on.
_CALENDAR = 2.0
#: Harmonics of a period; what its pattern gains has to be so many nats above its price.
_HARMONICS, _SURE = 6, 4.0
#: The shortest period is taken that has so much of the best one's gain.
_NEARLY = 0.9


def find_seasons(steps: Array, y: Array, calendar: tuple[float, ...] = ()) -> tuple[float, ...]:
    """Return periods in steps, shortest first.

    Of whole periods the one whose first six harmonics explain most of sqrt(y), less a running
    level; then of what is left. Multiples of a period explain as much, so the shortest of nearly
    the same gain is taken. A gain is of log likelihood, N/2 log of the ratio of variances, less
    log(N)/2 for each coefficient and the log of how many periods were looked at.

    Parameters
    ----------
    steps : ndarray, shape (N,)
        Whole numbers, rising.
    y : ndarray, shape (N,)
        Counts.
    calendar : tuple of float
        Periods of the calendar: those that are repeated twice are taken without looking.
    """
    span = float(steps[-1] - steps[0] + 1.0)
    taken = [p for p in calendar if span >= _CALENDAR * p]
    if calendar or not (steps == np.round(steps)).all() or (y == y[0]).all():
        return tuple(sorted(taken))
    at = steps.astype(np.int64) - int(steps[0])
    left, follows = _level_off(at, np.sqrt(y)), np.flatnonzero(np.diff(at) == 1) + 1
    longest = min(_LONGEST, int(span) // _REPEATED)
    periods = np.arange(2, longest + 1)
    price = _SURE + math.log(max(longest, 2))
    found: list[int] = []
    while len(found) < _MOST and left.size > 2 * _HARMONICS:
        gains = np.array([_gain(at % p, left, int(p), follows)[0] for p in periods])
        for q in found:
            gains[np.abs(1.0 / periods - 1.0 / q) < 1.0 / span] = 0.0
        best = gains.max(initial=0.0)
        if best <= price:
            break
        found.append(_chosen(periods[gains >= _NEARLY * best], gains, found, span))
        left = left - _gain(at % found[-1], left, found[-1], follows)[1][at % found[-1]]
    return tuple(float(p) for p in sorted(found))


def _chosen(near: Any, gains: Array, found: list[int], span: float) -> int:
    """Of periods of nearly the best gain a multiple of one that is known, or about the shortest."""
    multiples = [int(p) for p in near if any(p % q == 0 for q in found)]
    if multiples:
        return multiples[0]
    alike = near[np.abs(1.0 / near - 1.0 / near[0]) < 1.0 / span]
    return int(alike[np.argmax(gains[alike - 2])])


def _innovations(values: Array, follows: Any) -> float:
    """Sum of squares of what the step before does not say: noise that lasts has no periods."""
    if follows.size < values.size // 2:
        return float(values @ values)
    before, now = values[follows - 1], values[follows]
    share = float(before @ now) / max(float(before @ before), 1e-300)
    rest = now - min(max(share, 0.0), 0.98) * before
    return float(rest @ rest)


def _level_off(at: Any, values: Array) -> Array:
    """Values less a straight line and waves of less than three cycles over the series."""
    x = at / max(float(at[-1]), 1.0)
    columns = [np.ones(x.size), x]
    for k in (0.5, 1.0, 1.5, 2.0, 2.5):
        columns += [np.sin(2.0 * np.pi * k * x), np.cos(2.0 * np.pi * k * x)]
    design = np.column_stack(columns[: max(2, min(len(columns), x.size // 4))])
    return np.asarray(values - design @ np.linalg.lstsq(design, values, rcond=None)[0])


def _gain(phase: Any, left: Array, p: int, follows: Any) -> tuple[float, Array]:
    """Gain of the harmonics of a period, and its pattern by phase, shape (p,).

    By the sums over each phase: waves of a period are orthogonal over many repetitions.
    """
    n = left.size
    counts = np.bincount(phase, minlength=p)
    mean = np.bincount(phase, left, p) / np.maximum(counts, 1)
    waves = np.fft.rfft(mean)
    waves[0] = 0.0
    waves[_HARMONICS + 1 :] = 0.0
    pattern: Array = np.fft.irfft(waves, p)
    rest = _innovations(left - pattern[phase], follows)
    total = _innovations(left, follows)
    coefficients = min(2 * _HARMONICS, p - 1)
    if not 0.0 < rest < total:
        return (0.0 if rest > 0.0 else math.inf), pattern
    return 0.5 * n * math.log(total / rest) - 0.5 * coefficients * math.log(n), pattern
