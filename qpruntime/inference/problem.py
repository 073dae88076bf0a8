"""Take a prior covariance from any library, symmetric and definite as far as its dtype goes."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import eigvalsh

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.inference.dense import tiles
from qpruntime.validation import finite, real

__all__ = ["covariance"]

# K may have eigenvalues this far below zero, relative to the largest entry: a Gram matrix of
# coinciding points has them from rounding alone (about N times 2e-16).
_NEGATIVE = 1e-8
# So far from symmetric, relative to the largest entry, are matrices of float64.
_ASYMMETRIC = 1e-10
# Entries computed in a narrower format are this many of its roundings off: exponents of squared
# distances cancel. That moves the eigenvalues of an N x N matrix by at most N times as much; the
# triangles differ in some worst place by more.
_ROUNDINGS = 4.0
_ASYMMETRIES = 16.0 * _ROUNDINGS
_FLOAT32 = float(np.finfo(np.float32).eps)


def covariance(K: ArrayLike) -> tuple[Array, float]:
    """Return a prior covariance as a C-ordered float array, and the jitter on its diagonal.

    float64 is taken as it is or refused: the jitter is 0. Narrower formats are made symmetric, and
    where rounding has left them indefinite they get as much jitter as that takes.

    Raises
    ------
    InputError
        If K is not a covariance, to the precision of its dtype.
    """
    K, eps = _floats(K)
    if K.ndim != 2 or K.shape[0] != K.shape[1] or K.shape[0] == 0:
        raise InputError(f"K must be a square matrix, got shape {K.shape}")
    finite(K, "K")
    scale = float(np.abs(K).max())
    gap = K - K.T
    np.abs(gap, out=gap)
    widest = float(gap.max())
    if widest > max(_ASYMMETRIC, _ASYMMETRIES * eps) * scale:
        i, j = divmod(int(np.argmax(gap)), len(K))
        remedy = "pass (K + K.T) / 2"
        if widest < _ASYMMETRIES * _FLOAT32 * scale:
            remedy += ", or K in the float32 that it was computed in, which is taken as symmetric"
        raise InputError(
            f"K is not symmetric: K[{i}, {j}] = {K[i, j]:.17g} but K[{j}, {i}] = {K[j, i]:.17g}; "
            f"{remedy}"
        )
    del gap
    if eps and widest:
        K = 0.5 * (K + K.T)
    if K.diagonal().min() <= 0.0:
        i = int(np.argmin(K.diagonal()))
        raise InputError(f"K[{i}, {i}] = {K[i, i]:g}: prior variances must be positive")
    if _definite(K, scale):
        return K, 0.0
    return _jittered(K, scale, eps)


def _floats(K: ArrayLike) -> tuple[Array, float]:
    """Return K in float64, and the rounding unit of what it was if that is narrower, else 0."""
    try:
        dtype = np.asarray(K).dtype
    except Exception:  # of a foreign object; `real` says what is wrong
        dtype = np.dtype(np.float64)
    if dtype.kind == "V":
        raise InputError(f"K has dtype {dtype}: convert it to float32 or float64")
    narrow = dtype.kind == "f" and dtype.itemsize < 8
    return np.ascontiguousarray(real(K, "K")), float(np.finfo(dtype).eps) if narrow else 0.0


def _definite(K: Array, scale: float) -> bool:
    """Whether K has a Cholesky factor, with what rounding in float64 may have taken."""
    shifted = K.copy()
    shifted.flat[:: len(K) + 1] += _NEGATIVE * scale
    # K is symmetric: its transpose is it in LAPACK's order, without another copy.
    _, info = tiles.cholesky(shifted.T)
    return bool(info == 0)


def _jittered(K: Array, scale: float, eps: float) -> tuple[Array, float]:
    """Lift the diagonal of an indefinite K by what its rounding explains, or raise `InputError`."""
    smallest = float(eigvalsh(K, subset_by_index=[0, 0])[0])
    if smallest < -_ROUNDINGS * len(K) * eps * scale:
        remedy = f"add at least {-1.1 * smallest:.2g} to its diagonal"
        explained = smallest > -_ROUNDINGS * len(K) * _FLOAT32 * scale
        if not eps and explained and np.array_equal(K, K.astype(np.float32)):
            remedy += ", or pass it as the float32 that its numbers are"
        raise InputError(
            f"K is not positive semi-definite: its smallest eigenvalue is {smallest:.3g}; {remedy}"
        )
    jitter = -1.1 * smallest
    K = K.copy()
    K.flat[:: len(K) + 1] += jitter
    return K, jitter
