"""Marginals of each method: normal ones, those of Laplace's approximation, corrected ones."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from qpruntime import Likelihood, Posterior, likelihoods
from qpruntime.inference.corrections.density_grid import moments, normalised, quantile_many
from qpruntime.inference.corrections.ep_fixed_point import fold
from qpruntime.projection.projector import project_arrays
from scripts.studies.truth_problems import Problem

Array = NDArray[np.float64]


class Found(NamedTuple):
    """Marginals of a method: moments (N,), and quantiles of levels (N, Q)."""

    mean: Array
    variance: Array
    quantile: Callable[[Any], Array]
    log_probability: Array
    log_evidence: float | None


def slopes(likelihood: Likelihood, f: Array, y: Array) -> tuple[Array, Array, Array]:
    """Log density, its slope and minus its second derivative, by differences."""
    h = 1e-4 * (1.0 + np.abs(f))
    up, at, down = (likelihood.log_prob(f + d, y) for d in (h, 0.0, -h))
    return at, (up - down) / (2.0 * h), -(up - 2.0 * at + down) / h**2


def laplace(problem: Problem) -> Found | None:
    """Laplace's approximation (Rasmussen & Williams, 3.12 to 3.32); None where it has none."""
    likelihood = likelihoods.get(problem.likelihood)
    if likelihood.name in ("heaviside", "laplace"):
        return None
    y = likelihood.validate(problem.y)
    K, n = problem.K, len(problem.K)
    a = np.zeros(n)
    f = problem.mean + K @ a
    value = likelihood.log_prob(f, y).sum()
    for _ in range(200):
        _, slope, W = slopes(likelihood, f, y)
        W = np.maximum(W, 0.0)
        target = np.linalg.solve(np.eye(n) + W[:, None] * K, W * (f - problem.mean) + slope)
        step, before = 1.0, value
        for _ in range(60):
            trial = a + step * (target - a)
            g = problem.mean + K @ trial
            value = likelihood.log_prob(g, y).sum() - 0.5 * trial @ K @ trial
            if value >= before - 1e-12:
                break
            step *= 0.5
        a, f = trial, g
        if abs(value - before) < 1e-10:
            break
    _, _, W = slopes(likelihood, f, y)
    B = np.eye(n) + W[:, None] * K
    sign, log_det = np.linalg.slogdet(B)
    variance = np.linalg.solve(B.T, K).diagonal()
    if sign <= 0 or not (variance > 0.0).all():
        return None
    return gaussian(problem, f, variance, float(value - 0.5 * log_det))


def mirrored(found: Found) -> Found:
    """Of |f|, where a method has normals of f."""
    reach = np.linspace(-9.0, 9.0, 2001)
    std = np.sqrt(found.variance)
    logs = np.tile(-0.5 * reach**2, (std.size, 1))
    both = fold(normalised(found.mean[:, None] + std[:, None] * reach, logs))
    mean, variance, _ = moments(both)

    def quantile(p: Any) -> Array:
        out = np.empty((mean.size, len(p)))
        quantile_many(*both[:3], np.asarray(p), out)
        return out

    return Found(mean, variance, quantile, found.log_probability, found.log_evidence)


def gaussian(problem: Problem, mean: Array, variance: Array, evidence: float | None) -> Found:
    """Normal marginals, and the log density they predict for the observations made again."""
    log_z = project_arrays(problem.likelihood, mean, np.sqrt(variance), problem.y, "ep").log_z

    def quantile(p: Any) -> Array:
        return mean[:, None] + np.sqrt(variance)[:, None] * ndtri(np.asarray(p))

    return Found(mean, variance, quantile, log_z, evidence)


def corrected(post: Posterior, problem: Problem, correction: str) -> Found:
    """Marginals of a correction."""
    found = post.marginals(correction=correction)  # type: ignore[arg-type]
    evidence = post.corrected_evidence().value
    return Found(
        found.mean, found.variance, found.quantile, found.log_probability(problem.y), evidence
    )
