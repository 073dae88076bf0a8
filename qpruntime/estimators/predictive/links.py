"""Links: the likelihoods of counts by the name of how their rate follows from f; and exposures."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from qpruntime import likelihoods
from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.likelihoods import Likelihood
from qpruntime.likelihoods.rates import RateLink
from qpruntime.validation import real

__all__ = ["COUNTS", "DISPERSED", "LINKS", "counted", "exposures"]

# Sums and squares of larger ones overflow; count in another unit.
_LARGEST_EXPOSURE = 1e100

#: Likelihoods of counts by the name of their link.
COUNTS: dict[str, Likelihood] = {
    known.rate.name: known for known in map(likelihoods.get, likelihoods.names()) if known.rate
}
#: The links, by name.
LINKS: dict[str, RateLink] = {name: known.rate for name, known in COUNTS.items() if known.rate}

#: Names of the likelihoods of counts that vary more than Poisson ones, by the name of their link.
DISPERSED = {"exp": "negative-binomial"}


def counted(link: str, dispersion: float = math.inf) -> Likelihood:
    """Return the likelihood of counts of a link: Poisson, but for a finite dispersion."""
    if dispersion == math.inf:
        return COUNTS[link]
    return likelihoods.get(DISPERSED[link], dispersion=dispersion)


def exposures(exposure: ArrayLike | None, n: int) -> Array:
    """Validate exposures and return one for each of `n` points."""
    if exposure is None:
        return np.ones(n)
    values = real(exposure, "exposure")
    if values.shape not in ((), (n,)):
        raise InputError(
            f"exposure must be a number or have shape ({n},), one per point; got {values.shape}"
        )
    wrong = ~((values > 0.0) & (values <= _LARGEST_EXPOSURE))
    if wrong.any():
        raise InputError(
            f"exposure must be positive and at most {_LARGEST_EXPOSURE:g}, got "
            f"{values[wrong].flat[0]:g}"
        )
    return np.full(n, values) if values.ndim == 0 else values.copy()
