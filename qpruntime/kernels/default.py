"""The kernel that is learnt where none is given: a variance times a shape, on a constant or none.

Its start, bounds and prior are arguments, because features in units of their spread and variables
in a box need different ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Kernel, Matern

from qpruntime._typing import Array
from qpruntime.kernels.mixed_inputs import Categories, On

__all__ = ["Belief", "LogNormal", "default_kernel", "each_column", "table_kernel"]


@dataclass(frozen=True)
class LogNormal:
    """Independent log-normal priors: theta is normal; an infinite deviation is no prior.

    Attributes
    ----------
    mean, deviation : ndarray, shape (p,)
        Of the log parameters.
    """

    mean: Array
    deviation: Array

    def __call__(self, theta: Array) -> tuple[float, Array]:
        """Log density at theta, 0 at its top, and its gradient; parameters beyond p have none."""
        slope = np.zeros(theta.size)
        known = self.mean.size
        z = (theta[:known] - self.mean) / self.deviation
        slope[:known] = -z / self.deviation
        return -0.5 * float(z @ z), slope


class Belief(NamedTuple):
    """Belief about one parameter: its start, its bounds, and a log-normal prior.

    Attributes
    ----------
    start, low, high, median : float
    deviation : float
        Of the logarithm; infinity is no prior.
    """

    start: float
    low: float
    high: float
    median: float
    deviation: float = np.inf


def default_kernel(
    variance: Belief,
    length: Belief,
    offset: Belief | None = None,
    *,
    smooth: bool = False,
    nu: float = 2.5,
    features: int | None = None,
) -> tuple[Kernel, LogNormal]:
    """Return [offset +] variance * shape and its prior.

    Parameters
    ----------
    variance, length, offset : Belief
    smooth : bool
        A squared exponential in place of a Matérn kernel.
    nu : float
        Of the Matérn kernel.
    features : int, optional
        How many have a length-scale of their own; all share one if it is None.
    """
    lengths = length.start if features is None else np.full(features, length.start)
    bounds = length.low, length.high
    shape = RBF(lengths, bounds) if smooth else Matern(lengths, bounds, nu=nu)
    kernel = ConstantKernel(variance.start, variance[1:3]) * shape
    beliefs = [variance] + [length] * (1 if features is None else features)
    if offset is not None:
        kernel = ConstantKernel(offset.start, offset[1:3]) + kernel
        beliefs.insert(0, offset)
    medians, deviations = (np.array([b[k] for b in beliefs]) for k in (3, 4))
    return kernel, LogNormal(np.log(medians), deviations)


def table_kernel(
    variance: Belief,
    length: Belief,
    dissimilarity: Belief,
    offset: Belief,
    numbers: Sequence[int],
    levels: Sequence[int],
    *,
    smooth: bool = False,
    nu: float = 2.5,
) -> tuple[Kernel, LogNormal]:
    """Return offset + variance * similarity of levels * shape of numbers, and its prior.

    A table without columns of numbers has no shape. All levels share a dissimilarity.
    """
    beliefs = [offset, variance, dissimilarity]
    shape: Kernel = Categories(list(levels), dissimilarity.start, dissimilarity[1:3])
    if numbers:
        beliefs.append(length)
        bounds = length.low, length.high
        numeric = RBF(length.start, bounds) if smooth else Matern(length.start, bounds, nu=nu)
        shape = shape * On(numeric, list(numbers))
    kernel = ConstantKernel(offset.start, offset[1:3])
    kernel = kernel + ConstantKernel(variance.start, variance[1:3]) * shape
    medians, deviations = (np.array([b[k] for b in beliefs]) for k in (3, 4))
    return kernel, LogNormal(np.log(medians), deviations)


def each_column(shape: Kernel, longer: float) -> Kernel | None:
    """Return a shape of `table_kernel` with a parameter for each column; None for other shapes.

    Upper bounds of length-scales are so much longer.
    """
    similar = shape if isinstance(shape, Categories) else getattr(shape, "k1", None)
    if not isinstance(similar, Categories):
        return None
    several = np.full(len(similar.columns), similar.dissimilarity)
    similar = clone(similar).set_params(dissimilarity=several)
    if isinstance(shape, Categories):
        return similar
    base, columns = shape.k2.kernel, shape.k2.columns
    low, high = base.length_scale_bounds
    lengths = np.full(len(columns), base.length_scale)
    base = clone(base).set_params(length_scale=lengths, length_scale_bounds=(low, longer * high))
    return similar * On(base, columns)
