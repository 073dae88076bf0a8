"""Results of sites, given back to the rows that they were made of."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from qpruntime.arrays import Array
from qpruntime.inference.precision.collapse import Collapsed, Merged
from qpruntime.inference.site_update import Marginals
from qpruntime.likelihoods import Likelihood
from qpruntime.projection.kernel import project_rows
from qpruntime.projection.projector import Projector

__all__ = ["left_out_rows", "slopes_of_rows"]


def left_out_rows(
    collapsed: Collapsed, here: Marginals, log_z: Array, likelihood: Likelihood
) -> Array:
    """Return log p(y_n | all others), shape (N,), where a site keeps its other rows.

    Parameters
    ----------
    collapsed : Collapsed
    here : Marginals
        Of the sites.
    log_z : ndarray, shape (S,)
        Of one observation of each site without its whole site: right where a site is one row.
    likelihood : Likelihood
        Of the rows.
    """
    site = collapsed.rows.site
    found: Array = log_z[site]
    rows = np.flatnonzero(np.bincount(site)[site] > 1)
    if not rows.size:
        return found
    variance = here.variance / here.kept
    mean = here.mean - here.pull * variance
    std = np.sqrt(variance)
    s = site[rows]
    if collapsed.merge is None:
        weights = np.ones(site.size) if collapsed.weights is None else collapsed.weights
        rest = np.bincount(site, weights)[s] - weights[rows]
        rest = np.where(rest < 1e-12, 0.0, rest)
        y = collapsed.y[rows]
        one = _log_z(likelihood, y, mean[s], std[s], rest + 1.0)
        found[rows] = one - _log_z(likelihood, y, mean[s], std[s], rest)
        return found
    whole = collapsed.merged
    # Rows of one site with the same observation have the same density.
    kinds = np.unique(np.column_stack([s, collapsed.y[rows]]), axis=0, return_inverse=True)
    kind, seen = kinds[0][:, 0].astype(np.intp), kinds[0][:, 1:]
    other = _without(collapsed, kind, seen[:, 0] if collapsed.y.ndim == 1 else seen)
    moved = mean[kind] + other.shift - whole.shift[kind]
    full = _log_z(whole.likelihood, whole.y, mean, std) + whole.constant
    left = _log_z(other.likelihood, other.y, moved, std[kind]) + other.constant
    found[rows] = (full[kind] - left)[kinds[1].reshape(-1)]
    return found


def _without(collapsed: Collapsed, kind: NDArray[np.intp], y: Array) -> Merged:
    """The sites `kind` without one row of observation y each."""
    assert collapsed.merge is not None
    site = collapsed.rows.site
    order = np.argsort(site, kind="stable")
    begin = np.searchsorted(site[order], kind, "left")
    end = np.searchsorted(site[order], kind, "right")
    # Rows of every kind one after the other, without one of observation y.
    widths = end - begin
    owner = np.repeat(np.arange(kind.size), widths)
    ranks = np.arange(widths.sum()) - np.repeat(np.cumsum(widths) - widths, widths)
    members = order[np.repeat(begin, widths) + ranks]
    same = collapsed.y[members] == y[owner]
    same = same if same.ndim == 1 else same.all(axis=1)
    places = np.flatnonzero(same)
    _, drop = np.unique(owner[places], return_index=True)
    keep = np.ones(members.size, dtype=bool)
    keep[places[drop]] = False
    found = collapsed.merge(owner[keep], collapsed.y[members[keep]], kind.size)
    assert found is not None
    return found


def _log_z(
    likelihood: Likelihood, y: Array, mean: Array, std: Array, powers: Array | None = None
) -> Array:
    """log Z of cavities, by closed moments or quadrature."""
    projector, numbers = Projector(likelihood, "ep", "exact").observing(y)
    own = projector.likelihood
    exponents = np.ones(mean.size) if powers is None else powers
    functions = projector.functions if powers is None else own.functions(powers=True)
    rules = functions, projector.without_table
    cavities = np.ascontiguousarray(mean), np.ascontiguousarray(std)
    return project_rows(own, rules, exponents, cavities, numbers)[0]


def slopes_of_rows(collapsed: Collapsed, here: Marginals) -> Array:
    """Slope of the log evidence by the offset of every row, shape (N,).

    The mean slope of a row's own log density under the tilted density of its site.
    """
    site, slope = collapsed.rows.site, here.pull
    if collapsed.merge is None:
        found: Array = slope[site] * collapsed.share()
        return found
    merged = collapsed.merged
    count = np.bincount(site).astype(float)
    name = merged.likelihood.name
    if name == "poisson-exp":
        rate = (merged.y - slope) / count
        return collapsed.y - rate[site]
    k, n = merged.y.T
    if name == "binomial":
        chance = ((k - slope) / n)[site]
        if collapsed.y.ndim == 2:
            return collapsed.y[:, 0] - collapsed.y[:, 1] * chance
        return (collapsed.y > 0.0) - chance
    up, down = _probit_slopes(here, k, n)
    return np.where(collapsed.y > 0.0, up[site], down[site])


def _probit_slopes(here: Marginals, k: Array, n: Array) -> tuple[Array, Array]:
    """Mean slopes of log Phi(f) and log Phi(-f) under tilted densities of k of n labels."""
    variance = here.variance / here.kept
    cavity = (here.mean - here.pull * variance)[:, None]
    x = np.linspace(-9.0, 9.0, 181)
    f = here.mean[:, None] + np.sqrt(here.variance)[:, None] * x
    up, down = log_ndtr(f), log_ndtr(-f)
    logs = k[:, None] * up + (n - k)[:, None] * down - 0.5 * (f - cavity) ** 2 / variance[:, None]
    density = np.exp(logs - logs.max(axis=1, keepdims=True))
    density /= density.sum(axis=1, keepdims=True)
    log_normal = -0.5 * f * f - 0.5 * np.log(2.0 * np.pi)
    one = (density * np.exp(log_normal - up)).sum(axis=1)
    other = -(density * np.exp(log_normal - down)).sum(axis=1)
    # Where one kind is missing the other's follows exactly; their sum is known in any case.
    one = np.where(k == n, here.pull / n, one)
    other = np.where(k == 0.0, here.pull / n, other)
    both = (k > 0.0) & (k < n)
    spare = here.pull - k * one - (n - k) * other
    share = np.divide(spare, n, out=np.zeros_like(n), where=both)
    return one + share, other + share
