"""Newton start, warm start and sweeps for sparse precisions."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Self, cast

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from qpruntime._typing import Array
from qpruntime.errors import NumericalError
from qpruntime.inference.fixed_point.convergence import Limits, Trace
from qpruntime.inference.fixed_point.iterate import count_held
from qpruntime.inference.fixed_point.schedules import (
    Settled,
    Swept,
    advance,
    farthest,
    measure_change,
    swept_until,
)
from qpruntime.inference.parallel_updates import propose_all, propose_matched
from qpruntime.inference.precision.pattern_kernels import back, times
from qpruntime.inference.precision.solver import Entries, PrecisionPrior, PrecisionSolved
from qpruntime.inference.problem import Problem
from qpruntime.inference.site_kernels import Marginals
from qpruntime.inference.sites import (
    ImproperPosterior,
    Sites,
    no_counts,
    no_sites,
    without_negative,
)
from qpruntime.inference.solver_protocol import Solved

__all__ = ["Approach", "Nearby", "newton_sites", "settle"]

# --- Fixed point

#: Steps of the means with precisions fixed, before each change of all sites.
_MEANS = 2
#: If the changes grow, the step length shrinks by the first factor, down to the second.
_SHORTEN, _LEAST_SHARE = 0.8, 0.3


class _Shortening:
    """Step control that shortens every step once changes have grown."""

    def __init__(self) -> None:
        self.share, self._last = 1.0, np.inf

    def ends(self, swept: Swept) -> bool:
        """Return False: only the limits end the iteration."""
        if swept.change > self._last:
            self.share = max(_SHORTEN * self.share, _LEAST_SHARE)
        self._last = swept.change
        return False


def settle(problem: Problem, limits: Limits, sites: Sites | None) -> Settled:
    """Iterate to the fixed point from these sites, or from those of Newton's method.

    Negative precisions can leave no posterior, a site without a cavity, or sites that do not
    settle. Then shorter steps are tried, and finally precisions are held at zero or above. The
    result says for how many sites this makes a difference.
    """
    trace = Trace()
    with np.errstate(all="ignore"):  # what overflows is found by `measure_change`
        if problem.nonnegative:
            return _iterate(problem, limits, sites, trace)
        end = None
        for damping, start in ((1.0, sites), (_LEAST_SHARE, None)):
            shorter = limits._replace(damping=damping * limits.damping)
            with suppress(NumericalError):  # ImproperPosterior among them
                end = _iterate(problem, shorter, start, trace)
                if end.settled and end.proper:
                    return end
        bounded = replace(problem, bounded=True)
        constrained = _iterate(bounded, limits, None, trace)
        constrained.held = count_held(problem, constrained)
        # Unsettled sites that have cavities are returned if the constrained sites do not settle
        # either.
        return end if end is not None and end.proper and not constrained.settled else constrained


def _iterate(problem: Problem, limits: Limits, start: Sites | None, trace: Trace) -> Settled:
    n = problem.n
    exact = normal_sites(problem)
    # Means of exact sites need no matching.
    matchings = _MEANS if exact is None else 0
    start = start if exact is None else exact
    approach = Approach.of(problem, start is not None)
    sites = newton_sites(problem, approach) if start is None else start
    if problem.bounded:
        sites = without_negative(sites)
    try:
        if approach is None:
            factor = problem.prior.factor(sites)
        else:
            sites = approach.forward(sites, limits.tol)
            factor = approach.factor(sites, limits.tol)
    except ImproperPosterior:
        sites = without_negative(sites)
        factor = problem.prior.factor(sites)
    updates = no_sites(0)
    variance = kept = np.empty(0)
    steering = _Shortening()
    known = False

    def sweep(share: float) -> Swept:
        """Propose changes of all sites, and measure them."""
        nonlocal sites, updates, variance, kept, known
        if not known:
            variance, kept = factor.marginals()
            if approach is not None:
                approach.learn(sites, variance)
        known = True
        counts = no_counts()
        means = matchings if approach is None else 0
        sites, *changes = factor.propose(problem, (variance, kept), sites, means, counts)
        updates = Sites(*changes)
        change, step = measure_change(*updates, sites.nu, variance)
        return Swept(change, farthest(step), counts, n * (share < limits.damping))

    def move(ends: bool) -> int:
        """Apply the proposed changes unless the iteration ends; return the shortened updates."""
        nonlocal sites, factor, known
        if ends:
            return 0
        factor.discard()
        scale = limits.damping * steering.share
        if approach is not None and scale == 1.0:
            ahead = Sites(sites.tau + updates.tau, sites.nu + updates.nu)
            sites, known = approach.forward(ahead, limits.tol), False
            factor = approach.factor(sites, limits.tol)
            return 0
        sites, factor, halvings = advance(problem, sites, *updates, scale)
        known = False
        return n * halvings

    settled, last = swept_until(sweep, limits, steering, trace, move)
    if not known:
        variance, kept = factor.marginals()
    return Settled(
        sites=sites, factor=factor, variance=variance, kept=kept,
        settled=settled, worst=last.worst, trace=trace,
    )  # fmt: skip


def normal_sites(problem: Problem) -> Sites | None:
    """Return the sites of normal noise, which follow from y alone, or None for other noise."""
    likelihood = problem.projector.likelihood
    if not likelihood.is_normal:
        return None
    tau = problem.exponents / likelihood.parameters["scale"] ** 2
    return Sites(tau, tau * problem.y)


# --- Start near the mode
#
# Parallel EP from sites of zero precision diverges under wide priors of coefficients. Newton steps
# work on the log density smoothed by a cavity of variance 1 about the mean. They exist wherever
# moments do, also at kinks.

#: A step of a row's mean is cut to the first number. The steps end below the second, or after the
#: third number of them.
_CUT, _NEAR, _MOST = 5.0, 1e-2, 30
#: Newton steps start again if curvatures at the variances of the rows exceed this multiple of those
#: at 1.
_STEEPER = 1.5


def newton_sites(problem: Problem, approach: Approach | None = None) -> Sites:
    """Return sites of the curvature and slope of log Z, at a cavity of variance 1 or less.

    An `approach` gives means and variances without a factorisation.

    No curvature is above 1 at variance 1. Rows that are known better, as those of large counts,
    then begin with precisions far too small, and matching their means would overshoot. Further
    steps then follow, at the variances that the first steps left. They are left out for
    likelihoods that are not log-concave, which may have other peaks there.
    """
    prior, n = problem.prior, problem.n
    mean, unit_variance = prior.mean.copy(), np.ones(n)
    sites = _steps(problem, mean, unit_variance, approach)
    if problem.bounded or not problem.nonnegative:
        return sites
    if approach is None:
        variance = prior.factor(sites).marginals()[0]
    else:
        variance = _Sketch(approach, sites, np.inf).diagonal_variance
    variance = np.clip(variance, _LEAST, 1.0)
    if (_curvature(problem, mean, variance)[0] > _STEEPER * np.maximum(sites.tau, _LEAST)).any():
        sites = _steps(problem, mean, variance, approach)
    return sites


def _steps(problem: Problem, mean: Array, variance: Array, approach: Approach | None) -> Sites:
    """Take Newton steps on log Z at cavities of these variances, moving means in place."""
    sites = no_sites(problem.n)
    for _ in range(_MOST):
        tau, slope = _curvature(problem, mean, variance)
        tau = np.clip(tau, 0.0, None)
        sites, new_mean = _moved(problem, Sites(tau, slope + tau * mean), approach)
        step = new_mean - mean
        if not (np.abs(step) > _NEAR).any():
            break
        mean += np.clip(step, -_CUT, _CUT)
    return sites


def _moved(problem: Problem, proposed: Sites, approach: Approach | None) -> tuple[Sites, Array]:
    """Return the proposed sites, or shorter steps towards them, and the means that they leave."""
    if approach is not None and not approach.far:
        with suppress(NumericalError):
            return proposed, _Sketch(approach, proposed, _SHARE * _NEAR).mean
    sites, factor, _ = advance(problem, no_sites(problem.n), *proposed, 1.0)
    return sites, factor.mean


def _curvature(problem: Problem, mean: Array, variance: Array) -> tuple[Array, Array]:
    """Return minus the second derivative of log Z by the cavity mean, and the first derivative."""
    n = problem.n
    cavities = Marginals(mean, variance, np.ones(n), np.zeros(n))
    proposed = propose_all(problem, problem.matching(), cavities, no_sites(n), no_counts())
    # Both follow from the tilted moments: (1 - tilted/cavity)/cavity, (mean - cavity mean)/cavity.
    tilted = 1.0 / (1.0 / variance + proposed.tau)
    slope = (tilted * (proposed.nu + mean / variance) - mean) / variance
    return (1.0 - tilted / variance) / variance, slope


# --- Iterations without a factorisation
#
# Crossed groups fill the smaller side of the factor, although two levels share few rows. There,
# conjugate gradients with the diagonal of P give means in few products with A. Variances of rows
# follow from those of the diagonal alone by a ratio that hardly changes. Only the start of the
# exact sweeps uses this: the sweeps end where they do from any other start.

#: Operations of a factor per number of A above which the factor is expensive: the iterations below
#: take about a hundred. For 5000 and 2000 crossed groups with 10^5 rows it is 5400.
_DEAR = 1000.0
#: Largest numbers of conjugate gradient products, and of steps of the sites.
_PRODUCTS, _STEPS = 60, 12
#: Changes of sites above which single precision resolves them: its variances are right to 1e-5.
_SINGLE = 3e-4
#: Means are solved to this share of the tolerance of sites, in posterior standard deviations.
_SHARE = 0.1
#: Least share of a marginal's precision that a site may leave.
_LEAST = 1e-3


class Approach:
    """Means and variances of sites by products alone, and sites near the fixed point.

    Parameters
    ----------
    problem : Problem
        A problem for which `of` accepts this approach.
    warm : bool
        Whether the last ratios of variances of these rows are still valid.
    """

    def __init__(self, problem: Problem, warm: bool) -> None:
        prior = problem.prior
        assert isinstance(prior, PrecisionPrior)
        self.problem, self.prior = problem, prior
        self.squared = prior.rows.values * prior.rows.values
        self.entries = Entries.of(prior)
        self.x, self.ratio = np.zeros(prior.pattern.k), np.ones(prior.offset.size)
        known = prior.pattern.held.get("ratio")
        if warm and known is not None and known[0] is prior.rows.columns:
            self.ratio = known[1]

    @classmethod
    def of(cls, problem: Problem, warm: bool) -> Self | None:
        """Return an approach; None if a factor is cheap or P is far from its diagonal."""
        prior = problem.prior
        if not (isinstance(prior, PrecisionPrior) and problem.nonnegative):
            return None
        pattern = prior.pattern
        dear = pattern.symbolic.flops > _DEAR * prior.rows.columns.size
        # A definite precision with as many entries as columns is diagonal.
        if not dear or prior.constraint is not None or prior.q.size != pattern.k:
            return None
        approach = cls(problem, warm)
        return None if approach.far else approach

    @property
    def far(self) -> bool:
        """True if P was too far from its diagonal."""
        return bool(self.prior.pattern.held.get("far"))

    def factor(self, sites: Sites, tol: float) -> PrecisionSolved:
        """Return the posterior of these sites for changes that are measured to `tol`."""
        return PrecisionSolved(self.prior, sites, single=tol >= _SINGLE)

    def learn(self, sites: Sites, variance: Array) -> None:
        """Learn the ratios from the variances that belong to these sites."""
        self.ratio = variance / _Sketch(self, sites, np.inf).diagonal_variance
        self.prior.pattern.held["ratio"] = self.prior.rows.columns, self.ratio

    def forward(self, sites: Sites, tol: float) -> Sites:
        """Return sites that change by less than about `tol`, or the given ones."""
        problem, begin, last = self.problem, sites, np.inf
        if self.far:
            return begin
        try:
            for _ in range(_STEPS):
                sketch = _Sketch(self, sites, _SHARE * tol)
                variance = self.ratio * sketch.diagonal_variance
                kept = 1.0 - sites.tau * variance
                if not kept.min() > _LEAST:
                    return begin
                counts = no_counts()
                sites, *changes = propose_matched(
                    cast(Solved, sketch), problem, (variance, kept), sites, 1, counts
                )
                change, _ = measure_change(changes[0], changes[1], sites.nu, variance)
                if change > last or counts[2]:
                    return begin
                sites = Sites(sites.tau + changes[0], sites.nu + changes[1])
                last = change
                if change < tol:
                    break
        except NumericalError:
            return begin
        return sites


class _Sketch:
    """Posterior of given sites for `propose_matched`, means to `near` standard deviations."""

    def __init__(self, approach: Approach, sites: Sites, near: float) -> None:
        self.own, self.tau, self.near = approach, sites.tau, near
        prior, rows = approach.prior, approach.prior.rows
        self.diagonal = np.empty(prior.pattern.k)
        back(rows.indptr, rows.columns, approach.squared, sites.tau, self.diagonal)
        self.diagonal += prior.q
        self._lower: sparse.csc_array | None = None
        self.diagonal_variance = np.empty(sites.tau.size)
        inverse = 1.0 / self.diagonal
        times(rows.indptr, rows.columns, approach.squared, inverse, self.diagonal_variance)
        self.relocate(sites.nu)

    def relocate(self, nu: Array) -> None:
        self._nu, self._known = nu, False

    @property
    def mean(self) -> Array:
        """Posterior mean at the rows."""
        self._solve()
        return self._mean

    @property
    def weights(self) -> Array:
        """Slopes of the sites' logarithms at the mean, nu - tau mean."""
        self._solve()
        return self._weights

    def _solve(self) -> None:
        if self._known:
            return
        approach, prior = self.own, self.own.prior
        shifted = self._nu - self.tau * prior.offset
        approach.x = self._conjugate(prior.back(shifted), approach.x)
        moved = prior.times(approach.x)
        self._mean, self._weights = prior.offset + moved, shifted - self.tau * moved
        self._known = True

    def _conjugate(self, right: Array, x: Array) -> Array:
        """Solve P x = right from x; the residual by 1/diag P is about the error by P."""
        prior = self.own.prior
        if self._lower is None:
            self._lower = self.own.entries.lower(prior.rows, self.tau)
        lower, upper, diagonal = self._lower, self._lower.T, self.diagonal
        residual = right - (lower @ x + upper @ x + diagonal * x)
        z = residual / self.diagonal
        p, size = z, float(residual @ z)
        least = self.near**2 * x.size
        for _ in range(_PRODUCTS):
            if not size > least:
                break
            moved = lower @ p + upper @ p + diagonal * p
            share = size / float(p @ moved)
            x, residual = x + share * p, residual - share * moved
            z = residual / self.diagonal
            size, before = float(residual @ z), size
            p = z + (size / before) * p
        else:
            prior.pattern.held["far"] = True
            raise NumericalError(f"conjugate gradients have not ended after {_PRODUCTS} products")
        return x


