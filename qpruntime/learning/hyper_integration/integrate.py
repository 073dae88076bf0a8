"""Integrate the hyper-parameters of one process: find nodes, weigh them, infer at each."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy.interpolate import RBFInterpolator
from scipy.special import logsumexp
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._memory import require, squares
from qpruntime._typing import Array
from qpruntime.errors import ConvergenceWarning, InputError, NumericalError, SamplingWarning, warn
from qpruntime.inference.fixed_point.convergence import Limits
from qpruntime.inference.posterior import EnginePosterior, Posterior
from qpruntime.inference.sites import Sites
from qpruntime.inference.sparse.engine import Engine
from qpruntime.inference.sparse.iterate import settle
from qpruntime.kernels.default import LogNormal
from qpruntime.learning.hyper_integration.density import (
    Density,
    Evaluated,
    Integrated,
    ProperPrior,
    proper_prior,
)
from qpruntime.learning.hyper_integration.designs import (
    GRID_SPACING,
    MAX_COMPOSITE_PARAMETERS,
    MAX_GRID_PARAMETERS,
    MAX_PARETO_K,
    composite_mass,
    draws,
    half_axis_reach,
    lattice,
    pareto_k,
    stretched_composite,
)
from qpruntime.learning.initialisation import Start
from qpruntime.learning.inputs import Data, Inputs
from qpruntime.learning.objective import learnt
from qpruntime.learning.optimise import Optimum, all_bounds, maximise, objective_of
from qpruntime.learning.options import Settings
from qpruntime.learning.progress import names_of
from qpruntime.learning.solvers import Solver
from qpruntime.learning.sparse.data import SparseFitData
from qpruntime.learning.sparse.objective import EvidenceSearch, Place, climb, posterior_of
from qpruntime.likelihoods import Likelihood

__all__ = [
    "NOTHING_TO_INTEGRATE",
    "find_nodes",
    "integrate_hyperparameters",
    "integrate_sparse",
    "prior_of",
    "warn_unreliable",
]

# --- Integration around the mode

#: Error message if all parameters are fixed.
NOTHING_TO_INTEGRATE = (
    'hyperparameters="integrate" has nothing to integrate: the parameters of the kernel are all '
    'fixed; give them bounds, or use hyperparameters="mode"'
)
# Nodes with the smallest weights are dropped up to this total weight, because each node costs a
# matrix product in every prediction.
_DROPPED_WEIGHT = 1e-4

#: Kernel, likelihood and posterior at a node.
NodeFit = tuple[Kernel, Likelihood, EnginePosterior]


def integrate_hyperparameters(
    data: Data,
    begin: Start,
    settings: Settings,
    rng: np.random.Generator,
    solver: Solver,
    kernel: Kernel,
    optimum: Optimum,
) -> Integrated:
    """Integrate over the hyper-parameters around the mode under the proper prior.

    Parameters
    ----------
    data : Data
    begin : Start
        Start of the search for the mode, whose prior is completed.
    settings : Settings
        Settings with ``integrate``.
    rng : Generator
    solver : Solver
    kernel : scikit-learn kernel
        Kernel at the mode, which may have more length-scales than at the start.
    optimum : Optimum
        The mode of the search.

    Warns
    -----
    SamplingWarning
        If importance weights are not to be relied on.
    """
    assert settings.integrate is not None
    prior, bounds = prior_of(data, begin, kernel), all_bounds(kernel, data.learn)
    mode, _ = maximise(
        objective_of(solver, kernel, data, settings, prior),
        optimum.theta,
        bounds,
        max_iterations=settings.search.max_iter,
        ftol=settings.search.ftol,
    )
    objective = objective_of(solver, kernel, data, settings, prior)
    density = Density(objective, bounds)
    node_set = find_nodes(density, mode.theta, settings.integrate.design, settings.integrate.n, rng)
    warn_unreliable(node_set)
    if settings.integrate.evidence == "corrected":
        with_evidence = replace(data, projector=objective.projector)
        node_set = _corrected(node_set, with_evidence, solver, kernel)
    evaluations = mode.n_evaluations + density.evaluations

    def fit(node: Evaluated) -> NodeFit:
        """Return kernel, likelihood and posterior at a node, without its covariance."""
        node_kernel, likelihood, posterior = _fit_at_node(data, solver, kernel, node)
        return node_kernel, likelihood, posterior.without_covariance()

    return integrate_over(node_set, fit, names_of(kernel, data.learn), evaluations, len(data.y))


def integrate_over(
    node_set: NodeSet,
    fit: Callable[[Evaluated], NodeFit],
    names: tuple[str, ...],
    evaluations: int,
    rows: int = 0,
) -> Integrated:
    """Drop the lightest nodes, and fit at the others.

    `rows` is the number of rows of posteriors that hold a matrix of all rows.
    """
    weights = np.exp(node_set.log_weights - logsumexp(node_set.log_weights))
    order = np.argsort(weights)
    is_heavy = np.ones(len(weights), dtype=bool)
    is_heavy[order[np.cumsum(weights[order]) <= _DROPPED_WEIGHT]] = False
    nodes = [node for node, k in zip(node_set.nodes, is_heavy, strict=True) if k]
    weights = weights[is_heavy] / weights[is_heavy].sum()
    require(
        squares(rows, float(len(nodes))),
        f"posteriors of {rows} rows at {len(nodes)} nodes of the hyper-parameters",
        'inducing=200 or Integrate("composite") takes less',
    )
    # A single node matters little, and the mode has given its own warnings.
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        kernels, likelihoods, posteriors = zip(*map(fit, nodes), strict=True)
    return Integrated(
        design=node_set.design,
        names=names,
        theta=np.array([node.theta for node in nodes]),
        weights=weights,
        log_evidence=node_set.log_evidence,
        effective=1.0 / float(weights @ weights),
        pareto_k=node_set.pareto_k,
        evaluations=evaluations,
        kernels=kernels,
        likelihoods=likelihoods,
        posteriors=posteriors,
    )


def prior_of(data: Data, begin: Start, kernel: Kernel) -> ProperPrior:
    """Return the prior of all parameters of a fit, with one of each feature's length-scale."""
    search_prior, start, start_kernel = begin.log_prior, begin.kernel.theta, begin.kernel
    if kernel.n_dims != start.size:
        if isinstance(search_prior, LogNormal):
            search_prior = LogNormal(search_prior.mean[:-1], search_prior.deviation[:-1])
        n_extra = kernel.n_dims - start.size
        start, start_kernel = np.concatenate([start, np.repeat(start[-1], n_extra)]), kernel
    values = [data.projector.likelihood.parameters[name] for name in data.learn]
    return proper_prior(search_prior, start_kernel, start, data.X, np.log(values))


