"""Posterior of sparse inference, which predicts without its rows and can be extended."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qpruntime._memory import in_blocks, require, squares
from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import choice, finite
from qpruntime.dataframes.lazy_rows import as_array, inputs_of
from qpruntime.errors import InputError
from qpruntime.execution.threads import alone
from qpruntime.inference.corrections.corrected import MarginalPoints
from qpruntime.inference.fixed_point.convergence import Ended, Limits, warn_unsettled
from qpruntime.inference.posterior import Posterior, report_of
from qpruntime.inference.problem import Observed, check_mean, check_powers
from qpruntime.inference.sites import Sites
from qpruntime.inference.solution_protocol import Crossed, Solution, prior_mean
from qpruntime.inference.sparse.engine import Engine, log_densities, of_cavities, seen_by_likelihood
from qpruntime.inference.sparse.iterate import settle, settle_tied
from qpruntime.inference.sparse.rows import ChunkedRows, InducingInputs, divide, rows_of
from qpruntime.inference.sparse.state import Base, PowerProjector, State
from qpruntime.projection.projector import Projector

if TYPE_CHECKING:
    from sklearn.gaussian_process.kernels import Kernel

__all__ = [
    "CheckedRows",
    "InducingSolution",
    "SparsePosterior",
    "SparseSolution",
    "checked_rows",
    "conclude",
]

# --- `SparsePosterior`


@restorable("sparse-posterior/1", root=True)
@dataclass(frozen=True, eq=False, repr=False)
class SparsePosterior(Posterior):
    """Gaussian approximation of the posterior of a latent function, by M inducing inputs.

    Attributes are those of `qpruntime.Posterior`. It pickles without rows: copies predict, but have
    no `sites`, `mean`, `variance` and `loo`. The log evidence is power EP's; with power 1 it equals
    that of the dense engine on FITC's covariance.

    Attributes
    ----------
    kernel : scikit-learn kernel
    Z : ndarray, shape (M, d)
        Inducing inputs.
    power : float
        Power of power EP.

    See Also
    --------
    qpruntime.infer_sparse, qpruntime.LocalPosterior, qpruntime.Posterior

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.gaussian_process.kernels import RBF
    >>> from qpruntime import infer_sparse
    >>> X = np.linspace(0.0, 10.0, 200)[:, None]
    >>> y = np.sign(np.sin(X[:, 0] + 0.1))
    >>> post = infer_sparse(X, y, 4.0 * RBF(1.0), X[::20])
    >>> post.Z.shape, post.power
    ((10, 1), 0.5)
    >>> mean, variance = post.predict([[2.5], [5.5]])
    >>> mean.round(1).tolist()
    [2.5, -3.0]
    """

    _solution: Any = field(kw_only=True)  # a SparseSolution, or a LocalSolution

    @property
    def kernel(self) -> Kernel:
        """Kernel of the prior."""
        return self._solution.kernel

    @property
    def Z(self) -> Array:
        """Inducing inputs, shape (M, d)."""
        return np.asarray(self._solution.Z)

    @property
    def power(self) -> float:
        """Power of power EP."""
        return float(self._solution.power)

    @alone
    def _predict_once(self) -> tuple[Array, ...]:
        return self.predict(self.Z[:2])

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
        """Return the posterior of these rows after earlier ones, which are not visited again.

        New rows get their own sites, which settle given all earlier ones; sites of earlier rows are
        not changed. docs/bench-cost.md has the measured effect. `sites`, `loo`, `mean` and
        `variance` are of the last part's rows; indices of rows count from its first.

        Parameters
        ----------
        X : array-like, shape (n, d)
            Inputs, as for `infer_sparse`.
        y : array-like, shape (n,)
        weights : array-like, shape (n,), optional
        mean : float or array-like, shape (n,), optional
            Prior mean; by default that of the earlier rows, if it was one number.
        scale : array-like, shape (n,), optional
            As for `infer_sparse`; 1 by default, whatever it was for earlier rows.
        sites : {"own", "tied"}
            "own" gives each new row a site. "tied" shares one site between all rows during the
            iteration, as stochastic EP does, and computes separate sites for the evidence only.

        Raises
        ------
        InputError
            If rows are not usable, or a pickle has lost the likelihood.
        """
        solution: SparseSolution = self._solution
        rule = solution.known_rule
        prior_mean = solution.prior if mean is None else mean
        if prior_mean is None:
            raise InputError("the prior mean differs between rows: pass mean= of these rows")
        checked = checked_rows(
            X, y, rule.projector, rule.power, weights, prior_mean, solution.Z.shape[1], scale
        )
        base = solution.base(self.log_evidence, self.n)
        options: Any = {"jitter": solution.inducing.least, "base": base}
        engine = Engine(checked.rows, checked.rule, solution.kernel, solution.Z, **options)
        tied = choice(sites, "sites", ("own", "tied")) == "tied"
        result = (settle_tied if tied else settle)(engine, solution.limits)
        warn_unsettled(result, solution.limits.tol, engine.rows.n)
        return conclude(engine, result, solution.prior, solution.limits)


def conclude(
    engine: Engine,
    ended: Ended,
    prior: float | None,
    limits: Limits = Limits(),  # noqa: B008  immutable
) -> SparsePosterior:
    """Return the posterior of an engine after its iteration.

    `prior` is the prior mean of predictions, None if rows differ. The posterior takes over the
    engine.
    """
    report, state, rule = engine.outcome(), engine.state, engine.rule
    engine.release()
    n = engine.rows.n + (0 if engine.base is None else engine.base.n)
    outcome = report_of(rule.projector, ended, n, report.log_evidence, jitter=state.inducing.jitter)
    solution = SparseSolution(
        kernel=engine.kernel,
        Z=engine.Z,
        power=rule.power,
        prior=prior,
        inducing=state.inducing,
        root=state.root,
        weights=state.mean,
        lowest=report.least,
        engine=engine,
        rule=rule,
        limits=limits,
    )
    return SparsePosterior._of(outcome, solution)


# --- Checked rows

# Within these limits squares of scales keep their digits, and do not overflow with a variance.
_LEAST_SCALE, _LARGEST_SCALE = 1e-150, 1e100


class CheckedRows(NamedTuple):
    """Checked rows, the rule of projection, and the prior mean if all rows share it."""

    rows: ChunkedRows
    rule: PowerProjector
    prior: float | None


def checked_rows(
    X: ArrayLike,
    y: ArrayLike,
    projector: Projector,
    power: float,
    weights: ArrayLike | None,
    mean: ArrayLike,
    d: int,
    scale: ArrayLike | None = None,
) -> CheckedRows:
    """Check N rows of `d` columns, of any kind that `inputs_of` accepts.

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
    prior = check_mean(as_array(mean, "mean"), (n,))
    power, checked = check_powers(power, weights, projector, n)
    offset = np.array(np.broadcast_to(prior, (n,))) if prior.any() else None
    rows = rows_of(inputs, np.ascontiguousarray(encoded), checked, offset, _scale(scale, n))
    return CheckedRows(
        rows, PowerProjector(projector, power), float(prior) if prior.ndim == 0 else None
    )


