"""The result of sparse inference: a `Posterior` that predicts without rows and takes more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from numpy.typing import ArrayLike

from qpruntime.arrays import Array
from qpruntime.errors import InputError, RenamedWarning, warn
from qpruntime.execution.blas_threads import alone
from qpruntime.inference.fixed_point.complaints import warn_unsettled
from qpruntime.inference.fixed_point.ended import Ended, Limits
from qpruntime.inference.outcome import Lookups, Outcome
from qpruntime.inference.posterior import Posterior
from qpruntime.inference.sparse.engine import Engine
from qpruntime.inference.sparse.row_arguments import checked_rows
from qpruntime.inference.sparse.settle import settle
from qpruntime.inference.sparse.solution import SparseSolution
from qpruntime.inference.sparse.tied import settle_tied
from qpruntime.validation import choice

__all__ = ["SparsePosterior", "conclude"]


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

    def loo_of(self, rows: ArrayLike) -> Array:
        """Old name of `loo(rows)`."""
        warn("loo_of(rows) is now loo(rows)", RenamedWarning)
        return self.loo(rows)

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
        What that changes is measured: docs/rows-in-parts-measured.md. `sites`, `loo`, `mean` and
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
    outcome = Outcome(
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
