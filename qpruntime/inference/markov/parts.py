"""A series in parts, each with its sites where it is swept: sent once, used by many calls."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from qpruntime.arrays import Array
from qpruntime.inference.markov.observations import Series
from qpruntime.inference.markov.rows import Rows
from qpruntime.inference.sites import Sites
from qpruntime.kernels.state_space import StateSpace

__all__ = ["Part", "Parts", "Rest", "block_count"]

#: Rows of a block: its sweeps take a second, and it travels as some 10 MB.
ROWS = 250_000
#: In the first round blocks know nothing of each other, and take in some of the rows around: so
#: many length-scales, at most this share of their own.
_LENGTHS, _SHARE = 12.0, 0.1


def block_count(n: int, blocks: int | None, places: int) -> int:
    """Return the number of blocks of n rows: as asked for, or for so many places."""
    if blocks is not None:
        return min(blocks, n)
    return max(1, min(max(places, math.ceil(n / ROWS)), n // 1000))


class Rest(NamedTuple):
    """What a call on a part takes that is not there: how rows are observed, and messages.

    `edges` are None where nothing is known of other parts. `version` is that of the sites that are
    meant, which are those handed over, if there are any.
    """

    how: Series
    edges: Array | None
    version: int
    sites: Sites | None


class Part:
    """Rows of a block, with some around it, and the sites that were last swept here.

    Copies of it go where calls are carried out, with the sites as they are then: their version
    tells whether they are those that are meant.
    """

    def __init__(self, wide: Series, own: slice) -> None:
        self.wide, self.own = wide, own
        self.sites: Sites | None = None
        self.version = -1

    def rows(self, rest: Rest, space: StateSpace) -> Rows:
        """Return the block with the sites handed over, or those that are here, or none."""
        series = _observed(self.wide.part(self.own), rest.how)
        if rest.sites is not None:
            self.sites, self.version = Sites(*(s.copy() for s in rest.sites)), rest.version
        elif self.sites is None:
            self.sites = _no_sites(series)
        return Rows(series, space, self.sites, rest.edges)

    def begun(self, rest: Rest, space: StateSpace) -> Rows:
        """Return the block among the rows around it, without sites."""
        return Rows(_observed(self.wide, rest.how), space, _no_sites(self.wide))

    def inside(self, rest: Rest, space: StateSpace, rows: Rows) -> Rows:
        """Return the block, with its sites among those of `begun`."""
        self.sites = Sites(rows.tau[self.own].copy(), rows.nu[self.own].copy())
        return self.rows(rest._replace(sites=None), space)


class Parts:
    """A series in so many parts; how they are observed may change, their columns not."""

    def __init__(self, series: Series, space: StateSpace, count: int) -> None:
        self._series = series
        ends = np.linspace(0, series.t.size, count + 1).astype(int)
        self.slices = [slice(int(a), int(b)) for a, b in pairwise(ends)]
        self._parts = [self._wider(some, _LENGTHS * space.memory()) for some in self.slices]
        self._version = 0

    def __len__(self) -> int:
        return len(self.slices)

    def are_of(self, series: Series) -> bool:
        """Whether these are parts of the very columns of a series."""
        columns = "t", "y", "prior", "weights", "scale"
        return all(getattr(series, name) is getattr(self._series, name) for name in columns)

    def part(self, number: int) -> Part:
        """Return a part."""
        return self._parts[number]

    def version(self) -> int:
        """Return a number that no sites have had."""
        self._version += 1
        return self._version

    def _wider(self, some: slice, reach: float) -> Part:
        """A block with rows around it."""
        t, most = self._series.t, int(_SHARE * (some.stop - some.start))
        low = max(int(np.searchsorted(t, t[some.start] - reach)), some.start - most, 0)
        high = min(int(np.searchsorted(t, t[some.stop - 1] + reach)), some.stop + most, t.size)
        wide = self._series.part(slice(low, high))
        return Part(wide, slice(some.start - low, some.stop - low))


def _observed(series: Series, how: Series) -> Series:
    found: Any = {name: getattr(how, name) for name in ("projector", "power", "bounded")}
    return replace(series, **found)


def _no_sites(series: Series) -> Sites:
    return Sites(np.zeros(series.t.size), np.zeros(series.t.size))
