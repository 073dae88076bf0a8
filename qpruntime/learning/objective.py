"""Objectives over the hyper-parameters of a family of priors, with their gradients.

The default objective is EP's log evidence, also for QP, as in the paper, because only EP's gradient
is exact at its fixed point. Sites are carried from one evaluation to the next; the fixed point does
not depend on the start of an iteration.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from scipy.sparse.linalg import LinearOperator, gmres
from sklearn.gaussian_process.kernels import Kernel

from qpruntime import likelihoods
from qpruntime._typing import Array
from qpruntime.errors import NumericalError
from qpruntime.inference.dense.solution import summarise
from qpruntime.inference.dense.solver import DensePrior
from qpruntime.inference.fixed_point import variational
from qpruntime.inference.fixed_point.convergence import Limits, Trace
from qpruntime.inference.fixed_point.iterate import iterate, settle
from qpruntime.inference.fixed_point.schedules import Anderson, Settled, solve_positive
from qpruntime.inference.problem import Problem
from qpruntime.inference.sites import ImproperPosterior, Sites
from qpruntime.inference.solver_protocol import Prior
from qpruntime.kernels.gradients import covariance_function
from qpruntime.projection.projector import PLACES, Projector, derivative, moved
from qpruntime.projection.site_kernel import project_many

__all__ = [
    "OBJECTIVES",
    "Extrapolation",
    "Family",
    "KernelFamily",
    "KernelParameters",
    "LeaveOneOutObjective",
    "LogPrior",
    "Objective",
    "cavities",
    "learnt",
    "loo_slope",
    "parameter_slopes",
    "reparametrised",
    "settle_fast",
    "site_rows",
]

# --- Objectives

LogPrior = Callable[[Array], tuple[float, Array]]

# Number of parallel iterations before sequential sweeps take over.
_MAX_PARALLEL = 30
# Tolerance of the sites far from the optimum. The evidence is stationary in the sites, so its
# gradient is correct to about as many digits.
_LOOSE_TOL = 3e-4
# Up to this many rows sequential sweeps search for a fixed point that parallel iterations missed.
# Above it they rarely find one either (none of 9 on two data sets), in five times the time.
_SEQUENTIAL_ROW_LIMIT = 300


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
    """Find the fixed point by parallel updates, or by sequential ones if these do not converge.

    Sequential updates keep every posterior proper, but parallel ones may not. If precisions turn
    negative, the parallel result is used only if any fixed point will do (`seek` is false). If
    `further` is false, there are no sequential updates.
    """
    if problem.projector.method == "vb":
        return variational.settle(
            problem, tol=tol, max_sweeps=max_sweeps, sites=sites, accelerator=accelerator
        )
    trace = Trace()
    limits = Limits(tol, min(_MAX_PARALLEL, max_sweeps), 1.0)
    with contextlib.suppress(ImproperPosterior) if further else contextlib.nullcontext():
        first = iterate(
            problem, limits, order="parallel", sites=sites, accelerator=accelerator, trace=trace
        )
        is_final = first.settled or len(trace.history) == max_sweeps
        is_nonnegative = problem.nonnegative or first.sites.tau.min() >= 0.0
        if not further or (
            is_final and (is_nonnegative or (first.settled and first.proper and not seek))
        ):
            return first
    remaining = max_sweeps - len(trace.history)
    return settle(
        problem, Limits(tol, remaining or max_sweeps), sites=sites, trace=trace, seek=seek
    )


class Objective:
    """Negative log evidence and its gradient, as a function of theta, for one optimiser run.

    Subclasses measure something else: they override `tolerance` and `measure`.

    Parameters
    ----------
    family : Family
        Family of priors, such as `KernelFamily` for a scikit-learn kernel.
    y : ndarray, shape (N,)
        Encoded observations.
    projector : Projector
        Projector with method "ep" for the evidence, whose gradient is exact for EP only, or "vb".
    tol, max_sweeps
        Tolerance and sweeps of the EP run in each evaluation.
    weights : ndarray, shape (N,), optional
        Powers of the single likelihoods.
    learn : sequence of str
        Likelihood parameters to learn as well, whose logarithms follow those of the prior in theta.
    log_prior : callable, optional
        Log prior density of theta and its gradient, which are added to the objective.
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
        """Return the tolerance of the sites, looser far from the optimum."""
        # The slope of the variational bound needs a digit more.
        share = 0.1 if self.projector.method == "vb" else 1.0
        return max(self.tol, share * min(_LOOSE_TOL, 1e-4 * self._slope))

    def measure(self, problem: Problem, end: Settled) -> tuple[float, Any, Array]:
        """Return the objective and its slopes.

        These are the slope with respect to the prior, in the form its family takes, and the
        derivatives with respect to the log likelihood parameters `learn`, shape (P,).
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
        # If noise is learnt, only a fixed point of unclamped sites will do: see below.
        free = projector.likelihood.log_concave or not self.learn or self.evaluations == 1
        end = settle_fast(
            problem,
            tol=self.tolerance(),
            max_sweeps=self.max_sweeps,
            sites=self._extrapolation.guess(theta),
            accelerator=self._accelerator,
            # One smooth objective: not the highest of several peaks, and no time for a search.
            seek=False,
            further=free or len(self.y) <= _SEQUENTIAL_ROW_LIMIT,
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
        """Return what the optimiser minimises: minus the value and its prior, with the gradient."""
        self.evaluations += 1
        try:
            value, slopes = self.evaluate(theta)
        except NumericalError as error:
            if self.evaluations == 1 or error.__cause__ is not None:  # a user's own exception
                raise
            # Double precision fails here, so return a value that no line search accepts.
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


class LeaveOneOutObjective(Objective):
    """Negative sum of the leave-one-out log predictive densities of the posterior itself.

    Unlike the evidence it is not stationary in the sites, so they have to settle.
    """

    def tolerance(self) -> float:
        """Return the tolerance of the sites."""
        return 1e-2 * self.tol

    def measure(self, problem: Problem, end: Settled) -> tuple[float, Any, Array]:
        """Return the sum of densities, and its slopes by the prior and by parameters."""
        return loo_slope(problem, end, self.learn)


#: Objectives of `maximise` by the name that estimators use.
OBJECTIVES: dict[str, type[Objective]] = {"evidence": Objective, "loo": LeaveOneOutObjective}


# --- Families of priors
#
# The parameters theta are logarithms. The form of a slope with respect to a prior belongs to its
# solver (`qpruntime.inference.solver_protocol.Solved.slope`); only the family knows how to turn it
# into a slope with respect to theta.


class Family(Protocol):
    """Priors of N latent values, one for every theta."""

    @property
    def theta(self) -> Array:
        """Natural starting point, shape (p,)."""

    @property
    def bounds(self) -> Array:
        """Least and greatest theta, shape (p, 2)."""

    def at(self, theta: Array) -> Prior:
        """Return the prior of these parameters."""

    def contract(self, slope: Any) -> Array:
        """Turn the slope of a number by the prior that was asked for last into that by theta.

        Shape (p,). `slope` may be used up.
        """


class KernelParameters:
    """Base of priors whose parameters are those of a kernel."""

    _kernel: Kernel

    @property
    def theta(self) -> Array:
        """Parameters of the kernel."""
        return np.asarray(self._kernel.theta)

    @property
    def bounds(self) -> Array:
        """Bounds of the kernel's parameters, shape (p, 2)."""
        return np.reshape(self._kernel.bounds, (-1, 2))


