"""A series in blocks of time, swept at several places at once: threads, or workers of a cluster.

Every round each block gets the messages at its borders, sweeps, and returns its sites and what it
is to messages (`transfer`); those of the next round follow exactly. A block that is lost is swept
again from what it was sent: workers keep nothing.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.execution.calls import Executor
from qpruntime.inference.markov.evidence import Summary, joined
from qpruntime.inference.markov.messages import opening
from qpruntime.inference.markov.observations import Series
from qpruntime.inference.markov.rows import Rows
from qpruntime.inference.markov.state_space import StateSpace
from qpruntime.inference.markov.transfer import Transfer, folded, messages_between
from qpruntime.inference.schedules import Limits
from qpruntime.inference.sites import Sites

__all__ = ["Blocks", "block_count"]

#: Rows of a block: its sweeps take a second, and it travels as some 10 MB.
ROWS = 250_000
#: Sweeps of a round: more are in vain where messages still change. The first round has more.
_SWEEPS, _FIRST = 3, 10
#: In the first round blocks know nothing of each other, and take in some of the rows around: so
#: many length-scales, at most this share of their own.
_LENGTHS, _SHARE = 12.0, 0.1


def block_count(n: int, blocks: int | None, places: int) -> int:
    """Return the number of blocks of n rows: as asked for, or for so many places."""
    if blocks is not None:
        return min(blocks, n)
    return max(1, min(max(places, math.ceil(n / ROWS)), n // 1000))


class Blocks:
    """`Rows` of a series in blocks; sites are changed in place.

    Parameters
    ----------
    series, space, sites
        Those of `Rows`.
    executor : Executor
    count : int
        Of blocks.
    """

    def __init__(
        self,
        series: Series,
        space: StateSpace,
        sites: Sites,
        executor: Executor,
        count: int,
    ) -> None:
        self.series, self.space = series, space
        self.tau, self.nu = sites
        self._executor = executor
        ends = np.linspace(0, series.t.size, count + 1).astype(int)
        self._parts = [slice(int(a), int(b)) for a, b in pairwise(ends)]
        self._series = [series.part(some) for some in self._parts]
        #: None before any sweep: no block knows of the others.
        self._edges: list[Array] | None = None

    @property
    def nonnegative(self) -> bool:
        """Whether no site precision can be negative."""
        return self.series.nonnegative

    def refresh(self) -> None:
        """Make messages those of the sites, which were set from outside."""
        # Folds take no messages: any will do.
        self._edges = [opening(self.space, float(part.t[0])) for part in self._series]
        self._meet(self._each(_fold))

    def sweep(self, limits: Limits, hold: bool, found: Array) -> float:
        """Sweep every block a few times; return the largest change in the first of these, rms."""
        moves: list[Transfer] = []
        squares = 0.0
        if self._edges is None:
            items = [self._wider(some) for some in self._parts]
            ended = self._run(_begin, items, limits, hold)
        else:
            ended = self._each(_sweep, limits, hold, _SWEEPS)
        for some, (tau, nu, own, change, transfer) in zip(self._parts, ended, strict=True):
            self.tau[some], self.nu[some] = tau, nu
            squares += change * change * tau.size
            found[4:7] += own[4:7]
            if own[9] >= found[9]:
                found[8], found[9] = some.start + own[8], own[9]
            moves.append(transfer)
        self._meet(moves)
        return math.sqrt(squares / self.tau.size)

    def finish(self) -> Summary:
        """What the sites stand for."""
        return joined(self._each(_finish))

    def cavities(self) -> tuple[Array, Array]:
        """Means and standard deviations of the cavities of g, each of shape (N,)."""
        mean, std = zip(*self._each(_cavities), strict=True)
        return np.concatenate(mean), np.concatenate(std)

    def negative(self, summary: Summary, least: float) -> int:
        """How many precisions would be below -`least` marginal ones were they free."""
        return sum(self._each(_negative, least))

    def slope(self) -> Array:
        """Sums that the gradient is made of."""
        total: Array = np.sum(self._each(_slope), axis=0)
        return total

    def _meet(self, moves: list[Transfer]) -> None:
        self._edges = messages_between(self.space, float(self.series.t[0]), moves)

    def _wider(self, some: slice) -> Any:
        """A block with rows around it, and where in these it is."""
        t, most = self.series.t, int(_SHARE * (some.stop - some.start))
        reach = _LENGTHS * self.space.memory()
        low = max(int(np.searchsorted(t, t[some.start] - reach)), some.start - most, 0)
        high = min(int(np.searchsorted(t, t[some.stop - 1] + reach)), some.stop + most, t.size)
        rows = slice(low, high)
        own = slice(some.start - low, some.stop - low)
        edges = opening(self.space, float(t[low]))
        return self.series.part(rows), self.tau[rows], self.nu[rows], edges, own

    def _each(self, task: Any, *options: Any) -> list[Any]:
        """Return ``task(rows, *options)`` of every block."""
        assert self._edges is not None
        return self._run(
            task,
            [
                (part, self.tau[some], self.nu[some], edges, None)
                for part, some, edges in zip(self._series, self._parts, self._edges, strict=True)
            ],
            *options,
        )

    def _run(self, task: Any, items: list[Any], *options: Any) -> list[Any]:
        return self._executor.run(partial(_at_work, task, self.space, options), items)


def _at_work(task: Any, space: StateSpace, options: tuple[Any, ...], item: Any) -> Any:
    """Do a task on a block, wherever this runs."""
    series, tau, nu, edges, own = item
    if series.projector is None:
        raise InputError(
            "this likelihood and its table do not travel to another process: give a registered "
            'one and table=None or "exact", or threads of this machine (workers)'
        )
    rows = Rows(series, space, Sites(tau.copy(), nu.copy()), edges)
    return task(rows, *options) if own is None else task(rows, own, *options)


def _fold(rows: Rows) -> Transfer:
    return folded(rows)


def _begin(rows: Rows, own: slice, limits: Limits, hold: bool) -> tuple[Any, ...]:
    """`_sweep` of a block among others, of which nothing is known."""
    _, _, found, change, _ = _sweep(rows, limits, hold, _FIRST)
    sites = Sites(rows.tau[own], rows.nu[own])
    found[8] -= own.start
    return *sites, found, change, folded(Rows(rows.series.part(own), rows.space, sites))


def _sweep(rows: Rows, limits: Limits, hold: bool, most: int) -> tuple[Any, ...]:
    """Sites, what `revise` found, the change of the first sweep, and the block as a step."""
    rows.refresh()
    found = np.zeros(12)
    first = change = rows.sweep(limits, hold, found)
    for _ in range(most - 1):
        if not limits.tol <= change < math.inf:
            break
        more = np.zeros(12)
        change = rows.sweep(limits, hold, more)
        found[4:7] += more[4:7]
    return rows.tau, rows.nu, found, first, None if most == _FIRST else folded(rows)


def _finish(rows: Rows) -> Summary:
    rows.refresh()
    return rows.finish()


def _cavities(rows: Rows) -> tuple[Array, Array]:
    return rows.cavities()


def _negative(rows: Rows, least: float) -> int:
    rows.refresh()
    return rows.negative(rows.finish(), least)


def _slope(rows: Rows) -> Array:
    rows.run(ahead=True)
    return rows.slope()
