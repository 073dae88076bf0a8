"""Aggregation of equal rows into one site, and the way back to rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from scipy.special import gammaln, log_ndtr as log_ndtr_array

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import finite, real
from qpruntime.errors import InputError
from qpruntime.inference.precision.binomial_probit import probit_trials
from qpruntime.inference.precision.pattern_kernels import Equal, equal_rows, near_order
from qpruntime.inference.site_kernels import Marginals
from qpruntime.inference.sites import Sites
from qpruntime.likelihoods import Likelihood, get, is_registered
from qpruntime.likelihoods.binomial import MOST_TRIALS
from qpruntime.likelihoods.responses import LARGEST_COUNT
from qpruntime.projection.projector import Projector
from qpruntime.projection.site_kernel import project_rows

__all__ = [
    "Collapsed",
    "Merged",
    "SeenRows",
    "collapse",
    "left_out_rows",
    "observed_sites",
    "read_offset",
    "slopes_of_rows",
]

# --- Rows of users as sites

#: Numbers of sites from which on the order of the rows affects the time of kernels.
_MANY = 50_000


def read_offset(offset: ArrayLike, y: Array, likelihood: Likelihood) -> Array:
    """Return offsets (N,) of validated observations, -inf where an exposure is 0.

    Raises
    ------
    InputError
        If an offset is not a number, or is -inf where something was counted.
    """
    n = len(y)
    offsets = real(offset, "offset")
    if offsets.shape not in ((), (n,)):
        raise InputError(f"offset must be a number or have shape ({n},), got {offsets.shape}")
    offsets = np.array(np.broadcast_to(offsets, (n,)))
    empty = offsets == -np.inf
    finite(offsets[~empty], "offset")
    if empty.any():
        row = int(np.argmax(empty))
        if likelihood.rate is None:
            raise InputError(
                f"offset is -inf at row {row}, an exposure of 0: only counts have exposures"
            )
        wrong = empty & (y > 0.0)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise InputError(
                f"row {row} counts {y[row]:g} with an offset of -inf, an exposure of 0: drop the "
                "row, or correct its exposure"
            )
    return offsets


@restorable("seen-rows/1")
@dataclass(frozen=True, eq=False)
class SeenRows:
    """N rows, M of them kept, as S sites.

    Attributes
    ----------
    collapsed : Collapsed
        The sites of the rows that are kept.
    kept : ndarray of int, shape (M,), or None
        Indices of the rows that are kept; None if all are. The others see no latent value, or have
        no exposure.
    offset : ndarray, shape (S,)
        Offsets of the sites.
    chosen : ndarray of int, shape (S,), or None
        Row of A of each site; None if every row is a site, in order.
    alone : ndarray, shape (2, N), or None
        Offsets of all rows, and log densities of the rows that are not kept; None if all rows are
        kept.
    """

    collapsed: Collapsed
    kept: NDArray[np.intp] | None
    offset: Array
    chosen: NDArray[np.intp] | None
    alone: Array | None = None

    @property
    def n(self) -> int:
        """Rows, N."""
        return self.collapsed.rows.site.size if self.alone is None else self.alone.shape[1]

    @property
    def constant(self) -> float:
        """Sum of the log densities that the evidence of the sites leaves out."""
        constant = float(self.collapsed.merged.constant.sum())
        return constant if self.alone is None else constant + float(self.alone[1].sum())

    def row_of(self, site: int) -> int:
        """Return the first row of a site."""
        row = int(self.collapsed.rows.first[site])
        return row if self.kept is None else int(self.kept[row])

    def to_rows(self, values: Array, others: Array | None = None) -> Array:
        """Return values (M,) of the kept rows as values of all rows, `others` or 0 elsewhere."""
        if self.kept is None:
            return values
        all_rows = np.zeros(self.n) if others is None else others.copy()
        all_rows[self.kept] = values
        return all_rows

    def spread(self, values: Array) -> Array:
        """Return values (S,) of sites as values of all rows, 0 where a row is not kept."""
        if self.collapsed.trivial and self.kept is None:
            return values
        return self.to_rows(values[self.collapsed.rows.site])

    def mean(self, mean: Array) -> Array:
        """Return means of eta at all rows: the offset where a row is not kept."""
        if self.collapsed.trivial and self.kept is None:
            return mean
        others = None if self.alone is None else self.alone[0]
        return self.to_rows((mean - self.collapsed.merged.shift)[self.collapsed.rows.site], others)

    def sites(self, sites: Sites) -> Sites:
        """Return the share that every row has in its site, as a site of the row's own eta."""
        if self.collapsed.trivial and self.kept is None:
            return sites
        nu = sites.nu - sites.tau * self.collapsed.merged.shift
        share, site = self.collapsed.share(), self.collapsed.rows.site
        return Sites(self.to_rows(sites.tau[site] * share), self.to_rows(nu[site] * share))

    def sites_of(self, rows: Sites) -> Sites:
        """Return the sites that `sites` has merged from rows."""
        if self.collapsed.trivial and self.kept is None:
            return rows
        chosen = slice(None) if self.kept is None else self.kept
        site, S = self.collapsed.rows.site, self.offset.size
        tau, nu = (np.bincount(site, part[chosen], S).astype(float) for part in rows)
        return Sites(tau, nu + tau * self.collapsed.merged.shift)