class KernelFamily(KernelParameters, Family):
    """Priors whose covariance is ``kernel(X)``.

    Parameters
    ----------
    kernel : scikit-learn kernel
    X : ndarray, shape (N, d)
    mean : ndarray, shape (N,)
        Prior mean.
    scale : ndarray, shape (N,), optional
        The latent values observed are these multiples of the kernel's: K_ij scale_i scale_j.
    """

    def __init__(self, kernel: Kernel, X: Array, mean: Array, scale: Array | None = None) -> None:
        self._kernel, self._mean = kernel, mean
        self._covariance = covariance_function(kernel, X)
        self._scales = None if scale is None else np.outer(scale, scale)

    def at(self, theta: Array) -> DensePrior:
        """Return the prior of these parameters."""
        K = self._covariance.at(theta)
        return DensePrior(K if self._scales is None else K * self._scales, self._mean)

    def contract(self, slope: Array) -> Array:
        """Turn a slope by the prior into that by theta."""
        if self._scales is not None:
            slope *= self._scales
        return self._covariance.contract(slope)


# --- Warm starts of sites
#
# Sites are smooth functions of theta, the log parameters of the kernel: log precision and site mean
# are interpolated by a Gaussian process over the last few theta. Inference then starts ten to a
# hundred times closer than from the last sites, which saves a third of its factorisations.

