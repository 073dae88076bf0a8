"""The result of sparse inference: predictions without rows; what rows are needed for, with them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from qpruntime.arrays import Array
from qpruntime.blocks import in_blocks
from qpruntime.errors import InputError
from qpruntime.execution.blas_threads import alone
from qpruntime.inference.posterior import Lookups
from qpruntime.inference.schedules import Limits, Status
from qpruntime.inference.sites import Sites
from qpruntime.inference.sparse.blas import divide
from qpruntime.inference.sparse.complaints import warn_unsettled
from qpruntime.inference.sparse.engine import Engine
from qpruntime.inference.sparse.inducing import Inducing
from qpruntime.inference.sparse.rule import Rule
from qpruntime.inference.sparse.settle import Ended, settle
from qpruntime.inference.sparse.some import leave_out, row_numbers
from qpruntime.inference.sparse.state import Base, State
from qpruntime.inference.sparse.tied import settle_tied
from qpruntime.inference.sparse.told import told_rows
from qpruntime.validation import choice, finite

__all__ = ["SparsePosterior", "conclude"]


@dataclass(frozen=True, eq=False, kw_only=True)
class SparsePosterior:
    """Gaussian approximation of the posterior of a latent function, by M inducing inputs.

    It pickles without rows: copies predict, but have no `sites`, `mean`, `variance` and `loo`.

    Attributes
    ----------
    kernel : scikit-learn kernel
    Z : ndarray, shape (M, d)
        Inducing inputs.
    power : float
        Of power EP.
    log_evidence : float
        Power EP's; for power 1 that of the dense engine on FITC's covariance.
    status : {"converged", "held", "not converged"}
        As of `qpruntime.Posterior`.
    n : int
        Number of rows.
    n_sweeps : int
    history : tuple of float
        Change per sweep, the quantity compared with `tol`.
    jitter : float
        On the diagonal of k(Z, Z), relative to its mean.
    lookups, skipped, damped, held, worst, likelihood, method
        As of `qpruntime.Posterior`.
    least : tuple of float and int
        The least leave-one-out log density, and its row.
    """

    kernel: Any
    Z: Array
    power: float
    log_evidence: float
    status: Status
    n: int
    n_sweeps: int
    history: tuple[float, ...]
    jitter: float
    lookups: Lookups
    skipped: int
    damped: int
    held: int
    worst: int
    likelihood: str
    method: str
    least: tuple[float, int]
    prior: float | None = field(repr=False)
    inducing: Inducing = field(repr=False)
    root: Array = field(repr=False)
    weights: Array = field(repr=False)
    engine: Engine | None = field(repr=False)
    rule: Rule | None = field(repr=False)
    limits: Limits = field(repr=False, default=Limits())

    def __getstate__(self) -> dict[str, Any]:
        left = {name: value for name, value in vars(self).items() if name != "_rows"}
        try:
            pickle.dumps(self.rule)
        except Exception:  # of a user's function, whatever it is
            left["rule"] = None
        return {**left, "engine": None}

    @property
    def converged(self) -> bool:
        """Whether the sites settled at a fixed point."""
        return self.status == "converged"

    @property
    def sites(self) -> Sites:
        """Named tuple (tau, nu) of the sites of f, each of shape (N,), as of `Posterior`."""
        engine = self._engine
        tau, nu = engine.sites
        for number in range(engine.rows.chunks):
            some = engine.rows.slice(number)
            prior = engine.rows.others(some)[2]
            if prior is not None:
                nu[some] += tau[some] * prior
        return Sites(tau, nu)

    @property
    def mean(self) -> Array:
        """Mean of f at the rows, each with its own site, shape (N,)."""
        mean: Array = self._rows[0].copy()
        return mean

    @property
    def variance(self) -> Array:
        """Variance of f at the rows, each with its own site, shape (N,)."""
        variance: Array = self._rows[1].copy()
        return variance

    def loo(self) -> Array:
        """Leave-one-out log predictive densities log p(y_n | y_-n), shape (N,).

        The whole site is out, whatever the power, and the observation counts once.
        """
        log_z: Array = self._rows[2].copy()
        return log_z

    @alone
    def loo_of(self, rows: ArrayLike) -> Array:
        """`loo` of some rows, shape (n,): in the time of their predictions.

        Parameters
        ----------
        rows : array-like of int, shape (n,)
            In any order, also more than once.

        Raises
        ------
        InputError
            If there are no such rows, or this posterior was pickled, without them.
        """
        engine = self._engine
        chosen = row_numbers(rows, engine.rows.n)
        return leave_out(engine, chosen)

    @alone
    def predict(self, X: ArrayLike, mean: ArrayLike | None = None) -> tuple[Array, Array]:
        """Latent mean and variance at T points, in O(T M^2).

        Parameters
        ----------
        X : array-like, shape (T, d)
        mean : float or array-like, shape (T,), optional
            Prior mean there; by default that of the inference, if it was a number.

        Returns
        -------
        mean, variance : ndarray, shape (T,)
            Of the latent function, white noise in the kernel included, not of an observation.

        Raises
        ------
        InputError
            If an argument is not usable.
        """
        points, prior = self.points(X, mean)

        def of(some: slice) -> tuple[Array, Array]:
            phi, rest = self.inducing.features(points[some])
            centre = phi @ self.weights
            solved = divide(phi, self.root)
            return centre, rest + np.einsum("nm,nm->n", solved, solved)

        centre, variance = in_blocks(of, len(points), len(self.Z))
        return centre + prior, variance

    def points(self, X: ArrayLike, mean: ArrayLike | None = None) -> tuple[Array, Array]:
        """Return points (T, d) and the prior mean there, a number or (T,), or raise `InputError`.

        As `predict` takes them.
        """
        points = finite(X, "X")
        if points.ndim != 2 or points.shape[1] != self.Z.shape[1]:
            raise InputError(f"X must have shape (T, {self.Z.shape[1]}), got {points.shape}")
        given = self.prior if mean is None else mean
        if given is None:
            raise InputError("the prior mean differs between rows: pass mean= at these points")
        prior = finite(given, "mean")
        if prior.shape not in ((), (len(points),)):
            raise InputError(f"mean must be a number or have shape ({len(points)},)")
        return points, prior

    def at_inputs(
        self, points: Array, mean: ArrayLike, crossed: Callable[[], tuple[Array, Array]]
    ) -> tuple[Array, Array]:
        """Predict as `qpruntime.inference.solver.Fitted` asks for."""
        return self.predict(points, mean)

    @property
    def corrects(self) -> bool:
        """Whether there are corrections."""
        return False

    @property
    def width(self) -> int:
        """Numbers that a prediction makes of a point."""
        return len(self.Z)

    def on(self, kernel: Any, X: Any, unscaled: Callable[[Array], Array]) -> SparsePosterior:
        """Return this posterior in other units of the inputs: the same kernel and Z in those."""
        Z = unscaled(self.Z)
        return replace(self, kernel=kernel, Z=Z, inducing=self.inducing.on(kernel, Z))

    @alone
    def extend(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        weights: ArrayLike | None = None,
        mean: ArrayLike | None = None,
        scale: ArrayLike | None = None,
        sites: Literal["own", "tied"] = "own",
    ) -> SparsePosterior:
        """Posterior of these rows after those seen, which are not visited again.

        New rows get sites of their own, settled under all; sites of earlier rows stay as they were.
        What that changes is measured on the page docs/rows-in-parts.md. `sites`, `loo`, `mean` and
        `variance` are of the last part's rows; indices of rows count from its first.

        Parameters
        ----------
        X : array-like, shape (n, d)
            As of `infer_sparse`.
        y : array-like, shape (n,)
        weights : array-like, shape (n,), optional
        mean : float or array-like, shape (n,), optional
            Prior mean; by default the number it was before.
        scale : array-like, shape (n,), optional
            As of `infer_sparse`; 1 by default, whatever it was before.
        sites : {"own", "tied"}
            While new rows settle they have sites of their own; or they share one with all rows
            seen, as stochastic EP has it, and have their own for the evidence alone.

        Raises
        ------
        InputError
            If rows are not usable, or this posterior was pickled with a likelihood that was not.
        """
        rule = self._rule
        given = self.prior if mean is None else mean
        if given is None:
            raise InputError("the prior mean differs between rows: pass mean= of these rows")
        d = self.Z.shape[1]
        told = told_rows(X, y, rule.projector, rule.power, weights, given, d, scale)
        options: Any = {"jitter": self.inducing.least, "base": self.seen}
        engine = Engine(told.rows, told.rule, self.kernel, self.Z, **options)
        tied = choice(sites, "sites", ("own", "tied")) == "tied"
        ended = (settle_tied if tied else settle)(engine, self.limits)
        warn_unsettled(ended, self.limits.tol)
        return conclude(engine, ended, self.prior, self.limits)

    def summary(self) -> dict[str, str | int | float | bool]:
        """Return plain values: one row of a log; names are those of `Posterior.summary`."""
        return {
            "likelihood": self.likelihood,
            "method": self.method,
            "power": self.power,
            "n": self.n,
            "inducing": len(self.Z),
            "status": self.status,
            "n_sweeps": self.n_sweeps,
            "last_change": float(self.history[-1]) if self.history else 0.0,
            "worst": self.worst,
            "log_evidence": self.log_evidence,
            "held": self.held,
            "jitter": self.jitter,
            "skipped": self.skipped,
            "damped": self.damped,
            "inside": self.lookups.inside,
            "outside": self.lookups.outside,
            "least_expected": self.least[1],
            "least_log_density": self.least[0],
        }

    def __repr__(self) -> str:
        return (
            f"<SparsePosterior of {self.n} rows, {len(self.Z)} inducing inputs, {self.likelihood}, "
            f"{self.method}, log evidence {self.log_evidence:.6g}>"
        )

    def __str__(self) -> str:
        found = self.summary()
        settled = self.status if self.converged else self.status.upper()
        return (
            "SparsePosterior of {n} rows, {inducing} inducing inputs: {likelihood}, method "
            "{method}, power {power:g}\n"
            f"sites      {settled} after {{n_sweeps}} sweeps, last change {{last_change:.2g}}, "
            "most at row {worst}\n"
            "evidence   log evidence {log_evidence:.6f}; least expected is row {least_expected}, "
            "log p(y_i | y_-i) = {least_log_density:.4g}\n"
            "updates    {held} precisions held at zero, {skipped} updates skipped, {damped} damped;"
            " jitter {jitter:.2g}"
        ).format(**found)

    @property
    def seen(self) -> Base:
        """What the rows leave to those that come later."""
        h = self.root @ (self.root.T @ self.weights)
        state = State(self.inducing, self._rule, self.root, h, self.weights)
        return Base(state, self.log_evidence, self.n)

    @property
    def _rule(self) -> Rule:
        if self.rule is None:
            raise InputError("this posterior was pickled without its likelihood: infer anew")
        return self.rule

    @property
    def _engine(self) -> Engine:
        if self.engine is None:
            raise InputError(
                "this posterior was pickled, without its rows: ask the one it was pickled from"
            )
        return self.engine

    @cached_property
    def _rows(self) -> Array:
        rows = self._engine.outcome(rows=True).rows
        self._engine.release()
        assert rows is not None
        return rows


def conclude(
    engine: Engine,
    ended: Ended,
    prior: float | None,
    limits: Limits = Limits(),  # noqa: B008  immutable
) -> SparsePosterior:
    """Return the posterior of an engine whose sites have settled, or have not.

    `prior` is the prior mean of predictions, None if rows differ. The engine is the posterior's
    from now on.
    """
    found, state, rule = engine.outcome(), engine.state, engine.rule
    engine.release()
    n = engine.rows.n + (0 if engine.base is None else engine.base.n)
    return SparsePosterior(
        kernel=engine.kernel,
        Z=engine.Z,
        power=rule.power,
        log_evidence=found.log_evidence,
        status=ended.status,
        n=n,
        n_sweeps=len(ended.history),
        history=tuple(ended.history),
        jitter=state.inducing.jitter,
        lookups=Lookups(int(ended.counts[0]), int(ended.counts[1])),
        skipped=int(ended.counts[2]),
        damped=ended.damped,
        held=ended.held,
        worst=ended.worst,
        likelihood=rule.projector.likelihood.spelt,
        method=rule.projector.method,
        least=found.least,
        prior=prior,
        inducing=state.inducing,
        root=state.root,
        weights=state.mean,
        engine=engine,
        rule=rule,
        limits=limits,
    )
