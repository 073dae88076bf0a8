"""Derivatives by the parameters of a likelihood, with the cavities held where they are.

EP's evidence is stationary in the sites: its whole derivative by a parameter is the sum of those of
log Z of every cavity. For the leave-one-out density the sites' own derivatives come in as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from qpruntime.engine import Problem, Settled
from qpruntime.projection import Projector
from qpruntime.site import Projections, project_many

__all__ = ["asked_for", "cavities", "derivative", "parameter_slopes", "reparametrised"]

Array = NDArray[np.float64]

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


def asked_for(found: Projections, mu: Array, sigma: Array, held: bool) -> Array:
    """Sites that cavities N(mu, sigma^2) ask for, rows (tau, nu); `held` keeps tau from below 0."""
    precision = 1.0 / (sigma * sigma)
    tau = 1.0 / (found.std * found.std) - precision
    if held:
        tau = np.maximum(tau, 0.0)
    return np.array([tau, found.mean * (precision + tau) - mu * precision])


def derivative(at: Mapping[int, Array], step: float | Array) -> Array:
    """Fourth-order difference quotient from what there is at -2, -1, 1 and 2 steps."""
    return (8.0 * (at[1] - at[-1]) - (at[2] - at[-2])) / (12.0 * step)


def parameter_slopes(
    problem: Problem, names: Sequence[str], mu: Array, sigma: Array, held: bool = False
) -> tuple[Array, Array]:
    """Derivatives by the logarithms of P parameters at the cavities N(mu, sigma^2).

    `held` as for `asked_for`.

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
            found = project_many(moved.likelihood, moved.source, mu, sigma, problem.y)
            at[k] = np.array([found.log_z, *asked_for(found, mu, sigma, held)])
        slope = derivative(at, _STEP)
        log_z.append(slope[0])
        sites.append(slope[1:])
    return np.array(log_z), np.array(sites)
