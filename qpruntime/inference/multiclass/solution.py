"""Solution of the engine of classes: settled sites and the algebra of predictions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import finite, real
from qpruntime.errors import InputError
from qpruntime.inference.corrections.corrected import (
    MarginalPoints,
)
from qpruntime.inference.multiclass.linalg import Layout
from qpruntime.inference.multiclass.solver import ClassKept
from qpruntime.inference.problem import MEAN_TOLERANCE, Observed, covariance
from qpruntime.inference.sites import Sites
from qpruntime.likelihoods import get

__all__ = ["CORRECTED", "ClassSolution", "SettledClasses", "priors"]

#: Number of sites up to which corrections are computed, because they take the covariance of all
#: sites.
CORRECTED = 2000


def priors(K: ArrayLike, name: str = "K") -> tuple[Array, float]:
    """Return prior covariances, shape (C, N, N) or (1, N, N), and the jitter on their diagonals.

    Raises
    ------
    InputError
        If they are not covariances.
    """
    blocks = np.asarray(K)
    if blocks.ndim == 2:
        block, jitter = covariance(K)
        return block[None], jitter
    if blocks.ndim != 3 or not len(blocks):
        raise InputError(
            f"{name} must have shape (N, N), one covariance for all classes, or (C, N, N), one for "
            f"each; got {blocks.shape}"
        )
    checked = [covariance(block) for block in blocks]
    return np.array([block for block, _ in checked]), max(jitter for _, jitter in checked)


@dataclass(frozen=True, eq=False)
class SettledClasses:
    """Settled sites of N rows of C classes.

    Attributes
    ----------
    layout : Layout
    sites_held : Sites
        Sites of g, each of shape (N (C - 1),).
    mean : ndarray, shape (N, C)
    left_out : callable or None
        Function that computes the leave-one-out log probabilities; pickles have its result instead.
    densities : ndarray, shape (N,), or None
        Leave-one-out log probabilities, once they are computed.
    """

    layout: Layout
    sites_held: Sites
    mean: Array
    left_out: Callable[[], Array] | None
    densities: Array | None = field(default=None, kw_only=True)

    def sites(self) -> Sites:
        """Return sites of all classes, (N, C) each, NaN at the own class."""
        return Sites(*(self.layout.whole(part, np.nan) for part in self.sites_held))

    def loo(self) -> Array:
        """Return leave-one-out log probabilities, shape (N,)."""
        if self.densities is None and self.left_out is not None:
            object.__setattr__(self, "densities", self.left_out())
        assert self.densities is not None
        return self.densities

    def least(self) -> tuple[float, int]:
        """Return the least leave-one-out log probability, and its row."""
        row = int(np.argmin(self.loo()))
        return float(self.loo()[row]), row

    def facts(self) -> dict[str, str | int | float]:
        """Return the engine's entries of a summary."""
        return {"classes": self.layout.classes}


@restorable("class-solution/1")
@dataclass(frozen=True, eq=False)
class ClassSolution(SettledClasses):
    """Settled sites by covariance matrices of all rows.

    Attributes
    ----------
    kept : ClassKept
    K : ndarray, shape (C, N, N) or (1, N, N), or None
        Prior covariances; pickles leave them out.
    spread : ndarray, shape (N, C, C), or None
        Posterior covariances of rows, once they are computed.
    """

    kept: ClassKept
    K: Array | None
    spread: Array | None = None

    def covariance(self) -> Array:
        """Return posterior covariances at the rows, shape (N, C, C)."""
        if self.spread is None:
            K = self.covariances()
            diagonal = np.array([block.diagonal() for block in K])
            object.__setattr__(self, "spread", self.kept.predict(K, diagonal)[1])
        assert self.spread is not None
        return self.spread

    def covariance_of(self, rows: NDArray[np.intp]) -> Array:
        """Return posterior covariances at chosen rows, shape (n, C, C)."""
        if self.spread is not None:
            return self.spread[rows]
        K = self.covariances()
        diagonal = np.array([block.diagonal()[rows] for block in K])
        return self.kept.predict(np.array([block[rows] for block in K]), diagonal)[1]

    def covariances(self) -> Array:
        """Return the prior covariances, or raise `InputError` if a pickle has left them out."""
        if self.K is None:
            raise InputError(
                "the prior covariance is needed, and pickles of a posterior leave it out: "
                "post.with_covariance(K) takes it back"
            )
        return self.K

    def at(self, K_star: ArrayLike, k_star_diag: ArrayLike) -> tuple[Array, Array]:
        """Return prior covariances of T points with the rows, and prior variances.

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
        """Return the slope of the log evidence for a change of the prior covariances."""
        dK = finite(change, "dK")
        C, n = self.kept.by_class.shape
        wanted = (n, n) if self.kept.shared else (C, n, n)
        if dK.shape[: len(wanted)] != wanted or dK.ndim > len(wanted) + 1:
            raise InputError(f"dK must have shape {wanted} or {(*wanted, 'p')}, got {dK.shape}")
        return self.kept.evidence_gradient(dK)

    def observed(self) -> Observed:
        """Return the contrasts as one problem with a dense covariance, for corrections."""
        count = self.layout.sites
        if count > CORRECTED:
            raise InputError(
                f"corrections are for {CORRECTED} sites at most, N (C - 1) = {count} here: leave "
                "them out, or infer from fewer rows"
            )
        K = self.layout.contrasts(self.covariances())
        return Observed(K, np.ones(count), np.zeros(count), get("probit"))

    def points(self, c: int, crossed: Array, diagonal: Array) -> MarginalPoints:
        """Return values of class c at points, for corrections."""
        crossed_class = crossed[c % len(crossed)]
        site_covariances = np.ascontiguousarray(self.layout.crossed(crossed_class, c))
        return MarginalPoints(
            site_covariances, diagonal[c % len(diagonal)].copy(), np.zeros(len(crossed_class))
        )

    def with_covariance(self, K: ArrayLike) -> ClassSolution:
        """Return the same with its prior covariances."""
        prior_blocks, _ = priors(K)
        C, n = self.kept.by_class.shape
        if prior_blocks.shape != ((1 if self.kept.shared else C), n, n):
            raise InputError(f"K must be that of the inference, of {n} rows; got {np.shape(K)}")
        for c in range(C):
            prior = prior_blocks[c % len(prior_blocks)]
            class_mean, scale = prior @ self.kept.by_class[c], np.sqrt(prior.max())
            if not np.abs(class_mean - self.mean[:, c]).max() <= MEAN_TOLERANCE * (
                scale + np.abs(class_mean).max()
            ):
                raise InputError(
                    "K is not the prior covariance of this posterior: it gives other means of "
                    f"class {c}"
                )
        return replace(self, K=prior_blocks)

    def __getstate__(self) -> dict[str, object]:
        if self.K is not None:
            self.covariance()
        self.loo()
        return {**vars(self), "K": None, "left_out": None}
