"""Derivatives by the parameters of a likelihood, with the cavities held where they are.

EP's evidence is stationary in the sites: its whole derivative by a parameter is the sum of those of
log Z of every cavity. For the leave-one-out density the sites' own derivatives come in as well.
Weights of the observations are powers of their likelihoods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qpruntime.arrays import Array
from qpruntime.inference.problem import Problem
from qpruntime.inference.schedules import Settled
from qpruntime.projection.kernel import project_many
from qpruntime.projection.projector import Projector

__all__ = ["cavities", "derivative", "parameter_slopes", "reparametrised", "site_rows"]

# Step of the differences in the logarithm of a parameter: fourth order leaves 1e-12 of truncation
# and as much of rounding.
_STEP = 3e-3
# Two steps, and room for rounding.
_INSIDE = float(np.exp(2.0 * _STEP)) * (1.0 + 1e-12)


def cavities(end: Settled) -> tuple[Array, Array]:
    """Means and standard deviations of the cavities, each of shape (N,)."""
    mean = (end.factor.mean - end.sites.nu * end.variance) / end.kept
    return mean, np.sqrt(end.variance / end.kept)


def reparametrised(projector: Projector, names: Sequence[str], logs: Array) -> Projector:
    """Return the projector with other parameters of its likelihood, given by their logarithms."""
    values = {name: float(np.exp(v)) for name, v in zip(names, logs, strict=True)}
    likelihood = projector.likelihood.with_parameters(**values)
    if likelihood is projector.likelihood:
        return projector
    return Projector(likelihood, projector.method, "exact")


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
    precision = 1.0 / (sigma * sigma)
    tau = 1.0 / (found.std * found.std) - precision
    if held:
        tau = np.maximum(tau, 0.0)
    return np.array([log_z, tau, found.mean * (precision + tau) - mu * precision])


def derivative(at: Mapping[int, Array], step: float | Array) -> Array:
    """Fourth-order difference quotient from what there is at -2, -1, 1 and 2 steps."""
    return (8.0 * (at[1] - at[-1]) - (at[2] - at[-2])) / (12.0 * step)


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
    likelihood = problem.projector.likelihood
    log_z, sites = [], []
    for name in names:
        low, high = likelihood.limits.get(name, (0.0, np.inf))
        # At a limit of the parameter the slope is that of a point two steps inside.
        centre = min(max(likelihood.parameters[name], low * _INSIDE), high / _INSIDE)
        at = {}
        for k in (-2, -1, 1, 2):
            value = centre * float(np.exp(k * _STEP))
            moved = Projector(
                likelihood.with_parameters(**{name: value}), problem.projector.method, "exact"
            )
            at[k] = site_rows(problem, moved, mu, sigma, held=held, single=single)
        slope = derivative(at, _STEP)
        log_z.append(slope[0])
        sites.append(slope[1:])
    return np.array(log_z), np.array(sites)
