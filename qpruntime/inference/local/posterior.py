"""Sparse posterior whose predictions the nearest rows correct."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qpruntime._memory import require
from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import finite, whole
from qpruntime.errors import InputError
from qpruntime.inference.local.blocks import (
    NeighbourBlocks,
    PlaceSearch,
    PredictiveWeights,
    check_rows,
)
from qpruntime.inference.local.storage import joined_inputs, mapped, on_disk
from qpruntime.inference.sites import Sites
from qpruntime.inference.sparse.engine import log_densities, seen_by_likelihood
from qpruntime.inference.sparse.passes import Block, Cavities
from qpruntime.inference.sparse.posterior import InducingSolution, SparsePosterior, SparseSolution
from qpruntime.inference.sparse.rows import Columns, Held

if TYPE_CHECKING:
    from sklearn.gaussian_process.kernels import Kernel

__all__ = ["LocalPosterior", "LocalSolution", "local_of"]

# --- Posterior corrected by nearest rows


@restorable("local-posterior/1", root=True)
@dataclass(frozen=True, eq=False, repr=False)
class LocalPosterior(SparsePosterior):
    """Sparse posterior whose predictions the nearest rows of each point correct.

    It holds its rows and their sites, 8 d + 16 bytes a row plus the observations, and pickles with
    them: copies predict, and leave rows out. Lazy inputs that do not fit into memory are held on
    disk, in temporary files that are deleted with the posterior. A pickle includes them, and copies
    hold them in memory.

    Attributes
    ----------
    sparse : SparsePosterior
        Posterior without the corrections.
    nearest : int
        Number of places that correct a point; rows of equal inputs are one place.

    See Also
    --------
    qpruntime.infer_sparse, qpruntime.SparsePosterior

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process.kernels import RBF
    >>> from qpruntime import infer_sparse
    >>> X = np.linspace(0.0, 10.0, 200)[:, None]
    >>> y = np.sign(np.sin(X[:, 0] + 0.1))
    >>> post = infer_sparse(X, y, 4.0 * RBF(1.0), X[::20], nearest=5)
    >>> post.nearest, type(post.sparse).__name__
    (5, 'SparsePosterior')
    >>> mean, variance = post.predict([[2.5], [5.5]])
    >>> np.sign(mean).tolist()
    [1.0, -1.0]
    """

    _solution: LocalSolution = field(kw_only=True)

    @property
    def sparse(self) -> SparsePosterior:
        """Posterior without the corrections, which pickles without rows."""
        return SparsePosterior._of(self, self._solution.inner)

    @property
    def nearest(self) -> int:
        """Number of places that correct a point."""
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
        """Return the posterior of these and all earlier rows, as `SparsePosterior.extend` does.

        It holds the rows and their sites together with the earlier ones.
        """
        later = self.sparse.extend(X, y, weights=weights, mean=mean, scale=scale, sites=sites)
        inner = later._solution
        rows = joined(self._solution.rows, held_by(later, X))
        new = inner.engine.sites
        pairs = zip(self._solution.sites_held, new, strict=True)
        row_sites = Sites(*(np.concatenate(pair) for pair in pairs))
        solution = LocalSolution(inner=inner, nearest=self.nearest, rows=rows, sites_held=row_sites)
        return LocalPosterior._of(later, solution)


def local_of(
    posterior: SparsePosterior, X: Array, k: int, search: PlaceSearch | None = None
) -> LocalPosterior:
    """Return a posterior whose predictions the k nearest rows correct.

    Parameters
    ----------
    posterior : SparsePosterior
        Posterior that has its rows.
    X : ndarray, shape (N, d)
        Inputs of these rows in the units of its kernel, which the result holds.
    k : int
    search : PlaceSearch, optional
        Search of another posterior of these rows, used if the length-scales are the same.
    """
    k = whole(k, "k", 1)
    rows, inner = held_by(posterior, X), posterior._solution
    sites = inner.with_rows.sites
    solution = LocalSolution(
        inner=inner, nearest=k, rows=rows, sites_held=sites, earlier_search=search
    )
    return LocalPosterior._of(posterior, solution)


def held_by(posterior: SparsePosterior, X: ArrayLike) -> Held:
    """Return the rows of the engine of a posterior, with inputs that are in memory."""
    engine = posterior._solution.engine
    if engine is None:
        raise InputError("this posterior was pickled, without its rows: infer anew")
    rows = engine.rows
    assert isinstance(rows, Columns)
    inputs = np.asanyarray(X) if on_disk(X) else np.ascontiguousarray(finite(X, "X"))
    check_rows(inputs, rows.n, posterior.Z.shape[1])
    return Held(inputs, rows.y, rows.weights, rows.prior, rows.scale)


def joined(first: Held, second: Held) -> Held:
    """Return the rows of two parts together."""

    def column(name: str, default: float) -> Array | None:
        pair = getattr(first, name), getattr(second, name)
        if pair[0] is None and pair[1] is None:
            return None
        counts = first.n, second.n
        return np.concatenate(
            [np.full(n, default) if a is None else a for a, n in zip(pair, counts, strict=True)]
        )

    X, y = joined_inputs(first.X, second.X), np.concatenate([first.y, second.y])
    return Held(X, y, column("weights", 1.0), column("prior", 0.0), column("scale", 1.0))


# --- Solution with neighbours

_SPARSE_INSTEAD = "its attribute sparse pickles without rows, and predicts without the nearest"


@restorable("local-solution/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class LocalSolution(InducingSolution):
    """Solution of the sparse engine with nearest rows, which pickles with its rows.

    Attributes
    ----------
    inner : SparseSolution
    nearest : int
    rows : Held
    sites_held : Sites
        Sites of f at these rows about the prior mean.
    earlier_search : PlaceSearch or None
    """

    inner: SparseSolution
    nearest: int
    rows: Held
    sites_held: Sites
    earlier_search: PlaceSearch | None = None

    name = "inducing+nearest"

    def __getstate__(self) -> dict[str, object]:
        left_out = "_ground", "earlier_search"
        state = {name: value for name, value in vars(self).items() if name not in left_out}
        if on_disk(self.rows.X):
            require(
                float(self.rows.X.nbytes), "pickling the rows of this posterior", _SPARSE_INSTEAD
            )
            state["rows"] = replace(self.rows, X=np.array(self.rows.X, subok=False))
        return state

    @property
    def words(self) -> str:
        """Words about the engine for one line."""
        return f"{self.inner.words}, {self.nearest} nearest rows"

    @property
    def lines(self) -> tuple[str, ...]:
        """Line on the rows that the posterior holds."""
        facts = self.facts()
        where = "on the disk " if facts["rows_on_disk"] else ""
        return (
            f"nearest    {self.nearest} rows correct a point; {self.rows.n} rows are held {where}"
            f"and pickled, {facts['bytes_held']} bytes",
        )

    @property
    def width(self) -> int:
        """Numbers that a prediction computes per point."""
        return self.inner.width

    @property
    def held_rows(self) -> int:
        """Number of rows held, of all parts."""
        return self.rows.n

    @property
    def kernel(self) -> Kernel:
        """Kernel of the prior."""
        return self.inner.kernel

    @property
    def Z(self) -> Array:
        """Inducing inputs."""
        return self.inner.Z

    @property
    def power(self) -> float:
        """Power of power EP."""
        return self.inner.power

    @cached_property
    def _ground(self) -> NeighbourBlocks:
        inner = self.inner
        inducing = inner.inducing.in_dtype(np.float64)
        known = PredictiveWeights(inducing, inner.root, inner.weights, inner.power)
        return NeighbourBlocks(inner.kernel, known, self.rows, self.sites_held, self.earlier_search)

    @property
    def search(self) -> PlaceSearch:
        """Search for the nearest places, which another kernel may share."""
        return self._ground.search

    def sites(self) -> Sites:
        """Return the sites at the rows of the last part."""
        return self.inner.sites()

    def moments(self) -> tuple[Array, Array]:
        """Return posterior means and variances at these rows under the inducing inputs."""
        return self.inner.moments()

    def loo(self, rows: NDArray[np.intp] | None) -> Array:
        """Return leave-one-out log densities of selected rows, each by the nearest other rows."""
        chosen = np.arange(self.rows.n) if rows is None else rows
        return log_densities(self.inner.known_rule, *self._cavities(chosen))

    def loo_places(self, rows: NDArray[np.intp]) -> Array:
        """Return log densities of selected rows, each without all rows that equal it."""
        return log_densities(self.inner.known_rule, *self._cavities(rows, places=True))

    def left_out(self, rows: NDArray[np.intp]) -> tuple[Array, Array]:
        """Return leave-one-out means and variances of rows, as the likelihood sees them."""
        return seen_by_likelihood(*self._cavities(rows))

    def _cavities(self, rows: NDArray[np.intp], places: bool = False) -> tuple[Block, Cavities]:
        mean, v = self._ground.without(rows, self.nearest, places)
        y, _, prior, scale = self.rows.others(rows)
        proper = (v > 0.0) & np.isfinite(v) & np.isfinite(mean)
        zeros = np.zeros(rows.size)
        centre, v = np.where(proper, mean, 0.0), np.where(proper, v, 1.0)
        block = Block(y, None, prior, zeros, zeros, scale)
        return block, Cavities(zeros, zeros, zeros, zeros, centre, v, proper)

    def least(self) -> tuple[float, int]:
        """Return the least leave-one-out log density under the inducing inputs, and its row."""
        return self.inner.lowest

    def predict(self, at: tuple[ArrayLike, ...], mean: ArrayLike | None) -> tuple[Array, Array]:
        """Return latent means and variances at points (T, d), in O(T (M^2 + k^2 M)).

        Every row that is a neighbour for the first time takes O(M^2) more.
        """
        points, prior = self.inner.checked(at, mean)
        centre, variance = self._ground.predict(points, self.nearest)
        return centre + prior, variance

    def draw(
        self,
        at: tuple[ArrayLike, ...],
        mean: ArrayLike | None,
        count: int,
        rng: np.random.Generator,
    ) -> Array:
        """Raise `InputError`, because each point has its own neighbours and no two a covariance."""
        raise InputError(
            "nearest rows correct each point by itself, and leave no joint draws: post.sparse, "
            "without them, has sample"
        )

    def joint(self, at: tuple[ArrayLike, ...], mean: ArrayLike | None) -> tuple[Array, Array]:
        """Raise `InputError`, as `draw` does."""
        raise InputError(
            "nearest rows correct each point by itself, and no two have a covariance: post.sparse, "
            "without them, has joint"
        )

    def gradient(self, change: ArrayLike | None) -> Array | float:
        """Return the slope of the evidence under the inducing inputs."""
        return self.inner.gradient(change)

    def facts(self) -> dict[str, str | int | float]:
        """Return the engine's entries of a summary."""
        return {
            **self.inner.facts(),
            "nearest": self.nearest,
            "rows_held": self.rows.n,
            "bytes_held": self.rows.X.nbytes
            + self.sites_held.tau.nbytes
            + self.sites_held.nu.nbytes,
            "rows_on_disk": on_disk(self.rows.X),
        }

    def on(self, kernel: Kernel, X: Array, unscaled: Callable[[Array], Array]) -> LocalSolution:
        """Return the solution in other units of the inputs."""
        rows = replace(self.rows, X=mapped(self.rows.X, unscaled))
        inner = self.inner.on(kernel, X, unscaled)
        return replace(self, inner=inner, rows=rows, earlier_search=None)
