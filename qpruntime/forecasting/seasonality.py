"""Periods of a series of counts: those of the calendar, and those that its values show."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from qpruntime._typing import Array

__all__ = ["common_seasons", "find_seasons"]

#: Periods that are looked for end here, and at so many repetitions; so many are taken at most.
_LONGEST, _REPEATED, _MOST = 1000, 3, 3
#: Repetitions from which a period of the calendar is taken.
_CALENDAR = 2.0
#: Harmonics of a period; what its pattern gains has to be so many nats above its price.
_HARMONICS, _SURE = (1, 3, 6), 4.0
#: Up to so many values fewer harmonics are tried; so many values there have to be.
_LONG, _FEWEST = 5000, 12
#: The shortest period with at least this share of the best gain is taken.
_NEARLY = 0.9


def find_seasons(steps: Array, y: Array, calendar: tuple[float, ...] = ()) -> tuple[float, ...]:
    """Return periods in steps, shortest first.

    The search takes the whole period whose first harmonics, up to six, explain most of sqrt(y) less
    a running level, and repeats this with the remainder. Multiples of a period explain as much, so
    it takes the shortest of nearly the same gain. The gain is N/2 times the log ratio of variances,
    less log(N)/2 for each coefficient and the log of the number of periods tried.

    Parameters
    ----------
    steps : ndarray, shape (N,)
        Whole numbers, rising.
    y : ndarray, shape (N,)
        Counts.
    calendar : tuple of float
        Periods of the calendar: those that are repeated twice are taken without looking.

    Returns
    -------
    tuple of float

    See Also
    --------
    qpruntime.forecasting.GPForecaster

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime.forecasting import find_seasons
    >>> steps = np.arange(96.0)
    >>> y = np.random.default_rng(0).poisson(np.exp(1.0 + np.sin(2.0 * np.pi * steps / 12.0)))
    >>> find_seasons(steps, y), find_seasons(steps, y, calendar=(7.0, 365.2))
    ((12.0,), (7.0,))
    """
    span = float(steps[-1] - steps[0] + 1.0)
    periods = [p for p in calendar if span >= _CALENDAR * p]
    if calendar:
        return tuple(sorted(periods))
    return common_seasons([(steps, y)])


def common_seasons(series: Sequence[tuple[Array, Array]]) -> tuple[float, ...]:
    """Return periods of several series of steps and values, by the sum of their gains."""
    parts = [_SeriesPart(steps, y) for steps, y in series if _usable(steps, y)]
    if not parts:
        return ()
    span = max(spectrum.span for spectrum in parts)
    longest = min(_LONGEST, int(span) // _REPEATED)
    periods = np.arange(2, longest + 1)
    price = _SURE + math.log(max(longest, 2)) + math.log(len(_HARMONICS))
    chosen: list[int] = []
    while len(chosen) < _MOST and parts and periods.size:
        gains = np.zeros(periods.size)
        for spectrum in parts:
            tested = periods[: max(0, int(spectrum.span) // _REPEATED - 1)]
            gains[: tested.size] += [spectrum.gain(int(p))[0] for p in tested]
        for q in chosen:
            gains[np.abs(1.0 / periods - 1.0 / q) < 1.0 / span] = 0.0
        best = gains.max(initial=0.0)
        if best <= price:
            break
        chosen.append(_chosen(periods[gains >= _NEARLY * best], gains, chosen, span))
        for spectrum in parts:
            spectrum.take_off(chosen[-1])
    return tuple(float(p) for p in sorted(chosen))


def _usable(steps: Array, y: Array) -> bool:
    whole = bool((steps == np.round(steps)).all())
    return whole and steps.size > _FEWEST and not (y == y[0]).all()


class _SeriesPart:
    """One series: what is left of it, and where a value follows another."""

    def __init__(self, steps: Array, y: Array) -> None:
        self.at = steps.astype(np.int64) - int(steps[0])
        self.span = float(self.at[-1] + 1)
        self.left = _level_off(self.at, np.sqrt(y))
        self.follows = np.flatnonzero(np.diff(self.at) == 1) + 1

    def gain(self, p: int) -> tuple[float, Array]:
        """Return the gain of a period, and its pattern."""
        return _gain(self.at % p, self.left, p, self.follows)

    def take_off(self, p: int) -> None:
        """Leave what a period does not explain."""
        if p * _REPEATED <= self.span:
            self.left = self.left - self.gain(p)[1][self.at % p]


def _chosen(near: NDArray[np.int64], gains: Array, earlier: list[int], span: float) -> int:
    """Choose of periods of nearly the best gain a multiple of one found, or about the shortest."""
    multiples = [int(p) for p in near if any(p % q == 0 for q in earlier)]
    if multiples:
        return multiples[0]
    alike = near[np.abs(1.0 / near - 1.0 / near[0]) < 1.0 / span]
    return int(alike[np.argmax(gains[alike - 2])])


def _innovations(values: Array, follows: NDArray[np.intp]) -> float:
    """Return the sum of squared innovations, so that autoregressive noise has no periods."""
    if follows.size < values.size // 2:
        return float(values @ values)
    before, now = values[follows - 1], values[follows]
    share = float(before @ now) / max(float(before @ before), 1e-300)
    residual = now - min(max(share, 0.0), 0.98) * before
    return float(residual @ residual)


def _level_off(at: NDArray[np.int64], values: Array) -> Array:
    """Return values less a straight line and waves of fewer than three cycles over the series."""
    x = at / max(float(at[-1]), 1.0)
    columns = [np.ones(x.size), x]
    for k in (0.5, 1.0, 1.5, 2.0, 2.5):
        columns += [np.sin(2.0 * np.pi * k * x), np.cos(2.0 * np.pi * k * x)]
    design = np.column_stack(columns[: max(2, min(len(columns), x.size // 4))])
    return np.asarray(values - design @ np.linalg.lstsq(design, values, rcond=None)[0])


def _gain(
    phase: NDArray[np.int64], values: Array, p: int, follows: NDArray[np.intp]
) -> tuple[float, Array]:
    """Return the largest gain of a period over numbers of harmonics, and its pattern (p,).

    It uses sums over each phase, because waves of a period are orthogonal over many repetitions.
    """
    n = values.size
    counts = np.bincount(phase, minlength=p)
    mean = np.bincount(phase, values, p) / np.maximum(counts, 1)
    waves = np.fft.rfft(mean)
    waves[0] = 0.0
    total = _innovations(values, follows)
    best, pattern = -math.inf, np.zeros(p)
    # Six harmonics of a long series gain much more than their coefficients cost.
    for most in _HARMONICS if n <= _LONG else _HARMONICS[-1:]:
        coefficients = min(2 * most, p - 1)
        kept = waves.copy()
        kept[most + 1 :] = 0.0
        shape: Array = np.fft.irfft(kept, p)
        unexplained = _innovations(values - shape[phase], follows)
        gain = 0.0
        if 0.0 < unexplained < total:
            gain = 0.5 * n * math.log(total / unexplained) - 0.5 * coefficients * math.log(n)
        elif unexplained <= 0.0:
            gain = math.inf
        if gain > best:
            best, pattern = gain, shape
        if coefficients == p - 1:
            break
    return best, pattern
