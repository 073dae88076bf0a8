"""A series in blocks of time, swept at several places at once: threads, or workers of a cluster.

Every round each block gets the messages at its borders, sweeps, and returns what it is to messages
(`transfer`); those of the next round follow exactly. Rows and sites stay where they are swept
(`parts`). Where a worker is lost its blocks begin anew, and from then on all sites travel.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.execution.calls import Divided, Executor, Threads
from qpruntime.inference.markov.evidence import Summary, joined
from qpruntime.inference.markov.messages import opening
from qpruntime.inference.markov.observations import Series
from qpruntime.inference.markov.parts import Part, Parts, Rest
from qpruntime.inference.markov.rows import Rows
from qpruntime.inference.markov.transfer import Transfer, folded, messages_between
from qpruntime.inference.schedules import Limits
from qpruntime.inference.sites import Sites
from qpruntime.kernels.state_space import StateSpace

__all__ = ["Blocks"]

#: Sweeps of a round: more are in vain where messages still change. The first round has more.
_SWEEPS, _FIRST = 3, 10


class Blocks:
    """`Rows` of a series in blocks; sites are changed in place once all has settled.

    Parameters
    ----------
    series, space, sites
        Those of `Rows`.
    executor : Executor
    parts : Parts
        Of the rows of this series.
    """

    def __init__(
        self, series: Series, space: StateSpace, sites: Sites, executor: Executor, parts: Parts
    ) -> None:
        self.series, self.space = series, space
        self.tau, self.nu = sites
        self._executor, self._parts = executor, parts
        none = series.t[:0]
        self._how = replace(series, t=none, y=none, prior=none, weights=None, scale=None)
        #: None before any sweep: no block knows of the others.
        self._edges: list[Array] | None = None
        #: Which sites parts are to have, whether ours are these, and whether they travel.
        self._version = -1
        self._known = [True] * len(parts)
        self._travel = not self.nonnegative
        self._last: tuple[Limits, bool] = (Limits(), True)

    @property
    def nonnegative(self) -> bool:
        """Whether no site precision can be negative."""
        return self.series.nonnegative

    def refresh(self) -> None:
        """Make messages those of the sites, which were set from outside."""
        # Folds take no messages: any will do.
        self._edges = [opening(self.space, float(self.series.t[0]))] * len(self._parts)
        self._version, self._known = self._parts.version(), [True] * len(self._parts)
        self._meet(self._run(_fold, range(len(self._parts)), True))

    def sweep(self, limits: Limits, hold: bool, found: Array) -> float:
        """Sweep every block a few times; return the largest change in the first of these, rms."""
        self._last = limits, hold
        every = range(len(self._parts))
        new = self._parts.version()
        ended = self._run(_sweep, every, self._travel, limits, hold, new, self._travel)
        self._version = new
        moves: list[Transfer] = []
        squares = 0.0
        for number, (sites, own, change, transfer, lost) in zip(every, ended, strict=True):
            some = self._parts.slices[number]
            self._known[number] = sites is not None
            if sites is not None:
                self.tau[some], self.nu[some] = sites
            squares += change * change * (some.stop - some.start)
            found[4:7] += own[4:7]
            if own[9] >= found[9]:
                found[8], found[9] = some.start + own[8], own[9]
            moves.append(transfer)
            self._travel |= lost
        self._meet(moves)
        return math.sqrt(squares / self.tau.size)

    def finish(self) -> Summary:
        """What the sites stand for; the sites are ours after that."""
        found = self._each(_finish)
        if any(one is None for one in found):
            # Their sites are lost: all have to settle once more, and to be sent here.
            self._travel = True
            limits, hold = self._last
            for _ in range(limits.sweeps):
                if self.sweep(limits, hold, np.zeros(12)) < limits.tol:
                    break
            found = self._each(_finish)
        for number, (some, (sites, _)) in enumerate(zip(self._parts.slices, found, strict=True)):
            self.tau[some], self.nu[some] = sites
            self._known[number] = True
        return joined([summary for _, summary in found])

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

    def _each(self, task: Any, *options: Any) -> list[Any]:
        """Return ``task(rows, *options)`` of every block; None where sites are lost, for good."""
        every = range(len(self._parts))
        found = self._run(_exactly, every, self._travel, task, options)
        lost = [number for number in every if found[number] is None and self._known[number]]
        again = self._run(_exactly, lost, True, task, options)
        for number, one in zip(lost, again, strict=True):
            found[number] = one
        return found

    def _run(self, task: Any, numbers: Any, send: bool, *options: Any) -> list[Any]:
        """Return ``task(part, rest, space, *options)`` of some blocks, with their sites or not."""
        items: list[Any] = []
        for number in numbers:
            some, sites = self._parts.slices[number], None
            if send and self._known[number] and self._edges is not None:
                sites = Sites(self.tau[some], self.nu[some])
            edges = None if self._edges is None else self._edges[number]
            rest = Rest(self._how, edges, self._version, sites)
            if isinstance(self._executor, Threads):
                items.append((self._parts.part(number), rest))
            else:
                items.append(Divided(self._parts, number, self._parts.part, rest))
        return self._executor.run(partial(_at_work, task, self.space, options), items)


def _at_work(task: Any, space: StateSpace, options: Any, given: tuple[Part, Rest]) -> Any:
    """Do a task on a block, wherever this runs."""
    part, rest = given
    if rest.how.projector is None:
        raise InputError(
            "this likelihood and its table do not travel to another process: give a registered "
            'one and table=None or "exact", or threads of this machine (workers)'
        )
    return task(part, rest, space, *options)


def _fold(part: Part, rest: Rest, space: StateSpace) -> Transfer:
    return folded(part.rows(rest, space))


def _sweep(
    part: Part, rest: Rest, space: StateSpace, limits: Limits, hold: bool, new: int, send: bool
) -> tuple[Any, ...]:
    """Sites if they are wanted, what `revise` found, the change, the step; if sites were lost.

    The change is that of the first sweep. Sites of a sweep before will do to begin with, or none.
    """
    begin = rest.edges is None
    lost = not begin and rest.sites is None and part.sites is None
    rows = part.begun(rest, space) if begin else part.rows(rest, space)
    rows.refresh()
    found = np.zeros(12)
    first = change = rows.sweep(limits, hold, found)
    for _ in range((_FIRST if begin or lost else _SWEEPS) - 1):
        if not limits.tol <= change < math.inf:
            break
        more = np.zeros(12)
        change = rows.sweep(limits, hold, more)
        found[4:7] += more[4:7]
    if begin:
        found[8] -= part.own.start
        rows = part.inside(rest, space, rows)
    part.version = new
    sites = Sites(rows.tau.copy(), rows.nu.copy()) if send else None
    return sites, found, first, folded(rows), lost


def _exactly(part: Part, rest: Rest, space: StateSpace, task: Any, options: Any) -> Any:
    """Do a task on rows with the very sites that are wanted; None if these are not here."""
    if rest.sites is None and part.version != rest.version:
        return None
    return task(part.rows(rest, space), *options)


def _finish(rows: Rows) -> tuple[Sites, Summary]:
    rows.refresh()
    return Sites(rows.tau.copy(), rows.nu.copy()), rows.finish()


def _cavities(rows: Rows) -> tuple[Array, Array]:
    return rows.cavities()


def _negative(rows: Rows, least: float) -> int:
    rows.refresh()
    return rows.negative(rows.finish(), least)


def _slope(rows: Rows) -> Array:
    rows.run(ahead=True)
    return rows.slope()
