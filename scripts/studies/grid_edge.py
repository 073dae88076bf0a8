"""QP with the paper's bounded grid: cavities outside it, and three rules for these."""

import time
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.gaussian_process.kernels import Kernel

from qpruntime import Posterior, infer, open_table
from qpruntime.inference.dense.solver import CholeskyFactor, DenseState
from qpruntime.inference.posterior import Sites
from qpruntime.projection.projector import project_arrays
from scripts.benchmarks.data.protocol import OUTSIDE
from scripts.studies.folds import Fold

Array = NDArray[np.float64]

#: The paper's grid: -10 <= mu <= 10 and 0.1 <= sigma <= 10.
GRID_MU, GRID_SIGMA = 10.0, (0.1, 10.0)


def on_grid(fold: Fold, kernel: Kernel, path: str) -> dict[str, Any]:
    """QP with a bounded grid and the three rules for what falls outside."""
    K, found = kernel(fold.X), {}
    for rule in OUTSIDE:
        start = time.perf_counter()
        if rule == "clamp":
            sites, settled = _clamped_sites(K, fold, path)
            post = infer(K, fold.y, method="ep", sites=sites, max_sweeps=1)
            scores = fold.score(kernel, _at(post, K, sites))
            scores["converged"] = settled
        else:
            table = open_table(path, outside=rule)
            post = infer(K, fold.y, method="qp", table=table)
            scores = fold.score(kernel, post)
            inside, outside = post.lookups
            scores["lookups"] = [inside, outside]
        del scores["variance"]
        mu, sigma = cavities(post)
        low, high = GRID_SIGMA
        beyond = (np.abs(mu) > GRID_MU) | (sigma < low) | (sigma > high)
        found[f"qp_{rule}"] = {
            **scores,
            "seconds": round(time.perf_counter() - start, 5),
            "outside": [int(beyond.sum()), int((sigma > high).sum()), beyond.size],
        }
    return found


def cavities(post: Posterior) -> tuple[Array, Array]:
    """Return mean and standard deviation of every cavity."""
    kept = 1.0 - post.sites.tau * post.variance
    return (post.mean - post.variance * post.sites.nu) / kept, np.sqrt(post.variance / kept)


def _at(post: Posterior, K: Array, sites: Sites) -> Posterior:
    """Return `post` moved to other sites."""
    factor = CholeskyFactor(K, sites, np.zeros(len(K)))
    variance, _ = factor.marginals()
    return replace(
        post, sites=sites, mean=factor.mean, variance=variance, factor=DenseState(factor)
    )


def _clamped_sites(K: Array, fold: Fold, path: str) -> tuple[Sites, bool]:
    """Sites of QP where a cavity outside the grid reads sigma* at the grid's edge.

    Damped parallel updates; the engine has no such rule, because it is wrong.
    """
    table, n = open_table(path), len(K)
    sites, damping, last = Sites(np.zeros(n), np.zeros(n)), 0.5, np.inf
    for _ in range(400):
        factor = CholeskyFactor(K, sites, np.zeros(n))
        variance, kept = factor.marginals()
        mu, sigma = (factor.mean - variance * sites.nu) / kept, np.sqrt(variance / kept)
        edge_mu = np.clip(mu, -GRID_MU + 1e-9, GRID_MU - 1e-9)
        edge_sigma = np.clip(sigma, GRID_SIGMA[0] * (1 + 1e-9), GRID_SIGMA[1] * (1 - 1e-9))
        star, _ = table.lookup(edge_mu, edge_sigma, fold.y)
        mean = project_arrays("probit", mu, sigma, fold.y, method="ep").mean
        tau = np.maximum(star**-2 - sigma**-2, 0.0)
        nu = mean * (sigma**-2 + tau) - mu / sigma**2
        change = np.sqrt(
            np.mean(
                np.concatenate([(tau - sites.tau) * variance, (nu - sites.nu) * variance**0.5]) ** 2
            )
        )
        if change < 1e-6:
            return sites, True
        if change > last:
            damping = max(0.7 * damping, 0.02)
        last = change
        sites = Sites(sites.tau + damping * (tau - sites.tau), sites.nu + damping * (nu - sites.nu))
    return sites, False
