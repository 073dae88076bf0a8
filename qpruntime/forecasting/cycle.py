"""Cycles without a fixed period, as an effect of times: a swing that random shocks keep going.

x'' + 2 a x' + (a^2 + w^2) x = white noise, whose covariance is
sd^2 exp(-a |t|) (cos(w |t|) + (a/w) sin(w |t|)), with w = 2 pi/period and a = 1/(turns period).
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime.dataframes.readers import DataColumns
from qpruntime.effects.term import (
    DEVIATION,
    LOG_DEVIATION,
    NormalPrior,
    Term,
    deviation_prior,
)
from qpruntime.forecasting.pairs import Numbers, PairBlock, inverted

__all__ = ["Cycle", "CycleBlock"]

# Prior standard deviations of log(period), around where it starts, and of log(turns), around 0.
_PERIOD, _TURNS = 0.5, 1.0
# Bounds of the same: what dies down within a third of a turn is noise that lasts.
_FAR, _LOG_TURNS = 0.7, (np.log(0.3), np.log(20.0))


@restorable("cycle/1")
class Cycle(Term):
    """A stationary swing of the times in a column.

    Parameters
    ----------
    column : str
        Of numbers; times that occur have an effect each, and a slope.
    period : float
        About so long a cycle is: where the search starts.
    prior : (limit, probability)
        P(sd > limit) = probability.
    """

    def __init__(
        self, column: str, period: float, *, prior: tuple[float, float] = DEVIATION
    ) -> None:
        self.column, self.period, self.prior = column, period, prior

    def __repr__(self) -> str:
        return f"Cycle({self.column!r}, {self.period:g})"

    @property
    def name(self) -> str:
        """Name of the part."""
        return f"cycle({self.column})"

    def bind(self, data: DataColumns, weights: Array | None = None) -> CycleBlock:
        """Return the block for the times of these rows."""
        return CycleBlock(self, data)


@restorable("cycle-block/1")
class CycleBlock(PairBlock):
    """Values and scaled slopes at K times, Markov from one to the next.

    theta has the logarithms of the standard deviation, of the period and of the turns, how many
    cycles correlation lasts.
    """

    def __init__(self, term: Cycle, data: DataColumns) -> None:
        super().__init__(term.name, term.column, np.unique(data.numbers(term.column)))
        self.parameters = ("log sd", "log period", "log turns")
        self.start = np.array([np.log(0.5), np.log(term.period), 0.0])
        centre = float(self.start[1])
        self.priors = (
            deviation_prior(term.prior),
            NormalPrior(_PERIOD, centre),
            NormalPrior(_TURNS),
        )
        period = (centre - _FAR, centre + _FAR)
        self.bounds = np.array([LOG_DEVIATION, period, _LOG_TURNS])

    def columns(self, data: DataColumns) -> sparse.csr_array:
        """Return a design with ones at the times of the rows."""
        place = np.searchsorted(self.times, data.numbers(self.column))
        rows = np.arange(data.rows)
        shape = (data.rows, self.size)
        return sparse.csr_array((np.ones(data.rows), (rows, 2 * place)), shape=shape)

    def transition(self, gaps: Array | float, theta: Numbers) -> tuple[Numbers, Numbers]:
        """Return the transition over gaps; both numbers have variance 1 at all times."""
        A = transitions(gaps, theta[1], theta[2])
        return A, np.eye(2) - A @ A.swapaxes(-1, -2)

    def ahead(self, data: DataColumns, theta: Array) -> tuple[sparse.csr_array, Array]:
        """Predict new times from their neighbours; beyond the ends the swing dies down."""
        times = data.numbers(self.column)
        K, T = len(self.times), data.rows
        right = np.searchsorted(self.times, times)
        after = np.minimum(right, K - 1)
        known = self.times[after] == times
        weights, variance = np.zeros((T, 2, 2)), np.zeros(T)
        weights[known, 1, 0] = 1.0
        new = np.flatnonzero(~known)
        before = np.where(right > 0, right - 1, 0)
        for t in new:
            P, mean = np.eye(2), np.zeros((2, 2, 2))
            if right[t] > 0:
                A, Q = self.transition(times[t] - self.times[before[t]], theta)
                P = inverted(Q)[0]
                mean[0] = P @ A
            if right[t] < K:
                A, Q = self.transition(self.times[after[t]] - times[t], theta)
                inverse = inverted(Q)[0]
                P = P + A.T @ inverse @ A
                mean[1] = A.T @ inverse
            covariance = np.linalg.inv(P)
            weights[t] = (covariance @ mean)[:, 0]
            variance[t] = covariance[0, 0]
        rows = np.repeat(np.arange(T), 4)
        places = np.stack([2 * before, 2 * before + 1, 2 * after, 2 * after + 1], axis=1)
        shape = (T, self.size)
        design = sparse.coo_array((weights.ravel(), (rows, places.ravel())), shape=shape)
        return sparse.csr_array(design), variance * np.exp(2.0 * theta[0])

    def deviations(self, theta: Array) -> dict[str, Array]:
        """Return standard deviation, period in units of the column, and turns."""
        sd, period, turns = np.exp(theta)
        return {"sd": sd, "period": period, "turns": turns}


def transitions(gaps: Array | float, log_period: complex, log_turns: complex) -> Numbers:
    """Return exp(F gap) for value and slope over sqrt(a^2 + w^2), with variance 1: (..., 2, 2)."""
    period = np.exp(log_period)
    w, a = 2.0 * np.pi / period, 1.0 / (period * np.exp(log_turns))
    whole = np.sqrt(w * w + a * a)
    fade, c, s = np.exp(-a * gaps), np.cos(w * gaps), np.sin(w * gaps) / w
    rows = [[c + a * s, whole * s], [-whole * s, c - a * s]]
    return np.asarray(np.moveaxis(fade * np.array(rows), (0, 1), (-2, -1)))
