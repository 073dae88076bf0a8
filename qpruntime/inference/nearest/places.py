"""Sites of rows, summed up by place: rows of equal inputs are one neighbour.

Latent values are about their prior means, f_n = m_n + h(x_n) + noise. A site (tau, nu) of f_n is
one of h(x_n) with tau/(1 + s tau) and nu/(1 + s tau), s the variance of the white noise; sites of
h at one place add up. What the inducing inputs were told of a row is (T, N) = (tau, nu)/(1 +
power r tau).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qpruntime.arrays import Array
from qpruntime.inference.nearest.disk import taken
from qpruntime.inference.nearest.distinct import distinct
from qpruntime.inference.sites import Sites

__all__ = ["Places"]

Numbers = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Places:
    """Places (P, d) of N rows.

    Attributes
    ----------
    X : ndarray, shape (P, d)
    of_row : ndarray of int, shape (N,)
    rows, begin : ndarray of int, shapes (N,), (P + 1,)
        Rows by place: those of place p are ``rows[begin[p]:begin[p + 1]]``.
    sites : Sites
        Of rows, of f about its prior mean; negative ones are left out.
    noise : ndarray, shape (P,)
        Variance of the white noise.
    """

    X: Array
    of_row: Numbers
    rows: Numbers
    begin: Numbers
    sites: Sites
    noise: Array

    @property
    def count(self) -> int:
        """Number of places."""
        return len(self.X)

    @classmethod
    def of(cls, X: Array, sites: Sites, noise: Array) -> Places:
        """Merge rows X (N, d) with sites and white noise (N,) of these."""
        first, group = distinct(X)
        if len(first) == len(X):
            # No rows are equal: they stay where they are.
            first = group = np.arange(len(X))
        kept = sites.tau >= 0.0
        left = Sites(np.where(kept, sites.tau, 0.0), np.where(kept, sites.nu, 0.0))
        order = np.argsort(group, kind="stable")
        begin = np.searchsorted(group[order], np.arange(len(first) + 1))
        return cls(taken(X, first), group, order, begin, left, noise[first])

    def ordered(self, order: Numbers) -> Places:
        """The same places, the one of number ``order[p]`` as number p."""
        back = np.empty(len(order), np.intp)
        back[order] = np.arange(len(order))
        lengths = np.diff(self.begin)[order]
        begin = np.concatenate([[0], np.cumsum(lengths)])
        inside = np.arange(len(self.rows)) - np.repeat(begin[:-1], lengths)
        rows = self.rows[np.repeat(self.begin[order], lengths) + inside]
        X, of_row, noise = taken(self.X, order), back[self.of_row], self.noise[order]
        return Places(X, of_row, rows, begin, self.sites, noise)

    def at(self, places: Numbers) -> Array:
        """Return inputs of some places, read if they are on the disk."""
        return np.asarray(self.X[places])

    def own(self, rows: Numbers) -> Sites:
        """Sites of h of some rows, without noise."""
        share = 1.0 + self.noise[self.of_row[rows]] * self.sites.tau[rows]
        return Sites(self.sites.tau[rows] / share, self.sites.nu[rows] / share)

    def summed(self, rows: Numbers, values: Array) -> Array:
        """Sum values of some rows by place, shape (P,)."""
        return _added(self.of_row[rows], values, self.count)

    def sites_of(self, places: Numbers, r: Array, power: float) -> tuple[Array, Array]:
        """T and N of some places, whose variance given the inducing inputs is r."""
        lengths = self.begin[places + 1] - self.begin[places]
        at = np.repeat(np.arange(len(places)), lengths)
        inside = np.arange(len(at)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        rows = self.rows[self.begin[places][at] + inside]
        tau, nu = self.sites.tau[rows], self.sites.nu[rows]
        share = 1.0 + power * r[at] * tau
        return _added(at, tau / share, len(places)), _added(at, nu / share, len(places))


def _added(at: Numbers, values: Array, size: int) -> Array:
    """Sums of values by number; of no values at all bincount returns integers."""
    return np.bincount(at, values, minlength=size).astype(float)
