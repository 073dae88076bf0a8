"""What is maximised over the hyper-parameters of a family of priors, with its gradient.

By default that is EP's log evidence also when QP is asked for, as in the paper: only EP's gradient
is exact at its fixed point. Sites are carried from one evaluation to the next; the fixed point
does not depend on where an iteration starts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.errors import NumericalError
from qpruntime.inference.fixed_point import variational
from qpruntime.inference.fixed_point.anderson import Anderson
from qpruntime.inference.fixed_point.ended import Limits, Trace
from qpruntime.inference.fixed_point.schedules import Settled
from qpruntime.inference.fixed_point.settle import iterate, settle
from qpruntime.inference.problem import Problem
from qpruntime.inference.sites import ImproperPosterior, Sites
from qpruntime.inference.solver import Prior
from qpruntime.inference.summary import summarise
from qpruntime.learning.family import Family
from qpruntime.learning.loo_slope import loo_slope
from qpruntime.learning.parameter_slopes import cavities, parameter_slopes, reparametrised
from qpruntime.learning.warm_start import Extrapolation
from qpruntime.projection.projector import Projector

__all__ = ["OBJECTIVES", "LeaveOneOut", "LogPrior", "Objective", "settle_fast"]

LogPrior = Callable[[Array], tuple[float, Array]]

# Parallel iterations before sequential sweeps take over.
_PARALLEL = 30
# Far from the optimum the sites need not settle further than this: the evidence is stationary in
# them, and its gradient is right to about as many digits.
_LOOSE = 3e-4
# Up to so many rows sequential sweeps look for a fixed point that parallel iterations did not find.
# Beyond, these rarely find one either (none of 9 on two sets), in five times as long.
_FEW = 300


def settle_fast(
    problem: Problem,
    *,
    tol: float,
    max_sweeps: int,
    sites: Sites | None = None,
    accelerator: Anderson | None = None,
    seek: bool = True,
    further: bool = True,
) -> Settled:
    """Reach the fixed point in parallel order, or sequentially where that does not settle.

    Sequential updates never leave the proper posteriors, parallel ones may: where precisions turn
    negative, what they found is relied on only if any fixed point will do, without `seek`. Without
    `further` there are no sequential ones.
    """
    if problem.projector.method == "vb":
        return variational.settle(
            problem, tol=tol, max_sweeps=max_sweeps, sites=sites, accelerator=accelerator
        )
    trace = Trace()
    limits = Limits(tol, min(_PARALLEL, max_sweeps), 1.0)
    with contextlib.suppress(ImproperPosterior) if further else contextlib.nullcontext():
        first = iterate(
            problem, limits, order="parallel", sites=sites, accelerator=accelerator, trace=trace
        )
        over = first.settled or len(trace.history) == max_sweeps
        safe = problem.nonnegative or first.sites.tau.min() >= 0.0
        if not further or (over and (safe or (first.settled and first.proper and not seek))):
            return first
    left = max_sweeps - len(trace.history)
    return settle(problem, Limits(tol, left or max_sweeps), sites=sites, trace=trace, seek=seek)


class Objective:
    """Negative log evidence and its gradient, as a function of theta, for one optimiser run.

    Subclasses measure something else: they override `tolerance` and `measure`.

    Parameters
    ----------
    family, y, projector, tol, max_sweeps, weights, learn, log_prior
        As for `maximise`.
    """

    def __init__(
        self,
        family: Family,
        y: Array,
        projector: Projector,
        tol: float,
        max_sweeps: int,
        weights: Array | None = None,
        learn: Sequence[str] = (),
        log_prior: LogPrior | None = None,
    ) -> None:
        self.learn, self.log_prior = tuple(learn), log_prior
        self.family, self.y, self.weights = family, y, weights
        self.projector = projector
        self.tol, self.max_sweeps = tol, max_sweeps
        self.evaluations = 0
        self.sites: Sites | None = None
        self._extrapolation = Extrapolation()
        self._bounded = False
        self._accelerator = Anderson()
        self._worst = -np.inf
        self._slope = np.inf

    def tolerance(self) -> float:
        """How far the sites have to settle: less far from the optimum, where they only steer."""
        # The slope of the variational bound needs a digit more.
        share = 0.1 if self.projector.method == "vb" else 1.0
        return max(self.tol, share * min(_LOOSE, 1e-4 * self._slope))

    def measure(self, problem: Problem, end: Settled) -> tuple[float, Any, Array]:
        """Return the value to be maximised and its slopes.

        That by the prior, as its family takes it, and the derivatives by the logarithms of the
        likelihood's parameters `learn`, shape (P,).
        """
        post = summarise(problem, end)
        slopes = np.zeros(0)
        if self.learn:
            slopes = parameter_slopes(problem, self.learn, *cavities(end))[0].sum(axis=1)
        return post.log_evidence, end.factor.slope(), slopes

    def settle(self, prior: Prior, theta: Array) -> tuple[Problem, Settled]:
        """Run inference from what the evaluations before let expect."""
        projector = self.projector
        if self.learn:
            projector = reparametrised(projector, self.learn, theta[-len(self.learn) :])
        problem = Problem(prior, self.y, projector, self._bounded, weights=self.weights)
        # With noise that is learnt only a fixed point of free sites will do: see below.
        free = projector.likelihood.log_concave or not self.learn or self.evaluations == 1
        end = settle_fast(
            problem,
            tol=self.tolerance(),
            max_sweeps=self.max_sweeps,
            sites=self._extrapolation.guess(theta),
            accelerator=self._accelerator,
            # One smooth objective: not the highest of several peaks, and no time for a search.
            seek=False,
            further=free or len(self.y) <= _FEW,
        )
        if not free and end.status != "converged":
            # This would be the evidence of no fixed point, and may be anything: noise that
            # shrinks to nothing makes it rise without end.
            raise NumericalError("the sites have no fixed point at these parameters")
        self.sites = end.sites
        self._extrapolation.learn(theta, end.sites)
        # Held once, held for good: one smooth objective, whose gradient is exact either way.
        self._bounded |= end.held > 0
        return problem, end

    def evaluate(self, theta: Array) -> tuple[float, Array]:
        """Return the value to be maximised, and its derivatives by theta."""
        prior = self.family.at(theta[: theta.size - len(self.learn)])
        value, by_prior, slopes = self.measure(*self.settle(prior, theta))
        return value, np.concatenate([self.family.contract(by_prior), slopes])

    def __call__(self, theta: Array) -> tuple[float, Array]:
        self.evaluations += 1
        try:
            value, slopes = self.evaluate(theta)
        except NumericalError as error:
            if self.evaluations == 1 or error.__cause__ is not None:  # a user's own exception
                raise
            # Too far for double precision: a value no line search accepts.
            self.sites = None
            self._extrapolation.forget()
            return abs(self._worst) + 1e3, np.zeros_like(theta)
        gradient = -slopes
        if self.log_prior is not None:
            extra, slope = self.log_prior(theta)
            value += extra
            gradient -= slope
        self._worst = max(self._worst, -value)
        self._slope = float(np.abs(gradient).max())
        return -value, gradient


class LeaveOneOut(Objective):
    """Negative sum of the leave-one-out log predictive densities of the posterior itself.

    Unlike the evidence it is not stationary in the sites, so they have to settle.
    """

    def tolerance(self) -> float:
        return 1e-2 * self.tol

    def measure(self, problem: Problem, end: Settled) -> tuple[float, Any, Array]:
        return loo_slope(problem, end, self.learn)


#: What `maximise` can maximise, by the name estimators use.
OBJECTIVES: dict[str, type[Objective]] = {"evidence": Objective, "loo": LeaveOneOut}