def observed_sites(
    A: sparse.csr_array,
    offset: Array,
    y: Array,
    likelihood: Likelihood,
    weights: Array | None,
    wanted: bool,
    cache: dict[str, Any] | None = None,
) -> SeenRows:
    """Return the sites of validated observations y, of shape (N,) or (N, 2).

    `cache` keeps which rows of A and offsets are equal. Rows also keep their order if `wanted` is
    False, which leaves them unmerged.
    """
    cache = {} if cache is None else cache
    alone = kept = None
    apart = (np.diff(A.indptr) == 0) | (offset == -np.inf)
    if apart.any():
        kept = np.flatnonzero(~apart)
        alone = np.stack([offset, np.zeros(offset.size)])
        powers = np.ones(offset.size) if weights is None else weights
        for row in np.flatnonzero(apart & (offset > -np.inf) & (powers > 0.0)):
            alone[1, row] = powers[row] * float(likelihood.log_prob(offset[row], y[row]))
        if not kept.size:
            raise InputError("no row sees a latent value: A is zero, or nothing has an exposure")
        A, offset, y = A[kept], offset[kept], y[kept]
        weights = None if weights is None else weights[kept]
    collapsed = collapse(A, offset, y, likelihood, weights, wanted, cache)
    if wanted and collapsed.rows.first.size >= _MANY:
        collapsed = _near(A, collapsed, cache)
    first = collapsed.rows.first
    chosen = None if collapsed.trivial and kept is None else first if kept is None else kept[first]
    return SeenRows(collapsed, kept, offset[first] + collapsed.merged.shift, chosen, alone)


def _near(A: sparse.csr_array, collapsed: Collapsed, cache: dict[str, Any]) -> Collapsed:
    """Return the same sites with rows of one level next to each other; `cache` keeps the order."""
    known = cache.get("near")
    if known is None or known[0] is not collapsed.rows:
        order = near_order(A, collapsed.rows.first)
        moved = () if order is None else (order, collapsed.ordered_rows(order))
        known = cache["near"] = collapsed.rows, moved
    return collapsed.ordered(*known[1]) if known[1] else collapsed


# --- Results of sites by rows


