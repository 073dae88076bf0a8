"""Sites to start from at new hyper-parameters, by those of hyper-parameters near by.

Sites follow hyper-parameters smoothly, so that a plane through a few known ones is a better guess
than the nearest alone: the iteration begins a step or two nearer to its end, which is the same.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from qpruntime.arrays import Array
from qpruntime.inference.sites import Sites

__all__ = ["Nearby"]

#: Of the largest squared distance, added to the diagonal of the least squares; and how far beyond
#: the known ones a plane is followed, in units of their distances.
_RIDGE, _BEYOND = 1e-8, 3.0
#: Precisions shrink to so much of the nearest ones' at most.
_SHRUNK = 0.5


class Nearby:
    """The sites of the last few hyper-parameters.

    Parameters
    ----------
    most : int
        How many are kept: one more than there are hyper-parameters makes a plane.

    Examples
    --------
    >>> from qpruntime.inference.precision.nearby import Nearby
    >>> known = Nearby(2)
    >>> known.add([0.0], ([1.0], [2.0]))
    >>> known.add([1.0], ([2.0], [1.0]))
    >>> tau, nu = known.at([1.5])
    >>> tau.round(3).tolist(), nu.round(3).tolist()
    ([2.5], [0.5])
    """

    def __init__(self, most: int) -> None:
        self.most = max(1, most)
        self._known: list[tuple[Array, Sites]] = []

    def __len__(self) -> int:
        return len(self._known)

    def clear(self) -> None:
        """Forget all."""
        self._known.clear()

    def add(self, theta: ArrayLike, sites: Sites | tuple[ArrayLike, ArrayLike]) -> None:
        """Keep the sites (tau, nu), each of shape (N,), that belong to theta, shape (p,)."""
        at = np.array(theta, dtype=float)
        own = Sites(*(np.asarray(part, dtype=float) for part in sites))
        self._known = [one for one in self._known if not np.array_equal(one[0], at)]
        self._known = [*self._known, (at, own)][-self.most :]

    def distance(self, theta: ArrayLike) -> float:
        """Largest change of a hyper-parameter from the nearest that is known; inf without any."""
        steps = [np.abs(np.asarray(theta) - at).max(initial=0.0) for at, _ in self._known]
        return float(min(steps, default=np.inf))

    def at(self, theta: ArrayLike) -> Sites | None:
        """Sites to begin with at theta, or None where nothing is known.

        Precisions stay above half of the nearest ones'; where one of these is negative, the sites
        of the nearest are taken as they are.
        """
        if not self._known:
            return None
        new = np.asarray(theta, dtype=float)
        far = [float(np.square(new - at).sum()) for at, _ in self._known]
        nearest = int(np.argmin(far))
        centre, base = self._known[nearest]
        others = [one for k, one in enumerate(self._known) if k != nearest]
        if not others or far[nearest] == 0.0 or (base.tau < 0.0).any():
            return base
        D = np.column_stack([at - centre for at, _ in others])
        inner = D.T @ D
        inner[np.diag_indices_from(inner)] += _RIDGE * inner.diagonal().max()
        share = np.linalg.solve(inner, D.T @ (new - centre))
        if not np.abs(share).sum() <= _BEYOND:
            return base
        tau, nu = base.tau.copy(), base.nu.copy()
        for weight, (_, sites) in zip(share, others, strict=True):
            tau += weight * (sites.tau - base.tau)
            nu += weight * (sites.nu - base.nu)
        least = _SHRUNK * base.tau
        short = tau < least
        if short.any():
            tau[short], nu[short] = base.tau[short], base.nu[short]
        return Sites(tau, nu)
