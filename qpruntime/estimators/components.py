"""The parts of a latent function whose kernel is a sum: each is a Gaussian process of its own.

With K = K_1 + ... + K_k and rows that observe f, the part j at points has the prior covariances
K_j(points, rows) with what was observed: its posterior is a prediction of the one that there is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from sklearn.gaussian_process.kernels import ConstantKernel, Kernel, Product, Sum

from qpruntime.arrays import Array
from qpruntime.blocks import in_blocks
from qpruntime.errors import InputError
from qpruntime.estimators.process import Process
from qpruntime.inference.posterior import solution_of

__all__ = ["Components", "components_of", "parts_of_sum"]


class Components(NamedTuple):
    """Parts of a latent function at T points.

    Attributes
    ----------
    names : tuple of str
        Of the k kernels that are added, as they show themselves.
    mean, variance : ndarray, shape (T, k)
        Of each part; the means and the offset add up to those of ``latent``. Parts depend on each
        other, so that variances do not add up.
    offset : ndarray, shape (T,)
        What is no part: the prior mean, and means of parts that were taken off.
    """

    names: tuple[str, ...]
    mean: Array
    variance: Array
    offset: Array


def parts_of_sum(kernel: Kernel) -> list[Kernel]:
    """Kernels that are added, from left to right; a constant before a sum goes to each part."""
    if isinstance(kernel, Sum):
        return parts_of_sum(kernel.k1) + parts_of_sum(kernel.k2)
    if isinstance(kernel, Product) and isinstance(kernel.k1, ConstantKernel):
        inside = parts_of_sum(kernel.k2)
        return [kernel] if len(inside) == 1 else [Product(kernel.k1, part) for part in inside]
    return [kernel]


def components_of(
    process: Process, points: Array, prior: ArrayLike, centred: bool = False
) -> Components:
    """Return the parts of a fitted process at points (T, d), of these prior means.

    Parts that are centred have a mean of 0 over the rows of the fit, and the offset has the rest.

    Raises
    ------
    InputError
        If its posterior is not one of covariance matrices.
    """
    if solution_of(process.posterior).name != "dense":
        raise InputError(
            "components take a covariance matrix, and this model was fitted by states or inducing "
            'points: fit it with solver="dense" and inducing=None'
        )
    parts = parts_of_sum(process.kernel)
    own = [replace(process, kernel=part) for part in parts]
    middles = [_Middle.of(one) if centred else None for one in own]

    def moments(some: slice) -> tuple[Array, Array]:
        found = [
            one.at(points[some], 0.0) if middle is None else middle.away(one, points[some])
            for one, middle in zip(own, middles, strict=True)
        ]
        return np.column_stack([m for m, _ in found]), np.column_stack([v for _, v in found])

    mean, variance = in_blocks(moments, len(points), len(process.X_train))
    offset = np.array(np.broadcast_to(np.asarray(prior, dtype=float), len(points)))
    offset += sum(middle.mean for middle in middles if middle is not None)
    return Components(tuple(str(part) for part in parts), mean, variance, offset)


@dataclass(frozen=True)
class _Middle:
    """The mean of one part over the rows of the fit.

    Attributes
    ----------
    crossed : ndarray, shape (N,)
        Its prior covariances with what was observed.
    variance, mean : float
        Prior variance, and posterior mean.
    """

    crossed: Array
    variance: float
    mean: float

    @classmethod
    def of(cls, part: Process) -> _Middle:
        """The mean of the part of a process."""
        X = part.X_train
        crossed = part.crossed(X)[0].mean(axis=0)
        variance = float(part.kernel(X, X).mean())
        mean = part.posterior.predict(crossed[None], np.array([variance]), mean=0.0)[0]
        return cls(crossed, variance, float(mean[0]))

    def away(self, part: Process, points: Array) -> tuple[Array, Array]:
        """Mean and variance of the part at points, less this mean."""
        crossed, variance = part.crossed(points)
        variance = variance - 2.0 * part.kernel(points, part.X_train).mean(axis=1) + self.variance
        found: tuple[Array, Array] = part.posterior.predict(
            crossed - self.crossed, np.maximum(variance, 0.0), mean=0.0
        )
        return found