def left_out_rows(
    collapsed: Collapsed, marginals: Marginals, log_z: Array, likelihood: Likelihood
) -> Array:
    """Return log p(y_n | all others), shape (N,), where a site keeps its other rows.

    Parameters
    ----------
    collapsed : Collapsed
    marginals : Marginals
        Marginals of the sites.
    log_z : ndarray, shape (S,)
        Log Z of one observation of each site under the cavity of the whole site, which is exact
        where a site is one row.
    likelihood : Likelihood
        Likelihood of the rows.
    """
    site = collapsed.rows.site
    log_densities: Array = log_z[site]
    rows = np.flatnonzero(np.bincount(site)[site] > 1)
    if not rows.size:
        return log_densities
    variance = marginals.variance / marginals.kept
    mean = marginals.mean - marginals.pull * variance
    std = np.sqrt(variance)
    s = site[rows]
    if collapsed.merge is None:
        weights = np.ones(site.size) if collapsed.weights is None else collapsed.weights
        power_left = np.bincount(site, weights)[s] - weights[rows]
        power_left = np.where(power_left < 1e-12, 0.0, power_left)
        y = collapsed.y[rows]
        log_z_whole = _log_z(likelihood, y, mean[s], std[s], power_left + 1.0)
        log_densities[rows] = log_z_whole - _log_z(likelihood, y, mean[s], std[s], power_left)
        return log_densities
    whole = collapsed.merged
    # Rows of one site with the same observation have the same density.
    kinds = np.unique(np.column_stack([s, collapsed.y[rows]]), axis=0, return_inverse=True)
    site_of_kind, observations = kinds[0][:, 0].astype(np.intp), kinds[0][:, 1:]
    reduced = _without(
        collapsed, site_of_kind, observations[:, 0] if collapsed.y.ndim == 1 else observations
    )
    moved = mean[site_of_kind] + reduced.shift - whole.shift[site_of_kind]
    full = _log_z(whole.likelihood, whole.y, mean, std) + whole.constant
    log_z_reduced = (
        _log_z(reduced.likelihood, reduced.y, moved, std[site_of_kind]) + reduced.constant
    )
    log_densities[rows] = (full[site_of_kind] - log_z_reduced)[kinds[1].reshape(-1)]
    return log_densities


def _without(collapsed: Collapsed, kind: NDArray[np.intp], y: Array) -> Merged:
    """Return the sites `kind`, each without one row of observation y."""
    assert collapsed.merge is not None
    site = collapsed.rows.site
    order = np.argsort(site, kind="stable")
    begin = np.searchsorted(site[order], kind, "left")
    end = np.searchsorted(site[order], kind, "right")
    # The rows of all kinds follow each other, without one row of observation y in each.
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
    merged = collapsed.merge(owner[keep], collapsed.y[members[keep]], kind.size)
    assert merged is not None
    return merged


def _log_z(
    likelihood: Likelihood, y: Array, mean: Array, std: Array, powers: Array | None = None
) -> Array:
    """Return log Z of cavities, by closed moments or quadrature."""
    projector, numbers = Projector(likelihood, "ep", "exact").observing(y)
    bound = projector.likelihood
    exponents = np.ones(mean.size) if powers is None else powers
    functions = projector.functions if powers is None else bound.functions(powers=True)
    rules = functions, projector.without_table
    cavities = np.ascontiguousarray(mean), np.ascontiguousarray(std)
    return project_rows(bound, rules, exponents, cavities, numbers)[0]


def slopes_of_rows(collapsed: Collapsed, marginals: Marginals) -> Array:
    """Return the slope of the log evidence by the offset of every row, shape (N,).

    It is the mean slope of a row's log density under the tilted density of its site.
    """
    site, slope = collapsed.rows.site, marginals.pull
    if collapsed.merge is None:
        return slope[site] * collapsed.share()
    merged = collapsed.merged
    count = np.bincount(site).astype(float)
    name = merged.likelihood.name
    if name == "poisson-exp":
        rate = (merged.y - slope) / count
        return np.asarray(collapsed.y - rate[site])
    k, n = merged.y.T
    if name == "binomial":
        chance = ((k - slope) / n)[site]
        if collapsed.y.ndim == 2:
            return np.asarray(collapsed.y[:, 0] - collapsed.y[:, 1] * chance)
        return np.asarray((collapsed.y > 0.0) - chance)
    up, down = _probit_slopes(marginals, k, n)
    return np.where(collapsed.y > 0.0, up[site], down[site])


