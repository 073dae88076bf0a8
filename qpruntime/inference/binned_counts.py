"""Counts over bins of a rate exp(f): points, weights and prior means as `infer` takes them.

The count of a bin of width w is Poisson with mean w times the mean rate in it, and the mean of
exp(f) is no functional of f. Its logarithm is approximated by the mean of f in the bin plus half
the prior variance of f within the bin. This is right on average, and its error grows with the bin.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._typing import Array
from qpruntime._validation import finite, no_kernel, number, shown
from qpruntime.errors import InputError
from qpruntime.kernels.registry import Leaf, Node, read

__all__ = ["Bins", "count_bins"]

# Widest bin, in length-scales, whose log mean rate is approximated well enough.
_MAX_RELATIVE_WIDTH = 0.5
# Gauss-Legendre nodes that average f over a bin: exact for polynomials of degree 7.
_NODES_PER_BIN = 4


class Bins(NamedTuple):
    """Arguments of `infer` for counts over N bins.

    Attributes
    ----------
    points : ndarray, shape (n, 1)
        Positions of the latent values: four nodes in each bin.
    operator : csr_array, shape (N, n)
        Means of f over bins.
    mean : ndarray, shape (n,)
        Prior mean of f, log width and log exposure, and half the variance within the bin.

    See Also
    --------
    qpruntime.count_bins, qpruntime.infer

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process.kernels import RBF
    >>> from qpruntime import count_bins
    >>> bins = count_bins(np.arange(6.0), RBF(3.0))
    >>> bins.points.shape, bins.operator.shape, bins.mean.shape
    ((20, 1), (5, 20), (20,))
    """

    points: Array
    operator: sparse.csr_array
    mean: Array


def count_bins(
    edges: ArrayLike, kernel: Kernel, mean: float = 0.0, exposure: ArrayLike | None = None
) -> Bins:
    """Return latent points, operator and prior mean for counts over bins, of a rate exp(f).

    Bins may be half a length-scale wide at most. The log mean rate of such a bin then has an error
    of standard deviation 0.03 (RBF) to 0.04 (Matern, nu=2.5), for a prior variance of 2.

    Parameters
    ----------
    edges : array-like, shape (N + 1,) or (N, 2)
        Edges of adjacent bins, or start and end of each bin.
    kernel : scikit-learn kernel
        Covariance of f, as inference will use it: a sum or product of constants and kernels with a
        length-scale.
    mean : float
        Prior mean of f, the logarithm of a rate per unit of the edges.
    exposure : array-like, shape (N,), optional
        Factor of the rate in each bin.

    Returns
    -------
    Bins

    Raises
    ------
    InputError
        If an argument is not usable, or a bin is wider than half a length-scale.

    See Also
    --------
    qpruntime.inference.binned_counts.Bins, qpruntime.infer

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process.kernels import RBF
    >>> from qpruntime import count_bins, infer
    >>> kernel = 1.0 * RBF(3.0)
    >>> points, operator, mean = count_bins(np.arange(6.0), kernel, mean=1.0)
    >>> counts = [2, 4, 7, 5, 1]
    >>> post = infer(kernel(points), counts, "poisson-exp", "ep", operator=operator, mean=mean)
    >>> f, variance = post.predict(kernel([[2.5]], points), [1.0], mean=1.0)
    >>> np.exp(f).round(1).tolist()
    [4.3]
    """
    if not isinstance(kernel, Kernel):
        raise no_kernel(kernel)
    low, high = _bounds(edges)
    width = high - low
    length = min(_length_scales(read(kernel), kernel), default=np.inf)
    if (wide := np.flatnonzero(width > _MAX_RELATIVE_WIDTH * length * (1.0 + 1e-9))).size:
        i = int(wide[0])
        raise InputError(
            f"bin {i} is {width[i]:.4g} wide, and the kernel's length-scale is {length:.4g}: bins "
            f"may be half of that at most, {_MAX_RELATIVE_WIDTH * length:.4g}, because a count "
            "sees the mean rate and not that of its logarithm; divide the bin, or take counts of "
            "more places"
        )
    logs = np.log(width)
    if exposure is not None:
        exposures = finite(exposure, "exposure", (len(low),))
        if (exposures <= 0.0).any():
            raise InputError(f"exposure must be above 0, got {exposures.min():g}")
        logs = logs + np.log(exposures)
    nodes, weights = np.polynomial.legendre.leggauss(_NODES_PER_BIN)
    weights = weights / 2.0
    points = ((low + high)[:, None] + width[:, None] * nodes).reshape(-1, 1) / 2.0
    variance_within = np.array(
        [_variance_within(kernel, rows, weights) for rows in np.split(points, len(low))]
    )
    count = len(low)
    columns = np.arange(count * _NODES_PER_BIN)
    values = np.tile(weights, count), (columns // _NODES_PER_BIN, columns)
    operator = sparse.csr_array(values, shape=(count, columns.size))
    prior = number(mean, "mean") + logs + 0.5 * variance_within
    return Bins(points, operator, np.repeat(prior, _NODES_PER_BIN))


def _variance_within(kernel: Kernel, points: Array, weights: Array) -> float:
    """Return the prior variance of f within a bin: the mean variance less that of the mean."""
    return float(weights @ kernel.diag(points) - weights @ kernel(points) @ weights)


def _bounds(edges: ArrayLike) -> tuple[Array, Array]:
    """Return the lower and upper ends of the bins."""
    ends = finite(edges, "edges")
    if ends.ndim == 1 and ends.size > 1:
        low, high = ends[:-1], ends[1:]
    elif ends.ndim == 2 and ends.shape[1] == 2 and len(ends):
        low, high = ends.T
    else:
        raise InputError(f"edges must have shape (N + 1,) or (N, 2), got {ends.shape}")
    if not (high > low).all():
        i = int(np.argmin(high > low))
        raise InputError(f"bin {i} ends at {high[i]:g}, and must end above its start {low[i]:g}")
    return low, high


def _length_scales(node: Node, kernel: Kernel) -> Iterator[float]:
    """Yield the length-scales of all parts."""
    if not isinstance(node, Leaf):
        yield from _length_scales(node.first, kernel)
        yield from _length_scales(node.second, kernel)
    elif node.parts.constant:
        return
    elif node.parts.scaled and node.parts.shape is not None:
        yield float(np.min(node.kernel.length_scale))
    else:
        raise InputError(
            f"the kernel {shown(kernel)} has a part whose length-scale is not known, by which the "
            "width of bins is judged: give constants, RBF, Matern or RationalQuadratic"
        )