def _scale(scale: ArrayLike | None, n: int) -> Array | None:
    """Return a copy of the scales, None for scales of 1, or raise `InputError`."""
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


def moved_by_prior(sites: Sites, rows: ChunkedRows, sign: float) -> Sites:
    """Return sites about zero as sites about the prior means of their rows if `sign` is -1.

    If it is 1, return sites about the prior means as sites about zero.
    """
    nu = sites.nu.copy()
    for number in range(rows.chunks):
        block = rows.slice(number)
        prior = rows.others(block)[2]
        if prior is not None:
            nu[block] += sign * sites.tau[block] * prior
    return Sites(sites.tau, nu)


# --- Solution of the sparse engine

_NO_ROWS = "this posterior was pickled, without its rows: ask the one it was pickled from"
_NO_COVARIANCE = (
    "corrections take the covariance matrix of all rows: infer(kernel(X), y) has them, of a few "
    "thousand rows"
)


class InducingSolution(Solution):
    """Members of solutions with inducing inputs, which have no covariance matrix of the rows."""

    where = ("X",)
    algebra = 0
    corrects = False

    def observed(self) -> Observed:
        """Raise `InputError`."""
        raise InputError(_NO_COVARIANCE)

    def points(self, at: tuple[ArrayLike, ...], mean: ArrayLike | None) -> MarginalPoints:
        """Raise `InputError`."""
        raise InputError(_NO_COVARIANCE)

    def inputs(self, points: Array, crossed: Crossed) -> tuple[Array, ...]:
        """Return the points unchanged."""
        return (points,)


