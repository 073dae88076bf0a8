"""Integrate the hyper-parameters of one process: find nodes, weigh them, infer at each."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import logsumexp
from sklearn.gaussian_process.kernels import Kernel

from qpruntime.arrays import Array
from qpruntime.errors import ConvergenceWarning, NumericalError, SamplingWarning, warn
from qpruntime.kernels.default import LogNormal
from qpruntime.learning.data import Data
from qpruntime.learning.default_kernel import Start
from qpruntime.learning.maximise import Optimum, all_bounds, maximise
from qpruntime.learning.nodes.density import Density
from qpruntime.learning.nodes.found import LEAST_SHARE, Found, find
from qpruntime.learning.nodes.pareto import TRUSTED
from qpruntime.learning.nodes.prior import Proper, proper_prior
from qpruntime.learning.nodes.result import Integrated
from qpruntime.learning.parameter_slopes import learnt
from qpruntime.learning.progress import names_of
from qpruntime.learning.settings import Settings
from qpruntime.memory import require, squares
from qpruntime.projection.projector import Projector

__all__ = ["NOTHING", "complain", "heavy", "integrated", "prior_of"]

#: What is said where all parameters are fixed.
NOTHING = (
    'hyperparameters="integrate" has nothing to integrate: the parameters of the kernel are all '
    'fixed; give them bounds, or use hyperparameters="mode"'
)
# The lightest nodes are left out, so much in all: each costs a product in every prediction.
_LIGHT = 1e-4
# Fewer independent draws of a chain than this say little.
_FEW = 10.0


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
        If importance weights are not to be relied on, or a chain is short.
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
        max_iterations=settings.max_iter,
        ftol=settings.ftol,
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
    independent = found.effective if found.design == "nuts" else 1.0 / float(weights @ weights)
    kernels, likelihoods, posteriors = zip(*ends, strict=True)
    return Integrated(
        design=found.design,
        names=names_of(kernel, data.learn),
        theta=np.array([node.theta for node in nodes]),
        weights=weights,
        log_evidence=found.log_evidence + shift,
        effective=independent,
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
    """Warn of weights that are not to be relied on, and of short chains."""
    if found.design in ("importance", "composite") and not found.trusted:
        warn(
            f"hyper-parameters are far from a Student t around their mode: Pareto k is "
            f"{found.pareto_k:.2f}, to be {TRUSTED} at most, and {found.share:.0%} of draws are "
            f"effective, to be {LEAST_SHARE:.0%} at least; weights of "
            f'design="{found.design}" are not to be relied on: use Integrate("nuts", n=512)',
            SamplingWarning,
        )
    if found.design == "nuts" and found.effective < _FEW:
        warn(
            f"the chain of hyper-parameters has {found.effective:.0f} independent draws only: "
            f'raise n, Integrate("nuts", n={4 * len(found.nodes)})',
            SamplingWarning,
        )