# Number of stored theta; more save nothing.
_STORED_THETAS = 10
# Length-scale in theta; values from 4 to 8 work alike.
_LENGTH_SCALE = 6.0
# Added to the diagonal so that equal theta do not make the system singular.
_NUGGET = 1e-10
# A larger predicted change, in log precision or in site deviations, is not used.
_MAX_CHANGE = 8.0


class Extrapolation:
    """Sites as a function of theta, learnt from one evaluation after the other.

    Sites of zero or negative precision have no log: they are carried over as they are.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew: there is nothing to start from."""
        self._thetas: list[Array] = []
        self._values: list[Array] = []
        self._sites: Sites | None = None

    def learn(self, theta: Array, sites: Sites) -> None:
        """Take in the sites found at `theta`."""
        with np.errstate(all="ignore"):
            value = np.concatenate([np.log(sites.tau), sites.nu / sites.tau])
        self._thetas.append(np.array(theta))
        self._values.append(value)
        del self._thetas[:-_STORED_THETAS], self._values[:-_STORED_THETAS]
        self._sites = sites

    def guess(self, theta: Array) -> Sites | None:
        """Return sites to start from at `theta`; None before the first `learn`."""
        if self._sites is None or len(self._thetas) == 1:
            return self._sites
        points = np.array([*self._thetas, theta])
        tau, nu = self._sites
        with np.errstate(invalid="ignore"):
            return Sites(*extrapolate(points, np.array(self._values), tau, nu))


def extrapolate(points: Array, values: Array, tau: Array, nu: Array) -> tuple[Array, Array]:
    """Return site parameters at the last of the points, from values at all others.

    `points` are (n + 1, d), `values` (n, 2N), and `tau` and `nu` are those of the newest value.
    """
    weights = extrapolation_weights(points)
    grow, shift = np.split(weights @ (values[:-1] - values[-1]), 2)
    # The change is NaN if a precision was not positive.
    moves = np.abs(grow) + np.abs(shift) * np.sqrt(np.maximum(tau, 0.0)) < _MAX_CHANGE
    factor = np.exp(np.where(moves, grow, 0.0))
    moved = tau * factor
    return moved, np.where(moves, nu * factor + moved * shift, nu)


def extrapolation_weights(points: Array) -> Array:
    """Return kriging weights of differences from the newest value, for the last point."""
    square = np.square(points[:, None] - points).sum(axis=2)
    correlation = np.exp(-0.5 / _LENGTH_SCALE**2 * square)
    # Covariances of differences from the newest value, which has row and column -2.
    newest = correlation[-2]
    covariance = correlation - newest - newest[:, None] + 1.0
    gram = covariance[:-2, :-2]
    return solve_positive(gram + _NUGGET * np.eye(len(gram)), covariance[:-2, -1])


