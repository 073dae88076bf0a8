"""Derivatives by the parameters of a likelihood, with the cavities held where they are.

EP's evidence is stationary in the sites: its whole derivative by a parameter is the sum of those of
log Z of every cavity. For the leave-one-out density the sites' own derivatives come in as well.
Weights of the observations are powers of their likelihoods.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from qpruntime import likelihoods
from qpruntime.arrays import Array
from qpruntime.errors import NumericalError
from qpruntime.inference.fixed_point.schedules import Settled
from qpruntime.inference.problem import Problem
from qpruntime.projection.kernel import project_many
from qpruntime.projection.parameters import derivative, moved
from qpruntime.projection.projector import Projector

__all__ = ["cavities", "learnt", "parameter_slopes", "reparametrised", "site_rows"]


def cavities(end: Settled) -> tuple[Array, Array]:
    """Means and standard deviations of the cavities, each of shape (N,).

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


def learnt(projector: Projector, names: Sequence[str], logs: Array) -> Projector:
    """Return the projector with learnt parameters; its likelihood is the registered one."""
    likelihood = reparametrised(projector, names, logs).likelihood
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
    held: bool = False,
    single: bool = False,
) -> Array:
    """Project the problem's observations at cavities N(mu, sigma^2), all of shape (N,).

    Parameters
    ----------
    problem : Problem
        Its weights are the powers of the single likelihoods.
    projector : Projector
        That of the problem, or one with other parameters of the likelihood.
    mu, sigma : ndarray, shape (N,)
        Means and standard deviations of the cavities.
    held : bool
        Whether precisions are kept from below 0.
    single : bool
        Whether the first row is to be weight times log p(y), the terms of the leave-one-out
        density, instead of the terms log E p(y|f)^weight of the evidence.

    Returns
    -------
    ndarray, shape (3, N)
        Log normalisers; precision, and precision times mean, of the sites asked for.
    """
    likelihood, source, weights = projector.likelihood, projector.source, problem.weights
    args = likelihood, source, mu, sigma, problem.y, projector.table
    found = project_many(*args, weights)
    log_z = found.log_z
    if single and weights is not None:
        # What is not counted need not be there: an observation of weight 0 may have any value.
        log_z = weights * project_many(*args, np.sign(weights)).log_z
    with np.errstate(all="ignore"):  # who asks looks at whether the results are finite
        precision = 1.0 / (sigma * sigma)
        tau = 1.0 / (found.std * found.std) - precision
        if held:
            tau = np.maximum(tau, 0.0)
        return np.array([log_z, tau, found.mean * (precision + tau) - mu * precision])


def parameter_slopes(
    problem: Problem,
    names: Sequence[str],
    mu: Array,
    sigma: Array,
    *,
    held: bool = False,
    single: bool = False,
) -> tuple[Array, Array]:
    """Derivatives by the logarithms of P parameters at the cavities N(mu, sigma^2).

    Other arguments as for `site_rows`.

    Returns
    -------
    log_z : ndarray, shape (P, N)
        Of the log normalisers.
    sites : ndarray, shape (P, 2, N)
        Of precision, and precision times mean, of the sites that the cavities ask for.
    """
    log_z, sites = [], []
    for name in names:
        at = {
            k: site_rows(problem, projector, mu, sigma, held=held, single=single)
            for k, projector in moved(problem.projector, name).items()
        }
        slope = derivative(at)
        log_z.append(slope[0])
        sites.append(slope[1:])
    return np.array(log_z), np.array(sites)
