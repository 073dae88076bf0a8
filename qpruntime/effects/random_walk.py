"""Smooth effects of one number: random walks of first and second order, and seasons."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import flag, shown, whole
from qpruntime.dataframes.readers import DataColumns
from qpruntime.effects.intrinsic import ScaledStructure, scaled, stiffened
from qpruntime.effects.term import (
    DEVIATION,
    LOG_DEVIATION,
    BlockPattern,
    EffectBlock,
    Term,
    deviation_prior,
)
from qpruntime.errors import InputError

__all__ = ["Walk", "WalkBlock"]

#: Whole steps have a knot each, up to so many; other values have so many knots.
_MOST_KNOTS, _KNOTS = 1000, 100
# Prior standard deviation of what a walk of second order and a season leave free: the line, in
# standard deviations of the knots, and the pattern that repeats.
_FREE = 10.0


@restorable("walk/1")
class Walk(Term):
    """A smooth function of a column, as a random walk over equally spaced knots.

    Parameters
    ----------
    column : str or int
        Of numbers. Values that are whole steps of 1 apart have a knot each; others lie between
        knots, and the function is straight there.
    order : {1, 2}
        Whether first or second differences are normal: steps, or changes of slope.
    season : int, optional
        Length of a season in knots: sums of so many successive values are normal instead, and the
        pattern may change slowly.
    cyclic : bool or int
        Whether the last knot is followed by the first, as of months and hours; or the number of
        knots of a cycle, the column being whole numbers modulo that, some of which may be absent.
    knots : int, optional
        How many, instead.
    prior : (limit, probability)
        P(sd > limit) = probability; the standard deviation is that of the function, not of a step.

    See Also
    --------
    qpruntime.effects.EffectsModel, qpruntime.effects.Autoregressive

    Notes
    -----
    The function sums to zero over the knots. One of second order has a straight line of its own,
    normal with standard deviation 10 over a spread of the knots.

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime.effects import EffectsModel, Walk
    >>> month = np.arange(48) % 12
    >>> y = np.random.default_rng(0).poisson(np.exp(1.0 + np.sin(2.0 * np.pi * month / 12.0)))
    >>> model = EffectsModel([Walk("month", cyclic=True)], "poisson").fit({"month": month}, y)
    >>> len(model.effects("month"))
    12
    """

    def __init__(
        self,
        column: Hashable,
        order: int = 1,
        *,
        season: int | None = None,
        cyclic: bool | int = False,
        knots: int | None = None,
        prior: tuple[float, float] = DEVIATION,
    ) -> None:
        self.column, self.order, self.season = column, order, season
        self.cyclic, self.knots, self.prior = cyclic, knots, prior

    def __repr__(self) -> str:
        return f"Walk({self.column!r}, order={self.order})"

    @property
    def name(self) -> str:
        """Name of the part."""
        kind = f"season {self.season}" if self.season else f"rw{self.order}"
        return f"{kind}({self.column})"

    def bind(self, data: DataColumns, weights: Array | None = None) -> WalkBlock:
        """Return the block with knots over the range of the column."""
        return WalkBlock(self, data)


@restorable("walk-block/1")
class WalkBlock(EffectBlock):
    """Values at K knots; of second order the slope of a line after them."""

    def __init__(self, term: Walk, data: DataColumns) -> None:
        self.name, self.column = term.name, term.column
        if term.order not in (1, 2):
            raise InputError(f"order of Walk must be 1 or 2, got {shown(term.order)}")
        cycle = None
        if not isinstance(term.cyclic, bool | np.bool_):
            cycle = whole(term.cyclic, "cyclic", 3)
        cyclic = cycle is not None or flag(term.cyclic, "cyclic")
        season = None if term.season is None else whole(term.season, "season", 2)
        self.origin, self.step, count = 0.0, 1.0, cycle
        if count is None:
            self.origin, self.step, count = _knots(data.numbers(term.column), term)
        self.knots = self.origin + self.step * np.arange(count)
        self.cyclic = cyclic
        self.filter = _filter(term.order, season)
        least = len(self.filter) + 1
        if count < least:
            raise InputError(
                f"{self.name} needs at least {least} knots, and column {shown(term.column)} has "
                f"{count}: make it a term Groups, or give knots="
            )
        R = _squares(self.filter, count, cyclic)
        deficiency = len(self.filter) - 1
        if cyclic and season is not None:
            raise InputError("season= and cyclic=True say the same of a walk: give one of them")
        deficiency = 1 if cyclic else deficiency
        R, factor = scaled(R, deficiency)
        self.innovation = 1.0 / np.sqrt(factor)
        self.structure = ScaledStructure(R, deficiency, _FREE**-2.0 if season else None)
        self.line = term.order == 2 and season is None and not cyclic
        size = count + int(self.line)
        self.labels = np.append(self.knots, np.nan) if self.line else self.knots
        self.constraint = None
        if season is None:
            free = [np.ones(count) / np.sqrt(count)]
            if self.line:
                centred = self.knots - self.knots.mean()
                free.append(centred / np.linalg.norm(centred))
            R = stiffened(R, np.array(free))
            self.constraint = np.pad(np.array(free), ((0, 0), (0, int(self.line))))
        entries = sparse.coo_array(R)
        diagonal = np.arange(size)
        self.pattern = BlockPattern(
            np.concatenate([entries.row, diagonal]), np.concatenate([entries.col, diagonal]), size
        )
        self.R = self.pattern.added(np.concatenate([entries.data, np.zeros(size)]))
        ridge = np.full(size, self.structure.epsilon)
        ridge[count:] = _FREE**-2.0
        self.rest = self.pattern.added(np.concatenate([np.zeros(entries.nnz), ridge]))
        self.priors = (deviation_prior(term.prior),)
        self.parameters, self.start = ("log sd",), np.array([np.log(0.5)])
        self.bounds = np.array([LOG_DEVIATION])

    def _rows(self, data: DataColumns) -> tuple[Array, Array]:
        values = data.numbers(self.column)
        return values, (values - self.origin) / self.step

    def _design(self, data: DataColumns) -> tuple[sparse.csr_array, Array]:
        """Design, and the variance over sd^2 of what lies beyond the knots."""
        values, position = self._rows(data)
        count = len(self.knots)
        if self.cyclic:
            position = np.mod(position, count)
        near = np.round(position)
        position = np.where(np.abs(position - near) < _slack(values, self.step), near, position)
        last = count if self.cyclic else count - 1
        inside = (position >= 0.0) & (position <= last)
        low = np.clip(np.floor(position), 0, count - 1).astype(np.int64)
        share = np.where(inside, position - low, 0.0)
        rows = np.arange(data.rows)
        parts = [(rows[inside], low[inside], 1.0 - share[inside])]
        split = inside & (share > 0.0)
        parts.append((rows[split], (low[split] + 1) % count, share[split]))
        variance = np.zeros(data.rows)
        outside = np.flatnonzero(~inside)
        if outside.size:
            beyond = np.where(position > last, position - last, -position)[outside]
            weights, variance[outside] = forecasts(self.filter, beyond, count)
            variance[outside] *= self.innovation**2
            back = np.arange(weights.shape[1])
            ends = np.where((position[outside] > last)[:, None], count - 1 - back, back)
            parts.append((np.repeat(outside, len(back)), ends.ravel(), weights.ravel()))
        if self.line:
            spread = (values - self.knots.mean()) / self.knots.std()
            parts.append((rows, np.full(data.rows, count), spread))
        i, j, entries = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        design = sparse.coo_array((entries, (i, j)), shape=(data.rows, self.size))
        return sparse.csr_array(design), variance

    def columns(self, data: DataColumns) -> sparse.csr_array:
        """Linear interpolation between knots."""
        return self._design(data)[0]

    def ahead(self, data: DataColumns, theta: Array) -> tuple[sparse.csr_array, Array]:
        """Return the same columns; beyond the knots the walk goes on."""
        design, variance = self._design(data)
        return design, variance * np.exp(2.0 * theta[0])

    def readings(self) -> tuple[NDArray[Any], sparse.csr_array]:
        """Return the function at its knots, with its line."""
        design = sparse.eye_array(len(self.knots), self.size, format="lil")
        if self.line:
            design[:, -1] = (self.knots - self.knots.mean()) / self.knots.std()
        return self.knots, sparse.csr_array(design)

    def entries(self, theta: Array) -> tuple[Array, Array]:
        """R/sd^2 and what makes it definite."""
        structure_entries = self.R * np.exp(-2.0 * theta[0])
        return structure_entries + self.rest, -2.0 * structure_entries[None]

    def log_det(self, theta: Array) -> tuple[float, Array]:
        """Log determinant of the walk and its line, and its slope."""
        value, slope = self.structure.log_det(float(theta[0]))
        return value - 2.0 * np.log(_FREE) * self.line, np.array([slope])

    def deviations(self, theta: Array) -> dict[str, Array]:
        """Return the standard deviation of the function."""
        return {"sd": np.exp(theta[0])}


def _knots(values: Array, term: Walk) -> tuple[float, float, int]:
    """Origin, spacing and number of the knots."""
    low, high = float(values.min()), float(values.max())
    if low == high:
        raise InputError(
            f"column {shown(term.column)} of a walk has one value, {low:g}: leave it out"
        )
    if term.knots is not None:
        count = whole(term.knots, "knots", 2)
        return low, (high - low) / (count - 1), count
    # Whole steps from the least value, which itself may be any number.
    steps = values - low
    if (np.abs(steps - np.round(steps)) <= _slack(values, 1.0)).all() and steps.max() < _MOST_KNOTS:
        return low, 1.0, round(steps.max()) + 1
    return low, (high - low) / (_KNOTS - 1), _KNOTS


def _slack(values: Array, step: float) -> float:
    """Distance from a knot, in steps, that is rounding."""
    return max(1e-9, 4.0 * float(np.spacing(np.abs(values).max())) / step)


def _filter(order: int, season: int | None) -> Array:
    """Coefficients of what is independent: a difference, or a sum over a season."""
    if season is not None:
        return np.ones(season)
    return np.array([-1.0, 1.0]) if order == 1 else np.array([1.0, -2.0, 1.0])


def _squares(taps: Array, count: int, cyclic: bool) -> sparse.csc_array:
    """D'D for the matrix D of all places of a filter."""
    places = count if cyclic else count - len(taps) + 1
    rows = np.repeat(np.arange(places), len(taps))
    columns = (np.arange(places)[:, None] + np.arange(len(taps))).ravel() % count
    D = sparse.csr_array((np.tile(taps, places), (rows, columns)), shape=(places, count))
    return sparse.csc_array(D.T @ D)