# --- Leave-one-out objective
#
# The objective L = sum_i w_i log Z_i is a function of the cavities, these of marginals and sites,
# and the sites solve F(sites, theta) = h(cavities) - sites = 0, h being the projection. Hence
#
#     dL = (G - lambda' H) (P dv + Q dm),   J' lambda = dL/dsites,   J = dF/dsites,
#
# with dv and dm the explicit changes of marginal variances and means with K, P and Q the
# derivatives of a cavity (in precision and precision times mean) with respect to them, G =
# dL/dcavity and H = dh/dcavity. This needs no stationarity, and so holds for QP as well as for EP.
#
# An observation of weight w has the likelihood p(y|f)^w in h: its whole site, which the cavity is
# without, stands for all of it. What it adds to L is w times log Z = log p(y_i | y_-i) of the
# likelihood itself: as if y_i had been seen w times, and all of them were left out at once. For
# weights 1 this is the plain sum; a weight of 0 removes the observation from both.

# Step of the differences that give the slope of a projection, in standard deviations of the cavity.
# Fourth-order differences leave 1e-13 of truncation and 1e-12 of rounding.
_STEP = 1e-3


def loo_slope(
    problem: Problem, end: Settled, learn: Sequence[str] = ()
) -> tuple[float, Any, Array]:
    """Return L, its slope by the prior, in the form of `Solved.slope`, and slopes.

    Parameters
    ----------
    problem : Problem
    end : Settled
        Converged: the gradient is that of the fixed point.
    learn : sequence of str
        Parameters of the likelihood; the slopes are the derivatives of L by their logarithms.

    Raises
    ------
    NumericalError
        If a site has no proper cavity, or something is beyond double precision.
    """
    at = cavities(end)
    with np.errstate(all="ignore"):  # what overflows is found by `_finite`
        return _slope(problem, end, learn, at)


def _slope(
    problem: Problem, end: Settled, learn: Sequence[str], at: tuple[Array, Array]
) -> tuple[float, Any, Array]:
    """Evaluate `loo_slope` at known cavities."""
    nu = end.sites.nu
    v, mean = end.variance, end.factor.mean
    cavity_tau = end.kept / v
    cavity_nu = mean / v - nu
    _finite(cavity_tau, cavity_nu, cavity_nu / cavity_tau, 1.0 / cavity_tau)
    is_clamped = problem.nonnegative or end.held > 0
    value, G, H = _local_slopes(problem, cavity_tau, cavity_nu, is_clamped)

    pullback = end.factor.pullback((v, end.kept))
    # A cavity changes with its marginal by P dv + Q dm; the rows are its precision and its nu.
    P = np.array([-1.0 / v**2, -mean / v**2])
    Q = np.array([np.zeros_like(v), 1.0 / v])
    _finite(value, G, H, P, Q)

    def explicit_transposed(x: Array) -> Array:
        """Return (d cavity / d sites)' x, for x and the result of shape (2, N)."""
        return pullback.to_sites((P * x).sum(0), (Q * x).sum(0)) - x

    def jacobian_transposed(flat: Array) -> Array:
        x = flat.reshape(2, -1)
        return (explicit_transposed(np.einsum("abi,ai->bi", H, x)) - x).ravel()

    n = v.size
    target = explicit_transposed(G)
    # Site precisions and means differ by orders of magnitude: solve in posterior units.
    unit = np.concatenate([v, np.sqrt(v)])
    operator = LinearOperator(
        (2 * n, 2 * n), matvec=lambda x: unit * jacobian_transposed(x / unit), dtype=float
    )
    solution, info = gmres(
        operator, unit * target.ravel(), rtol=1e-11, atol=0.0, restart=min(2 * n, 60), maxiter=20
    )
    if info != 0:
        dense = np.column_stack([operator.matvec(e) for e in np.eye(2 * n)])
        _finite(dense)
        try:
            solution = np.linalg.solve(dense, unit * target.ravel())
        except np.linalg.LinAlgError:
            # An error without a cause is told apart from a user's own exception.
            raise NumericalError(
                "the fixed point has no derivative in double precision, which the leave-one-out "
                'objective takes: add a WhiteKernel, or take optimize="evidence"'
            ) from None
    adjoint = (solution / unit).reshape(2, -1)

    residual = G - np.einsum("abi,ai->bi", H, adjoint)
    by_prior = pullback.to_prior((residual * P).sum(0), (residual * Q).sum(0))
    slopes = np.zeros(0)
    if learn:
        # dL = (d log Z - lambda' dh), both by the parameter alone.
        log_z, sites = parameter_slopes(problem, learn, *at, clamp=is_clamped, single=True)
        slopes = log_z.sum(axis=1) - np.einsum("pai,ai->p", sites, adjoint)
    _finite(by_prior, slopes)
    return value, by_prior, slopes