@restorable("sparse-solution/1")
@dataclass(frozen=True, eq=False, kw_only=True)
class SparseSolution(InducingSolution):
    """Solution of the sparse engine; pickles leave its rows out.

    Attributes
    ----------
    kernel : scikit-learn kernel
    Z : ndarray, shape (M, d)
    power : float
    prior : float or None
        Prior mean, None if rows differ.
    inducing : InducingInputs
    root, weights : ndarray
        Posterior of w: the factor of B (M, M) and the mean (M,).
    lowest : tuple of float and int
        The least leave-one-out log density, and its row.
    engine : Engine or None
        Engine with the rows.
    rule : PowerProjector or None
        None if the likelihood could not be pickled.
    limits : Limits
    """

    kernel: Kernel
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

    name = "inducing"

    def __getstate__(self) -> dict[str, object]:
        state = {name: value for name, value in vars(self).items() if name != "_rows"}
        try:
            pickle.dumps(self.rule)
        except Exception:  # a user's function may raise anything
            state["rule"] = None
        return {**state, "engine": None}

    @property
    def words(self) -> str:
        """Words about the engine for one line."""
        return f", {len(self.Z)} inducing inputs"

    @property
    def width(self) -> int:
        """Numbers that a prediction computes per point."""
        return len(self.Z)

    @property
    def held_rows(self) -> int:
        """Number of rows of the engine, which are those of the last part."""
        return self.with_rows.rows.n

    @property
    def with_rows(self) -> Engine:
        """Engine, or `InputError` if a pickle left it out."""
        if self.engine is None:
            raise InputError(_NO_ROWS)
        return self.engine

    @property
    def known_rule(self) -> PowerProjector:
        """Rule of projection, or `InputError` if a pickle left it out."""
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
        """Return posterior means and variances at the rows, each with its own site."""
        return self._rows[0].copy(), self._rows[1].copy()

    def sites(self) -> Sites:
        """Return the sites of f at the rows."""
        engine = self.with_rows
        return moved_by_prior(engine.sites, engine.rows, 1.0)

    def loo(self, rows: NDArray[np.intp] | None) -> Array:
        """Return leave-one-out log densities of selected rows."""
        if rows is None:
            return np.array(self._rows[2])
        engine = self.with_rows
        return of_cavities(engine, rows, partial(log_densities, engine.rule))

    def left_out(self, rows: NDArray[np.intp]) -> tuple[Array, Array]:
        """Return leave-one-out means and variances of rows, as the likelihood sees them."""
        return of_cavities(self.with_rows, rows, seen_by_likelihood)

    def least(self) -> tuple[float, int]:
        """Return the least leave-one-out log density, and its row."""
        return self.lowest

    def predict(self, at: tuple[ArrayLike, ...], mean: ArrayLike | None) -> tuple[Array, Array]:
        """Return latent means and variances at points (T, d), in O(T M^2)."""
        points, prior = self.checked(at, mean)

        def moments(block: slice) -> tuple[Array, Array]:
            phi, residual = self.inducing.features(points[block])
            centre = phi @ self.weights
            solved = divide(phi, self.root)  # in place of phi
            return centre, residual + np.einsum("nm,nm->n", solved, solved)

        centre, variance = in_blocks(moments, len(points), len(self.Z))
        return centre + prior, variance

    def checked(self, at: tuple[ArrayLike, ...], mean: ArrayLike | None) -> tuple[Array, Array]:
        """Return points (T, d) and the prior mean there, or raise `InputError`."""
        points = finite(at[0], "X")
        if points.ndim != 2 or points.shape[1] != self.Z.shape[1]:
            raise InputError(f"X must have shape (T, {self.Z.shape[1]}), got {points.shape}")
        return points, prior_mean(mean, self.prior, (len(points),))

    def joint(self, at: tuple[ArrayLike, ...], mean: ArrayLike | None) -> tuple[Array, Array]:
        """Return joint moments at points (T, d), with the prior given the inducing values."""
        if not at:
            raise InputError("draws take points: sample(X)")
        points, prior = self.checked(at, mean)
        n = len(points)
        require(squares(n, 3.0), f"joint draws at {n} points", "take fewer points")
        phi, _ = self.inducing.features(points)
        centre, residual = phi @ self.weights, self.kernel(points) - phi @ phi.T
        solved = divide(phi, self.root)  # in place of phi
        return centre + prior, residual + solved @ solved.T

    def gradient(self, change: ArrayLike | None) -> Array | float:
        """Return the slope of EP's log evidence by the kernel's free log parameters."""
        if change is not None:
            raise InputError("this posterior knows its kernel: evidence_gradient() takes no dK")
        by_theta = self.with_rows.evaluate(sweeps=0).by_theta
        self.with_rows.release()
        return by_theta

    def facts(self) -> dict[str, str | int | float]:
        """Return the engine's entries of a summary."""
        return {"inducing": len(self.Z), "power": self.power}

    def on(self, kernel: Kernel, X: Array, unscaled: Callable[[Array], Array]) -> SparseSolution:
        """Return the solution in other units of the inputs."""
        Z = unscaled(self.Z)
        return replace(self, kernel=kernel, Z=Z, inducing=self.inducing.on(kernel, Z))

    def base(self, log_evidence: float, n: int) -> Base:
        """Return the base of later rows: the posterior of w given these."""
        h = self.root @ (self.root.T @ self.weights)
        state = State(self.inducing, self.known_rule, self.root, h, self.weights)
        return Base(state, log_evidence, n)
