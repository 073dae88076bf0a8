"""Structures R without an inverse: their scale, their null space, and Q = R/sd^2 + epsilon I.

R is scaled so that the geometric mean of the variances, the diagonal of its pseudo-inverse, is 1:
a standard deviation then means the same for every graph and every length (Sorbye & Rue 2014).
"""

from __future__ import annotations

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import splu

from qpruntime._restorable import restorable
from qpruntime._typing import Array

__all__ = [
    "EPSILON",
    "MOST_DENSE",
    "ScaledStructure",
    "laplacian_variances",
    "scaled",
    "stiffened",
]

#: Share of the mean diagonal of R that makes Q definite; the constraint takes what it adds.
EPSILON = 1e-9
#: Rows up to which eigenvalues are taken.
MOST_DENSE = 3000
#: Rows of a part up to which it may become a full matrix.
MOST_FULL = 1000
# Right-hand sides of one solve.
_BATCH = 256


def stiffened(R: sparse.csc_array, free: Array) -> sparse.csc_array:
    """R plus its mean diagonal along rows `free` (m, K), orthonormal, that constraints hold at 0.

    Adding a multiple of C'C to a precision changes nothing where C x is known, so the distribution
    under C x = 0 is the same. Only epsilon determines the free direction of a part without this
    term: beside an intercept, or the free direction of another part, 10^4 rows leave no digit of
    it. The matrix becomes full, so parts of more than 1000 rows are left unchanged.
    """
    if R.shape[0] > MOST_FULL:
        return R
    return sparse.csc_array(R + float(R.diagonal().mean()) * (free.T @ free))


@restorable("intrinsic-structure/1")
class ScaledStructure:
    """A scaled R by its entries on a pattern, and what its determinant takes.

    Parameters
    ----------
    R : sparse, shape (K, K)
        Scaled.
    deficiency : int
        Dimension of its null space.
    epsilon : float, optional
        Added to the diagonal of R/sd^2.

    Attributes
    ----------
    eigenvalues : ndarray or None
        Those above zero, if K is at most 3000.
    """

    def __init__(self, R: sparse.csc_array, deficiency: int, epsilon: float | None = None) -> None:
        self.size, self.deficiency = int(R.shape[0]), deficiency
        mean = float(R.diagonal().mean()) if self.size else 1.0
        self.epsilon = EPSILON * mean if epsilon is None else epsilon
        self.proper = epsilon is not None
        self.eigenvalues: Array | None = None
        self.log_det_scaled = 0.0
        if self.size <= MOST_DENSE:
            eigenvalues = np.linalg.eigvalsh(R.toarray())
            self.eigenvalues = np.maximum(eigenvalues[deficiency:], 0.0)
        else:
            self.log_det_scaled = laplacian_log_det(R)

    def log_det(self, log_sd: float) -> tuple[float, float]:
        """Return log |R/sd^2 + epsilon I| off the null space, and its slope by log sd.

        The null space counts too if the structure is proper.
        """
        rank = self.size - self.deficiency
        if self.eigenvalues is None:
            return self.log_det_scaled - 2.0 * rank * log_sd, -2.0 * rank
        precisions = self.eigenvalues * np.exp(-2.0 * log_sd)
        value = float(np.log(precisions + self.epsilon).sum())
        if self.proper:
            value += self.deficiency * np.log(self.epsilon)
        return value, float(-2.0 * (precisions / (precisions + self.epsilon)).sum())


def scaled(R: sparse.csc_array, deficiency: int) -> tuple[sparse.csc_array, float]:
    """R times the geometric mean of its variances, and that number."""
    size = int(R.shape[0])
    if size <= MOST_DENSE:
        values, vectors = np.linalg.eigh(R.toarray())
        variances = (vectors[:, deficiency:] ** 2) @ (1.0 / values[deficiency:])
    else:
        variances = laplacian_variances(R)
    factor = float(np.exp(np.log(variances).mean()))
    return sparse.csc_array(R * factor), factor


def laplacian_variances(R: sparse.csc_array) -> Array:
    """Diagonal of the pseudo-inverse of a connected graph's Laplacian, by solves.

    Let M be the inverse of R without its last node; then R+ = H M H for H = I - 11'/K.
    """
    size = int(R.shape[0])
    factor = splu(sparse.csc_array(R[:-1, :-1]), permc_spec="MMD_AT_PLUS_A")
    diagonal, sums = np.zeros(size), np.zeros(size)
    for start in range(0, size - 1, _BATCH):
        batch = np.arange(start, min(start + _BATCH, size - 1))
        right = np.zeros((size - 1, len(batch)))
        right[batch, np.arange(len(batch))] = 1.0
        columns = factor.solve(right)
        diagonal[batch] = columns[batch, np.arange(len(batch))]
        sums[batch] = columns.sum(axis=0)
    return np.asarray(diagonal - 2.0 * sums / size + sums.sum() / size**2)


def laplacian_log_det(R: sparse.csc_array) -> float:
    """Sum of the logarithms of a connected Laplacian's eigenvalues above zero (Kirchhoff)."""
    factor = splu(sparse.csc_array(R[:-1, :-1]), permc_spec="MMD_AT_PLUS_A")
    diagonal = np.abs(factor.U.diagonal())
    return float(np.log(diagonal).sum() + np.log(R.shape[0]))