def _finite(*arrays: Array | float) -> None:
    """Raise `NumericalError` if something is not: squares of variances underflow below 1e-154."""
    if not all(np.isfinite(array).all() for array in arrays):
        raise NumericalError(
            "the slope of the leave-one-out density is beyond double precision: rescale the "
            "kernel, or add a WhiteKernel"
        )


def _local_slopes(
    problem: Problem, cavity_tau: Array, cavity_nu: Array, nonnegative: bool
) -> tuple[float, Array, Array]:
    """Return L, G = dL/dcavity of shape (2, N) and H = d site/d cavity of shape (2, 2, N).

    H[a, b] is the slope of site parameter a in cavity parameter b. If precisions are
    `nonnegative`, those at the bound of 0 have no slope.
    """
    sigma = 1.0 / np.sqrt(cavity_tau)
    mu = cavity_nu / cavity_tau

    def at(m: Array, s: Array) -> Array:
        """Return rows of terms of L, tau and nu."""
        return site_rows(problem, problem.projector, m, s, clamp=nonnegative, single=True)

    value = float(at(mu, sigma)[0].sum())
    step = _STEP * sigma
    by_mu = derivative({k: at(mu + k * step, sigma) for k in PLACES}, step)
    by_sigma = derivative({k: at(mu, sigma + k * step) for k in PLACES}, step)
    # mu = nu_c/tau_c and sigma = tau_c^(-1/2).
    mu_tau, mu_nu, sigma_tau = -mu / cavity_tau, 1.0 / cavity_tau, -0.5 * sigma / cavity_tau
    by_tau, by_nu = by_mu * mu_tau + by_sigma * sigma_tau, by_mu * mu_nu
    return value, np.array([by_tau[0], by_nu[0]]), np.stack([by_tau[1:], by_nu[1:]], axis=1)


# --- Gradients in likelihood parameters
#
# EP's evidence is stationary in the sites, so its derivative with respect to a parameter is the sum
# of the derivatives of log Z of every cavity. The leave-one-out density needs the derivatives of
# the sites as well. Weights of the observations are powers of their likelihoods.


def cavities(end: Settled) -> tuple[Array, Array]:
    """Return the means and standard deviations of the cavities, each of shape (N,).

    Raises
    ------
    NumericalError
        If a site has none in double precision.
    """
    with np.errstate(all="ignore"):
        mean = (end.factor.mean - end.sites.nu * end.variance) / end.kept
        std = np.sqrt(end.variance / end.kept)
    none = ~((std > 0.0) & np.isfinite(std) & np.isfinite(mean))
    if none.any():
        site = int(np.argmax(none))
        raise NumericalError(
            f"site {site} has no proper cavity (marginal variance {end.variance[site]:.3g}, site "
            f"precision {end.sites.tau[site]:.3g}): K is too close to singular there for double "
            "precision; add jitter to its diagonal"
        )
    return mean, std


def reparametrised(projector: Projector, names: Sequence[str], logs: Array) -> Projector:
    """Return the projector with other parameters of its likelihood, given by their logarithms."""
    values = {name: float(np.exp(v)) for name, v in zip(names, logs, strict=True)}
    likelihood = projector.likelihood.with_parameters(**values)
    if likelihood is projector.likelihood:
        return projector
    return projector.for_parameters(likelihood)


