"""Markov effects along time with two numbers at each time: a value, and what moves it."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime.effects.term import BlockPattern, EffectBlock

__all__ = ["Numbers", "PairBlock", "inverted"]

#: Real or complex numbers.
Numbers = NDArray[Any]
#: Step of derivatives by complex numbers, which have no rounding.
_STEP = 1e-30


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
            at = theta.astype(complex)
            at[k] += 1j * _STEP
            flat, log_det = self._parts(at)
            slopes.append(self.pattern.added(flat.imag / _STEP))
            log_slopes.append(float(log_det.imag / _STEP))
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
