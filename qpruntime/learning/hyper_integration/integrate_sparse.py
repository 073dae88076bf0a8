"""Integrate hyper-parameters of a fit by inducing points: with the inputs where they were learnt.

The evidence is that of sparse inference at fixed inputs; sites of all rows settle at every node.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import logsumexp

from qpruntime._typing import Array
from qpruntime.errors import ConvergenceWarning, InputError
from qpruntime.inference.fixed_point.convergence import Limits
from qpruntime.inference.sites import Sites
from qpruntime.inference.sparse.engine import Engine
from qpruntime.inference.sparse.iterate import settle
from qpruntime.learning.default_kernel import Start
from qpruntime.learning.hyper_integration.density import Density, Integrated
from qpruntime.learning.hyper_integration.designs import MOST_COMPOSITE
from qpruntime.learning.hyper_integration.integrate import complain, find, heavy, prior_of
from qpruntime.learning.objective import learnt
from qpruntime.learning.optimise import all_bounds
from qpruntime.learning.progress import names_of
from qpruntime.learning.settings import Data, Settings
from qpruntime.learning.sparse.data import SparseFitData
from qpruntime.learning.sparse.finish import posterior_of
from qpruntime.learning.sparse.objective import EvidenceSearch, Place, climb

__all__ = ["integrated_by_points"]

# Iterations that find the mode again under the proper prior, and the gain a row that ends them.
_ITERATIONS, _CHANGE = 30, 1e-7
# Sites settle so far before an evaluation: the evidence is stationary in them.
_SETTLED = Limits(tol=1e-4, sweeps=30)


class PointObjective:
    """Negative log evidence and prior at fixed inputs, as `Objective` has it for the dense engine.

    Parameters
    ----------
    search : Search
        With an engine of double precision.
    Z : ndarray, shape (M, d)
    """

    def __init__(self, search: EvidenceSearch, Z: Array) -> None:
        self._search, self._Z = search, Z
        self.sites: Sites | None = None

    @property
    def evaluations(self) -> int:
        """How many there were."""
        return self._search.evaluations

    def __call__(self, theta: Array) -> tuple[float, Array]:
        place, engine = Place(theta, self._Z), self._search.engine
        self._search.go(place)
        settle(engine, _SETTLED)
        found = self._search.tried(place)
        if found is None:
            self.sites = None
            return np.inf, np.zeros(theta.size)
        self.sites = engine.sites
        return -found[0], -found[1]


def integrated_by_points(
    data: Data,
    begin: Start,
    settings: Settings,
    rng: np.random.Generator,
    ground: SparseFitData,
    points: Array,
    place: Place,
    sites: Sites,
    prior_mean: float | None,
) -> Integrated:
    """Integrate around a place that was learnt, whose inducing inputs stay.

    Parameters
    ----------
    data, begin, settings, rng
        As for `qpruntime.learning.hyper_integration.integrate.integrated`.
    ground : Ground
        With the kernel as it was refined.
    points : ndarray, shape (n, d)
        Some rows, whose distances the prior is of.
    place : Place
    sites : Sites
        Of all rows there.
    prior_mean : float or None
        That all rows share.

    Raises
    ------
    InputError
        If nodes are to be weighted by the corrected evidence.
    """
    asked = settings.integrate
    assert asked is not None
    if asked.evidence == "corrected":
        raise InputError(
            'Integrate(evidence="corrected") takes a covariance matrix: use evidence="ep", or '
            "inducing=None"
        )
    kernel = ground.kernel
    prior = prior_of(replace(data, X=points), begin, kernel)
    engine = _engine(ground, place, sites)
    search = EvidenceSearch(engine, kernel, data.learn, prior, None)
    bounds = all_bounds(kernel, data.learn)
    climb(search, place, bounds, iterations=_ITERATIONS, change=_CHANGE)
    assert search.place is not None
    mode = search.place.theta
    few = asked.design == "auto" and mode.size <= MOST_COMPOSITE
    density = Density(PointObjective(search, place.Z), bounds)
    found = find(density, mode, "composite" if few else asked.design, asked.n, rng)
    complain(found)
    weights = np.exp(found.log_weights - logsumexp(found.log_weights))
    kept = heavy(weights)
    nodes = [node for node, k in zip(found.nodes, kept, strict=True) if k]
    weights = weights[kept] / weights[kept].sum()
    ends: list[tuple[Any, Any, Any]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for node in nodes:
            there = Place(node.theta, place.Z)
            own, projector = ground.kernel_at(there), data.projector
            if data.learn:
                projector = learnt(projector, tuple(data.learn), node.theta[own.n_dims :])
            assert node.sites is not None
            engine = _engine(ground, there, node.sites)
            post = posterior_of(engine, projector, settings, prior_mean, lambda _: None)
            ends.append((own, projector.likelihood, post))
    kernels, likelihoods, posteriors = zip(*ends, strict=True)
    return Integrated(
        design=found.design,
        names=names_of(kernel, data.learn),
        theta=np.array([node.theta for node in nodes]),
        weights=weights,
        log_evidence=found.log_evidence,
        effective=1.0 / float(weights @ weights),
        pareto_k=found.pareto_k,
        evaluations=density.evaluations,
        kernels=kernels,
        likelihoods=likelihoods,
        posteriors=posteriors,
    )


def _engine(ground: SparseFitData, place: Place, sites: Sites) -> Engine:
    """Return EP's engine of all rows at a place, of double precision, with sites to begin with."""
    engine = ground.engine(ground.rows(), place)
    engine.move(ground.kernel_at(place), place.Z, np.float64)
    engine.sites = Sites(sites.tau.copy(), sites.nu.copy())
    return engine
