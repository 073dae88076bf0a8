"""Gaussian sites, t_i(f) = exp(nu_i f - tau_i f^2/2), one for each observation."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime.errors import NumericalError

__all__ = [
    "NO_STEP",
    "Counts",
    "ImproperPosterior",
    "Sites",
    "no_counts",
    "no_sites",
    "without_negative",
]

#: Numbers of lookups inside and outside a grid, and of updates skipped at improper cavities.
Counts = NDArray[np.int64]


@restorable("sites/1")
class Sites(NamedTuple):
    """Site precisions `tau` and precision-weighted means `nu`, each of shape (N,).

    See Also
    --------
    qpruntime.Posterior, qpruntime.infer

    Examples
    --------
    >>> import numpy as np
    >>> from qpruntime import infer
    >>> x = np.linspace(-1.0, 1.0, 6)
    >>> K = 4.0 * np.exp(-2.0 * (x[:, None] - x) ** 2)
    >>> post = infer(K, np.sign(x), "probit", "ep")
    >>> tau, nu = post.sites
    >>> tau.round(2).tolist()
    [0.2, 0.16, 0.35, 0.35, 0.16, 0.2]
    >>> infer(K, np.sign(x), "probit", "ep", sites=post.sites).n_sweeps < post.n_sweeps
    True
    """

    tau: Array
    nu: Array


class ImproperPosterior(NumericalError):
    """Negative site precisions outweigh the prior; damping avoids it."""


#: Message if damping does not avoid it.
NO_STEP = (
    "negative site precisions leave no proper posterior however short the step; use a smaller "
    "prior variance or a prior mean away from zero"
)


def no_sites(n: int) -> Sites:
    """Return flat sites, whose posterior is the prior."""
    return Sites(np.zeros(n), np.zeros(n))


def without_negative(sites: Sites) -> Sites:
    """Return the sites with those of negative precision reset to flat ones."""
    kept = sites.tau >= 0.0
    return Sites(np.where(kept, sites.tau, 0.0), np.where(kept, sites.nu, 0.0))


def no_counts() -> Counts:
    """Return counts of zero."""
    return np.zeros(3, dtype=np.int64)
