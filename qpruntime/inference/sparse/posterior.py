"""The result of sparse inference: a `Posterior` that predicts without rows and takes more."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qpruntime._memory import require, squares
from qpruntime._restorable import restorable
from qpruntime._row_blocks import in_blocks
from qpruntime._typing import Array
from qpruntime._validation import choice, finite
from qpruntime.errors import InputError
from qpruntime.execution.blas_threads import alone
from qpruntime.inference.corrections.corrected import MarginalPoints
from qpruntime.inference.fixed_point.convergence import Ended, Limits, warn_unsettled
from qpruntime.inference.posterior import InferenceReport, Lookups, Posterior
from qpruntime.inference.problem import Observed, check_powers
from qpruntime.inference.sites import Sites
from qpruntime.inference.solution_protocol import Crossed, draws, prior_mean
from qpruntime.inference.sparse.data import ChunkedRows, as_array, inputs_of, rows_of
from qpruntime.inference.sparse.engine import Engine, leave_out, without_site
from qpruntime.inference.sparse.features import InducingInputs, divide
from qpruntime.inference.sparse.iterate import settle, settle_tied
from qpruntime.inference.sparse.state import Base, PowerProjector, State
from qpruntime.projection.projector import Projector

__all__ = [
    "CheckedRows",
    "SparsePosterior",
    "SparseSolution",
    "about_prior",
    "checked_rows",
    "conclude",
]

# --- `SparsePosterior`


@restorable("sparse-posterior/1", root=True)
@dataclass(frozen=True, eq=False, repr=False)
class SparsePosterior(Posterior):
    """Gaussian approximation of the posterior of a latent function, by M inducing inputs.

    Attributes are those of `qpruntime.Posterior`. It pickles without rows: copies predict, but have
    no `sites`, `mean`, `variance` and `loo`. The log evidence is power EP's; for power 1 that of
    the dense engine on FITC's covariance.

    Attributes
    ----------
    kernel : scikit-learn kernel
    Z : ndarray, shape (M, d)
        Inducing inputs.
    power : float
        Of power EP.
    """

    @property
    def kernel(self) -> Any:
        """The kernel of the prior."""
        return self._solution.kernel

    @property
    def Z(self) -> Array:
        """Inducing inputs, shape (M, d)."""
        Z: Array = self._solution.Z
        return Z

    @property
    def power(self) -> float:
        """The power of power EP."""
        return float(self._solution.power)

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
        What that changes is measured: docs/bench-streams.md. `sites`, `loo`, `mean` and
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
        own: SparseSolution = self._solution
        rule = own.known_rule
        given = own.prior if mean is None else mean
        if given is None:
            raise InputError("the prior mean differs between rows: pass mean= of these rows")
        checked = checked_rows(
            X, y, rule.projector, rule.power, weights, given, own.Z.shape[1], scale
        )
        base = own.base(self.log_evidence, self.n)
        options: Any = {"jitter": own.inducing.least, "base": base}
        engine = Engine(checked.rows, checked.rule, own.kernel, own.Z, **options)
        tied = choice(sites, "sites", ("own", "tied")) == "tied"
        ended = (settle_tied if tied else settle)(engine, own.limits)
        warn_unsettled(ended, own.limits.tol, engine.rows.n)
        return conclude(engine, ended, own.prior, own.limits)


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
    projector, evidence = rule.projector, found.log_evidence
    outcome = InferenceReport(
        likelihood=projector.likelihood.spelt,
        method=projector.method,
        n=engine.rows.n + (0 if engine.base is None else engine.base.n),
        log_evidence=evidence,
        status=ended.status,
        n_sweeps=len(ended.history),
        history=tuple(ended.history),
        lookups=Lookups(int(ended.trace.counts[0]), int(ended.trace.counts[1])),
        skipped=int(ended.trace.counts[2]),
        damped=ended.trace.damped,
        held=ended.held,
        worst=ended.worst,
        jitter=state.inducing.jitter,
        fixed_points=(evidence,) if ended.status == "converged" else (),
    )
    solution = SparseSolution(
        kernel=engine.kernel,
        Z=engine.Z,
        power=rule.power,
        prior=prior,
        inducing=state.inducing,
        root=state.root,
        weights=state.mean,
        lowest=found.least,
        engine=engine,
        rule=rule,
        limits=limits,
    )
    return SparsePosterior._of(outcome, solution)


# --- Checked rows

# Squares of scales keep their digits, and times a variance they stay numbers.
_LEAST_SCALE, _LARGEST_SCALE = 1e-150, 1e100


class CheckedRows(NamedTuple):
    """Rows, how their sites are projected, and the prior mean if all rows share one."""

    rows: ChunkedRows
    rule: PowerProjector
    prior: float | None


def checked_rows(
    X: Any,
    y: ArrayLike,
    projector: Projector,
    power: float,
    weights: ArrayLike | None,
    mean: ArrayLike,
    d: int,
    scale: ArrayLike | None = None,
) -> CheckedRows:
    """Check N rows of `d` columns, of any kind that `inputs_of` takes.

    Raises
    ------
    InputError
        If an argument is not usable; the message says which.
    """
    inputs = inputs_of(X, "X")
    n = int(inputs.shape[0])
    if inputs.shape[1] != d:
        raise InputError(f"Z must have {inputs.shape[1]} columns like X, got {d}")
    projector, encoded = projector.observing(as_array(y, "y"))
    weights = None if weights is None else as_array(weights, "weights")
    if encoded.shape != (n,):
        raise InputError(f"y must have shape ({n},) like the rows of X, got {encoded.shape}")
    projector.check_outcomes(encoded)
    prior = finite(as_array(mean, "mean"), "mean")
    if prior.shape not in ((), (n,)):
        raise InputError(f"mean must be a number or have shape ({n},), got {prior.shape}")
    power, checked = check_powers(power, weights, projector, n)
    offset = np.array(np.broadcast_to(prior, (n,))) if prior.any() else None
    rows = rows_of(inputs, np.ascontiguousarray(encoded), checked, offset, _scale(scale, n))
    return CheckedRows(
        rows, PowerProjector(projector, power), float(prior) if prior.ndim == 0 else None
    )


def _scale(scale: ArrayLike | None, n: int) -> Array | None:
    """Return scales as an array of their own, None for scales of 1, or raise `InputError`."""
    if scale is None:
        return None
    checked = finite(as_array(scale, "scale"), "scale", (n,))
    wrong = ~((checked >= _LEAST_SCALE) & (checked <= _LARGEST_SCALE))
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise InputError(
            f"scale must be positive, from {_LEAST_SCALE:g} to {_LARGEST_SCALE:g}, got "
            f"{checked[row]:g} at row {row}; leave out rows that tell nothing of f"
        )
    return None if (checked == 1.0).all() else np.array(checked)


def about_prior(sites: Sites, rows: ChunkedRows) -> Sites:
    """Return sites about zero as sites about the prior means of their rows."""
    nu = sites.nu.copy()
    for number in range(rows.chunks):
        some = rows.slice(number)
        prior = rows.others(some)[2]
        if prior is not None:
            nu[some] -= sites.tau[some] * prior
    return Sites(sites.tau, nu)


# --- What a sparse posterior keeps

_PICKLED = "this posterior was pickled, without its rows: ask the one it was pickled from"
_DENSE = (
    "corrections take the covariance matrix of all rows: infer(kernel(X), y) has them, of a few "
    "thousand rows"
)


@restorable("sparse-solution/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class SparseSolution:
    """As `qpruntime.inference.posterior.Solution` has it; pickles leave rows out.

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
    inducing: InducingInputs
    root: Array
    weights: Array
    lowest: tuple[float, int]
    engine: Engine | None
    rule: PowerProjector | None
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
    def known_rule(self) -> PowerProjector:
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

    def points(self, at: tuple[Any, ...], mean: Any) -> MarginalPoints:
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
