"""Integrate the hyper-parameters of one process: find nodes, weigh them, infer at each."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from scipy.interpolate import RBFInterpolator
from scipy.special import logsumexp
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._memory import require, squares
from qpruntime._typing import Array
from qpruntime.errors import ConvergenceWarning, InputError, NumericalError, SamplingWarning, warn
from qpruntime.kernels.default import LogNormal
from qpruntime.learning.default_kernel import Start
from qpruntime.learning.hyper_integration.density import (
    Density,
    Evaluated,
    Integrated,
    Proper,
    proper_prior,
)
from qpruntime.learning.hyper_integration.designs import (
    MOST_COMPOSITE,
    TRUSTED,
    composite_mass,
    draws,
    lattice,
    pareto_k,
    sides,
    stretched,
)
from qpruntime.learning.objective import learnt
from qpruntime.learning.optimise import Optimum, all_bounds, maximise
from qpruntime.learning.progress import names_of
from qpruntime.learning.settings import Data, Settings
from qpruntime.projection.projector import Projector

__all__ = [
    "LEAST_SHARE",
    "NOTHING",
    "Found",
    "complain",
    "find",
    "heavy",
    "integrated",
    "prior_of",
]

# --- `integrated`

#: What is said where all parameters are fixed.
NOTHING = (
    'hyperparameters="integrate" has nothing to integrate: the parameters of the kernel are all '
    'fixed; give them bounds, or use hyperparameters="mode"'
)
# The lightest nodes are left out, so much in all: each costs a product in every prediction.
_LIGHT = 1e-4


def integrated(
    data: Data,
    begin: Start,
    settings: Settings,
    rng: np.random.Generator,
    solver: Any,
    kernel: Kernel,
    optimum: Optimum,
) -> Integrated:
    """Integrate around the mode, which is found again under the proper prior.

    Parameters
    ----------
    data : Data
    begin : Start
        Of the search for the mode; its prior is completed.
    settings : Settings
        With ``integrate``.
    rng : Generator
    solver : Solver
    kernel : scikit-learn kernel
        Of the mode; it may have more length-scales than it began with.
    optimum : Optimum
        The mode of the search.

    Warns
    -----
    SamplingWarning
        If importance weights are not to be relied on.
    """
    assert settings.integrate is not None
    judge = data.projector if data.projector.method == "vb" else data.projector.for_evidence()
    prior = prior_of(data, begin, kernel)
    family = solver.family(kernel, data)
    mode, _ = maximise(
        family,
        data.y,
        judge,
        start=optimum.theta,
        max_iterations=settings.search.max_iter,
        ftol=settings.search.ftol,
        tol=settings.tol,
        max_sweeps=settings.max_sweeps,
        weights=data.weights,
        objective=solver.objective,
        learn=data.learn,
        log_prior=prior,
    )
    objective = solver.objective(
        family,
        data.y,
        judge,
        settings.tol,
        settings.max_sweeps,
        data.weights,
        tuple(data.learn),
        prior,
    )
    density = Density(objective, all_bounds(family, data.learn))
    found = find(density, mode.theta, settings.integrate.design, settings.integrate.n, rng)
    complain(found)
    logs = found.log_weights
    shift = 0.0
    with warnings.catch_warnings():
        # One node among many; what the mode has to say was said.
        warnings.simplefilter("ignore", ConvergenceWarning)
        if settings.integrate.evidence == "corrected":
            rise = np.array([_rise(data, judge, solver, kernel, node) for node in found.nodes])
            shift = float(logsumexp(logs + rise) - logsumexp(logs))
            logs = logs + rise
        weights = np.exp(logs - logsumexp(logs))
        kept = heavy(weights)
        nodes = [node for node, k in zip(found.nodes, kept, strict=True) if k]
        require(
            squares(len(data.y), float(len(nodes))),
            f"posteriors of {len(data.y)} rows at {len(nodes)} nodes of the hyper-parameters",
            'inducing=200 or Integrate("composite") takes less',
        )
        ends = [_at(data, data.projector, solver, kernel, node) for node in nodes]
    weights = weights[kept] / weights[kept].sum()
    kernels, likelihoods, posteriors = zip(*ends, strict=True)
    return Integrated(
        design=found.design,
        names=names_of(kernel, data.learn),
        theta=np.array([node.theta for node in nodes]),
        weights=weights,
        log_evidence=found.log_evidence + shift,
        effective=1.0 / float(weights @ weights),
        pareto_k=found.pareto_k,
        evaluations=mode.n_evaluations + density.evaluations,
        kernels=kernels,
        likelihoods=likelihoods,
        posteriors=posteriors,
    )


def heavy(weights: Array) -> Any:
    """Which nodes are not among the lightest."""
    order = np.argsort(weights)
    kept = np.ones(len(weights), dtype=bool)
    kept[order[np.cumsum(weights[order]) <= _LIGHT]] = False
    return kept


def prior_of(data: Data, begin: Start, kernel: Kernel) -> Proper:
    """Return the prior of all parameters of a fit; length-scales by feature have one of theirs."""
    given, first, begun = begin.log_prior, begin.kernel.theta, begin.kernel
    if kernel.n_dims != first.size:
        if isinstance(given, LogNormal):
            given = LogNormal(given.mean[:-1], given.deviation[:-1])
        further = kernel.n_dims - first.size
        first, begun = np.concatenate([first, np.repeat(first[-1], further)]), kernel
    values = [data.projector.likelihood.parameters[name] for name in data.learn]
    return proper_prior(given, begun, first, data.X, np.log(values))


def _parts(
    data: Data, projector: Projector, kernel: Kernel, theta: Array
) -> tuple[Kernel, Projector]:
    own = kernel.clone_with_theta(theta[: kernel.n_dims])
    if data.learn:
        projector = learnt(projector, tuple(data.learn), theta[kernel.n_dims :])
    return own, projector


def _at(data: Data, projector: Projector, solver: Any, kernel: Kernel, node: Any) -> tuple:
    """Kernel, likelihood and posterior at a node."""
    own, projector = _parts(data, projector, kernel, node.theta)
    posterior = solver.infer(own, replace(data, projector=projector), node.sites)
    return own, projector.likelihood, posterior.without_covariance()


def _rise(data: Data, judge: Projector, solver: Any, kernel: Kernel, node: Any) -> float:
    """By how much the corrected log evidence is above that of EP; 0 where it cannot be had."""
    try:
        own, projector = _parts(data, judge, kernel, node.theta)
        posterior = solver.infer(own, replace(data, projector=projector), node.sites)
        return float(posterior.corrected_evidence().value - posterior.log_evidence)
    except NumericalError:
        return 0.0


def complain(found: Found) -> None:
    """Warn about importance weights that are not to be relied on."""
    if found.design in ("importance", "composite") and not found.trusted:
        warn(
            f"hyper-parameters are far from a Student t around their mode: Pareto k is "
            f"{found.pareto_k:.2f}, to be {TRUSTED} at most, and {found.share:.0%} of draws are "
            f"effective, to be {LEAST_SHARE:.0%} at least; weights of "
            f'design="{found.design}" are not to be relied on: use Integrate("importance", n=512), '
            "or priors that bound the parameters",
            SamplingWarning,
        )


# --- Designs and their diagnostics

#: Most parameters of a grid and of a composite design.
_MOST = {"grid": 3, "composite": MOST_COMPOSITE}
#: Of draws fewer effective ones than this share miss something, as another mode.
LEAST_SHARE = 0.3
# Distance of a grid's nodes in standard deviations, and how far below the mode they end.
_SPACING, _DROP = {1: 0.5, 2: 1.0, 3: 1.0}, 7.0
#: Up to so many parameters "auto" is a grid.
_GRID = 2
# Draws by default, and draws that judge a composite design.
_DRAWS, _JUDGES = 64, 32
# Draws at which the density between the nodes of a grid is looked at.
_BETWEEN = 1024


class Found(NamedTuple):
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
        """Whether the density is near enough to a Student t around the mode."""
        return not (self.pareto_k > TRUSTED or self.share < LEAST_SHARE)


class _Around:
    """The density around its mode, in coordinates of unit curvature."""

    def __init__(self, density: Density, mode: Array, V: Array) -> None:
        self.density, self.V = density, V
        centre = density.at(mode)
        if centre is None:
            raise InputError("the mode of the hyper-parameters is out of bounds")
        self.centre = centre

    def __call__(self, z: Array) -> tuple[Evaluated, float] | None:
        one = self.density.at(self.centre.theta + self.V @ z)
        return None if one is None else (one, one.value - self.centre.value)


def find(
    density: Density, mode: Array, design: str, n: int | None, rng: np.random.Generator
) -> Found:
    """Find nodes around a mode (p,) by a design, "auto" chooses one.

    Raises
    ------
    InputError
        If there are too many parameters for the design.
    """
    p = mode.size
    if p > _MOST.get(design, p):
        raise InputError(
            f'design="{design}" is for {_MOST[design]} hyper-parameters at most, and these are '
            f'{p}: use design="importance"'
        )
    at = _Around(density, mode, density.directions(mode))
    volume = float(np.linalg.slogdet(at.V)[1])
    count = _DRAWS if n is None else n
    if design == "grid" or (design == "auto" and p <= _GRID):
        return _by_grid(at, p, volume)
    if design == "composite":
        return _by_composite(at, p, volume, int(rng.integers(2**31)))
    return _by_importance(at, p, volume, count, int(rng.integers(2**31)))


def _by_grid(at: _Around, p: int, volume: float) -> Found:
    z, nodes, logs, _ = lattice(at, p, at.centre, _SPACING[p], _DROP)
    cell = volume + p * math.log(_SPACING[p])
    total = at.centre.value + float(logsumexp(logs)) + cell
    return Found("grid", nodes, logs, total, _kish(logs), _k_between(z, logs))


def _by_composite(at: _Around, p: int, volume: float, seed: int) -> Found:
    _, nodes, logs, base = stretched(at, p, at.centre)
    weights = logs + np.log(base)
    scale = volume + 0.5 * p * math.log(2.0 * math.pi) - math.log(composite_mass())
    total = at.centre.value + float(logsumexp(weights)) + scale
    judged = _by_importance(at, p, volume, _JUDGES, seed)
    known = judged.pareto_k, judged.share
    return Found("composite", nodes, weights, total, _kish(weights), *known)


def _by_importance(at: _Around, p: int, volume: float, n: int, seed: int) -> Found:
    z, drawn = draws(p, n, sides(at, p), seed)
    ends: list[Any] = [at(one) for one in z]
    logs = np.array([-math.inf if one is None else one[1] for one in ends]) - drawn
    kept = [one[0] for one in ends if one is not None]
    inside = logs[np.isfinite(logs)]
    total = at.centre.value + float(logsumexp(inside)) - math.log(n) + volume
    size = _kish(inside)
    return Found("importance", kept, inside, total, size, pareto_k(logs), size / n)


def _kish(log_weights: Array) -> float:
    """Effective number of weighted nodes."""
    w = np.exp(log_weights - logsumexp(log_weights))
    return 1.0 / float(w @ w)


def _k_between(z: Array, logs: Array) -> float:
    """Pareto k of draws of the Student t, by the density interpolated between the nodes."""
    p = z.shape[1]
    kept = logs > -30.0
    if kept.sum() <= (p + 1) * (p + 2) // 2:
        return math.nan
    at, drawn = draws(p, _BETWEEN, np.ones((2, p)), 0)
    near = np.abs(at).max(axis=1) <= np.abs(z[kept]).max() + 1.0
    inner = RBFInterpolator(z[kept], logs[kept], kernel="cubic", degree=2)(at[near])
    # Not above the mode by far, and nothing beyond the nodes.
    return pareto_k(np.minimum(inner, 0.5) - drawn[near])
