"""The kernel of ``kernel=None``: distances in units of each feature's spread.

Features are centred and divided by their spread, so that the optimiser sees numbers without units
and one length-scale; the fitted kernel is returned in units of the features, as scikit-learn
writes it. `docs/defaults.md` says why it is this one. Nothing here knows likelihoods.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Kernel, Matern

from qpruntime.arrays import Array
from qpruntime.inference.sparse.lazy import is_lazy
from qpruntime.inference.sparse.stored import taken
from qpruntime.learning.starts import degenerate

__all__ = [
    "LogNormal",
    "Start",
    "Units",
    "automatic_start",
    "default_start",
    "learns_nothing",
    "spreads",
]

# Of the rows this share on either side is left out, and one row at least: an outlier does not set
# the unit. A column that is constant between, sparse ones are, is measured with less of it, or
# with all.
_TAILS = 0.01
# The range of a uniform variable is so many standard deviations.
_UNIFORM = math.sqrt(12.0)
# Of few rows, one is not more than this share.
_MOST = 0.125
# Numbers that differ by less than this share of themselves are constant but for rounding.
_ROUNDING = 16.0 * np.finfo(float).eps
# The length-scale begins where the evidence is highest among these, in units of the square root of
# the number of features, which is about the distance of two rows over sqrt(2).
_LENGTHS = (1.0, 1.0 / 4.0, 1.0 / 16.0, 1.0 / 64.0)
_LENGTH_BOUNDS = (1e-3, 1e3)
_VARIANCE_BOUNDS = (1e-6, 1e8)
# Length-scales of single features may be so much longer.
_IRRELEVANT = 1e3


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


@dataclass(frozen=True)
class Start:
    """Where an optimiser begins.

    Attributes
    ----------
    kernel : scikit-learn kernel
    log_prior : LogNormal or None
        Of the kernel's log parameters; it is added to the objective.
    thetas : tuple of ndarray
        Log parameters, of which the best is the start; those of the kernel if there are none.
        Those of the likelihood may follow.
    by_feature : int
        Of how many features each may get a length-scale of its own; 0 if none may.
    others : tuple of Start
        Further kernels, of which the one with the best optimum is taken.
    """

    kernel: Kernel
    log_prior: LogNormal | None = None
    thetas: tuple[Array, ...] = ()
    by_feature: int = 0
    others: tuple[Start, ...] = ()

    def refined(self, optimum: Array) -> Start:
        """Where to begin with a length-scale for each feature: at the optimum of a common one."""
        theta = optimum[: self.kernel.n_dims]
        (low, high), count = self.kernel.bounds[-1], self.by_feature
        lengths = np.full(count, math.exp(theta[-1]))
        kernel = self.kernel.clone_with_theta(theta)
        bounds = math.exp(low), _IRRELEVANT * math.exp(high)
        shape = clone(kernel.k2.k2).set_params(length_scale=lengths, length_scale_bounds=bounds)
        start = np.concatenate([theta[:-1], np.repeat(theta[-1], count), optimum[theta.size :]])
        prior = self.log_prior
        if prior is not None:
            prior = LogNormal(prior.mean[:-1], prior.deviation[:-1])
        return Start(kernel.k1 + kernel.k2.k1 * shape, prior, (start,))


@dataclass(frozen=True)
class Units:
    """Where each feature is, and how far it spreads; 0 for a feature that is ignored."""

    centre: Array
    spread: Array

    @classmethod
    def of(cls, X: Array, weights: Array | None = None) -> Units:
        """Measure X (N, d); a row of weight 2 is two rows."""
        return cls(*spreads(X, weights))

    @property
    def count(self) -> int:
        """How many features are not ignored."""
        return int(np.count_nonzero(self.spread))

    def scaled(self, X: Array) -> Array:
        """X in these units, without the ignored features; one of zeros if none is left."""
        kept = self.spread > 0.0
        if not kept.any():
            return np.zeros((len(X), 1))
        return (X[:, kept] - self.centre[kept]) / self.spread[kept]

    def of_any(self, X: Any) -> Any:
        """`scaled` of inputs of any kind; those that are read in parts still are."""
        if not is_lazy(X) or hasattr(X, "__dask_graph__"):
            return self.scaled(X)
        return _Scaled(X, self)

    def unscaled(self, Z: Array) -> Array:
        """Points in these units as points of the features; ignored features are in the middle."""
        points = np.tile(self.centre, (len(Z), 1))
        kept = self.spread > 0.0
        if kept.any():
            points[:, kept] += Z * self.spread[kept]
        return points

    def kernel_of_features(self, kernel: Kernel) -> Kernel:
        """Return a kernel of scaled features as one of the features themselves."""
        parameters = kernel.get_params(deep=False)
        if "length_scale" in parameters:
            # Nothing is far in units of infinity: ignored features are ignored in new data too.
            lengths, kept = np.full(self.spread.size, np.inf), self.spread > 0.0
            lengths[kept] = self.spread[kept] * parameters["length_scale"]
            units = np.where(kept, self.spread, np.inf)
            bounds = np.outer(units, parameters["length_scale_bounds"])
            parameters |= {"length_scale": lengths, "length_scale_bounds": bounds}
        for name, value in parameters.items():
            if isinstance(value, Kernel):
                parameters[name] = self.kernel_of_features(value)
        return type(kernel)(**parameters)


@dataclass(frozen=True, eq=False)
class _Scaled:
    """Inputs in other units, scaled as they are read."""

    X: Any
    units: Units

    @property
    def shape(self) -> tuple[int, int]:
        return self.X.shape[0], max(self.units.count, 1)

    @property
    def dtype(self) -> Any:
        return np.dtype(float)

    @property
    def chunks(self) -> Any:
        return getattr(self.X, "chunks", None)

    def __getitem__(self, some: slice) -> Array:
        return self.units.scaled(np.asarray(taken(self.X, some), dtype=float))


def default_start(units: Units, scale: float = 1.0, smooth: bool = False, nu: float = 2.5) -> Start:
    """Return the kernel of ``kernel=None`` for scaled features.

    Parameters
    ----------
    units : Units
    scale : float
        Standard deviation that the latent function can be expected to have, about.
    smooth : bool
        A squared exponential in place of Matérn 5/2.
    nu : float
        Of another Matérn kernel.
    """
    length = math.sqrt(max(units.count, 1))
    variance = scale**2
    bounds = (_VARIANCE_BOUNDS[0] * variance, _VARIANCE_BOUNDS[1] * variance)
    lengths = (_LENGTH_BOUNDS[0] * length, _LENGTH_BOUNDS[1] * length)
    shape = RBF(length, lengths) if smooth else Matern(length, lengths, nu=nu)
    kernel = ConstantKernel(variance, bounds) + ConstantKernel(variance, bounds) * shape
    shifts = [np.array([0.0, 0.0, math.log(share)]) for share in _LENGTHS]
    prior = LogNormal(
        np.array([math.log(variance), math.log(4.0 * variance), 0.0]), np.array([4.0, 10.0, np.inf])
    )
    thetas = tuple(kernel.theta + shift for shift in shifts)
    return Start(kernel, prior, thetas, by_feature=units.count if units.count > 1 else 0)


def automatic_start(units: Units, scale: float = 1.0) -> Start:
    """Return the kernels of ``kernel="auto"``: that of None, and a squared exponential.

    Neither has a linear part: the evidence nearly always takes one, and predictions are as often
    worse as better.
    """
    return replace(default_start(units, scale), others=(default_start(units, scale, smooth=True),))


def learns_nothing(kernel: Kernel, Z: Array) -> str:
    """Say so if the fitted default kernel tells no rows apart, or relates none; "" if it does."""
    shape = degenerate(kernel.k2, Z)
    if shape is None:
        return ""
    how = "relates no rows to each other" if shape == "diagonal" else "tells no rows apart"
    return (
        f"nothing was found in the features: the fitted kernel {how}, and predictions are about "
        "the same everywhere else; check that features vary and belong to their targets"
    )


def spreads(X: Array, weights: Array | None = None) -> tuple[Array, Array]:
    """Middle and spread of every column, each of shape (d,).

    The spread is the range without its tails, over sqrt(12). Standard deviations serve alike but
    for sparse columns, counts and pixels, which they blow up.

    Parameters
    ----------
    X : ndarray, shape (N, d)
    weights : ndarray, shape (N,), optional
        A row of weight 2 is two rows.
    """
    mass = np.ones(len(X)) if weights is None else weights
    found = [_middle_and_spread(column, mass) for column in X.T]
    return np.array([f[0] for f in found]), np.array([f[1] for f in found])


def _middle_and_spread(column: Array, mass: Array) -> tuple[float, float]:
    order = np.argsort(column, kind="stable")
    sorted_, mass = column[order], mass[order]
    below = np.cumsum(mass)
    total = float(below[-1])
    # One of the numbers: differences from it are exact where numbers are large beside them.
    middle = float(sorted_[np.searchsorted(below, 0.5 * total)])
    offsets = sorted_ - middle
    one = min(1.0, _MOST * total)
    for tail in (max(_TAILS * total, one), one, 0.0):
        first = min(int(np.searchsorted(below, tail, side="right")), len(offsets) - 1)
        last = min(int(np.searchsorted(below, total - tail)), len(offsets) - 1)
        low, high = float(offsets[first]), float(offsets[last])
        if high - low > _ROUNDING * max(abs(sorted_[first]), abs(sorted_[last])):
            return middle, (high - low) / _UNIFORM
    return middle, 0.0
