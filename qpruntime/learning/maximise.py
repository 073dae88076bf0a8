"""Maximisation of an objective over the hyper-parameters of a family of priors.

By default that is EP's log evidence also when QP is asked for, as in the paper: only EP's gradient
is exact at its fixed point. Sites are carried from one evaluation to the next; the fixed point
does not depend on where an iteration starts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize

from qpruntime.arrays import Array
from qpruntime.errors import NumericalError
from qpruntime.inference import variational
from qpruntime.inference.anderson import Anderson
from qpruntime.inference.fixed_point import iterate, settle
from qpruntime.inference.problem import Problem
from qpruntime.inference.schedules import Limits, Settled, Trace
from qpruntime.inference.sites import ImproperPosterior, Sites
from qpruntime.inference.solver import Prior
from qpruntime.inference.summary import summarise
from qpruntime.learning.family import Family
from qpruntime.learning.loo_slope import loo_slope
from qpruntime.learning.parameter_slopes import cavities, parameter_slopes, reparametrised
from qpruntime.learning.warm_start import Extrapolation
from qpruntime.projection.projector import Projector

__all__ = [
    "LOST",
    "OBJECTIVES",
    "LeaveOneOut",
    "Objective",
    "Optimum",
    "maximise",
    "settle_fast",
]

LogPrior = Callable[[Array], tuple[float, Array]]

# Where an optimiser that stands on the plateau of failures has come from.
LOST = "inference fails further on"
# Parallel iterations before sequential sweeps take over.
_PARALLEL = 30
# The first step of L-BFGS-B is the gradient itself, which may be hundreds long: evaluations are
# lost, or the optimum nearby is. In log parameters this is far enough.
_FIRST_STEP = 2.0
# A slope below this is none.
_FLAT = 1e-5
# Far from the optimum the sites need not settle further than this: the evidence is stationary in
# them, and its gradient is right to about as many digits.
_LOOSE = 3e-4


@dataclass(frozen=True)
class Optimum:
    """Where one optimiser run ended.

    Attributes
    ----------
    theta : ndarray
        Log-transformed kernel parameters, as in ``kernel.theta``, and after them those of the
        likelihood that were learnt.
    value : float
        The objective there: the log evidence of EP.
    n_iterations, n_evaluations : int
    success : bool
    message : str
        The optimiser's own words.
    start : ndarray
        Where it began.
    slope : ndarray
        Gradient of the score at theta; outwards at a bound that holds it back.
    log_prior : float
        Log of the prior density of theta at the optimum, relative to its top; 0 without a prior.
        It is not part of `value`.
    """

    theta: Array
    value: float
    n_iterations: int
    n_evaluations: int
    success: bool
    message: str
    start: Array
    slope: Array
    log_prior: float = 0.0

    @property
    def score(self) -> float:
        """What was maximised: the value and the log prior."""
        return self.value + self.log_prior


def settle_fast(
    problem: Problem,
    *,
    tol: float,
    max_sweeps: int,
    sites: Sites | None = None,
    accelerator: Anderson | None = None,
    seek: bool = True,
) -> Settled:
    """Reach the fixed point in parallel order, or sequentially where that does not settle.

    Sequential updates never leave the proper posteriors, parallel ones may: where precisions turn
    negative, what they found is not relied on.
    """
    if problem.projector.method == "vb":
        return variational.settle(
            problem, tol=tol, max_sweeps=max_sweeps, sites=sites, accelerator=accelerator
        )
    trace = Trace()
    limits = Limits(tol, min(_PARALLEL, max_sweeps), 1.0)
    with contextlib.suppress(ImproperPosterior):
        first = iterate(
            problem, limits, order="parallel", sites=sites, accelerator=accelerator, trace=trace
        )
        over = first.settled or len(trace.history) == max_sweeps
        if over and (problem.nonnegative or first.sites.tau.min() >= 0.0):
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
        end = settle_fast(
            problem,
            tol=self.tolerance(),
            max_sweeps=self.max_sweeps,
            sites=self._extrapolation.guess(theta),
            accelerator=self._accelerator,
            # One smooth objective: not the highest of several peaks, and no time for a search.
            seek=False,
        )
        free = problem.projector.likelihood.log_concave or not self.learn
        if not free and self.evaluations > 1 and end.status != "converged":
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


def first_theta(family: Any, projector: Projector, learn: Iterable[str]) -> Array:
    """Log parameters of a family or kernel, then those of the likelihood that are learnt."""
    values = [projector.likelihood.parameters[name] for name in learn]
    return np.concatenate([family.theta, np.log(values)])


def all_bounds(family: Any, learn: Mapping[str, tuple[float, float]]) -> Array:
    """Bounds of `first_theta`, shape (p, 2)."""
    return np.vstack([family.bounds.reshape(-1, 2), np.log([*learn.values()]).reshape(-1, 2)])


def maximise(
    family: Family,
    y: Array,
    projector: Projector,
    *,
    start: Array | None = None,
    max_iterations: int = 1000,
    ftol: float = 1e-9,
    tol: float = 1e-6,
    max_sweeps: int = 100,
    weights: Array | None = None,
    objective: type[Objective] = Objective,
    callback: Callable[[Array, float], Any] | None = None,
    learn: Mapping[str, tuple[float, float]] | None = None,
    log_prior: LogPrior | None = None,
) -> tuple[Optimum, Sites | None]:
    """Maximise an objective by L-BFGS-B in the log parameters, within their bounds.

    Parameters
    ----------
    family : Family
        The priors; `KernelFamily` for those of a scikit-learn kernel.
    y : ndarray, shape (N,)
        Encoded observations.
    projector : Projector
        Of method "ep" for the evidence, whose gradient is exact for EP only, or "vb" for its bound.
    start : ndarray, shape (p,) or (S, p), optional
        Starting point; ``family.theta`` by default. Of several the best one is.
    ftol : float
        Relative tolerance on the evidence.
    tol, max_sweeps
        Of the EP run inside every evaluation.
    weights : ndarray, shape (N,), optional
        Powers of the single likelihoods.
    objective : subclass of Objective
        What to maximise; by default the log evidence.
    callback : callable, optional
        Called with theta and the value after every evaluation.
    learn : mapping, optional
        Parameters of the likelihood to be learnt as well, with their bounds. Their logarithms
        follow those of the prior in theta, in `start` too.
    log_prior : callable, optional
        Log prior density of theta and its gradient, which are added to the objective.

    Returns
    -------
    Optimum
    Sites
        EP's sites at the last evaluation, to start from.

    Raises
    ------
    NumericalError
        If EP fails at the starting point.
    """
    learn = learn or {}
    starts = first_theta(family, projector, learn) if start is None else np.array(start, float)
    function = objective(family, y, projector, tol, max_sweeps, weights, tuple(learn), log_prior)

    lowest: list[tuple[float, Array, Array]] = []

    def reported(theta: Array) -> tuple[float, Array]:
        value, slope = function(theta)
        if not lowest or value < lowest[0][0]:
            lowest[:] = [(value, theta.copy(), -slope)]
        if callback is not None:
            callback(theta, -value)
        return value, slope

    bounds = all_bounds(family, learn)
    low, high = bounds.T
    tried = np.clip(np.atleast_2d(starts), low, high)
    found = [reported(theta) for theta in tried]
    best = int(np.argmin([value for value, _ in found]))
    theta, known = tried[best], [found[best]]
    steepest = float(np.abs(known[0][1]).max(initial=0.0))
    unit = min(1.0, _FIRST_STEP / max(steepest, 1e-300))

    def scaled(theta: Array) -> tuple[float, Array]:
        value, slope = known.pop() if known else reported(theta)
        return unit * value, unit * slope

    result = minimize(
        scaled,
        theta,
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": max_iterations, "ftol": ftol, "gtol": unit * _FLAT},
    )
    end, reached = result.x, float(result.fun) / unit
    slope = -np.asarray(result.jac, dtype=float) / unit
    success, message = bool(result.success), str(result.message)
    if reached > lowest[0][0] + 1.0:
        # On the plateau that stands for parameters at which inference fails.
        reached, end, slope = lowest[0]
        success, message = False, LOST
    extra = 0.0 if log_prior is None else log_prior(end)[0]
    optimum = Optimum(
        theta=end,
        value=-reached - extra,
        n_iterations=int(result.nit),
        n_evaluations=function.evaluations,
        success=success,
        message=message,
        start=np.atleast_2d(starts)[best],
        slope=slope,
        log_prior=extra,
    )
    return optimum, function.sites
