"""What is to be inferred of a series, in order of time, and the passes over it."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.inference.markov.pair import pair_pass, pair_slope, pair_sweep
from qpruntime.inference.markov.state_space import StateSpace
from qpruntime.inference.markov.wide import wide_pass, wide_slope, wide_sweep
from qpruntime.inference.sites import Sites
from qpruntime.jit import plain
from qpruntime.projection.kernel import EP, raise_status
from qpruntime.projection.opening import shipped
from qpruntime.projection.projector import Projector
from qpruntime.quadrature.sigma_star import OK

__all__ = ["NOTHING", "Rows", "Series"]

#: No report is wanted.
NOTHING = np.empty((0, 4))


@dataclass(frozen=True)
class Series:
    """A series, sorted: times t, observations y, prior means of g = scale f + noise (N,).

    `power` is that of power EP, `weights` (N,) are powers of the single likelihoods; `bounded`
    holds precisions at zero or above also where the likelihood is not log-concave.
    """

    t: Array
    y: Array
    projector: Projector
    prior: Array
    weights: Array | None = None
    scale: Array | None = None
    power: float = 1.0
    bounded: bool = False

    def __getstate__(self) -> dict[str, Any]:
        # Addresses of compiled functions mean nothing in another process, and predictions need no
        # likelihood: it is kept where it can be, for rows that are still to come.
        found = {name: getattr(self, name) for name in _FIELDS}
        own, kept = self.projector, None
        if own is not None and (own.table is None or own.table is shipped(own.likelihood)):
            kept = own.likelihood, own.method, "exact" if own.table is None else None, own.p
        try:
            pickle.dumps(kept)
        except Exception:  # of a user's function, whatever it is
            kept = None
        return {**found, "projector": kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        kept = state["projector"]
        projector = None if kept is None else Projector(*kept)
        for name, value in {**state, "projector": projector}.items():
            object.__setattr__(self, name, value)

    @cached_property
    def steps(self) -> Array:
        """Times between rows, and a last one of 0, shape (N,)."""
        return np.append(np.diff(self.t), 0.0)

    @cached_property
    def scales(self) -> Array:
        """`scale`, 1 by default."""
        return np.ones(self.t.size) if self.scale is None else self.scale

    @cached_property
    def exponents(self) -> Array:
        """`weights`, 1 by default."""
        return np.ones(self.t.size) if self.weights is None else self.weights

    @property
    def plain(self) -> bool:
        """Whether likelihoods are taken as they are."""
        return self.power == 1.0 and self.weights is None

    @property
    def nonnegative(self) -> bool:
        """Whether no site precision can be negative."""
        concave = self.projector.likelihood.log_concave and self.projector.method != "wp"
        return bool(self.bounded or concave)

    @property
    def functions(self) -> tuple[Any, ...]:
        """What kernels take of the likelihood; powers other than 1 need another rule."""
        if self.plain:
            return self.projector.functions
        return self.projector.likelihood.functions(powers=True)


_FIELDS = ("t", "y", "prior", "weights", "scale", "power", "bounded")


class Rows:
    """A series under one kernel, with a buffer of messages and the sites it is to have.

    Parameters
    ----------
    series : Series
    space : StateSpace
    sites : Sites
        About the prior mean; changed in place by `sweep`.
    """

    def __init__(self, series: Series, space: StateSpace, sites: Sites) -> None:
        self.series, self.space = series, space
        self.tau, self.nu = sites
        self.pair = space.pair is not None
        self.noise = space.noise
        d = space.dimension
        width = 5 if self.pair else d + d * (d + 1) // 2
        self.buffer = np.zeros((self.tau.size, width))
        self.chain = space.pair or space.arrays(float(series.t[0]))

    @cached_property
    def _functions(self) -> tuple[Any, ...]:
        """Those of the series; made plain once, not at every pass."""
        return plain(self.series.functions)

    def run(self, ahead: bool, report: Array = NOTHING) -> None:
        """Pass with the sites as they are; fill a report (N, 4) if there is one."""
        run = pair_pass if self.pair else wide_pass
        run(*self._given(), self.buffer, ahead, report)

    def sweep(self, ahead: bool, damping: float, hold: bool, found: Array) -> None:
        """Pass that updates every site; `found` is that of `revise`."""
        series = self.series
        projector = series.projector
        functions = self._functions
        closed = bool(series.plain and projector.source[0] == EP and functions[1])
        run = pair_sweep if self.pair else wide_sweep
        status, site = run(
            self.chain,
            series.steps,
            (self.noise, series.scales, series.y, series.prior, series.exponents),
            (self.tau, self.nu),
            self.buffer,
            ahead,
            (functions, projector.source, series.power, damping, hold, closed),
            found,
        )
        if status != OK:
            place = found[10], found[11], series.y[site]
            raise_status(status, projector.likelihood, *place, projector.table)

    def slope(self) -> Array:
        """Sums that the gradient is made of; the buffer has to hold forward messages."""
        d = self.space.dimension
        far = self.space.far()
        if self.pair:
            sums = np.zeros((4, 2, 2))
            reach = float(far[0] * self.chain[1])
            pair_slope(*self._given(), self.buffer, reach, sums)
            return sums[:, :d, :d]
        sums = np.zeros((4, d, d))
        wide_slope(*self._given(), self.buffer, far, sums)
        return sums

    def _given(self) -> tuple[Any, ...]:
        """What every pass takes that leaves the sites as they are."""
        series = self.series
        return self.chain, series.steps, (self.noise, series.scales), (self.tau, self.nu)
