"""What one part of the predictor has to say: the contract of blocks.

A term, as a user writes it, only stores what it is given; bound to data it becomes a block. A block
has columns for rows of data and a precision for its effects, on a pattern that does not change.
Inference sees nothing else: eta = offset + A x, x ~ N(0, Q(theta)^-1) with C x = 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from scipy import sparse

from qpruntime.arrays import Array
from qpruntime.effects.frame import Frame
from qpruntime.effects.pattern import Pattern

__all__ = ["LOG_DEVIATION", "Block", "Term"]

#: Bounds of the logarithm of a standard deviation: the evidence is flat below, and no posterior
#: follows what is above in double precision.
LOG_DEVIATION = (np.log(1e-3), np.log(1e2))


class Term(ABC):
    """What a user writes for a part of the predictor."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What the part is called in summaries."""

    @abstractmethod
    def bind(self, data: Frame) -> Block:
        """Return the block for these rows of data.

        Raises
        ------
        InputError
            If the data have no such columns, or what is in them is not usable.
        """


class Block(ABC):
    """One part of the predictor, bound to data.

    Attributes
    ----------
    name : str
    labels : ndarray, shape (K,)
        What the effects are of: levels, areas, times, numbers of nodes.
    pattern : Pattern
        Of the precision (K, K).
    parameters : tuple of str
        Names of theta's p entries, as in "log sd".
    start : ndarray, shape (p,)
    bounds : ndarray, shape (p, 2)
    constraint : ndarray, shape (c, K), or None
        Rows C with C x = 0.
    moves : bool
        Whether the design of new rows follows theta, and not only its variance.
    """

    name: str
    labels: Any
    pattern: Pattern
    parameters: tuple[str, ...] = ()
    start: Array
    bounds: Array
    constraint: Array | None = None
    moves: bool = False

    @property
    def size(self) -> int:
        """Number of effects K."""
        return self.pattern.size

    @abstractmethod
    def columns(self, data: Frame) -> sparse.csr_array:
        """Design for the rows the block was bound to, or others of known levels, shape (N, K)."""

    def ahead(self, data: Frame, theta: Array) -> tuple[sparse.csr_array, Array]:
        """Design for new rows (T, K), and the prior variance (T,) of what no known effect says."""
        return self.columns(data), np.zeros(data.rows)

    @abstractmethod
    def entries(self, theta: Array) -> tuple[Array, Array]:
        """Entries of the precision on the pattern, and their slopes by theta (p, entries)."""

    @abstractmethod
    def log_det(self, theta: Array) -> tuple[float, Array]:
        """Log determinant of the precision, and its slopes, tr(Sigma0 dQ/dtheta), shape (p,).

        Of the space that the constraint leaves, and Sigma0 is the prior covariance there.
        """

    @abstractmethod
    def log_prior(self, theta: Array) -> tuple[float, Array]:
        """Log prior density of theta and its slopes."""

    @abstractmethod
    def deviations(self, theta: Array) -> dict[str, float]:
        """What theta stands for, in users' units: standard deviations, ranges, correlations."""

    def readings(self) -> tuple[Any, sparse.csr_array]:
        """Labels, shape (R,), and sums of effects that they stand for in users' units, (R, K)."""
        return self.labels, sparse.csr_array(sparse.eye_array(self.size))

    def precision(self, theta: Array) -> sparse.csc_array:
        """The precision (K, K), symmetric, on the pattern."""
        return self.pattern.matrix(self.entries(theta)[0])

    def slopes(self, theta: Array) -> list[sparse.csc_array]:
        """Derivatives of the precision by theta, on the pattern."""
        return [self.pattern.matrix(one) for one in self.entries(theta)[1]]