def learnt(projector: Projector, learn: Iterable[str], theta: Array) -> Projector:
    """Return the projector with learnt parameters, whose logarithms are the last of theta.

    Its likelihood is the registered one.
    """
    names = tuple(learn)
    if not names:
        return projector
    likelihood = reparametrised(projector, names, theta[-len(names) :]).likelihood
    known = likelihoods.names() + likelihoods.names(kinds=True)
    if likelihood.rows is None and likelihood.name in known:
        likelihood = likelihoods.get(likelihood.spelt)
    return Projector(likelihood, projector.method)


def site_rows(
    problem: Problem,
    projector: Projector,
    mu: Array,
    sigma: Array,
    *,
    clamp: bool = False,
    single: bool = False,
) -> Array:
    """Project the problem's observations at cavities N(mu, sigma^2), all of shape (N,).

    Parameters
    ----------
    problem : Problem
        Problem whose weights are the powers of the single likelihoods.
    projector : Projector
        Projector of the problem, or one with other likelihood parameters.
    mu, sigma : ndarray, shape (N,)
        Means and standard deviations of the cavities.
    clamp : bool
        True to clamp negative precisions to 0.
    single : bool
        True to return weight times log p(y), the terms of the leave-one-out density, in the first
        row instead of the terms log E p(y|f)^weight of the evidence.

    Returns
    -------
    ndarray, shape (3, N)
        Log normalisers, precisions, and precisions times means of the projected sites.
    """
    likelihood, source, weights = projector.likelihood, projector.source, problem.weights
    args = likelihood, source, mu, sigma, problem.y, projector.table
    projections = project_many(*args, weights)
    log_z = projections.log_z
    if single and weights is not None:
        # An observation of weight 0 may have any value, even an impossible one.
        log_z = weights * project_many(*args, np.sign(weights)).log_z
    with np.errstate(all="ignore"):  # the caller checks that the results are finite
        precision = 1.0 / (sigma * sigma)
        tau = 1.0 / (projections.std * projections.std) - precision
        if clamp:
            tau = np.maximum(tau, 0.0)
        return np.array([log_z, tau, projections.mean * (precision + tau) - mu * precision])


def parameter_slopes(
    problem: Problem,
    names: Sequence[str],
    mu: Array,
    sigma: Array,
    *,
    clamp: bool = False,
    single: bool = False,
) -> tuple[Array, Array]:
    """Return derivatives with respect to P log parameters at the cavities N(mu, sigma^2).

    The other arguments are those of `site_rows`.

    Returns
    -------
    log_z : ndarray, shape (P, N)
        Derivatives of the log normalisers.
    sites : ndarray, shape (P, 2, N)
        Derivatives of precision, and precision times mean, of the projected sites.
    """
    likelihood, weights = problem.projector.likelihood, problem.weights
    if likelihood.is_normal and tuple(names) == ("scale",) and weights is None:
        return _normal_slopes(likelihood.parameters["scale"], problem.y, mu, sigma)
    log_z, sites = [], []
    for name in names:
        by_step = {
            k: site_rows(problem, projector, mu, sigma, clamp=clamp, single=single)
            for k, projector in moved(problem.projector, name).items()
        }
        slope = derivative(by_step)
        log_z.append(slope[0])
        sites.append(slope[1:])
    return np.array(log_z), np.array(sites)


def _normal_slopes(scale: float, y: Array, mu: Array, sigma: Array) -> tuple[Array, Array]:
    """Return `parameter_slopes` by the log scale of normal noise, where y ~ N(mu, total)."""
    noise = scale * scale
    total = sigma * sigma + noise
    log_z = noise * ((y - mu) ** 2 / total - 1.0) / total
    tau = np.full(y.shape, -2.0 / noise)
    return log_z[None], np.array([[tau, tau * y]])