def _fit_at_node(
    data: Data, solver: Solver, kernel: Kernel, node: Evaluated
) -> tuple[Kernel, Likelihood, Posterior]:
    """Return kernel, likelihood and posterior at a node."""
    node_kernel = kernel.clone_with_theta(node.theta[: kernel.n_dims])
    projector = learnt(data.projector, data.learn, node.theta)
    posterior = solver.infer(node_kernel, replace(data, projector=projector), node.sites)
    return node_kernel, projector.likelihood, posterior


def _corrected(node_set: NodeSet, data: Data, solver: Solver, kernel: Kernel) -> NodeSet:
    """Return the nodes with weights by the corrected evidence where it is available."""
    correction = np.zeros(len(node_set.nodes))
    for k, node in enumerate(node_set.nodes):
        with warnings.catch_warnings(), suppress(NumericalError):
            warnings.simplefilter("ignore", ConvergenceWarning)
            _, _, posterior = _fit_at_node(data, solver, kernel, node)
            corrected = posterior.corrected_evidence().value
            correction[k] = float(corrected - posterior.log_evidence)
    log_weights = node_set.log_weights + correction
    shift = float(logsumexp(log_weights) - logsumexp(node_set.log_weights))
    return node_set._replace(log_weights=log_weights, log_evidence=node_set.log_evidence + shift)


def warn_unreliable(nodes: NodeSet) -> None:
    """Warn about importance weights that are not to be relied on."""
    if nodes.design in ("importance", "composite") and not nodes.trusted:
        warn(
            "hyper-parameters are far from a Student t around their mode: Pareto k is "
            f"{nodes.pareto_k:.2f} (at most {MAX_PARETO_K}), and {nodes.share:.0%} of draws "
            f"are effective (at least {MIN_EFFECTIVE_SHARE:.0%}). Weights of "
            f'design="{nodes.design}" are unreliable: use Integrate("importance", n=512), or '
            "priors that bound the parameters",
            SamplingWarning,
        )


# --- Designs and their diagnostics

#: Largest number of parameters of a grid and of a composite design.
_MAX_PARAMETERS = {"grid": MAX_GRID_PARAMETERS, "composite": MAX_COMPOSITE_PARAMETERS}
#: If fewer than this share of the importance draws are effective, the draws may miss a mode.
MIN_EFFECTIVE_SHARE = 0.3
# Log density below the mode at which a grid ends.
_DROP = 7.0
#: Largest number of parameters for which "auto" is a grid.
_MAX_AUTO_GRID_PARAMETERS = 2
# Default number of draws, and number of draws that check a composite design.
_DEFAULT_DRAWS, _COMPOSITE_CHECK_DRAWS = 64, 32
# Number of draws at which the density between the nodes of a grid is evaluated.
_BETWEEN_DRAWS = 1024


class NodeSet(NamedTuple):
    """Nodes in some order, the logarithms of what they weigh, and what is known of them.

    `share` is how many of the draws of a Student t around the mode are effective, of as many.
    """

    design: str
    nodes: list[Evaluated]
    log_weights: Array
    log_evidence: float
    effective: float
    pareto_k: float
    share: float = 1.0

    @property
    def trusted(self) -> bool:
        """True if the density is close enough to a Student t around the mode."""
        return not (self.pareto_k > MAX_PARETO_K or self.share < MIN_EFFECTIVE_SHARE)


