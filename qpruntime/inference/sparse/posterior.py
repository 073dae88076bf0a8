"""What sparse inference leaves behind: predictions without rows; with them, what they are for."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qpruntime.arrays import Array
from qpruntime.blocks import in_blocks
from qpruntime.errors import InputError
from qpruntime.inference.contract import Crossed, prior_mean
from qpruntime.inference.corrections.corrected import Points
from qpruntime.inference.fixed_point.ended import Limits
from qpruntime.inference.joint import draws
from qpruntime.inference.observed import Observed
from qpruntime.inference.sites import Sites
from qpruntime.inference.sparse.blas import divide
from qpruntime.inference.sparse.engine import Engine
from qpruntime.inference.sparse.inducing import Inducing
from qpruntime.inference.sparse.left_out import leave_out, without_site
from qpruntime.inference.sparse.rule import Rule
from qpruntime.inference.sparse.state import Base, State
from qpruntime.memory import require, squares
from qpruntime.validation import finite

__all__ = ["SparseSolution"]

_PICKLED = "this posterior was pickled, without its rows: ask the one it was pickled from"
_DENSE = (
    "corrections take the covariance matrix of all rows: infer(kernel(X), y) has them, of a few "
    "thousand rows"
)


@dataclass(frozen=True, eq=False, kw_only=True)
class SparseSolution:
    """As `qpruntime.inference.contract.Solution` has it; pickles leave rows out.

    Attributes
    ----------
    kernel : scikit-learn kernel
    Z : ndarray, shape (M, d)
    power : float
    prior : float or None
        Prior mean, None if rows differ.
    inducing : Inducing
    root, weights : ndarray
        Of the posterior of w: B's factor (M, M) and the mean (M,).
    lowest : tuple of float and int
        The least leave-one-out log density, and its row.
    engine : Engine or None
        With the rows.
    rule : Rule or None
        None where the likelihood could not be pickled.
    limits : Limits
    """

    kernel: Any
    Z: Array
    power: float
    prior: float | None
    inducing: Inducing
    root: Array
    weights: Array
    lowest: tuple[float, int]
    engine: Engine | None
    rule: Rule | None
    limits: Limits = field(default_factory=Limits)

    lines = ()
    where = ("X",)
    algebra = 0
    name, corrects = "inducing", False

    def __getstate__(self) -> dict[str, Any]:
        left = {name: value for name, value in vars(self).items() if name != "_rows"}
        try:
            pickle.dumps(self.rule)
        except Exception:  # of a user's function, whatever it is
            left["rule"] = None
        return {**left, "engine": None}

    @property
    def words(self) -> str:
        """What a line says of the engine."""
        return f", {len(self.Z)} inducing inputs"

    @property
    def width(self) -> int:
        """Numbers that a prediction makes of a point."""
        return len(self.Z)

    @property
    def held_rows(self) -> int:
        """Rows that the engine has: those of the last part."""
        return self.with_rows.rows.n

    @property
    def with_rows(self) -> Engine:
        """The engine, or `InputError` if it was left out of a pickle."""
        if self.engine is None:
            raise InputError(_PICKLED)
        return self.engine

    @property
    def known_rule(self) -> Rule:
        """The rule, or `InputError` if it could not be pickled."""
        if self.rule is None:
            raise InputError("this posterior was pickled without its likelihood: infer anew")
        return self.rule

    @cached_property
    def _rows(self) -> Array:
        rows = self.with_rows.outcome(rows=True).rows
        self.with_rows.release()
        assert rows is not None
        return rows

    def moments(self) -> tuple[Array, Array]:
        """Posterior means and variances at the rows, each with its own site."""
        return self._rows[0].copy(), self._rows[1].copy()

    def sites(self) -> Sites:
        """Sites of f at the rows."""
        engine = self.with_rows
        tau, nu = engine.sites
        for number in range(engine.rows.chunks):
            some = engine.rows.slice(number)
            prior = engine.rows.others(some)[2]
            if prior is not None:
                nu[some] += tau[some] * prior
        return Sites(tau, nu)

    def loo(self, rows: NDArray[np.intp] | None) -> Array:
        """Leave-one-out log densities of some rows."""
        return self._rows[2].copy() if rows is None else leave_out(self.with_rows, rows)

    def left_out(self, rows: NDArray[np.intp]) -> tuple[Array, Array]:
        """Means and variances of some rows by the others, as likelihoods take them."""
        return without_site(self.with_rows, rows)

    def least(self) -> tuple[float, int]:
        """The least leave-one-out log density, and its row."""
        return self.lowest

    def predict(self, at: tuple[Any, ...], mean: Any) -> tuple[Array, Array]:
        """Latent means and variances at points (T, d), in O(T M^2)."""
        points, prior = self.checked(at, mean)

        def of(some: slice) -> tuple[Array, Array]:
            phi, rest = self.inducing.features(points[some])
            centre = phi @ self.weights
            solved = divide(phi, self.root)  # in place of phi
            return centre, rest + np.einsum("nm,nm->n", solved, solved)

        centre, variance = in_blocks(of, len(points), len(self.Z))
        return centre + prior, variance

    def checked(self, at: tuple[Any, ...], mean: Any) -> tuple[Array, Array]:
        """Return points (T, d) and the prior mean there, or raise `InputError`."""
        points = finite(at[0], "X")
        if points.ndim != 2 or points.shape[1] != self.Z.shape[1]:
            raise InputError(f"X must have shape (T, {self.Z.shape[1]}), got {points.shape}")
        return points, prior_mean(mean, self.prior, (len(points),))

    def draw(self, at: tuple[Any, ...], mean: Any, count: int, rng: np.random.Generator) -> Array:
        """Joint draws at points (T, d), with what inducing inputs do not know of the prior."""
        return draws(*self.joint(at, mean), count, rng)

    def joint(self, at: tuple[Any, ...], mean: Any) -> tuple[Array, Array]:
        """Means and covariances at points (T, d), with that as well."""
        if not at:
            raise InputError("draws take points: sample(X)")
        points, prior = self.checked(at, mean)
        n = len(points)
        require(squares(n, 3.0), f"joint draws at {n} points", "take fewer points")
        phi, _ = self.inducing.features(points)
        centre, rest = phi @ self.weights, self.kernel(points) - phi @ phi.T
        solved = divide(phi, self.root)  # in place of phi
        return centre + prior, rest + solved @ solved.T

    def gradient(self, change: Any) -> Array | float:
        """Slope of EP's log evidence by the kernel's free log parameters."""
        if change is not None:
            raise InputError("this posterior knows its kernel: evidence_gradient() takes no dK")
        found: Array = self.with_rows.evaluate(sweeps=0).by_theta
        self.with_rows.release()
        return found

    def observed(self) -> Observed:
        """Raise `InputError`: this engine has no covariance matrix of the rows."""
        raise InputError(_DENSE)

    def points(self, at: tuple[Any, ...], mean: Any) -> Points:
        """Raise `InputError`, as `observed` does."""
        raise InputError(_DENSE)

    def facts(self) -> dict[str, Any]:
        """What this engine adds to a summary."""
        return {"inducing": len(self.Z), "power": self.power}

    def inputs(self, points: Array, crossed: Crossed) -> tuple[Any, ...]:
        """Return the points unchanged."""
        return (points,)

    def on(self, kernel: Any, X: Any, unscaled: Callable[[Array], Array]) -> SparseSolution:
        """The same in other units of the inputs: the same kernel and Z in those."""
        Z = unscaled(self.Z)
        return replace(self, kernel=kernel, Z=Z, inducing=self.inducing.on(kernel, Z))

    def base(self, log_evidence: float, n: int) -> Base:
        """What the rows leave to those that come later."""
        h = self.root @ (self.root.T @ self.weights)
        state = State(self.inducing, self.known_rule, self.root, h, self.weights)
        return Base(state, log_evidence, n)