def _probit_slopes(marginals: Marginals, k: Array, n: Array) -> tuple[Array, Array]:
    """Return mean slopes of log Phi(f) and log Phi(-f) under tilted densities of k of n labels."""
    variance = marginals.variance / marginals.kept
    cavity = (marginals.mean - marginals.pull * variance)[:, None]
    x = np.linspace(-9.0, 9.0, 181)
    f = marginals.mean[:, None] + np.sqrt(marginals.variance)[:, None] * x
    up, down = log_ndtr_array(f), log_ndtr_array(-f)
    logs = k[:, None] * up + (n - k)[:, None] * down - 0.5 * (f - cavity) ** 2 / variance[:, None]
    density = np.exp(logs - logs.max(axis=1, keepdims=True))
    density /= density.sum(axis=1, keepdims=True)
    log_normal = -0.5 * f * f - 0.5 * np.log(2.0 * np.pi)
    success_slope = (density * np.exp(log_normal - up)).sum(axis=1)
    failure_slope = -(density * np.exp(log_normal - down)).sum(axis=1)
    # If a site has labels of one kind only, the slope of that kind follows exactly. The sum of both
    # slopes is known in any case.
    success_slope = np.where(k == n, marginals.pull / n, success_slope)
    failure_slope = np.where(k == 0.0, marginals.pull / n, failure_slope)
    mixed = (k > 0.0) & (k < n)
    spare = marginals.pull - k * success_slope - (n - k) * failure_slope
    share = np.divide(spare, n, out=np.zeros_like(n), where=mixed)
    return success_slope + share, failure_slope + share


# --- Rows with one latent value as one site
#
# Merging is exact. EP by rows is not, because rows of one latent value are perfectly correlated.
# Labels become a number of successes and counts become their sum. For other likelihoods, rows with
# equal observations become one row with a larger weight.


@restorable("merged/1")
class Merged(NamedTuple):
    """Observations of sites, each of shape (S,) but `y`.

    y : (S,) or (S, 2), as `likelihood` takes them
    shift : added to the offset, and so to eta
    weights : powers of the likelihoods, or None
    constant : log of the product of the rows' likelihoods, less that of the site's
    """

    likelihood: Likelihood
    y: Array
    shift: Array
    weights: Array | None
    constant: Array


@restorable("collapsed/1")
@dataclass(frozen=True, eq=False)
class Collapsed:
    """N rows merged into S sites.

    Attributes
    ----------
    rows : Equal
        The first row of every site, and the site of every row.
    y, weights : ndarray, shape (N,) or (N, 2); (N,) or None
        Observations and weights of the rows, as their own likelihood takes them.
    merged : Merged
    kind : str or None
        Likelihood of the rows if `merge` merged them; None if a site is one row with a larger
        weight.
    """

    rows: Equal
    y: Array
    weights: Array | None
    merged: Merged
    kind: str | None

    @property
    def merge(self) -> Callable[..., Merged | None] | None:
        """Function ``merge(site, y, size)`` that merges observations."""
        return None if self.kind is None else _MERGES[self.kind]

    @cached_property
    def trivial(self) -> bool:
        """True if every row is a site of its own, in the order of the rows."""
        first = self.rows.first
        in_order = bool((first[1:] > first[:-1]).all())
        return in_order and first.size == self.rows.site.size

    def ordered_rows(self, order: NDArray[np.intp]) -> Equal:
        """Return the sites in another order."""
        rank = np.empty(order.size, np.intp)
        rank[order] = np.arange(order.size)
        return Equal(self.rows.first[order], rank[self.rows.site])

    def ordered(self, order: NDArray[np.intp], rows: Equal) -> Collapsed:
        """Return the same with sites in another order; `rows` is the grouping in it."""
        whole = self.merged
        weights = None if whole.weights is None else whole.weights[order]
        parts = whole.y[order], whole.shift[order], weights, whole.constant[order]
        return replace(self, rows=rows, merged=Merged(whole.likelihood, *parts))

    def share(self) -> Array:
        """Return the share that every row has in its site, shape (N,)."""
        site = self.rows.site
        weights = np.ones(site.size) if self.weights is None else self.weights
        total = np.bincount(site, weights, self.rows.first.size)[site]
        return np.divide(weights, total, out=np.zeros(site.size), where=total > 0.0)


