"""A sparse posterior that the nearest rows correct, and that holds rows for that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.inference.nearest.disk import joined_inputs, mapped, on_disk
from qpruntime.inference.nearest.features import Known
from qpruntime.inference.nearest.ground import Ground, check_rows
from qpruntime.inference.sites import Sites
from qpruntime.inference.sparse.posterior import SparsePosterior
from qpruntime.inference.sparse.rows import Held
from qpruntime.inference.sparse.rule import Rule
from qpruntime.inference.sparse.some import row_numbers
from qpruntime.inference.sparse.turn import Block, Cavities, project
from qpruntime.memory import require
from qpruntime.validation import finite, whole

__all__ = ["LocalPosterior", "local_of"]

_LEAVE_OUT = "its attribute sparse pickles without rows, and predicts without the nearest"


@dataclass(frozen=True, eq=False, kw_only=True)
class LocalPosterior:
    """A `SparsePosterior` whose predictions the nearest rows of each point correct.

    What is not named here is that of `sparse`: `kernel`, `Z`, `log_evidence`, `converged` and the
    rest. It holds its rows and their sites, 8 d + 16 bytes a row and what they observed, and
    pickles with them: copies predict, and leave rows out. Inputs that came in parts and did not fit
    into memory are held on the disk, in files without a name that go when it does; a pickle has
    them all the same, and copies hold them in memory.

    Attributes
    ----------
    sparse : SparsePosterior
    nearest : int
        Places, rows of equal inputs being one, that correct a point.
    """

    sparse: SparsePosterior
    nearest: int
    rows: Held = field(repr=False)
    held: Sites = field(repr=False)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "sparse":
            raise AttributeError(name)
        return getattr(self.sparse, name)

    def __getstate__(self) -> dict[str, Any]:
        left = {name: value for name, value in vars(self).items() if name != "_ground"}
        if on_disk(self.rows.X):
            require(float(self.rows.X.nbytes), "pickling the rows of this posterior", _LEAVE_OUT)
            left["rows"] = replace(self.rows, X=np.array(self.rows.X, subok=False))
        return left

    @cached_property
    def _ground(self) -> Ground:
        inner = self.sparse
        inducing = inner.inducing.in_dtype(np.float64)
        known = Known(inducing, inner.root, inner.weights, inner.power)
        return Ground(inner.kernel, known, self.rows, self.held)

    @property
    def _rule(self) -> Rule:
        if self.sparse.rule is None:
            raise InputError("this posterior was pickled without its likelihood: infer anew")
        return self.sparse.rule

    def predict(self, X: ArrayLike, mean: ArrayLike | None = None) -> tuple[Array, Array]:
        """Latent mean and variance at T points, as of `SparsePosterior.predict`.

        In O(T (M^2 + k^2 M)), and O(M^2) for every row that is a neighbour for the first time.
        """
        points, prior = self.sparse.points(X, mean)
        centre, variance = self._ground.predict(points, self.nearest)
        return centre + prior, variance

    def at_inputs(
        self, points: Array, mean: ArrayLike, crossed: Callable[[], tuple[Array, Array]]
    ) -> tuple[Array, Array]:
        """Predict as `qpruntime.inference.solver.Fitted` asks for."""
        return self.predict(points, mean)

    def loo(self) -> Array:
        """Leave-one-out log predictive densities log p(y_n | y_-n), shape (N,).

        Each by the nearest other rows, in the time of N predictions.
        """
        return self.loo_of(np.arange(self.rows.n))

    def loo_of(self, rows: ArrayLike) -> Array:
        """Leave-one-out log predictive densities of some rows, shape (n,).

        Parameters
        ----------
        rows : array-like of int, shape (n,)
        """
        chosen = row_numbers(rows, self.rows.n)
        mean, v = self._ground.without(chosen, self.nearest)
        y, _, prior, scale = self.rows.others(chosen)
        proper = (v > 0.0) & np.isfinite(v) & np.isfinite(mean)
        none = np.zeros(chosen.size)
        centre, v = np.where(proper, mean, 0.0), np.where(proper, v, 1.0)
        block = Block(y, None, prior, none, none, scale)
        at = Cavities(none, none, none, none, centre, v, proper)
        log_z: Array = project(self._rule, block, at, "log_z", whole=True)[0]
        return log_z

    def on(self, kernel: Any, X: Any, unscaled: Callable[[Array], Array]) -> LocalPosterior:
        """Return this posterior in other units of the inputs: kernel, Z and rows in those."""
        rows = replace(self.rows, X=mapped(self.rows.X, unscaled))
        return replace(self, sparse=self.sparse.on(kernel, X, unscaled), rows=rows)

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
        part = held_by(later, X)
        rows = joined(self.rows, part)
        assert later.engine is not None
        new = later.engine.sites
        held = Sites(*(np.concatenate(pair) for pair in zip(self.held, new, strict=True)))
        return LocalPosterior(sparse=later, nearest=self.nearest, rows=rows, held=held)

    def summary(self) -> dict[str, str | int | float | bool]:
        """Return plain values, as `SparsePosterior.summary` does, and what is held."""
        return {
            **self.sparse.summary(),
            "nearest": self.nearest,
            "rows_held": self.rows.n,
            "bytes_held": self.rows.X.nbytes + self.held.tau.nbytes + self.held.nu.nbytes,
            "rows_on_disk": on_disk(self.rows.X),
        }

    def __repr__(self) -> str:
        return f"{repr(self.sparse)[:-1]}, {self.nearest} nearest rows>".replace(
            "SparsePosterior", "LocalPosterior", 1
        )

    def __str__(self) -> str:
        found = self.summary()
        where = "on the disk " if found["rows_on_disk"] else ""
        return str(self.sparse).replace("SparsePosterior", "LocalPosterior", 1) + (
            f"\nnearest    {self.nearest} rows correct a point; {found['rows_held']} rows are held "
            f"{where}and pickled, {found['bytes_held']} bytes"
        )


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
    rows = held_by(posterior, X)
    assert posterior.engine is not None
    held = posterior.engine.sites
    return LocalPosterior(
        sparse=posterior,
        nearest=k,
        rows=rows,
        held=held,
    )


def held_by(posterior: SparsePosterior, X: Any) -> Held:
    """Return the rows of the engine of a posterior, with inputs that are in memory."""
    if posterior.engine is None:
        raise InputError("this posterior was pickled, without its rows: infer anew")
    rows: Any = posterior.engine.rows
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
