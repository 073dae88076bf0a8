"""What joint inference of classes leaves behind: sites, algebra, and the covariances if at hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.inference.classes.layout import Layout
from qpruntime.inference.classes.stored import ClassKept
from qpruntime.inference.corrections.corrected import Points
from qpruntime.inference.covariance import covariance
from qpruntime.inference.observed import Observed
from qpruntime.inference.sites import Sites
from qpruntime.likelihoods import get
from qpruntime.validation import finite, real

__all__ = ["CORRECTED", "ClassSolution", "priors"]

#: Sites up to which corrections are computed: they take the covariance of all.
CORRECTED = 2000
#: Covariances are those of an inference if the posterior means that they give agree to this.
_SAME = 1e-6


def priors(K: ArrayLike, name: str = "K") -> tuple[Array, float]:
    """Return prior covariances, shape (C, N, N) or (1, N, N), and the jitter on their diagonals.

    Raises
    ------
    InputError
        If they are not covariances.
    """
    given = np.asarray(K)
    if given.ndim == 2:
        own, jitter = covariance(K)
        return own[None], jitter
    if given.ndim != 3 or not len(given):
        raise InputError(
            f"{name} must have shape (N, N), one covariance for all classes, or (C, N, N), one for "
            f"each; got {given.shape}"
        )
    found = [covariance(one) for one in given]
    return np.array([one for one, _ in found]), max(jitter for _, jitter in found)


@dataclass(frozen=True, eq=False)
class ClassSolution:
    """Settled sites of N rows of C classes.

    Attributes
    ----------
    layout : Layout
    own : Sites
        Of g, each of shape (N (C - 1),).
    mean : ndarray, shape (N, C)
    left_out : callable or None
        Computes the leave-one-out log probabilities; pickles have these instead.
    kept : ClassKept
    K : ndarray, shape (C, N, N) or (1, N, N), or None
        Pickles leave it out.
    spread : ndarray, shape (N, C, C), or None
        Posterior covariances of rows, once they are known.
    densities : ndarray, shape (N,), or None
        Leave-one-out log probabilities, once they are known.
    """

    layout: Layout
    own: Sites
    mean: Array
    left_out: Callable[[], Array] | None
    kept: ClassKept
    K: Array | None
    spread: Array | None = None
    densities: Array | None = None

    def sites(self) -> Sites:
        """Sites of all classes, (N, C) each, not a number at the own class."""
        return Sites(*(self.layout.whole(part, np.nan) for part in self.own))

    def loo(self) -> Array:
        """Leave-one-out log probabilities, shape (N,)."""
        if self.densities is None and self.left_out is not None:
            object.__setattr__(self, "densities", self.left_out())
        assert self.densities is not None
        return self.densities

    def covariance(self) -> Array:
        """Posterior covariances at the rows, shape (N, C, C)."""
        if self.spread is None:
            K = self.covariances()
            diagonal = np.array([one.diagonal() for one in K])
            object.__setattr__(self, "spread", self.kept.predict(K, diagonal)[1])
        assert self.spread is not None
        return self.spread

    def covariance_of(self, rows: NDArray[np.intp]) -> Array:
        """Those of some rows, shape (n, C, C)."""
        if self.spread is not None:
            return self.spread[rows]
        K = self.covariances()
        diagonal = np.array([one.diagonal()[rows] for one in K])
        found: Array = self.kept.predict(np.array([one[rows] for one in K]), diagonal)[1]
        return found

    def covariances(self) -> Array:
        """The prior covariances, or `InputError` where a pickle has left them out."""
        if self.K is None:
            raise InputError(
                "the prior covariance is needed, and pickles of a posterior leave it out: "
                "post.with_covariance(K) takes it back"
            )
        return self.K

    def at(self, K_star: ArrayLike, k_star_diag: ArrayLike) -> tuple[Array, Array]:
        """Prior covariances of T points with the rows and prior variances, of each class or all.

        Raises
        ------
        InputError
            If they have other shapes, or are not finite.
        """
        crossed, diagonal = real(K_star, "K_star"), finite(k_star_diag, "k_star_diag")
        C, n = self.kept.by_class.shape
        several = crossed.ndim == 3
        if crossed.ndim not in (2, 3) or crossed.shape[-1] != n or (several and len(crossed) != C):
            raise InputError(
                f"K_star must have shape (T, {n}), one column per training point, or "
                f"({C}, T, {n}) for a covariance of each class; got {crossed.shape}"
            )
        if not self.kept.shared and not several:
            raise InputError(
                f"each class has a covariance of its own here: K_star must have shape ({C}, T, "
                f"{n}), got {crossed.shape}"
            )
        crossed = finite(crossed, "K_star")
        points = crossed.shape[-2]
        allowed = ((), (points,), (C, points))
        if diagonal.shape not in allowed:
            raise InputError(
                f"k_star_diag must have shape ({points},) or ({C}, {points}), got {diagonal.shape}"
            )
        crossed = crossed if several else crossed[None]
        wide = np.broadcast_to(diagonal, (*diagonal.shape[:-1], points))
        return crossed, wide.reshape(-1, points)

    def gradient(self, change: ArrayLike) -> Array | float:
        """Slope of the log evidence where the prior covariances change so."""
        dK = finite(change, "dK")
        C, n = self.kept.by_class.shape
        wanted = (n, n) if self.kept.shared else (C, n, n)
        if dK.shape[: len(wanted)] != wanted or dK.ndim > len(wanted) + 1:
            raise InputError(f"dK must have shape {wanted} or {(*wanted, 'p')}, got {dK.shape}")
        return self.kept.evidence_gradient(dK)

    def observed(self) -> Observed:
        """The contrasts as one problem of a dense covariance, for corrections."""
        count = self.layout.sites
        if count > CORRECTED:
            raise InputError(
                f"corrections are for {CORRECTED} sites at most, N (C - 1) = {count} here: leave "
                "them out, or infer from fewer rows"
            )
        K = self.layout.contrasts(self.covariances())
        return Observed(K, np.ones(count), np.zeros(count), get("probit"))

    def points(self, c: int, crossed: Array, diagonal: Array) -> Points:
        """Values of class c at points, for corrections."""
        some = crossed[c % len(crossed)]
        seen = np.ascontiguousarray(self.layout.crossed(some, c))
        return Points(seen, diagonal[c % len(diagonal)].copy(), np.zeros(len(some)))

    def with_covariance(self, K: ArrayLike) -> ClassSolution:
        """Return the same with its prior covariances."""
        own, _ = priors(K)
        C, n = self.kept.by_class.shape
        if own.shape != ((1 if self.kept.shared else C), n, n):
            raise InputError(f"K must be that of the inference, of {n} rows; got {np.shape(K)}")
        for c in range(C):
            prior = own[c % len(own)]
            found, scale = prior @ self.kept.by_class[c], np.sqrt(prior.max())
            if not np.abs(found - self.mean[:, c]).max() <= _SAME * (scale + np.abs(found).max()):
                raise InputError(
                    "K is not the prior covariance of this posterior: it gives other means of "
                    f"class {c}"
                )
        return replace(self, K=own)

    def __getstate__(self) -> dict[str, Any]:
        if self.K is not None:
            self.covariance()
        self.loo()
        return {**vars(self), "K": None, "left_out": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
