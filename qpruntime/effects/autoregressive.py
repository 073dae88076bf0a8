"""Stationary effects along time: autoregression of first order, also over gaps.

Its covariance is Matern 1/2, sd^2 exp(-|t - s|/length): it is the same process as a kernel
Matern(nu=0.5) of `qpruntime.infer_series`, rho being exp(-step/length).
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
from scipy import sparse

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import choice, number, shown
from qpruntime.dataframes.readers import DataColumns
from qpruntime.effects.term import (
    DEVIATION,
    LOG_DEVIATION,
    BlockPattern,
    EffectBlock,
    NormalPrior,
    Term,
    deviation_prior,
)
from qpruntime.errors import InputError

__all__ = ["Autoregressive", "AutoregressiveBlock"]

# Prior standard deviation of atanh(rho): rho between -.99 and .99 with 92 %.
_CORRELATION = 1.5


@restorable("series-term/1")
class Autoregressive(Term):
    """An autoregressive effect of the times in a column.

    Parameters
    ----------
    column : str or int
        Numbers or times; those that occur have an effect each.
    kind : {"ar1"}
    step : float, optional
        Unit of time of the correlation rho, by default the least gap. Where a gap is no multiple of
        it rho is positive.
    prior : (limit, probability)
        P(sd > limit) = probability, for the standard deviation of the effect.

    See Also
    --------
    qpruntime.effects.EffectsModel, qpruntime.effects.Walk

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime.effects import Autoregressive, EffectsModel
    >>> week = np.arange(60)
    >>> y = np.random.default_rng(0).poisson(np.exp(1.0 + np.sin(week / 8.0)))
    >>> model = EffectsModel([Autoregressive("week")], "poisson").fit({"week": week}, y)
    >>> model.names_
    ('ar1(week): log sd', 'ar1(week): atanh rho')
    """

    def __init__(
        self,
        column: Hashable,
        kind: str = "ar1",
        *,
        step: float | None = None,
        prior: tuple[float, float] = DEVIATION,
    ) -> None:
        self.column, self.kind, self.step, self.prior = column, kind, step, prior

    def __repr__(self) -> str:
        return f"Autoregressive({self.column!r}, {self.kind!r})"

    @property
    def name(self) -> str:
        """Name of the part."""
        return f"{self.kind}({self.column})"

    def bind(self, data: DataColumns, weights: Array | None = None) -> AutoregressiveBlock:
        """Return the block for the times of these rows."""
        choice(self.kind, "kind of Autoregressive", ("ar1",))
        return AutoregressiveBlock(self, data)


@restorable("series-block/1")
class AutoregressiveBlock(EffectBlock):
    """Values at K times, Markov from one to the next."""

    moves = True

    def __init__(self, term: Autoregressive, data: DataColumns) -> None:
        self.name, self.column = term.name, term.column
        self.times = np.unique(data.numbers(term.column))
        K = len(self.times)
        if K < 2:
            raise InputError(f"column {shown(term.column)} of a series has one time: leave it out")
        gaps = np.diff(self.times)
        self.step = float(gaps.min())
        if term.step is not None:
            self.step = number(term.step, "step", above=0.0)
        self.gaps = gaps / self.step
        if (self.gaps < 1e-9).any() or (self.gaps > 1e9).any():
            raise InputError(
                f"gaps of column {shown(term.column)} reach from {gaps.min():g} to {gaps.max():g}: "
                "give times in another unit, or step="
            )
        # Error of a gap, in steps, that rounding of the times may cause.
        rounding = 4.0 * float(np.spacing(np.abs(self.times).max())) / self.step
        slack = np.maximum(1e-6, rounding * (1.0 + self.gaps))
        self.whole = bool((np.abs(self.gaps - np.round(self.gaps)) < slack).all())
        if self.whole:
            self.gaps = np.round(self.gaps)
        self.labels = self.times
        indices = np.arange(K)
        # Diagonal, then what stands beside it, twice.
        self.pattern = BlockPattern(
            np.concatenate([indices, indices[1:], indices[:-1]]),
            np.concatenate([indices, indices[:-1], indices[1:]]),
            K,
        )
        self.priors = (deviation_prior(term.prior), NormalPrior(_CORRELATION))
        self.parameters = ("log sd", "atanh rho")
        self.start = np.array([np.log(0.5), 0.55])
        self.bounds = np.array([LOG_DEVIATION, (-4.0 if self.whole else 1e-3, 7.0)])

    def columns(self, data: DataColumns) -> sparse.csr_array:
        """Ones at the times of the rows."""
        times = data.numbers(self.column)
        place = np.minimum(np.searchsorted(self.times, times), len(self.times) - 1)
        if (wrong := self.times[place] != times).any():
            raise InputError(f"{self.name} has no time {times[wrong][0]:g}")
        unit_entries = np.ones(data.rows)
        shape = (data.rows, self.size)
        return sparse.csr_array((unit_entries, (np.arange(data.rows), place)), shape=shape)

    def _power(self, gap: Array, t: float) -> Array:
        """Return rho to the power of gaps in steps."""
        size = np.exp(gap * np.log(np.tanh(abs(t)))) if t else np.where(gap == 0.0, 1.0, 0.0)
        if t < 0.0:
            if (np.abs(gap - np.round(gap)) > 1e-6).any():
                raise InputError(
                    f"{self.name} has a negative correlation, {np.tanh(t):.3g} a step of "
                    f"{self.step:g}: predict at whole steps from the data"
                )
            size = np.where(np.mod(np.round(gap), 2) == 1, -size, size)
        return size

    def ahead(self, data: DataColumns, theta: Array) -> tuple[sparse.csr_array, Array]:
        """Predict new times from their neighbours; the process goes on beyond the ends."""
        times, t = data.numbers(self.column), float(theta[1])
        K, T = len(self.times), data.rows
        right = np.searchsorted(self.times, times)
        known = (right < K) & (self.times[np.minimum(right, K - 1)] == times)
        before = np.where(known, right, right - 1)
        low, high = np.maximum(before, 0), np.minimum(right, K - 1)
        r1 = np.where(before >= 0, self._power(np.abs(times - self.times[low]) / self.step, t), 0.0)
        r2 = np.where(right < K, self._power(np.abs(self.times[high] - times) / self.step, t), 0.0)
        r1, r2 = np.where(known, 1.0, r1), np.where(known, 0.0, r2)
        determinant = 1.0 - (r1 * r2) ** 2
        left_weight, right_weight = (
            r1 * (1.0 - r2**2) / determinant,
            r2 * (1.0 - r1**2) / determinant,
        )
        variance = np.exp(2.0 * theta[0]) * (1.0 - r1**2) * (1.0 - r2**2) / determinant
        rows = np.arange(T)
        places = (np.concatenate([rows, rows]), np.concatenate([low, high]))
        design = sparse.coo_array(
            (np.concatenate([left_weight, right_weight]), places), shape=(T, self.size)
        )
        return sparse.csr_array(design), np.maximum(variance, 0.0)

    def _steps(self, t: float) -> tuple[Array, Array, Array]:
        """Correlations r of neighbours, their derivatives by atanh(rho), and 1 - r^2."""
        rho = np.tanh(t)
        r = self._power(self.gaps, t)
        slope = (
            self.gaps * (1.0 - rho**2) * (r / rho if t else np.where(self.gaps == 1.0, 1.0, 0.0))
        )
        innovation = -np.expm1(2.0 * self.gaps * np.log(abs(rho))) if t else np.ones(len(r))
        return r, slope, innovation

    def entries(self, theta: Array) -> tuple[Array, Array]:
        """Entries of the precision, which is tridiagonal."""
        r, slope, innovation = self._steps(float(theta[1]))
        diagonal = np.ones(self.size)
        diagonal[1:] += r**2 / innovation
        diagonal[:-1] += r**2 / innovation
        beside = -r / innovation
        by_r = 2.0 * r / innovation**2 * slope
        moved = np.zeros(self.size)
        moved[1:] += by_r
        moved[:-1] += by_r
        beside_moved = -(1.0 + r**2) / innovation**2 * slope
        scale = np.exp(-2.0 * theta[0])
        entries = scale * self.pattern.added(np.concatenate([diagonal, beside, beside]))
        by_rho = scale * self.pattern.added(np.concatenate([moved, beside_moved, beside_moved]))
        return entries, np.array([-2.0 * entries, by_rho])

    def log_det(self, theta: Array) -> tuple[float, Array]:
        """Return the log determinant, from the precisions of the innovations."""
        r, slope, innovation = self._steps(float(theta[1]))
        value = -2.0 * self.size * theta[0] - np.log(innovation).sum()
        return float(value), np.array(
            [-2.0 * self.size, float((2.0 * r * slope / innovation).sum())]
        )

    def deviations(self, theta: Array) -> dict[str, Array]:
        """Return the standard deviation, and the correlation over one step."""
        return {"sd": np.exp(theta[0]), "rho": np.tanh(theta[1])}
