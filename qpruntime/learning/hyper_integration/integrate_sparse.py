"""Integrate hyper-parameters of a fit by inducing points: with the inputs where they were learnt.

The evidence is that of sparse inference at fixed inputs; sites of all rows settle at every node.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from qpruntime._typing import Array
from qpruntime.errors import InputError
from qpruntime.inference.fixed_point.convergence import Limits
from qpruntime.inference.sites import Sites
from qpruntime.inference.sparse.engine import Engine
from qpruntime.inference.sparse.iterate import settle
from qpruntime.learning.default_kernel import Start
from qpruntime.learning.hyper_integration.density import Density, Evaluated, Integrated
from qpruntime.learning.hyper_integration.designs import MAX_COMPOSITE_PARAMETERS
from qpruntime.learning.hyper_integration.integrate import (
    NodeFit,
    find_nodes,
    integrate_over,
    prior_of,
    warn_unreliable,
)
from qpruntime.learning.inputs import Inputs
from qpruntime.learning.objective import learnt
from qpruntime.learning.optimise import all_bounds
from qpruntime.learning.progress import names_of
from qpruntime.learning.settings import Data, Settings
from qpruntime.learning.sparse.data import SparseFitData
from qpruntime.learning.sparse.objective import EvidenceSearch, Place, climb, posterior_of

__all__ = ["integrate_sparse"]

# Iterations that find the mode under the proper prior, and the gain per row that ends them.
_ITERATIONS, _MIN_GAIN_PER_ROW = 30, 1e-7
# Before an evaluation sites converge to this tolerance, because the evidence is stationary in them.
_EVALUATION_LIMITS = Limits(tol=1e-4, sweeps=30)


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
        """Number of evaluations so far."""
        return self._search.evaluations

    def __call__(self, theta: Array) -> tuple[float, Array]:
        place, engine = Place(theta, self._Z), self._search.engine
        self._search.go(place)
        settle(engine, _EVALUATION_LIMITS)
        evaluation = self._search.tried(place)
        if evaluation is None:
            self.sites = None
            return np.inf, np.zeros(theta.size)
        self.sites = engine.sites
        return -evaluation[0], -evaluation[1]


def integrate_sparse(
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
    """Integrate over the hyper-parameters of a sparse fit whose inducing points stay fixed.

    Parameters
    ----------
    data, begin, settings, rng
        As for `qpruntime.learning.hyper_integration.integrate.integrate_hyperparameters`.
    ground : SparseFitData
        Data and engine options, with the refined kernel.
    points : ndarray, shape (n, d)
        A sample of rows, whose distances the prior uses.
    place : Place
    sites : Sites
        Sites of all rows at that place.
    prior_mean : float or None
        Prior mean that all rows share.

    Raises
    ------
    InputError
        If nodes are to be weighted by the corrected evidence.
    """
    options = settings.integrate
    assert options is not None
    if options.evidence == "corrected":
        raise InputError(
            'Integrate(evidence="corrected") needs a covariance matrix: use evidence="ep", '
            "or inducing=None"
        )
    kernel = ground.kernel
    prior = prior_of(replace(data, inputs=Inputs(points)), begin, kernel)
    engine = _engine(ground, place, sites)
    search = EvidenceSearch(engine, kernel, data.learn, prior, None)
    bounds = all_bounds(kernel, data.learn)
    climb(search, place, bounds, iterations=_ITERATIONS, change=_MIN_GAIN_PER_ROW)
    assert search.place is not None
    mode = search.place.theta
    is_small = options.design == "auto" and mode.size <= MAX_COMPOSITE_PARAMETERS
    density = Density(PointObjective(search, place.Z), bounds)
    design = "composite" if is_small else options.design
    node_set = find_nodes(density, mode, design, options.n, rng)
    warn_unreliable(node_set)

    def fit(node: Evaluated) -> NodeFit:
        """Return kernel, likelihood and posterior at a node."""
        node_place = Place(node.theta, place.Z)
        node_kernel, projector = ground.kernel_at(node_place), data.projector
        if data.learn:
            projector = learnt(projector, tuple(data.learn), node.theta[node_kernel.n_dims :])
        assert node.sites is not None
        engine = _engine(ground, node_place, node.sites)
        post = posterior_of(engine, projector, settings, prior_mean, lambda _: None)
        return node_kernel, projector.likelihood, post

    return integrate_over(node_set, fit, names_of(kernel, data.learn), density.evaluations)


def _engine(ground: SparseFitData, place: Place, sites: Sites) -> Engine:
    """Return EP's engine of all rows at a place, of double precision, with sites to begin with."""
    engine = ground.engine(ground.rows(), place)
    engine.move(ground.kernel_at(place), place.Z, np.float64)
    engine.sites = Sites(sites.tau.copy(), sites.nu.copy())
    return engine
