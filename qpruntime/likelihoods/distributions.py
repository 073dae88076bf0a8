"""Distributions of y given f: those of SciPy without freezing, and negative binomial counts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from qpruntime._typing import Array

__all__ = ["NegativeBinomialResponse", "SciPyResponse"]

# The tails of larger counts are those of this one.
_FAR = 1e300
# The difference of 1 and a probability has 13 digits up to this one. `betaincc` has more, and takes
# ten times as long as `betainc`.
_NEARLY_ALL = 0.999


class SciPyResponse:
    """A distribution of SciPy with its parameters.

    It is not frozen, because freezing writes documentation each time, which takes 1.3 ms. A search
    for quantiles needs thousands of distributions.

    Parameters
    ----------
    name : str
        Name in `scipy.stats`.
    *parameters : array_like
        Shapes and location in SciPy's order; they broadcast.
    scale : array_like, optional
        Scale in the units of y, 1 by default.
    """

    def __init__(self, name: str, *parameters: ArrayLike, scale: ArrayLike | None = None) -> None:
        from scipy import stats  # takes longer to import than all likelihoods

        self.dist: Any = getattr(stats, name)
        self.parameters = parameters
        self.scale = {} if scale is None else {"scale": scale}

    def _call(self, method: str, *y: ArrayLike, **options: Any) -> Any:
        return getattr(self.dist, method)(*y, *self.parameters, **self.scale, **options)

    def mean(self) -> Array:
        """Return the means."""
        return np.asarray(self._call("mean"))

    def var(self) -> Array:
        """Return the variances."""
        return np.asarray(self._call("var"))

    def cdf(self, y: ArrayLike) -> Array:
        """Return P(Y <= y)."""
        return np.asarray(self._call("cdf", y))

    def sf(self, y: ArrayLike) -> Array:
        """Return P(Y > y)."""
        return np.asarray(self._call("sf", y))

    def ppf(self, q: ArrayLike) -> Array:
        """Return the least y with P(Y <= y) >= q."""
        return np.asarray(self._call("ppf", q))

    def isf(self, q: ArrayLike) -> Array:
        """Return the least y with P(Y > y) <= q."""
        return np.asarray(self._call("isf", q))

    def support(self) -> tuple[Any, Any]:
        """Return the least and the largest y."""
        low, high = self._call("support")
        return low, high

    def rvs(self, size: tuple[int, ...] | int, random_state: np.random.Generator) -> Array:
        """Draw observations."""
        return np.asarray(self._call("rvs", size=size, random_state=random_state))


class NegativeBinomialResponse(SciPyResponse):
    """Negative binomial counts with means `rate` and variances rate + rate^2/dispersion.

    Both tails have all digits. SciPy's have not, because r/(r + rate) rounds to 1 for low rates.
    """

    def __init__(self, rate: Array, dispersion: float) -> None:
        self.rate, self.dispersion = rate, dispersion
        self.share = dispersion / (dispersion + rate)
        super().__init__("nbinom", dispersion, self.share)

    def mean(self) -> Array:
        """Return the means."""
        return self.rate

    def var(self) -> Array:
        """Return the variances."""
        return self.rate * (1.0 + self.rate / self.dispersion)

    def cdf(self, y: ArrayLike) -> Array:
        """Return P(Y <= y)."""
        return self._tail(y, False)

    def sf(self, y: ArrayLike) -> Array:
        """Return P(Y > y)."""
        return self._tail(y, True)

    def _tail(self, y: ArrayLike, upper: bool) -> Array:
        """Return incomplete beta functions of the smaller of two shares that sum to 1.

        The larger share has lost digits to rounding, and serves only far out in the other tail.
        """
        from scipy.special import betainc  # takes longer to import than all likelihoods

        r, events = self.dispersion, np.floor(np.minimum(y, _FAR)) + 1.0
        count, share, complement = np.broadcast_arrays(
            np.maximum(events, 1.0), self.share, self.rate / (r + self.rate)
        )
        below = share < 0.5  # where P(Y <= y) is the one that takes the smaller share
        p = betainc(
            np.where(below, r, count), np.where(below, count, r), np.minimum(share, complement)
        )
        far = (below == upper) & (p > _NEARLY_ALL)
        p = np.where(below == upper, 1.0 - p, p)
        first, second, larger = (r, count, share) if not upper else (count, r, complement)
        p[far] = betainc(*(np.broadcast_to(a, p.shape)[far] for a in (first, second, larger)))
        return np.where(events >= 1.0, p, float(upper))
