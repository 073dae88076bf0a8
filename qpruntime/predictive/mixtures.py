"""Mixtures of normals."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from qpruntime._typing import Array
from qpruntime.errors import warn

__all__ = ["FAR_TAIL_VARIANCE", "Mixture", "warn_of_far_tails"]

#: Variance of a log rate above which its mean may exceed its 99 % quantile: for a normal it does so
#: from (2 * 2.326)^2 on, and for a mixture earlier. Quantiles are costly, and not computed below.
FAR_TAIL_VARIANCE = 4.0

# Newton steps at most, and the last one in standard deviations of the narrowest part.
_STEPS, _CLOSE = 200, 1e-10


class Mixture(NamedTuple):
    """R numbers, each a mixture of J normals.

    Attributes
    ----------
    mean, variance : ndarray, shape (J, R)
    weights : ndarray, shape (J,)
        They sum to 1.
    """

    mean: Array
    variance: Array
    weights: Array

    def at(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> Mixture:
        """Return the numbers at some indices."""
        return Mixture(self.mean[:, rows], self.variance[:, rows], self.weights)

    def moments(self) -> tuple[Array, Array]:
        """Means and variances, each (R,)."""
        centre = self.weights @ self.mean
        return centre, self.weights @ (self.variance + (self.mean - centre) ** 2)

    def below(self, limit: Array) -> Array:
        """P(x < limit) for limits (R,) or one number."""
        z = (limit - self.mean) / np.sqrt(np.maximum(self.variance, 1e-300))
        return self.weights @ ndtr(z)

    def quantiles(self, q: Array) -> Array:
        """Return quantiles of levels (Q,), shape (R, Q), by Newton steps within brackets."""
        m, s = self.mean, np.sqrt(np.maximum(self.variance, 0.0))
        component_quantiles = m[..., None] + s[..., None] * ndtri(q)
        if len(self.weights) == 1:
            return np.asarray(component_quantiles[0])
        s = np.maximum(s, 1e-150)
        tolerance = _CLOSE * s.min(axis=0)
        low, high = component_quantiles.min(axis=0), component_quantiles.max(axis=0)
        # Sums, not products of matrices: equal rows have equal bits.
        w = self.weights[:, None]
        quantiles: Array = (w[..., None] * component_quantiles).sum(axis=0)
        row, column = np.indices(quantiles.shape).reshape(2, -1)
        for _ in range(_STEPS):
            x = quantiles[row, column]
            std = s[:, row]
            z = (x - m[:, row]) / std
            gap = (w * ndtr(z)).sum(axis=0) - q[column]
            below, above = gap < 0.0, gap >= 0.0
            low[row[below], column[below]] = x[below]
            high[row[above], column[above]] = x[above]
            slope = (w * np.exp(-0.5 * z * z) / std).sum(axis=0) / np.sqrt(2.0 * np.pi)
            with np.errstate(divide="ignore", invalid="ignore"):
                step = x - gap / slope
            least, most = low[row, column], high[row, column]
            new = np.where((step > least) & (step < most), step, 0.5 * (least + most))
            quantiles[row, column] = new
            # The few quantiles in the tails take most steps: the others are left as they are.
            moving = np.abs(new - x) > tolerance[row]
            row, column = row[moving], column[moving]
            if not row.size:
                break
        return quantiles


def warn_of_far_tails(
    mean: Array,
    mixture: Mixture,
    quantile: Callable[[NDArray[np.intp]], Array],
    what: str,
    remedy: str,
    rows: NDArray[np.intp] | None = None,
) -> None:
    """Warn where an expectation is made by a tail of less than 1 %.

    Parameters
    ----------
    mean : ndarray, shape (T,)
        Expected observations of all rows.
    mixture : Mixture
        Log rates of R rows.
    quantile : callable
        Returns 99 % quantiles, shape (n,), of these of the R rows, shape (n,). It is called for
        those whose log rate varies by more than `FAR_TAIL_VARIANCE`.
    what : str
        What the quantiles are of, for the message.
    remedy : str
    rows : ndarray of int, shape (R,), optional
        Where the R rows are among the T; by default they are all.
    """
    wide = np.flatnonzero((mixture.variance > FAR_TAIL_VARIANCE).any(axis=0))
    if not wide.size:
        return
    places, high = wide if rows is None else rows[wide], quantile(wide)
    above = np.flatnonzero(mean[places] > high)
    if above.size:
        k = int(above[0])
        warn(
            f"the expected observation is {mean[places[k]]:.3g} in row {int(places[k])}, and 99 % "
            f"of {what} is below {high[k]:.3g}; {above.size} of {mean.size} rows are so: so little "
            "is known of the log rate that its far tail makes the mean; use predict_quantiles, or "
            f"{remedy}",
            UserWarning,
        )