def collapse(
    A: sparse.csr_array,
    offset: Array,
    y: Array,
    likelihood: Likelihood,
    weights: Array | None,
    wanted: bool,
    cache: dict[str, Any],
) -> Collapsed:
    """Return the sites of validated observations: one site for each row if not `wanted`."""
    n = A.shape[0]
    merge = _MERGES.get(likelihood.name) if is_registered(likelihood) else None
    plain = np.ones(n) if weights is None else weights
    rows = Equal(np.arange(n), np.arange(n))
    if wanted and merge is not None and weights is None:
        rows = equal_rows(A, cache, offset)
        if rows.first.size < n:
            merged = merge(rows.site, y, rows.first.size)
            if merged is not None:
                return Collapsed(rows, y, weights, merged, likelihood.name)
    elif wanted:
        rows = equal_rows(A, cache, offset, *np.atleast_2d(y.T))
    S = rows.first.size
    total: Array | None = None
    if weights is not None or n > S:
        total = np.bincount(rows.site, plain, S).astype(float)
        if (total == 1.0).all():
            total = None
    merged = Merged(likelihood, y[rows.first], np.zeros(S), total, np.zeros(S))
    return Collapsed(rows, y, weights, merged, None)


def _labels(site: NDArray[np.intp], y: Array, size: int) -> tuple[Array, Array]:
    """Return how many labels every site has, and how many of them are +1."""
    ups = np.bincount(site, y > 0.0, size).astype(float)
    return ups, np.bincount(site, minlength=size).astype(float)


def _log_binomial(k: Array, n: Array) -> Array:
    return gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0)


def _logistic(site: NDArray[np.intp], y: Array, size: int) -> Merged | None:
    k, n = _labels(site, y, size)
    if n.max() > MOST_TRIALS:
        return None
    none = np.zeros(size)
    return Merged(get("binomial"), np.stack([k, n], axis=1), none, None, -_log_binomial(k, n))


def _probit(site: NDArray[np.intp], y: Array, size: int) -> Merged | None:
    none = np.zeros(size)
    return Merged(probit_trials, np.stack(_labels(site, y, size), axis=1), none, None, none)


def _binomial(site: NDArray[np.intp], y: Array, size: int) -> Merged | None:
    k, n = (np.bincount(site, column, size).astype(float) for column in y.T)
    if n.max() > MOST_TRIALS:
        return None
    constant = np.bincount(site, _log_binomial(*y.T), size) - _log_binomial(k, n)
    return Merged(get("binomial"), np.stack([k, n], axis=1), np.zeros(size), None, constant)


def _poisson(site: NDArray[np.intp], y: Array, size: int) -> Merged | None:
    # m counts of rate e^f have the sum of one count of rate e^(f + log m).
    total = np.bincount(site, y, size).astype(float)
    m = np.bincount(site, minlength=size).astype(float)
    if total.max() > LARGEST_COUNT:
        return None
    shift = np.log(np.maximum(m, 1.0))
    constant = gammaln(total + 1.0) - total * shift - np.bincount(site, gammaln(y + 1.0), size)
    return Merged(get("poisson-exp"), total, shift, None, constant)


_MERGES: dict[str, Callable[[NDArray[np.intp], Array, int], Merged | None]] = {
    "binomial": _binomial,
    "logistic": _logistic,
    "poisson-exp": _poisson,
    "probit": _probit,
}
