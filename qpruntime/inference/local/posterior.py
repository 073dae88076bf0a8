"""A sparse posterior that the nearest rows correct, and that holds rows for that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qpruntime._memory import require
from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import finite, whole
from qpruntime.errors import InputError
from qpruntime.inference.corrections.corrected import MarginalPoints
from qpruntime.inference.local.blocks import NeighbourBlocks, PredictiveWeights, check_rows
from qpruntime.inference.local.storage import joined_inputs, mapped, on_disk
from qpruntime.inference.problem import Observed
from qpruntime.inference.sites import Sites
from qpruntime.inference.solution_protocol import Crossed
from qpruntime.inference.sparse.data import Held
from qpruntime.inference.sparse.engine import seen_by_likelihood
from qpruntime.inference.sparse.passes import Block, Cavities, project
from qpruntime.inference.sparse.posterior import SparsePosterior, SparseSolution

__all__ = [
    "LocalPosterior",
    "LocalSolution",
    "local_of",
]

# --- Posterior corrected by nearest rows


@restorable("local-posterior/1", root=True)
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


# --- What a posterior with neighbours keeps

_LEAVE_OUT = "its attribute sparse pickles without rows, and predicts without the nearest"


@restorable("local-solution/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class LocalSolution:
    """As `qpruntime.inference.posterior.Solution` has it; it pickles with its rows.

    Attributes
    ----------
    inner : SparseSolution
    nearest : int
    rows : Held
    held : Sites
        Of f at these rows, about the prior mean.
    """

    inner: SparseSolution
    nearest: int
    rows: Held
    held: Sites

    where = ("X",)
    algebra = 0
    name, corrects = "inducing+nearest", False

    def __getstate__(self) -> dict[str, Any]:
        left = {name: value for name, value in vars(self).items() if name != "_ground"}
        if on_disk(self.rows.X):
            require(float(self.rows.X.nbytes), "pickling the rows of this posterior", _LEAVE_OUT)
            left["rows"] = replace(self.rows, X=np.array(self.rows.X, subok=False))
        return left

    @property
    def words(self) -> str:
        """What a line says of the engine."""
        return f"{self.inner.words}, {self.nearest} nearest rows"

    @property
    def lines(self) -> tuple[str, ...]:
        """What is held."""
        found = self.facts()
        where = "on the disk " if found["rows_on_disk"] else ""
        return (
            f"nearest    {self.nearest} rows correct a point; {self.rows.n} rows are held {where}"
            f"and pickled, {found['bytes_held']} bytes",
        )

    @property
    def width(self) -> int:
        """Numbers that a prediction makes of a point."""
        return self.inner.width

    @property
    def held_rows(self) -> int:
        """Rows that are held: of all parts."""
        return self.rows.n

    @property
    def kernel(self) -> Any:
        """The kernel of the prior."""
        return self.inner.kernel

    @property
    def Z(self) -> Array:
        """Inducing inputs."""
        return self.inner.Z

    @property
    def power(self) -> float:
        """The power of power EP."""
        return self.inner.power

    @cached_property
    def _ground(self) -> NeighbourBlocks:
        inner = self.inner
        inducing = inner.inducing.in_dtype(np.float64)
        known = PredictiveWeights(inducing, inner.root, inner.weights, inner.power)
        return NeighbourBlocks(inner.kernel, known, self.rows, self.held)

    def sites(self) -> Sites:
        """Sites at the rows, of the last part."""
        return self.inner.sites()

    def moments(self) -> tuple[Array, Array]:
        """Posterior means and variances at these, as inducing inputs have them."""
        return self.inner.moments()

    def loo(self, rows: NDArray[np.intp] | None) -> Array:
        """Leave-one-out log densities of some rows, each by the nearest other rows."""
        block, at = self._cavities(np.arange(self.rows.n) if rows is None else rows)
        log_z: Array = project(self.inner.known_rule, block, at, "log_z", whole=True)[0]
        return log_z

    def loo_places(self, rows: NDArray[np.intp]) -> Array:
        """Log densities of some rows, each without all rows that equal it."""
        block, at = self._cavities(rows, places=True)
        log_z: Array = project(self.inner.known_rule, block, at, "log_z", whole=True)[0]
        return log_z

    def left_out(self, rows: NDArray[np.intp]) -> tuple[Array, Array]:
        """Means and variances of some rows by the others, as likelihoods take them."""
        return seen_by_likelihood(*self._cavities(rows))

    def _cavities(self, rows: NDArray[np.intp], places: bool = False) -> tuple[Block, Cavities]:
        mean, v = self._ground.without(rows, self.nearest, places)
        y, _, prior, scale = self.rows.others(rows)
        proper = (v > 0.0) & np.isfinite(v) & np.isfinite(mean)
        none = np.zeros(rows.size)
        centre, v = np.where(proper, mean, 0.0), np.where(proper, v, 1.0)
        block = Block(y, None, prior, none, none, scale)
        return block, Cavities(none, none, none, none, centre, v, proper)

    def least(self) -> tuple[float, int]:
        """The least of them as inducing inputs have it, and its row."""
        return self.inner.lowest

    def predict(self, at: tuple[Any, ...], mean: Any) -> tuple[Array, Array]:
        """Latent means and variances at points (T, d), in O(T (M^2 + k^2 M)).

        And O(M^2) for every row that is a neighbour for the first time.
        """
        points, prior = self.inner.checked(at, mean)
        centre, variance = self._ground.predict(points, self.nearest)
        return centre + prior, variance

    def draw(self, at: tuple[Any, ...], mean: Any, count: int, rng: np.random.Generator) -> Array:
        """Refused: each point has neighbours of its own, and no two a covariance."""
        raise InputError(
            "nearest rows correct each point by itself, and leave no joint draws: post.sparse, "
            "without them, has sample"
        )

    def joint(self, at: tuple[Any, ...], mean: Any) -> tuple[Array, Array]:
        """Refused, as `draw` is."""
        raise InputError(
            "nearest rows correct each point by itself, and no two have a covariance: post.sparse, "
            "without them, has joint"
        )

    def gradient(self, change: Any) -> Array | float:
        """As of the inner one."""
        return self.inner.gradient(change)

    def observed(self) -> Observed:
        """Refused, as of the inner one."""
        return self.inner.observed()

    def points(self, at: tuple[Any, ...], mean: Any) -> MarginalPoints:
        """Refused, as of the inner one."""
        return self.inner.points(at, mean)

    def facts(self) -> dict[str, Any]:
        """What this engine adds to a summary."""
        return {
            **self.inner.facts(),
            "nearest": self.nearest,
            "rows_held": self.rows.n,
            "bytes_held": self.rows.X.nbytes + self.held.tau.nbytes + self.held.nu.nbytes,
            "rows_on_disk": on_disk(self.rows.X),
        }

    def inputs(self, points: Array, crossed: Crossed) -> tuple[Any, ...]:
        """The points as they are."""
        return (points,)

    def on(self, kernel: Any, X: Any, unscaled: Callable[[Array], Array]) -> LocalSolution:
        """The same in other units of the inputs: kernel, Z and rows in those."""
        rows = replace(self.rows, X=mapped(self.rows.X, unscaled))
        return replace(self, inner=self.inner.on(kernel, X, unscaled), rows=rows)