# --- Warm starts at new hyper-parameters
#
# Sites follow hyper-parameters smoothly. A plane through a few known ones is thus a better guess
# than the nearest alone: the iteration begins a step or two nearer to the same end.

#: Ridge of the least squares as a share of the largest squared distance; and how far beyond the
#: known sites the plane is followed, in units of their distances.
_RIDGE, _BEYOND = 1e-8, 3.0
#: Precisions shrink to this share of the nearest ones' at most.
_SHRUNK = 0.5


class Nearby:
    """Sites of the last few hyper-parameters.

    Parameters
    ----------
    most : int
        Number of sites to keep: one more than there are hyper-parameters defines a plane.

    See Also
    --------
    qpruntime.infer_precision, qpruntime.inference.precision.cholesky.Pattern

    Examples
    --------
    >>> from qpruntime.inference.precision.iterate import Nearby
    >>> known = Nearby(2)
    >>> known.add([0.0], ([1.0], [2.0]))
    >>> known.add([1.0], ([2.0], [1.0]))
    >>> tau, nu = known.at([1.5])
    >>> tau.round(3).tolist(), nu.round(3).tolist()
    ([2.5], [0.5])
    """

    def __init__(self, most: int) -> None:
        self.most = max(1, most)
        self._known: list[tuple[Array, Sites]] = []

    def __len__(self) -> int:
        return len(self._known)

    def clear(self) -> None:
        """Drop all sites."""
        self._known.clear()

    def add(self, theta: ArrayLike, sites: Sites | tuple[ArrayLike, ArrayLike]) -> None:
        """Keep the sites (tau, nu), each of shape (N,), that belong to theta, shape (p,)."""
        at = np.array(theta, dtype=float)
        start = Sites(*(np.asarray(part, dtype=float) for part in sites))
        self._known = [pair for pair in self._known if not np.array_equal(pair[0], at)]
        self._known = [*self._known, (at, start)][-self.most :]

    def distance(self, theta: ArrayLike) -> float:
        """Return the largest change of a hyper-parameter from the nearest known one, or inf."""
        steps = [np.abs(np.asarray(theta) - at).max(initial=0.0) for at, _ in self._known]
        return float(min(steps, default=np.inf))

    def at(self, theta: ArrayLike) -> Sites | None:
        """Return sites to begin with at theta, or None if no sites are known.

        Precisions stay above half of the nearest ones. If one of these is negative, the nearest
        sites are returned unchanged.
        """
        if not self._known:
            return None
        new = np.asarray(theta, dtype=float)
        far = [float(np.square(new - at).sum()) for at, _ in self._known]
        nearest = int(np.argmin(far))
        centre, base = self._known[nearest]
        others = [pair for k, pair in enumerate(self._known) if k != nearest]
        if not others or far[nearest] == 0.0 or (base.tau < 0.0).any():
            return base
        D = np.column_stack([at - centre for at, _ in others])
        inner = D.T @ D
        inner[np.diag_indices_from(inner)] += _RIDGE * inner.diagonal().max()
        share = np.linalg.solve(inner, D.T @ (new - centre))
        if not np.abs(share).sum() <= _BEYOND:
            return base
        tau, nu = base.tau.copy(), base.nu.copy()
        for weight, (_, sites) in zip(share, others, strict=True):
            tau += weight * (sites.tau - base.tau)
            nu += weight * (sites.nu - base.nu)
        least = _SHRUNK * base.tau
        short = tau < least
        if short.any():
            tau[short], nu[short] = base.tau[short], base.nu[short]
        return Sites(tau, nu)
