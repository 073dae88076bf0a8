"""The passes over a series, and what they find."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.inference.fixed_point.loop import Swept
from qpruntime.inference.markov.any_factors import careful_pass, careful_sweep
from qpruntime.inference.markov.any_numbers import wide_pass, wide_slope, wide_sweep
from qpruntime.inference.markov.evidence import Summary, cavities, summarise
from qpruntime.inference.markov.messages import factored, multiplied, opening, read, width, written
from qpruntime.inference.markov.observations import Series
from qpruntime.inference.markov.report import Report
from qpruntime.inference.markov.tally import Tally
from qpruntime.inference.markov.three_numbers import trio_pass, trio_slope, trio_sweep
from qpruntime.inference.markov.two_numbers import pair_pass, pair_slope, pair_sweep
from qpruntime.inference.sites import Sites
from qpruntime.jit import plain
from qpruntime.kernels.state_space import StateSpace
from qpruntime.projection.kernel import EP, raise_status
from qpruntime.quadrature.sigma_star import OK

__all__ = ["NOTHING", "Rows"]

#: No report is wanted.
NOTHING = np.empty((0, 4))
#: A site's precision in units of the prior's from which on covariances lose more than 1e-11.
_OUTWEIGHED = 1e6


def _kernels(space: StateSpace, begin: float) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """What passes take of a kernel, and those of its state: a pass, a sweep and the gradient's."""
    if space.pair is not None:
        return space.pair, (pair_pass, pair_sweep, pair_slope)
    if space.trio is not None:
        return space.trio, (trio_pass, trio_sweep, trio_slope)
    return space.arrays(begin), (wide_pass, wide_sweep, wide_slope)


