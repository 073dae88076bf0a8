"""Markov effects along time with two numbers at each time: a value, and what moves it.

A cycle without a fixed period is a swing that random shocks keep going:
x'' + 2 a x' + (a^2 + w^2) x = white noise, whose covariance is
sd^2 exp(-a |t|) (cos(w |t|) + (a/w) sin(w |t|)), with w = 2 pi/period and a = 1/(turns period).

A damped trend is a level whose slope reverts to zero: x' = v and v' = -v/length + white noise, an
integrated Ornstein-Uhlenbeck process. A short length makes it a random walk, and a long one a
straight line.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime.dataframes.readers import DataColumns
from qpruntime.effects.term import (
    COMPLEX_STEP,
    DEVIATION,
    LOG_DEVIATION,
    BlockPattern,
    EffectBlock,
    NormalPrior,
    Term,
    deviation_prior,
    with_complex_step,
)

__all__ = ["Cycle", "Damped", "Numbers", "inverted"]

#: Real or complex numbers.
Numbers = NDArray[Any]


@restorable("pair-block/1")
class PairBlock(EffectBlock):
    """Values and slopes at K times, Markov from one to the next.

    The first entry of theta is the logarithm of a standard deviation, which scales both numbers.

    Parameters
    ----------
    name, column : str
    times : ndarray, shape (K,)
        Rising.
    """

    moves = True

    def __init__(self, name: str, column: str, times: Array) -> None:
        self.name, self.column, self.times = name, column, times
        self.labels = np.repeat(times, 2)
        self.gaps, self.which = np.unique(np.diff(times), return_inverse=True)
        K = len(times)
        first = 2 * np.arange(K)
        rows = [first, first, first + 1, first + 1]
        columns = [first, first + 1, first, first + 1]
        for i in (0, 1):
            for j in (0, 1):
                rows += [first[:-1] + i, first[1:] + j]
                columns += [first[1:] + j, first[:-1] + i]
        self.pattern = BlockPattern(np.concatenate(rows), np.concatenate(columns), 2 * K)

    @abstractmethod
    def transition(self, gaps: Array | float, theta: Numbers) -> tuple[Numbers, Numbers]:
        """Return transitions and covariances of innovations, (..., 2, 2), for sd = 1.

        theta may be complex.
        """

    def first_variance(self, theta: Numbers) -> complex:
        """Return the variance of both numbers at the first time, for sd = 1."""
        return 1.0

    def _parts(self, theta: Numbers) -> tuple[Numbers, complex]:
        """Return the pattern's entries and the log determinant of the covariance, for sd = 1."""
        A, Q = self.transition(self.gaps, theta)
        first = self.first_variance(theta)
        inverse, log_det = inverted(Q)
        into = (inverse @ A)[self.which]
        back = (A.swapaxes(1, 2) @ inverse @ A)[self.which]
        diagonal = np.zeros((len(self.times), 2, 2), dtype=A.dtype)
        diagonal[0] = np.eye(2) / first
        diagonal[1:] += inverse[self.which]
        diagonal[:-1] += back
        flat = [diagonal[:, i, j] for i in (0, 1) for j in (0, 1)]
        for i in (0, 1):
            for j in (0, 1):
                flat += [-into[:, j, i]] * 2
        return np.concatenate(flat), log_det[self.which].sum() + 2.0 * np.log(first)

    def _moved(self, theta: Array) -> tuple[Array, float, list[Array], list[float]]:
        """Return entries and log determinant for sd = 1, and their slopes by the rest of theta."""
        slopes, log_slopes = [], []
        for k in range(1, len(theta)):
            flat, log_det = self._parts(with_complex_step(theta, k))
            slopes.append(self.pattern.added(flat.imag / COMPLEX_STEP))
            log_slopes.append(float(log_det.imag / COMPLEX_STEP))
        return self.pattern.added(flat.real), float(log_det.real), slopes, log_slopes

    def entries(self, theta: Array) -> tuple[Array, Array]:
        """Return the entries of neighbouring 2 x 2 blocks."""
        block, _, slopes, _ = self._moved(theta)
        scale = np.exp(-2.0 * theta[0])
        return scale * block, scale * np.array([-2.0 * block, *slopes])

    def log_det(self, theta: Array) -> tuple[float, Array]:
        """Return the log determinant, a sum over the innovation covariances of the times."""
        _, value, _, slopes = self._moved(theta)
        n = float(self.size)
        return -2.0 * n * float(theta[0]) - value, np.array([-2.0 * n, *(-s for s in slopes)])

    def readings(self) -> tuple[NDArray[Any], sparse.csr_array]:
        """Return the design of the values without their slopes."""
        K = len(self.times)
        shape = (K, self.size)
        rows = np.arange(K)
        return self.times, sparse.csr_array((np.ones(K), (rows, 2 * rows)), shape=shape)


def inverted(Q: Numbers) -> tuple[Numbers, Numbers]:
    """Return inverses of matrices of two rows, and log determinants."""
    a, b, c, d = Q[..., 0, 0], Q[..., 0, 1], Q[..., 1, 0], Q[..., 1, 1]
    det = a * d - b * c
    rows = [[d / det, -b / det], [-c / det, a / det]]
    return np.moveaxis(np.array(rows), (0, 1), (-2, -1)), np.log(det)


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


#: The prior of log(length) is normal around this share of the span, with standard deviation 1.
#: Around 0.1, the CRPS of 13 held-out series was 3 % larger (geometric mean).
_SHARE, _LENGTH = 0.25, 1.0
#: Bounds of log(length) around that centre: beyond them the trend is a walk or a line.
_FAR_PULL = 3.0


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
        self.bounds = np.array([LOG_DEVIATION, (centre - _FAR_PULL, centre + _FAR_PULL)])

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