def forecasts(taps: Array, beyond: Array, count: int) -> tuple[Array, Array]:
    """Continue sequences whose filtered values are independent with variance 1.

    Parameters
    ----------
    taps : ndarray, shape (p + 1,)
        The filter, of whole differences or sums.
    beyond : ndarray, shape (T,)
        Steps after the last value, above 0; between whole ones a straight line is taken.
    count : int
        Values that there are.

    Returns
    -------
    weights : ndarray, shape (T, p)
        Of the last value, the one before it, ...
    variance : ndarray, shape (T,)
    """
    p = len(taps) - 1
    most = int(np.ceil(beyond.max()))
    if most > 10 * count:
        raise InputError(
            f"a walk over {count} knots cannot be continued for {most}: predict nearer to the data"
        )
    forward = -taps[:-1][::-1] / taps[-1]
    means = np.zeros((most + 1, p))
    means[0, 0] = 1.0
    impulse = np.zeros(most + 1)
    impulse[0] = 1.0 / taps[-1]
    # Values known before the forecast, newest first, as rows of weights.
    history = list(np.eye(p))
    shocks = [0.0] * p
    for h in range(1, most + 1):
        means[h] = sum(f * row for f, row in zip(forward, history, strict=True))
        history = [means[h], *history[:-1]]
        shocks = [impulse[h - 1], *shocks[: p - 1]]
        impulse[h] = sum(f * s for f, s in zip(forward, shocks, strict=True))
    low = np.floor(beyond).astype(int)
    share = beyond - low
    high = np.minimum(low + 1, most)
    weights = (1.0 - share)[:, None] * means[low] + share[:, None] * means[high]
    variance = np.empty(len(beyond))
    for k, (a, w) in enumerate(zip(low, share, strict=True)):
        # New values 1, ..., a + 1 enter by their impulse responses.
        now = np.append(impulse[:a][::-1], 0.0)
        then = impulse[: a + 1][::-1]
        variance[k] = float((((1.0 - w) * now + w * then) ** 2).sum())
    return weights, variance
