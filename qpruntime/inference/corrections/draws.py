"""Densities of draws: smoothed on an even grid, with the mean and variance of the draws."""

from __future__ import annotations

import numpy as np

from qpruntime.arrays import Array
from qpruntime.inference.corrections.conditional import POINTS
from qpruntime.inference.corrections.grid import Densities, between, normalised

__all__ = ["densities_of"]

#: Bandwidth in standard deviations, for one effective draw; it falls with their fifth root. About
#: half of what is best for a normal: quantiles lose more by smoothing than densities.
_BANDWIDTH = 0.5
_FLOOR = 1e-12


def densities_of(draws: Array, effective: Array) -> Densities:
    """Smooth draws (S, T) by a normal kernel, around which they are shrunk to keep the variance."""
    mean, std = draws.mean(axis=0), draws.std(axis=0)
    std = np.maximum(std, 1e-300)
    width = np.clip(_BANDWIDTH * effective**-0.2, 0.02, 0.4)
    shrunk = mean + (draws - mean) * np.sqrt(1.0 - width**2)
    low = shrunk.min(axis=0) - 4.0 * width * std
    high = shrunk.max(axis=0) + 4.0 * width * std
    step = (high - low) / (POINTS - 1)
    at = (shrunk - low) / step
    lower = np.minimum(at.astype(np.intp), POINTS - 2)
    share = at - lower
    logs = np.empty((mean.size, POINTS))
    offsets = np.arange(-(POINTS - 1), POINTS)
    for i in range(mean.size):
        # Each draw is shared by the two points around it, linearly.
        mass = np.bincount(lower[:, i], 1.0 - share[:, i], POINTS)
        mass += np.bincount(lower[:, i] + 1, share[:, i], POINTS)
        kernel = np.exp(-0.5 * (offsets * step[i] / (width[i] * std[i])) ** 2)
        density = np.convolve(mass, kernel)[POINTS - 1 : 2 * POINTS - 1]
        logs[i] = np.log(np.maximum(density, _FLOOR * density.max()))
    return normalised(between(low, high, POINTS), logs)
