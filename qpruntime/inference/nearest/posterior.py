"""A sparse posterior that the nearest rows correct, and that holds rows for that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.inference.nearest.disk import joined_inputs, on_disk
from qpruntime.inference.nearest.ground import check_rows
from qpruntime.inference.nearest.solution import LocalSolution
from qpruntime.inference.sites import Sites
from qpruntime.inference.sparse.posterior import SparsePosterior
from qpruntime.inference.sparse.rows import Held
from qpruntime.validation import finite, whole

__all__ = ["LocalPosterior", "local_of"]


@dataclass(frozen=True, eq=False, repr=False)
class LocalPosterior(SparsePosterior):
    """A `SparsePosterior` whose predictions the nearest rows of each point correct.

    It holds its rows and their sites, 8 d + 16 bytes a row and what they observed, and
    pickles with them: copies predict, and leave rows out. Inputs that came in parts and did not fit
    into memory are held on the disk, in files without a name that go when it does; a pickle has
    them all the same, and copies hold them in memory.

    Attributes
    ----------
    sparse : SparsePosterior
        Without the nearest rows.
    nearest : int
        Places, rows of equal inputs being one, that correct a point.
    """

    @property
    def sparse(self) -> SparsePosterior:
        """The posterior without the nearest rows, which pickles without rows."""
        return SparsePosterior._of(self, self._solution.inner)

    @property
    def nearest(self) -> int:
        """Places that correct a point."""
        return int(self._solution.nearest)

    def extend(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        weights: ArrayLike | None = None,
        mean: ArrayLike | None = None,
        scale: ArrayLike | None = None,
        sites: Literal["own", "tied"] = "own",
    ) -> LocalPosterior:
        """Posterior of these rows after those seen, as of `SparsePosterior.extend`.

        The rows and their sites join those that are held.
        """
        later = self.sparse.extend(X, y, weights=weights, mean=mean, scale=scale, sites=sites)
        inner = later._solution
        rows = joined(self._solution.rows, held_by(later, X))
        new = inner.engine.sites
        pairs = zip(self._solution.held, new, strict=True)
        held = Sites(*(np.concatenate(pair) for pair in pairs))
        solution = LocalSolution(inner=inner, nearest=self.nearest, rows=rows, held=held)
        return LocalPosterior._of(later, solution)


def local_of(posterior: SparsePosterior, X: Array, k: int) -> LocalPosterior:
    """Return a posterior whose predictions the k nearest rows correct.

    Parameters
    ----------
    posterior : SparsePosterior
        That has its rows.
    X : ndarray, shape (N, d)
        The inputs of these rows, in the units of its kernel; held from now on.
    k : int
    """
    k = whole(k, "k", 1)
    rows, inner = held_by(posterior, X), posterior._solution
    solution = LocalSolution(inner=inner, nearest=k, rows=rows, held=inner.with_rows.sites)
    return LocalPosterior._of(posterior, solution)


def held_by(posterior: SparsePosterior, X: Any) -> Held:
    """Return the rows of the engine of a posterior, with inputs that are in memory."""
    engine = posterior._solution.engine
    if engine is None:
        raise InputError("this posterior was pickled, without its rows: infer anew")
    rows: Any = engine.rows
    held: Array = X if on_disk(X) else np.ascontiguousarray(finite(X, "X"))
    check_rows(held, rows.n, posterior.Z.shape[1])
    return Held(held, rows.y, rows.weights, rows.prior, rows.scale)


def joined(one: Held, two: Held) -> Held:
    """Return the rows of both."""

    def column(name: str, default: float) -> Array | None:
        pair = getattr(one, name), getattr(two, name)
        if pair[0] is None and pair[1] is None:
            return None
        counts = one.n, two.n
        return np.concatenate(
            [np.full(n, default) if a is None else a for a, n in zip(pair, counts, strict=True)]
        )

    X, y = joined_inputs(one.X, two.X), np.concatenate([one.y, two.y])
    return Held(X, y, column("weights", 1.0), column("prior", 0.0), column("scale", 1.0))
