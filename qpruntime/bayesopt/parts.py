"""What NFCPD begins with: every function at x* and the observed points, and no sites yet."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from qpruntime.arrays import Array
from qpruntime.bayesopt.frame import Base, Frame

__all__ = ["Parts", "begin", "least_gap", "stacked"]

#: Var(f_n - f(x*)) below this part of the variances says that the points are one, so does this
#: part of the prior variance, to which posterior variances are rounded.
_SAME, _ROUNDED = 1e-12, 1e-14


class Parts(NamedTuple):
    """Sites of all functions at x* (first) and the observed points, for M x*.

    root (M, K + 1, N + 1, r) and mean (M, K + 1, N + 1) of the coordinates before conditioning;
    silent (M, N + 1): points that are x*; tau, nu (M, K + 1, N + 1).
    """

    root: Array
    mean: Array
    silent: NDArray[np.bool_]
    tau: Array
    nu: Array


def least_gap(frame: Frame, variances: Array) -> Any:
    """Least Var(f_n - f(x*)) of points that are not one, given the sum of both variances."""
    return np.maximum(_SAME * variances, _ROUNDED * frame.surrogates[0].scale)


def begin(frame: Frame, base: Base) -> Parts:
    """Roots and means of g and c at x* and the observed points, for every x* of the base."""
    rows, left = frame.rows(base)
    M, n = len(base.X), len(frame.points) + 1
    widest = max(r.shape[1] for r in frame.roots) + 1
    root = np.zeros((M, len(frame.roots), n, widest))
    mean = np.empty((M, len(frame.roots), n))
    for j, own in enumerate(frame.roots):
        r = own.shape[1]
        root[:, j, 0, :r], root[:, j, 0, r] = rows[j], np.sqrt(left[j])
        root[:, j, 1:, :r] = own
        mean[:, j, 0], mean[:, j, 1:] = base.mean[j], frame.mean[j]
    variance = np.einsum("mnr,mnr->mn", root[:, 0], root[:, 0])
    root[:, 0] -= root[:, 0, :1].copy()
    mean[:, 0] -= mean[:, 0, :1].copy()
    gap = np.einsum("mnr,mnr->mn", root[:, 0], root[:, 0])
    same = gap <= least_gap(frame, variance + variance[:, :1])
    zero = np.zeros(mean.shape)
    return Parts(root, mean, same, zero, zero.copy())


def stacked(starts: list[Parts]) -> Parts:
    """Return the x* of all parts as one, with roots as wide as the widest."""
    if len(starts) == 1:
        return starts[0]
    widest = max(s.root.shape[-1] for s in starts)
    padded = [
        np.pad(s.root, ((0, 0), (0, 0), (0, 0), (0, widest - s.root.shape[-1]))) for s in starts
    ]
    rest = [np.concatenate(arrays) for arrays in zip(*(s[1:] for s in starts), strict=True)]
    return Parts(np.concatenate(padded), *rest)
