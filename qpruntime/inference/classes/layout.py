"""Where the sites of N rows of C classes are: one for each row and each class but its own.

Site (i, j) sees g_ij = u_i + f_own,i - f_j,i, u_i a unit normal of the row, by a probit: the row is
of its own class if that value and unit noise is the largest (Riihimaki, Jylanki & Vehtari, 2013).
Sites are numbered by rows, and in a row by classes.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from qpruntime.arrays import Array

__all__ = ["Layout"]


class Layout:
    """Rows with their classes.

    Parameters
    ----------
    own : ndarray of int, shape (N,)
        The class of each row, from 0 to C - 1.
    classes : int
        C.

    Attributes
    ----------
    rows, others : ndarray of int, shape (N (C - 1),)
        Row and class of each site.
    """

    def __init__(self, own: NDArray[np.intp], classes: int) -> None:
        self.own, self.classes = own, classes
        free = np.ones((own.size, classes), dtype=bool)
        free[np.arange(own.size), own] = False
        self.rows, self.others = np.nonzero(free)

    @property
    def n(self) -> int:
        """Number of rows."""
        return self.own.size

    @property
    def sites(self) -> int:
        """Number of sites."""
        return self.rows.size

    def whole(self, flat: Array, at_own: float) -> Array:
        """Values of all classes, shape (N, C), of those of sites; `at_own` stands for the rest."""
        found = np.full((self.n, self.classes), at_own)
        found[self.rows, self.others] = flat
        return found

    def flat(self, whole: Array) -> Array:
        """Values of sites, of those of all classes, shape (N, C)."""
        found: Array = whole[self.rows, self.others]
        return found

    def contrasts(self, K: Array) -> Array:
        """Prior covariance of g, of that of each class, shape (C, N, N), or of all, (1, N, N)."""
        found = np.equal.outer(self.rows, self.rows).astype(float)
        own = self.own[self.rows]
        for c in range(self.classes):
            sign = 1.0 * (own == c) - (self.others == c)
            some = np.flatnonzero(sign)
            rows = self.rows[some]
            found[np.ix_(some, some)] += (
                np.outer(sign[some], sign[some]) * (K[c % len(K)][np.ix_(rows, rows)])
            )
        return found

    def crossed(self, K_star: Array, target: int) -> Array:
        """Prior covariances of f_target at T points with g, of theirs with that of the rows."""
        sign = 1.0 * (self.own[self.rows] == target) - (self.others == target)
        found: Array = K_star[:, self.rows] * sign
        return found

    def words(self, text: str) -> str:
        """The same text with sites called by row and class."""

        def named(match: re.Match[str]) -> str:
            site = int(match[1])
            if site >= self.sites:
                return match[0]
            return f"the site of row {self.rows[site]} and class {self.others[site]}"

        return re.sub(r"\bsite (\d+)", named, text)
