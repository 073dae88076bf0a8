"""The kernel of utilities where none is given: by features, of each item its own, and in time."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
from sklearn.gaussian_process.kernels import ConstantKernel, Kernel, Matern

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.kernels.columns import On
from qpruntime.kernels.default import LogNormal
from qpruntime.kernels.same import Same
from qpruntime.learning.default_kernel import Start

__all__ = ["own_start", "preference_start"]

_VARIANCE_BOUNDS, _SPREAD_BOUNDS, _SPAN_BOUNDS = (1e-4, 1e6), (1e-3, 1e3), (1e-2, 1e2)
# Medians of the variance and of its drift in time, where that of the noise is 1; deviations of
# their logarithms, and of those of length-scales.
_VARIANCE, _DRIFT, _OF_VARIANCE, _OF_LENGTH = 1.0, 0.3, 2.0, 1.5
# The best of these is where lengths begin: of features in units of sqrt(d) spreads, of time in
# units of its range.
_FEATURES, _TIMES = (1.0, 0.25), (1.0, 0.25, 0.05)


def preference_start(spread: Array | None, span: float | None) -> Start:
    """Return where to begin.

    Items with features have a Matérn 5/2 of them, of one length-scale a feature; those without
    have values of their own. With times a share of the utility drifts, as a Matérn 3/2.

    Parameters
    ----------
    spread : ndarray, shape (d,), or None
        Of features; None for items with names. Features of spread 0 are ignored.
    span : float or None
        The range of times; None if there are none.
    """
    width = 1 if spread is None else spread.size
    items, lengths = _items(spread, span is None)
    kernel = ConstantKernel(_VARIANCE, _VARIANCE_BOUNDS) * items
    beliefs = [_OF_VARIANCE, *[_OF_LENGTH] * lengths]
    if span is not None:
        bounds = tuple(span * bound for bound in _SPAN_BOUNDS)
        drift = ConstantKernel(_DRIFT, _VARIANCE_BOUNDS) * _items(spread, False)[0]
        kernel = kernel + drift * On(Matern(span, bounds, nu=1.5), [width])
        beliefs += [*beliefs, _OF_LENGTH]
    middle: Array = kernel.theta
    is_length = np.array(beliefs) == _OF_LENGTH
    in_time = np.zeros(middle.size, dtype=bool)
    in_time[-1] = span is not None
    starts = product(_FEATURES if lengths else (1.0,), _TIMES if span is not None else (1.0,))
    thetas = tuple(
        middle + math.log(share) * (is_length & ~in_time) + math.log(part) * in_time
        for share, part in starts
    )
    return Start(kernel, LogNormal(middle, np.array(beliefs)), thetas)


def own_start(kernel: Kernel) -> Start:
    """Return where to begin with a kernel that is given.

    The noise of a comparison is 1: a kernel that learns, but has no variance that is free, is
    multiplied by one.
    """
    if kernel.n_dims and not any(
        one.name.endswith("constant_value") and not one.fixed for one in kernel.hyperparameters
    ):
        return Start(ConstantKernel(1.0, _VARIANCE_BOUNDS) * kernel)
    return Start(kernel)


def _items(spread: Array | None, alone: bool) -> tuple[Kernel, int]:
    """Correlation of items, and how many length-scales it has; `alone` if no other column is."""
    if spread is None:
        return (Same() if alone else On(Same(), [0])), 0
    kept = np.flatnonzero(spread)
    if not kept.size:
        raise InputError("all items have the same features: nothing tells them apart")
    unit = math.sqrt(kept.size) * spread[kept]
    bounds = np.outer(unit, _SPREAD_BOUNDS)
    shape = Matern(unit, bounds, nu=2.5)
    if kept.size == 1:
        shape = Matern(float(unit[0]), (float(bounds[0, 0]), float(bounds[0, 1])), nu=2.5)
    whole = alone and kept.size == spread.size
    return (shape if whole else On(shape, kept.tolist())), int(kept.size)
