"""Damped trends: a level whose slope reverts to zero, as an effect of times.

x' = v and v' = -v/length + white noise, an integrated Ornstein-Uhlenbeck process. A short length
makes it a random walk, and a long one a straight line.
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
    EffectBlock,
    NormalPrior,
    Term,
    deviation_prior,
)
from qpruntime.forecasting.pairs import Numbers, PairBlock

__all__ = ["Damped", "DampedBlock"]

#: The prior of log(length) is normal around this share of the span, with standard deviation 1.
#: Around 0.1, the CRPS of 13 held-out series was 3 % larger (geometric mean).
_SHARE, _LENGTH = 0.25, 1.0
#: Bounds of log(length) around that centre: beyond them the trend is a walk or a line.
_FAR = 3.0


@restorable("damped/1")
class Damped(Term):
    """A smooth function of times whose slope reverts to zero.

    Parameters
    ----------
    column : str
        Numbers.
    knots : int
        Equally spaced times with a value and a slope each; the function is straight between them.
    prior : (limit, probability)
        P(sd > limit) = probability; sd is the root mean square of the function about its mean.
    """

    def __init__(self, column: str, knots: int, *, prior: tuple[float, float] = DEVIATION) -> None:
        self.column, self.knots, self.prior = column, knots, prior

    def __repr__(self) -> str:
        return f"Damped({self.column!r}, {self.knots})"

    @property
    def name(self) -> str:
        """Name of the part."""
        return f"damped({self.column})"

    def bind(self, data: DataColumns, weights: Array | None = None) -> EffectBlock:
        """Return the block with knots over the range of the column."""
        return DampedBlock(self, data)


@restorable("damped-block/1")
class DampedBlock(PairBlock):
    """Values and slopes at K knots; theta has the logarithms of sd and of length.

    The value at the first knot is arbitrary: a model needs an intercept beside it.
    """

    def __init__(self, term: Damped, data: DataColumns) -> None:
        values = data.numbers(term.column)
        knots = np.linspace(values.min(), values.max(), term.knots)
        super().__init__(term.name, term.column, knots)
        # Rounding must not make several gaps of one.
        self.gaps, self.which = np.ones(1), np.zeros(term.knots - 1, dtype=np.intp)
        self.spacing = float(knots[1] - knots[0])
        self.parameters = ("log sd", "log length")
        centre = float(np.log(_SHARE * (knots[-1] - knots[0])))
        self.priors = (deviation_prior(term.prior), NormalPrior(_LENGTH, centre))
        self.start = np.array([np.log(0.5), centre])
        self.bounds = np.array([LOG_DEVIATION, (centre - _FAR, centre + _FAR)])

    def first_variance(self, theta: Numbers) -> complex:
        """Return the slope's variance per knot that makes the mean variance of the value 1."""
        span = len(self.times) - 1.0
        u: complex = span * self.spacing * np.exp(-theta[1])
        e: complex = np.exp(-u)
        return 0.5 * u**4 / span**2 / (u**3 / 6.0 - u**2 / 2.0 + u - 1.0 + e)

    def transition(self, gaps: Array | float, theta: Numbers) -> tuple[Numbers, Numbers]:
        """Return the transition over gaps between knots."""
        length = np.exp(theta[1]) / self.spacing
        e = np.exp(-gaps / length)
        cross = length * (1.0 - e) ** 2
        value = 2.0 * length * gaps - length**2 * (1.0 - e) * (3.0 - e)
        A = [[np.ones_like(e), length * (1.0 - e)], [np.zeros_like(e), e]]
        Q = self.first_variance(theta) * np.array([[value, cross], [cross, 1.0 - e**2]])
        return np.moveaxis(np.array(A), (0, 1), (-2, -1)), np.moveaxis(Q, (0, 1), (-2, -1))

    def ahead(self, data: DataColumns, theta: Array) -> tuple[sparse.csr_array, Array]:
        """Interpolate between knots; beyond them the slope dies down."""
        K = len(self.times)
        position = (data.numbers(self.column) - self.times[0]) / self.spacing
        low = np.clip(np.floor(position), 0, K - 2).astype(np.intp)
        share = np.clip(position - low, 0.0, 1.0)
        beyond = np.maximum(position - (K - 1.0), 0.0) + np.minimum(position, 0.0)
        A, Q = self.transition(np.abs(beyond), theta)
        end = np.where(beyond > 0.0, 2 * K - 1, 1)
        rows = np.tile(np.arange(data.rows), 3)
        places = np.concatenate([2 * low, 2 * low + 2, end])
        weights = np.concatenate([1.0 - share, share, np.sign(beyond) * A[..., 0, 1]])
        design = sparse.coo_array((weights, (rows, places)), shape=(data.rows, self.size))
        variance = np.where(beyond == 0.0, 0.0, Q[..., 0, 0]) * np.exp(2.0 * theta[0])
        return sparse.csr_array(design), variance

    def columns(self, data: DataColumns) -> sparse.csr_array:
        """Return the design that interpolates between knots."""
        return self.ahead(data, self.start)[0]

    def deviations(self, theta: Array) -> dict[str, Array]:
        """Return the standard deviation, and the length in units of the column."""
        return {"sd": np.exp(theta[0]), "length": np.exp(theta[1])}
