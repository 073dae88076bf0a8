"""Terms and their blocks, with penalised-complexity priors."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import number, shown
from qpruntime.dataframes.readers import DataColumns
from qpruntime.errors import InputError

__all__ = [
    "COMPLEX_STEP",
    "LOG_DEVIATION",
    "BlockPattern",
    "EffectBlock",
    "NormalPrior",
    "Term",
    "UniformShare",
    "block_pattern",
    "deviation_prior",
    "diagonal_pattern",
    "units_of_columns",
    "with_complex_step",
]


#: Bounds of the logarithm of a standard deviation: the evidence is flat below, and no posterior
#: follows what is above in double precision.
LOG_DEVIATION = (np.log(1e-3), np.log(1e2))


class Term(ABC):
    """Part of the predictor as a user writes it."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the part in summaries."""

    @abstractmethod
    def bind(self, data: DataColumns, weights: Array | None = None) -> EffectBlock:
        """Return the block for these rows of data.

        Parameters
        ----------
        data : DataColumns
        weights : ndarray, shape (N,), optional
            Positive weights of the rows, for terms whose units are means and spreads of columns.

        Raises
        ------
        InputError
            If the data have no such columns, or what is in them is not usable.
        """


class EffectBlock(ABC):
    """One part of the predictor, bound to data.

    Attributes
    ----------
    name : str
    labels : ndarray, shape (K,)
        What the effects are of: levels, areas, times, numbers of nodes.
    pattern : BlockPattern
        Of the precision (K, K).
    parameters : tuple of str
        Names of theta's p entries, as in "log sd".
    start : ndarray, shape (p,)
    bounds : ndarray, shape (p, 2)
    priors : tuple of callable, length p
        Independent priors of theta's entries: log densities with their slopes.
    constraint : ndarray, shape (c, K), or None
        Rows C with C x = 0.
    moves : bool
        Whether the design of new rows follows theta, and not only its variance.
    """

    name: str
    labels: NDArray[Any]
    pattern: BlockPattern
    parameters: tuple[str, ...] = ()
    start: Array
    bounds: Array
    priors: tuple[Tail | NormalPrior | UniformShare, ...] = ()
    constraint: Array | None = None
    moves: bool = False

    @property
    def size(self) -> int:
        """Number of effects K."""
        return self.pattern.size

    @abstractmethod
    def columns(self, data: DataColumns) -> sparse.csr_array:
        """Design for the rows the block was bound to, or others of known levels, shape (N, K)."""

    def ahead(self, data: DataColumns, theta: Array) -> tuple[sparse.csr_array, Array]:
        """Design for new rows (T, K), and the prior variance (T,) of what no known effect says."""
        return self.columns(data), np.zeros(data.rows)

    @abstractmethod
    def entries(self, theta: Array) -> tuple[Array, Array]:
        """Entries of the precision on the pattern, and their slopes by theta (p, entries)."""

    @abstractmethod
    def log_det(self, theta: Array) -> tuple[float, Array]:
        """Log determinant of the precision, and its slopes, tr(Sigma0 dQ/dtheta), shape (p,).

        It is taken on the space that the constraint leaves, where Sigma0 is the prior covariance.
        """

    def log_prior(self, theta: Array) -> tuple[float, Array]:
        """Return the log prior density of theta and its slopes."""
        pairs = [prior(float(t)) for prior, t in zip(self.priors, theta, strict=True)]
        return sum((value for value, _ in pairs), 0.0), np.array([slope for _, slope in pairs])

    @abstractmethod
    def deviations(self, theta: Array) -> dict[str, Array]:
        """Return theta, (p,) or (p, D), in users' units: deviations, ranges, correlations."""

    def readings(self) -> tuple[NDArray[Any], sparse.csr_array]:
        """Labels, shape (R,), and sums of effects that they stand for in users' units, (R, K)."""
        return self.labels, sparse.csr_array(sparse.eye_array(self.size))

    def precision(self, theta: Array) -> sparse.csc_array:
        """Return the precision (K, K), symmetric, on the pattern."""
        return self.pattern.matrix(self.entries(theta)[0])


# --- Sparsity patterns of precisions -------------------------------------------------------------