class _Around:
    """The density around its mode, in coordinates of unit curvature."""

    def __init__(self, density: Density, mode: Array, V: Array) -> None:
        self.density, self.V = density, V
        centre = density.at(mode)
        if centre is None:
            raise InputError("the mode of the hyper-parameters is out of bounds")
        self.centre = centre

    def __call__(self, z: Array) -> tuple[Evaluated, float] | None:
        node = self.density.at(self.centre.theta + self.V @ z)
        return None if node is None else (node, node.value - self.centre.value)


def find_nodes(
    density: Density, mode: Array, design: str, n: int | None, rng: np.random.Generator
) -> NodeSet:
    """Find nodes around a mode (p,) by a design; "auto" selects one.

    Raises
    ------
    InputError
        If there are too many parameters for the design.
    """
    p = mode.size
    if p > _MAX_PARAMETERS.get(design, p):
        raise InputError(
            f'design="{design}" takes at most {_MAX_PARAMETERS[design]} hyper-parameters, got '
            f'{p}: use design="importance"'
        )
    at = _Around(density, mode, density.directions(mode))
    volume = float(np.linalg.slogdet(at.V)[1])
    count = _DEFAULT_DRAWS if n is None else n
    if design == "grid" or (design == "auto" and p <= _MAX_AUTO_GRID_PARAMETERS):
        return _by_grid(at, p, volume)
    if design == "composite":
        return _by_composite(at, p, volume, int(rng.integers(2**31)))
    return _by_importance(at, p, volume, count, int(rng.integers(2**31)))


def _by_grid(at: _Around, p: int, volume: float) -> NodeSet:
    z, nodes, logs, _ = lattice(at, p, at.centre, GRID_SPACING[p], _DROP)
    cell = volume + p * math.log(GRID_SPACING[p])
    total = at.centre.value + float(logsumexp(logs)) + cell
    return NodeSet("grid", nodes, logs, total, _kish(logs), _k_between(z, logs))


def _by_composite(at: _Around, p: int, volume: float, seed: int) -> NodeSet:
    _, nodes, logs, base = stretched_composite(at, (at.centre, 0.0), half_axis_reach(at, p))
    weights = logs + np.log(base)
    scale = volume + 0.5 * p * math.log(2.0 * math.pi) - math.log(composite_mass())
    total = at.centre.value + float(logsumexp(weights)) + scale
    judged = _by_importance(at, p, volume, _COMPOSITE_CHECK_DRAWS, seed)
    known = judged.pareto_k, judged.share
    return NodeSet("composite", nodes, weights, total, _kish(weights), *known)


def _by_importance(at: _Around, p: int, volume: float, n: int, seed: int) -> NodeSet:
    z, log_proposal = draws(p, n, half_axis_reach(at, p), seed)
    nodes = [at(node) for node in z]
    logs = np.array([-math.inf if node is None else node[1] for node in nodes]) - log_proposal
    values = [node[0] for node in nodes if node is not None]
    inside = logs[np.isfinite(logs)]
    total = at.centre.value + float(logsumexp(inside)) - math.log(n) + volume
    size = _kish(inside)
    return NodeSet("importance", values, inside, total, size, pareto_k(logs), size / n)


def _kish(log_weights: Array) -> float:
    """Return the effective number of weighted nodes."""
    w = np.exp(log_weights - logsumexp(log_weights))
    return 1.0 / float(w @ w)


def _k_between(z: Array, logs: Array) -> float:
    """Return the Pareto k of Student t draws with the density interpolated between the nodes."""
    p = z.shape[1]
    kept = logs > -30.0
    if kept.sum() <= (p + 1) * (p + 2) // 2:
        return math.nan
    points, log_proposal = draws(p, _BETWEEN_DRAWS, np.ones((2, p)), 0)
    near = np.abs(points).max(axis=1) <= np.abs(z[kept]).max() + 1.0
    inner = RBFInterpolator(z[kept], logs[kept], kernel="cubic", degree=2)(points[near])
    # The interpolant must not exceed the mode by far, nor extrapolate beyond the nodes.
    return pareto_k(np.minimum(inner, 0.5) - log_proposal[near])


# Iterations that find the mode under the proper prior, and the gain per row that ends them.
_ITERATIONS, _MIN_GAIN_PER_ROW = 30, 1e-7
# Before an evaluation sites converge to this tolerance, because the evidence is stationary in them.
_EVALUATION_LIMITS = Limits(tol=1e-4, sweeps=30)


class PointObjective:
    """Negative log evidence and prior at fixed inputs, as `Objective` has it for the dense engine.

    Parameters
    ----------
    search : EvidenceSearch
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
        node_kernel = ground.kernel_at(node_place)
        projector = learnt(data.projector, data.learn, node.theta)
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
