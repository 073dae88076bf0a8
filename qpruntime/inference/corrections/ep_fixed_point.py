"""EP fixed point from which corrections start."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from qpruntime._typing import Array
from qpruntime.errors import InputError, NumericalError
from qpruntime.inference.corrections.density_grid import Densities, log_density_many, normalised
from qpruntime.inference.corrections.tilted import (
    Rule,
    Tilted,
    TiltedMoments,
    rule_of,
    tilted_moments,
)
from qpruntime.inference.dense.solver import DensePrior, DenseSolved
from qpruntime.inference.fixed_point.convergence import Limits
from qpruntime.inference.fixed_point.iterate import Order, log_evidence, settle
from qpruntime.inference.problem import Observed, Problem
from qpruntime.inference.sites import Sites
from qpruntime.likelihoods import Likelihood
from qpruntime.projection.projector import Projector

__all__ = [
    "SWEEPS",
    "TOL",
    "FixedPoint",
    "NormalApproximation",
    "fixed_point",
    "fold",
    "needed",
    "normal_of",
    "one_sided",
    "problem_of",
    "signless",
]

# --- Likelihoods that do not know the sign of f
#
# Such likelihoods declare it as `Likelihood.even`. A density can be even for the given observations
# alone, as noise is at y = 0, and f then still has a sign. As p(y|f) = p(y|-f) for all sites at
# once, the posterior has two mirrored halves. EP started at zero settles between them, or not at
# all. If it starts to one side it finds the peak there, provided the peaks are apart. The marginals
# of |f| are the same on either side, and the evidence is twice that of one side.

#: A peak is to one side if some mean is at least this many standard deviations away from 0.
_ASIDE = 1.5


def signless(observed: Observed) -> bool:
    """Decide whether the sign of the whole latent function is unknown, for any observations."""
    return needed(observed)[1].even and not np.any(observed.prior)


def one_sided(observed: Observed, sites: Sites, evidence: float, is_own: bool) -> FixedPoint:
    """Return EP's fixed point at a peak to one side, or the central one if there is no such peak.

    The log evidence of a peak to one side counts both peaks. Errors are those of `fixed_point`.
    """
    K, _ = needed(observed)
    aside = np.full(len(K), math.sqrt(K.diagonal().mean()))
    end = settle(problem_of(observed, aside), Limits(TOL, SWEEPS))
    try:
        fixed_point_aside = fixed_point(observed, end.sites, evidence, is_own=False)
    except NumericalError:
        return replace(fixed_point(observed, sites, evidence, is_own), folded=True)
    if (np.abs(fixed_point_aside.fixed.mean) < _ASIDE * fixed_point_aside.fixed.std).all():
        return replace(fixed_point_aside, folded=True, is_own=is_own)
    both = fixed_point_aside.log_evidence + math.log(2.0)
    return replace(fixed_point_aside, folded=True, aside=True, log_evidence=both)


def fold(densities: Densities) -> Densities:
    """Return the densities of |f|."""
    at = np.sort(np.abs(densities.points), axis=1)
    across = (densities.points[:, 0] < 0.0) & (densities.points[:, -1] > 0.0)
    at[across, 0] = 0.0
    sides: list[Array] = []
    for points in (at, -at):
        out = np.empty(at.shape)
        log_density_many(densities.points, densities.logs, points, out)
        sides.append(out)
    return normalised(at, np.logaddexp(*sides))


# --- EP's fixed point for a posterior of any method

#: Largest first and second Hermite moments at a fixed point, where they vanish.
_SETTLED = 1e-4
#: Tolerance of EP beside another method; corrections are accurate to about its square.
TOL = 1e-7
#: Tolerance of EP if two fixed points are subtracted.
_FINE = 1e-9
SWEEPS = 200
#: Number of sites from which on all are updated at once, as by `infer`, if there is only one fixed
#: point.
_MANY = 1000


@dataclass(frozen=True, eq=False)
class NormalApproximation:
    """Normal approximation: V (N, N) is its covariance, and `factor` serves predictions."""

    observed: Observed
    likelihood: Likelihood
    V: Array
    factor: DenseSolved
    rule: Rule
    fixed: TiltedMoments


@dataclass(frozen=True, eq=False)
class FixedPoint(NormalApproximation):
    """EP's fixed point: a `NormalApproximation` with its tilted densities and its log evidence.

    `is_own` is True if the sites are those of the posterior itself. `folded` means that the sign of
    f is unknown, and `aside` that this is the fixed point of one of two mirrored peaks.
    """

    tilted: Tilted
    log_evidence: float
    is_own: bool
    folded: bool = False
    aside: bool = False

    def moved(self, prior: Array) -> FixedPoint:
        """Return the fixed point for another prior mean, found from this one."""
        observed = replace(self.observed, prior=prior)
        sites = Sites(self.fixed.tau, self.fixed.nu)
        return fixed_point(observed, sites, self.log_evidence, is_own=False, tol=_FINE)


def needed(observed: Observed | None) -> tuple[Array, Likelihood]:
    """Return prior covariance and likelihood, or raise an error that names the missing one."""
    if observed is None or observed.K is None:
        raise InputError(
            "the prior covariance is needed, and pickles of a posterior leave it out: "
            "post.with_covariance(K) takes it back"
        )
    if observed.likelihood is None or not observed.likelihood.has_density:
        raise InputError(
            "the density of the likelihood is needed and not at hand: infer with the Likelihood "
            "itself, likelihood=..."
        )
    return observed.K, observed.likelihood


def problem_of(observed: Observed, prior: Array | None = None) -> Problem:
    """Return the problem as EP solves it, with another prior mean if one is given."""
    K, likelihood = needed(observed)
    dense = DensePrior(K, observed.prior if prior is None else prior)
    return Problem(dense, observed.y, Projector(likelihood, "ep"), weights=observed.weights)


def fixed_point(
    observed: Observed, sites: Sites, evidence: float, is_own: bool, tol: float = TOL
) -> FixedPoint:
    """Return EP's fixed point: at these sites if they are EP's own, else found from them.

    Raises
    ------
    InputError
        If covariance or likelihood is missing.
    NumericalError
        If EP does not settle, or the sites are not a fixed point of it.
    """
    problem = problem_of(observed)
    K, likelihood = needed(observed)
    if is_own:
        factor = DensePrior(K, observed.prior).factor(sites)
    else:
        order: Order = "parallel" if len(K) >= _MANY and problem.nonnegative else "sequential"
        end = settle(problem, Limits(tol, SWEEPS), order=order, sites=sites)
        if end.status != "converged":
            raise NumericalError(
                f"EP has no fixed point here that was found ({end.status} after "
                f'{len(end.history)} sweeps), and corrections start from one: correction="sample" '
                "does without"
            )
        assert isinstance(end.factor, DenseSolved)
        sites, factor = end.sites, end.factor
        evidence, _ = log_evidence(problem, end)
    normal = normal_of(observed, sites, factor)
    rule, tilted = tilted_moments(normal.rule, normal.fixed, likelihood)
    off = np.abs(tilted.hermite[:, 1:3])
    if not (off <= _SETTLED).all():
        site = int(np.argmax(off.max(axis=1)))
        if is_own:
            return fixed_point(observed, sites, evidence, is_own=False)  # held, or of a lax tol
        raise NumericalError(
            f"the sites are no fixed point of EP: moments of the tilted density of site {site} "
            f'are off by {off.max():.2g}; correction="sample" needs no fixed point'
        )
    known = {**vars(normal), "rule": rule}
    return FixedPoint(**known, tilted=tilted, log_evidence=evidence, is_own=is_own)


def normal_of(
    observed: Observed, sites: Sites, factor: DenseSolved | None = None
) -> NormalApproximation:
    """Return the normal approximation of these sites, whether or not they are a fixed point."""
    K, likelihood = needed(observed)
    factor = factor or DensePrior(K, observed.prior).factor(sites)
    V = np.ascontiguousarray(factor.covariance().T)  # symmetric
    variance, _ = factor.marginals()
    if not (variance > 0.0).all():
        site = int(np.argmin(variance))
        raise NumericalError(
            f"the posterior variance of site {site} is {variance[site]:.3g}: its neighbours leave "
            "no digits of it; add jitter to the diagonal of K"
        )
    weights = np.ones(observed.y.size) if observed.weights is None else observed.weights
    fixed = TiltedMoments(sites.tau, sites.nu, factor.mean, np.sqrt(variance), observed.y, weights)
    return NormalApproximation(observed, likelihood, V, factor, rule_of(likelihood, weights), fixed)