class Rows:
    """A series under one kernel, with a buffer of messages and the sites it is to have.

    Parameters
    ----------
    series : Series
    space : StateSpace
    sites : Sites
        About the prior mean; changed in place by `sweep`.
    edges : ndarray, shape (2, width), optional
        Messages from before the first row and from behind the last one: by default the prior, and
        nothing.
    """

    def __init__(
        self, series: Series, space: StateSpace, sites: Sites, edges: Array | None = None
    ) -> None:
        self.series, self.space = series, space
        self.tau, self.nu = sites
        self.noise = space.noise
        self.edges = np.zeros((4, width(space)))
        self.edges[:2] = opening(space, float(series.t[0])) if edges is None else edges
        self.buffer = np.zeros((self.tau.size, self.edges.shape[1]))
        self.chain, self._kernels = _kernels(space, float(series.t[0]))
        self._careful = False

    @cached_property
    def _functions(self) -> tuple[Any, ...]:
        """Functions of the series as plain tuples; made once, not at every pass."""
        return plain(self.series.functions)

    def run(self, ahead: bool, report: Array = NOTHING) -> None:
        """Pass with the sites as they are; fill a report (N, 4) if there is one."""
        if self._adapt() and report.shape[0]:
            self._run(not ahead, NOTHING)
        self._run(ahead, report)

    def _run(self, ahead: bool, report: Array) -> None:
        run = careful_pass if self._careful else self._kernels[0]
        chain, steps, observed, sites, (buffer, _) = self._given()
        edges = self._edges()
        run(chain, steps, observed, sites, (buffer, edges), ahead, report)
        self._keep(edges, ahead)

    def _adapt(self) -> bool:
        """Take to factors where sites outweigh the prior; return whether the buffer is void.

        Covariances lose as many digits as precisions times the variance of f have. Sites below zero
        are for covariances alone.
        """
        if self._kernels[1] is not wide_sweep or not self.tau.size:
            return False
        before, h = self._careful, self.series.scales
        careful = bool(self.tau.min() >= 0.0)
        if careful and not before:
            share = h * h * self.tau
            most = float(np.max(share / (1.0 + self.noise * share)))
            careful = most * self._variance >= _OUTWEIGHED
        self._careful = careful
        return careful != before

    @cached_property
    def _variance(self) -> float:
        """Largest variance of f under the prior."""
        ends = (float(self.series.t[i]) for i in (0, -1))
        return max(float(a[5] @ a[6] @ a[5]) for a in map(self.space.arrays, ends))

    def _edges(self) -> Array:
        """Messages that passes begin with, as they take them."""
        if not self._careful:
            return self.edges
        found = np.zeros_like(self.edges)
        for k, ahead in enumerate((True, False)):
            found[k] = factored(*read(self.space, self.edges[k], ahead), ahead)
        return found

    def _keep(self, edges: Array, ahead: bool) -> None:
        """Keep the message that a pass has ended with."""
        if self._careful:
            k = 2 if ahead else 3
            self.edges[k] = self._plain(edges[k], ahead)

    def _plain(self, row: Array, ahead: bool) -> Array:
        """A message in factors as `messages` writes it."""
        return written(self.space, *multiplied(row, self.space.dimension, ahead), ahead)

    def marks(self, every: int) -> Array:
        """The messages that the buffer holds of one row in so many, forward ones."""
        found = self.buffer[::every].copy()
        return np.array([self._plain(row, True) for row in found]) if self._careful else found

    def refresh(self) -> None:
        """Make messages those of the sites, which were set from outside."""
        self.run(ahead=False)

    def sweep(self, damping: float, hold: bool) -> Swept:
        """Update every site twice, forwards and backwards; the change is the larger one, rms."""
        tally, change = Tally(), 0.0
        for ahead in (True, False):
            tally.begin_pass()
            self.update(ahead, damping, hold, tally)
            change = max(change, tally.change(self.tau.size))
            if not math.isfinite(change):
                break
        return Swept(change, tally.worst, tally.counts)

    def update(self, ahead: bool, damping: float, hold: bool, tally: Tally) -> None:
        """Pass that updates every site."""
        series = self.series
        projector = series.projector
        functions = self._functions
        closed = bool(series.plain and projector.source[0] == EP and functions[1])
        if self._adapt():
            self._run(not ahead, NOTHING)
        run = careful_sweep if self._careful else self._kernels[1]
        edges = self._edges()
        status, site = run(
            self.chain,
            series.steps,
            (self.noise, series.scales, series.y, series.prior, series.exponents),
            (self.tau, self.nu),
            (self.buffer, edges),
            ahead,
            (functions, projector.source, series.power, damping, hold, closed),
            tally.sums,
        )
        if status != OK:
            place = *tally.cavity, series.y[site]
            raise_status(status, projector.likelihood, *place, projector.table)
        self._keep(edges, ahead)

    @property
    def nonnegative(self) -> bool:
        """Whether no site precision can be negative."""
        return self.series.nonnegative

    def report(self) -> Report:
        """Cavities and forward messages of every row; leave forward messages behind.

        The backward messages are those of the pass before.
        """
        found = np.empty((self.tau.size, 4))
        self.run(ahead=True, report=found)
        return Report(found)

    def finish(self) -> Summary:
        """What the sites stand for; leave forward messages behind."""
        return summarise(self, self.report())

    def cavities(self) -> tuple[Array, Array]:
        """Means and standard deviations of the cavities of g, each of shape (N,)."""
        self.refresh()
        return cavities(self, self.report())

    def negative(self, summary: Summary, least: float) -> int:
        """How many precisions would be below -`least` marginal ones were they free."""
        tau, nu, buffer = self.tau.copy(), self.nu.copy(), self.buffer.copy()
        self.refresh()
        self.update(True, 1.0, False, Tally())
        found = int(np.sum(self.tau * summary.variance < -least))
        self.tau[:], self.nu[:], self.buffer[:] = tau, nu, buffer
        return found

    def slope(self) -> Array:
        """Sums that the gradient is made of; the buffer has to hold forward messages."""
        if self._careful:
            # Sums have no factors: covariances do.
            self._careful = False
            self._run(True, NOTHING)
        d = self.space.dimension
        far = self.space.far()
        first = self.series.before is None
        short = self.space.pair is not None or self.space.trio is not None
        size = 2 if self.space.pair is not None else d
        sums = np.zeros((4, size, size))
        rate = self.space.terms[0].factors[0].rate if short else 1.0
        self._kernels[2](*self._given(), (float(far[0] * rate) if short else far, first), sums)
        return sums[:, :d, :d]

    def _given(self) -> tuple[Any, ...]:
        """What every pass takes that leaves the sites as they are."""
        series = self.series
        observed, sites = (self.noise, series.scales), (self.tau, self.nu)
        return self.chain, series.steps, observed, sites, (self.buffer, self.edges)