@restorable("effects-pattern/1")
class BlockPattern:
    """Places where a matrix (K, K) may have entries, by columns.

    Parameters
    ----------
    rows, columns : array-like of int, shape (m,)
        Places; one may be named several times, and what stands there is then added up.
    size : int
        K.

    Attributes
    ----------
    indices, indptr : ndarray of int
        As of a CSC array, rows sorted.
    place : ndarray of int, shape (m,)
        Which entry each of the given places has become.
    """

    def __init__(self, rows: ArrayLike, columns: ArrayLike, size: int) -> None:
        r, c = np.asarray(rows, dtype=np.int64), np.asarray(columns, dtype=np.int64)
        keys, self.place = np.unique(c * size + r, return_inverse=True)
        self.size = int(size)
        self.indices = (keys % size).astype(np.int32)
        per_column = np.bincount(keys // size, minlength=size)
        self.indptr = np.concatenate([[0], np.cumsum(per_column)]).astype(np.int32)

    @property
    def count(self) -> int:
        """Number of entries."""
        return len(self.indices)

    def added(self, values: ArrayLike) -> Array:
        """Entries from a value for each given place."""
        weights = np.asarray(values, dtype=float)
        return np.bincount(self.place, weights, self.count).astype(float, copy=False)

    @property
    def columns(self) -> NDArray[np.intp]:
        """Column of every entry."""
        return np.repeat(np.arange(self.size), np.diff(self.indptr))

    def matrix(self, entries: Array) -> sparse.csc_array:
        """Return the matrix of these entries; zeros among them stay."""
        matrix = sparse.csc_array(
            (entries, self.indices, self.indptr), shape=(self.size, self.size), copy=False
        )
        matrix.has_sorted_indices = True
        return matrix


def diagonal_pattern(size: int) -> BlockPattern:
    """Return the pattern of a diagonal matrix."""
    return BlockPattern(np.arange(size), np.arange(size), size)


def block_pattern(patterns: list[BlockPattern]) -> BlockPattern:
    """Return the pattern of a matrix with these on its diagonal, and their entries in order."""
    starts = np.cumsum([0] + [pattern.size for pattern in patterns])
    pairs = zip(patterns, starts, strict=False)
    rows, columns = [], []
    for pattern, start in pairs:
        rows.append(pattern.indices + start)
        columns.append(pattern.columns + start)
    return BlockPattern(np.concatenate(rows), np.concatenate(columns), int(starts[-1]))


# --- Derivatives by complex steps, which have no cancellation ------------------------------------

#: Length of a step.
COMPLEX_STEP = 1e-30


def with_complex_step(theta: Array, k: int) -> NDArray[Any]:
    """Return theta with a step in entry k: there f has the slope ``f.imag / COMPLEX_STEP``."""
    moved = theta.astype(complex)
    moved[k] += 1j * COMPLEX_STEP
    return moved


# --- Units of columns ----------------------------------------------------------------------------


def units_of_columns(intercept: bool, centre: Array, scale: Array) -> Array:
    """Matrix (d, d) that turns coefficients of centred and scaled columns into the columns' own.

    The first of them is the intercept's, if there is one.
    """
    transform = np.diag(np.concatenate([np.ones(int(intercept)), 1.0 / scale]))
    if intercept:
        transform[0, 1:] = -centre / scale
    return transform


# --- Priors of hyper-parameters, as log densities of theta with their slopes ---------------------

#: P(sd > 3) = .01.
DEVIATION = (3.0, 0.01)


@restorable("tail/1")
@dataclass(frozen=True)
class Tail:
    """Prior of t = log of a number s that is exponential, or whose inverse is.

    Attributes
    ----------
    rate : float
        Of the exponential distribution.
    sign : float
        +1 for s, -1 for 1/s.
    """

    rate: float
    sign: float

    def __call__(self, t: float) -> tuple[float, float]:
        """Log density at t, and its slope."""
        reach = self.rate * math.exp(self.sign * t)
        return math.log(self.rate) + self.sign * t - reach, self.sign * (1.0 - reach)


@restorable("normal-prior/1")
@dataclass(frozen=True)
class NormalPrior:
    """A normal density of theta."""

    std: float
    mean: float = 0.0

    def __call__(self, t: float) -> tuple[float, float]:
        """Log density at t, and its slope."""
        z = (t - self.mean) / self.std
        return -0.5 * z * z - math.log(self.std * math.sqrt(2.0 * math.pi)), -z / self.std


@restorable("uniform-share/1")
@dataclass(frozen=True)
class UniformShare:
    """Prior of t = logit(phi) for a share phi that is uniform between 0 and 1."""

    def __call__(self, t: float) -> tuple[float, float]:
        """Log density at t, and its slope."""
        size = abs(t)
        return -size - 2.0 * math.log1p(math.exp(-size)), -math.tanh(0.5 * t)


def _pair(value: tuple[float, float], name: str) -> tuple[float, float]:
    try:
        first, second = value
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{name} must be a pair (limit, probability), got {shown(value)}"
        ) from error
    limit = number(first, f"the limit of {name}", above=0.0)
    probability = number(second, f"the probability of {name}", above=0.0, most=0.999)
    return limit, probability


def deviation_prior(value: tuple[float, float] = DEVIATION, name: str = "prior") -> Tail:
    """Prior of the logarithm of a standard deviation: P(sd > limit) = probability."""
    limit, probability = _pair(value, name)
    return Tail(-math.log(probability) / limit, 1.0)


def range_prior(value: tuple[float, float], name: str = "prior_range") -> Tail:
    """Prior of the logarithm of a range in the plane: P(range < limit) = probability."""
    limit, probability = _pair(value, name)
    return Tail(-math.log(probability) * limit, -1.0)
