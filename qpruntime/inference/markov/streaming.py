"""Rows appended to a series."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import finite, real, unmasked
from qpruntime.errors import InputError, NumericalError
from qpruntime.inference.fixed_point.convergence import (
    HELD,
    Ended,
    Limits,
    Trace,
    finite_evidence,
    unbounded,
)
from qpruntime.inference.fixed_point.schedules import Swept, swept_until
from qpruntime.inference.markov.data import Clock, SortedSeries
from qpruntime.inference.markov.passes import NO_SUMMARY, Rows, Summary, read
from qpruntime.inference.sites import Sites
from qpruntime.kernels.state_space import StateSpace
from qpruntime.projection.projector import Projector

__all__ = [
    "EVERY",
    "Appended",
    "More",
    "SeriesPiece",
    "SweepResult",
    "append",
    "joined_pieces",
    "merged",
    "read_more",
    "settle",
    "with_times",
]

# --- Rows added to a posterior


@dataclass(frozen=True)
class More:
    """Times, observations, prior means and weights (M,) of observed rows.

    They are the rows `seen` among `given` ones; weights are None if none were given.
    """

    t: Array
    y: Array
    prior: Array
    weights: Array | None
    seen: NDArray[np.intp]
    given: int

    def piece(self, before: int, scaled: bool) -> SeriesPiece:
        """Return these rows in order of time, without sites; `before` rows were given earlier."""
        order = np.argsort(self.t, kind="stable")
        zero = np.zeros(self.t.size)
        return SeriesPiece(
            t=self.t[order],
            y=self.y[order],
            prior=self.prior[order],
            weights=None,
            scale=np.ones(self.t.size) if scaled else None,
            tau=zero,
            nu=zero,
            mean=zero,
            variance=zero,
            log_z=zero,
            index=before + order,
            marks=np.empty((0, 0)),
        )


def read_more(
    clock: Clock,
    projector: Projector | None,
    t: ArrayLike,
    y: ArrayLike,
    mean: ArrayLike,
    weights: ArrayLike | None,
) -> More:
    """Check later rows, as `SeriesPosterior.extend` takes them; rows of NaN are dropped.

    Raises
    ------
    InputError
        If they are not usable, or there is no projector for them.
    """
    if projector is None:
        raise InputError(
            "this posterior was pickled without its likelihood or table: call infer_series "
            "with all rows, and sites=post.sites for those it had"
        )
    y = unmasked(y, "y", missing=True)
    new, observations = clock.read(t), np.asarray(y)
    offset = finite(mean, "mean")
    if observations.shape != new.shape or offset.shape not in ((), new.shape):
        raise InputError(f"y and mean must have shape {new.shape} like t, got {observations.shape}")
    present = np.flatnonzero(~np.isnan(real(y, "y")))
    events = projector.likelihood.validate(observations[present])
    projector.check_outcomes(events)
    checked = None if weights is None else finite(weights, "weights", new.shape)
    if checked is not None:
        if (checked < 0.0).any():
            raise InputError(f"weights must not be negative, got {checked.min():g}")
        projector.need_density("weights are integrated")
        checked = checked[present]
    prior = np.array(np.broadcast_to(offset, new.shape)[present])
    return More(new[present], events, prior, checked, present, new.size)


def merged(
    series: SortedSeries, sites: Sites, more: More
) -> tuple[SortedSeries, Sites, NDArray[np.intp]]:
    """Insert rows without sites among those of a series, in order of time.

    The last result is the previous position of each joined row: in the series, or behind it in
    `more`.
    """
    sort = np.argsort(np.concatenate([series.t, more.t]), kind="stable")

    def joined(values: Array, others: Array) -> Array:
        return np.concatenate([values, others])[sort]

    unit, zero = np.ones(more.t.size), np.zeros(more.t.size)
    weights = None
    if series.weights is not None or more.weights is not None:
        weights = joined(series.exponents, unit if more.weights is None else more.weights)
    joined_series = replace(
        series,
        t=joined(series.t, more.t),
        y=joined(series.y, more.y),
        prior=joined(series.prior, more.prior),
        weights=weights,
        scale=None if series.scale is None else joined(series.scale, unit),
    )
    return joined_series, Sites(joined(sites.tau, zero), joined(sites.nu, zero)), sort


def with_times(
    series: SortedSeries, space: StateSpace, sites: Sites, new: Array
) -> tuple[Rows, NDArray[np.intp]]:
    """Return the rows of a series with T unobserved times, and the places of these.

    Sites are about the prior mean.
    """
    times = np.concatenate([series.t, new])
    order = np.argsort(times, kind="stable")
    place = np.empty(times.size, dtype=np.intp)
    place[order] = np.arange(times.size)
    none = np.zeros(new.size)

    def joined(values: Array, more: Array) -> Array:
        return np.concatenate([values, more])[order]

    scale = None if series.scale is None else joined(series.scale, none + 1.0)
    grid = replace(series, t=times[order], scale=scale, weights=None)
    rows = Rows(grid, space, Sites(joined(sites.tau, none), joined(sites.nu, none)))
    return rows, place[series.t.size :]


# --- Rows after all others
#
# Only the last rows are swept again.
#
# A posterior consists of pieces, each with the forward messages of some of its rows. New rows are
# swept together with so many earlier ones that the message to the state before them does not
# change. All other pieces are shared with the previous posterior, and are joined when they are
# read.

#: Forward messages are stored for one row in this many.
EVERY = 256
#: Number of rows that are swept again at first; it is doubled if that does not suffice.
_LEAST = 256


@restorable("piece/1")
@dataclass(frozen=True)
class SeriesPiece:
    """Rows in order of time: data, results, and sites about the prior mean.

    `index` is their position in the user's order, and `marks` are the forward messages at rows 0,
    `EVERY`, 2 `EVERY` and so on.
    """

    t: Array
    y: Array
    prior: Array
    weights: Array | None
    scale: Array | None
    tau: Array
    nu: Array
    mean: Array
    variance: Array
    log_z: Array
    index: NDArray[np.intp]
    marks: Array

    def cut(self, start: int, stop: int) -> SeriesPiece:
        """Return rows from a marked one on."""
        columns = {}
        for field in fields(self):
            values = getattr(self, field.name)
            if field.name == "marks":
                columns["marks"] = values[start // EVERY : -(-stop // EVERY)]
            else:
                columns[field.name] = None if values is None else values[start:stop]
        return SeriesPiece(**columns)


def joined_pieces(pieces: Sequence[SeriesPiece], name: str) -> Any:
    """Return one column of all pieces."""
    columns = [getattr(piece, name) for piece in pieces]
    if len(columns) == 1:
        return columns[0]
    return None if columns[0] is None else np.concatenate(columns)


@dataclass(frozen=True)
class Appended:
    """Pieces with the new rows, the end of the sweeps, and the increase of the log evidence.

    `swept` is the number of rows that were swept.
    """

    pieces: tuple[SeriesPiece, ...]
    ended: SweepResult
    rise: float
    swept: int


def append(
    pieces: tuple[SeriesPiece, ...],
    new: SeriesPiece,
    series: SortedSeries,
    space: StateSpace,
    limits: Limits,
) -> Appended:
    """Append rows that are later than all others; `series` has their likelihood."""
    total = sum(piece.t.size for piece in pieces)
    wanted = _LEAST
    while True:
        earlier, window, count = _last(pieces, wanted)
        appended = _append(window, new, series, space, limits, total - count)
        if appended is not None:
            return replace(appended, pieces=(*earlier, *appended.pieces))
        wanted = 4 * max(count, wanted)


def _last(
    pieces: tuple[SeriesPiece, ...], wanted: int
) -> tuple[list[SeriesPiece], list[SeriesPiece], int]:
    """Split pieces at a mark, at least so many rows before the end."""
    earlier, count = list(pieces), 0
    window: list[SeriesPiece] = []
    while earlier and count < wanted:
        piece = earlier.pop()
        size = piece.t.size
        start = max(size - (wanted - count), 0) // EVERY * EVERY
        window.insert(0, piece.cut(start, size))
        if start:
            earlier.append(piece.cut(0, start))
        count += size - start
    return earlier, window, count


def _append(
    window: list[SeriesPiece],
    new: SeriesPiece,
    series: SortedSeries,
    space: StateSpace,
    limits: Limits,
    before: int,
) -> Appended | None:
    """Sweep the window and the new rows; return None if the state before the window changes."""
    mark = window[0].marks[0]
    edges = np.array([mark, np.zeros_like(mark)])
    old = _rows(window, series, space, edges)
    extended = _rows([*window, new], series, space, edges)
    for rows in (old, extended):
        rows.refresh()
    share, behind = old.finish(), old.edges[3].copy()
    tight_limits = limits._replace(tol=0.1 * limits.tol)
    ended = settle(extended, tight_limits, Trace(), warm=True)
    marks = extended.marks(EVERY)
    if before:
        extended.refresh()
        moved = _moved(space, mark, behind, extended.edges[3])
        if not moved < limits.tol:
            return None
    finite_evidence(ended.summary.log_evidence)
    index = np.concatenate([*(piece.index for piece in window), new.index])
    piece = _piece(extended, ended.summary, index, marks)
    rise = ended.summary.log_evidence - share.log_evidence
    ended = replace(ended, worst=int(index[ended.worst]))
    return Appended((piece,), ended, rise, extended.tau.size)


def _rows(
    window: Sequence[SeriesPiece], series: SortedSeries, space: StateSpace, edges: Array
) -> Rows:
    column = partial(joined_pieces, window)
    rows_series = replace(
        series,
        **{name: column(name) for name in ("t", "y", "prior", "weights", "scale")},
        before=None,
    )
    return Rows(rows_series, space, Sites(column("tau"), column("nu")), edges)


def _piece(rows: Rows, summary: Summary, index: NDArray[np.intp], marks: Array) -> SeriesPiece:
    series = rows.series
    observed = series.t, series.y, series.prior, series.weights, series.scale
    return SeriesPiece(
        *observed, rows.tau, rows.nu, summary.mean, summary.variance, summary.log_z, index, marks
    )


def _moved(space: StateSpace, mark: Array, old: Array, new: Array) -> float:
    """Return how far two backward messages move the state apart, in units of its own."""
    m, P = read(space, mark, True)
    states = []
    for row in (old, new):
        eta, J = read(space, row, False)
        met = np.linalg.solve(np.eye(m.size) + P @ J, np.column_stack([m + P @ eta, P]))
        states.append((met[:, 0], np.diag(met[:, 1:])))
    (mean, variance), (moved_mean, width) = states
    known = variance > 1e-300
    if not known.any():
        return 0.0
    with np.errstate(over="ignore"):  # what overflows has moved
        off = np.abs(moved_mean - mean)[known] / np.sqrt(variance[known])
        wider = np.abs(width[known] / variance[known] - 1.0)
    return float(max(off.max(), wider.max()))


# --- Fixed point by forward and backward sweeps
#
# The forward pass uses the backward messages of the previous pass, and the other way round:
# sequential EP at the cost of filtering. The first pass is assumed-density filtering. If sites
# circle they are damped, starting from the best sweep. If no damping settles them they are held at
# zero precision or above.

#: Shares of the damping that are tried one after the other if likelihoods are not log-concave.
_SHARES = (1.0, 0.7, 0.5)
#: Number of sweeps after which an attempt ends if changes have not halved.
_PATIENCE = 20


@dataclass(kw_only=True)
class SweepResult(Ended):
    """End of the sweeps; the sites are those of the rows."""

    summary: Summary = NO_SUMMARY


def settle(
    rows: Rows, limits: Limits, trace: Trace | None = None, warm: bool = False
) -> SweepResult:
    """Sweep until the sites no longer change; leave forward messages and a summary.

    Raises
    ------
    NumericalError
        If sites grow without bound, or leave no proper posterior.
    """
    trace = trace or Trace()
    free = not rows.nonnegative
    if warm:
        rows.refresh()
    end = None
    best = _sites(rows) if free else None
    for share in _SHARES if free else _SHARES[:1]:
        if share < 1.0:
            assert best is not None
            rows.tau[:], rows.nu[:] = best
            rows.refresh()
        end, best = _sweeps(rows, limits, share, trace, hold=not free, best=best)
        if end.settled and _finish(rows, end):
            return end
    if not free:
        assert end is not None
        _require(_finish(rows, end))
        return end
    # The last resort holds precisions at zero or above, starting from the best sweep.
    assert best is not None
    rows.tau[:], rows.nu[:] = best
    negative = rows.tau < 0.0
    rows.tau[negative] = rows.nu[negative] = 0.0
    rows.refresh()
    end, _ = _sweeps(rows, limits, 1.0, trace, hold=True, best=None)
    _require(_finish(rows, end))
    end.held = rows.negative(end.summary, HELD)
    return end


def _sites(rows: Rows) -> Sites:
    return Sites(rows.tau.copy(), rows.nu.copy())


def _require(proper: bool) -> None:
    if not proper:
        raise NumericalError(
            "the sites leave no proper posterior in double precision: the kernel's variance is "
            "too large for its noise, or sites to start from were negative"
        )


class _Patience:
    """Step control that ends attempts whose changes no longer halve, and keeps the best sites."""

    def __init__(self, rows: Rows, share: float, hold: bool, best: Sites | None) -> None:
        self.share, self.best = share, best
        self._rows, self._hold, self._least = rows, hold, math.inf
        self._history: list[float] = []

    def ends(self, swept: Swept) -> bool:
        """Decide whether changes no longer shrink."""
        if self._hold:
            return False
        if swept.change < self._least:
            self.best = _sites(self._rows)
        self._least = min(self._least, swept.change)
        history = self._history
        history.append(swept.change)
        late, early = history[-_PATIENCE:], history[:-_PATIENCE]
        return len(history) > 2 * _PATIENCE and min(late) > 0.5 * min(early)


def _sweeps(
    rows: Rows, limits: Limits, share: float, trace: Trace, *, hold: bool, best: Sites | None
) -> tuple[SweepResult, Sites | None]:
    """Sweep within the limits; return how it ended, and the sites after the best sweep."""
    shortened = rows.tau.size * (share * limits.damping < 1.0)

    def sweep(damping: float) -> Swept:
        swept = rows.sweep(damping, hold)
        if hold and not math.isfinite(swept.change):
            raise unbounded(f"site {swept.worst}")
        return swept._replace(shortened=shortened)

    steering = _Patience(rows, share, hold, best)
    settled, last = swept_until(sweep, limits, steering, trace)
    return SweepResult(settled=settled, worst=last.worst, trace=trace), steering.best


def _finish(rows: Rows, end: SweepResult) -> bool:
    """Store the summary; return whether the posterior is proper."""
    end.summary = rows.finish()
    return end.summary.proper
