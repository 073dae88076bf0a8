"""`CorrectedMarginals`: densities of latent values, one per point, which need not be normal."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qpruntime._numba import kernel
from qpruntime._pointers import call_split
from qpruntime._typing import Array
from qpruntime._validation import central_levels, levels, real
from qpruntime.errors import InputError
from qpruntime.inference.corrections.density_grid import (
    Densities,
    cdf_many,
    log_density_many,
    quantile_many,
)
from qpruntime.likelihoods import Likelihood
from qpruntime.projection.projector import project_arrays

__all__ = [
    "CorrectedMarginals",
    "log_predictive",
]

# --- `CorrectedMarginals`


@dataclass(frozen=True, eq=False)
class CorrectedMarginals:
    """Marginal posterior densities of latent values at T points.

    Attributes
    ----------
    mean, variance, skewness : ndarray, shape (T,)
        Moments of the latent values; `variance` is a variance.
    spread : ndarray, shape (T,)
        ``|log|`` of the ratio of two estimates of the variance, of which one tends to be too small
        and the other too large. The log variance may be off by about this much. For "sample" it is
        the standard error of the log variance.
    correction : {"blend", "fact", "tilt", "sample"}
        Method of the correction.
    notes : tuple of str
        Messages about the accuracy of the marginals.
    rhat, effective : ndarray, shape (T,), or None
        Diagnostics of "sample": R-hat of split chains, and the effective number of draws. Each is
        the worse one of f and of its squared deviation.
    folded : bool
        Whether all this is for ``|f|``, which is so if the likelihood does not depend on the sign
        of f, as with the square link, and the prior mean is 0.

    See Also
    --------
    qpruntime.Posterior, qpruntime.inference.corrections.corrected.CorrectedEvidence

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime import infer
    >>> x = np.linspace(-1.0, 1.0, 6)
    >>> K = 4.0 * np.exp(-2.0 * (x[:, None] - x) ** 2)
    >>> marginals = infer(K, np.sign(x), "probit", "ep").marginals()
    >>> marginals.correction, marginals.skewness.round(2).tolist()
    ('blend', [-0.43, -0.41, -0.31, 0.31, 0.41, 0.43])
    """

    mean: Array
    variance: Array
    skewness: Array
    spread: Array
    correction: str
    notes: tuple[str, ...]
    densities: Densities = field(repr=False)
    likelihood: Likelihood = field(repr=False)
    rhat: Array | None = field(default=None, repr=False)
    effective: Array | None = field(default=None, repr=False)
    folded: bool = False

    def __repr__(self) -> str:
        return f"<Marginals of {self.mean.size} points, correction {self.correction!r}>"

    def __str__(self) -> str:
        head = f"Marginals of {self.mean.size} points, correction {self.correction!r}"
        return "\n- ".join((head, *self.notes))

    def density(self, f: ArrayLike) -> Array:
        """Return densities at `f`: a number, (T,), (T, Q), or (1, Q) for all points.

        They are zero outside of their grid, where they are below exp(-20) of their top.
        """
        return np.exp(self.log_density(f))

    def log_density(self, f: ArrayLike) -> Array:
        """Return logs of `density`, in its shape."""
        at = self._columns(f)
        out = np.empty(at.shape)
        log_density_many(*self.densities[:2], at, out)
        return out.reshape(self._shape(f))

    def cdf(self, f: ArrayLike) -> Array:
        """Return P(latent value <= f), in the shape of `density`."""
        at = self._columns(f)
        out = np.empty(at.shape)
        cdf_many(*self.densities[:3], at, out)
        return out.reshape(self._shape(f))

    def quantile(self, p: ArrayLike) -> Array:
        """Return quantiles of levels strictly between 0 and 1: (T,) of one, (T, Q) of Q."""
        at = levels(p, "p")
        out = np.empty((self.mean.size, at.size))
        quantile_many(*self.densities[:3], np.ascontiguousarray(at.reshape(-1)), out)
        return out.reshape(self.mean.size, *at.shape)

    def interval(self, level: float = 0.9) -> Array:
        """Return central credible intervals, shape (T, 2)."""
        return self.quantile(central_levels(level))

    def expect(
        self, function: Callable[[Array], Array], rows: slice | NDArray[np.intp] = slice(None)
    ) -> Array:
        """Return the mean of a function, from (T, G) to (T, G), of the latent value at rows.

        The function is evaluated on the grid of the densities, so that one which grows faster than
        the density falls is cut off at the ends.
        """
        points, weights = self.densities.points[rows], self.densities.weights[rows]
        return np.asarray((weights * function(points)).sum(axis=1))

    def scaled(self, slope: ArrayLike, shift: ArrayLike = 0.0) -> CorrectedMarginals:
        """Return marginals of slope f + shift, for positive slopes, shape () or (T,)."""
        a, b = (np.broadcast_to(real(x, "slope"), self.mean.shape) for x in (slope, shift))
        points, logs, below, weights = self.densities
        points = a[:, None] * points + b[:, None]
        moved = Densities(points, logs - np.log(a)[:, None], below, weights)
        return replace(self, mean=a * self.mean + b, variance=a**2 * self.variance, densities=moved)

    def log_probability(self, y: ArrayLike) -> Array:
        """Return the log predictive density: log of the mean of p(y|f) over the density of f.

        Parameters
        ----------
        y : array-like, shape (), (T,) or (T, Q)
            Observations as the likelihood takes them; pairs have a last axis of their own.

        Returns
        -------
        ndarray, shape (T,) or (T, Q)
        """
        bound, encoded = self.likelihood.free.observing(y)
        at = self._columns(encoded)
        log_densities = log_predictive(bound, self.densities, self.mean, self.variance, at)
        return log_densities.reshape(self._shape(encoded))

    def _shape(self, values: ArrayLike) -> tuple[int, ...]:
        shape = np.shape(values)
        return (self.mean.size, *shape[1:])

    def _columns(self, given: ArrayLike) -> Array:
        """Return values as an array (T, Q), or raise `InputError`."""
        values, n = real(given, "f"), self.mean.size
        if values.ndim > 2 or values.shape[:1] not in ((), (n,), (1,) * (values.ndim == 2)):
            raise InputError(
                f"values must be a number, or have shape ({n},) or ({n}, Q), one row per point, or "
                f"(1, Q); got {values.shape}"
            )
        columns = values[:, None] if values.ndim == 1 else values
        return np.ascontiguousarray(np.broadcast_to(columns, (n, math.prod(columns.shape[1:]))))


# --- Predictive densities of observations

#: Below this log density the tails beyond the grid matter, and the normal of the same moments is
#: used.
_RARE = math.log(1e-7)


@kernel
def predictive_many(
    split: int, theta: Array, points: Array, weights: Array, y: Array, out: Array
) -> None:
    """Fill log of the mean of p(y|f), for y (T, Q)."""
    for i in range(y.shape[0]):
        for q in range(y.shape[1]):
            top, total = -math.inf, 0.0
            for k in range(points.shape[1]):
                f, weight = points[i, k], weights[i, k]
                if weight == 0.0:
                    continue
                log_rest, curvature = call_split(split, f, y[i, q], theta)
                e = log_rest - 0.5 * curvature * f * f
                if e > top:
                    total *= math.exp(top - e) if top > -math.inf else 0.0
                    top = e
                if e > -math.inf:
                    total += weight * math.exp(e - top)
            out[i, q] = top + math.log(total) if total > 0.0 else -math.inf


def log_predictive(
    likelihood: Likelihood, densities: Densities, mean: Array, variance: Array, y: Array
) -> Array:
    """Return log predictive densities of encoded observations `y` (T, Q)."""
    out = np.empty(y.shape)
    points, weights = densities.points, densities.weights
    predictive_many(likelihood.split.handle, likelihood.theta, points, weights, y, out)
    likelihood.raise_failure()
    rare = ~(out > _RARE)
    if rare.any():
        i = np.nonzero(rare)[0]
        normal = project_arrays(likelihood, mean[i], np.sqrt(variance[i]), y[rare], "ep").log_z
        # The grid covers only a part of the mass, so the larger value is closer.
        out[rare] = np.maximum(out[rare], normal)
    return out
