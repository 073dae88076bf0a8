"""Rows that see the same latent value become one site, whose likelihood is their product.

That is exact, where EP by rows is not: rows of one latent value are as correlated as can be. Labels
become numbers of successes, counts their sums; of other likelihoods the rows of equal observations
become one of a larger weight.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import gammaln

from qpruntime.arrays import Array
from qpruntime.inference.precision.equal_rows import Equal, equal_rows
from qpruntime.inference.precision.trials import probit_trials
from qpruntime.likelihoods import Likelihood, get, is_registered
from qpruntime.likelihoods.binomial import MOST_TRIALS
from qpruntime.likelihoods.observations import LARGEST_COUNT

__all__ = ["Collapsed", "Merged", "collapse"]


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


@dataclass(frozen=True, eq=False)
class Collapsed:
    """N rows as S sites.

    Attributes
    ----------
    rows : Equal
        The first row of every site, and the site of every row.
    y, weights : ndarray, shape (N,) or (N, 2); (N,) or None
        Of the rows, as their own likelihood takes them.
    merged : Merged
    kind : str or None
        The rows' likelihood where `merge` has merged them; None where sites are rows of larger
        weights.
    """

    rows: Equal
    y: Array
    weights: Array | None
    merged: Merged
    kind: str | None

    @property
    def merge(self) -> Callable[..., Merged | None] | None:
        """``merge(site, y, size)``, which merges observations."""
        return None if self.kind is None else _MERGES[self.kind]

    @cached_property
    def trivial(self) -> bool:
        """Whether every row is a site of its own, in the order of the rows."""
        first = self.rows.first
        in_order = bool((first[1:] > first[:-1]).all())
        return in_order and first.size == self.rows.site.size

    def ordered_rows(self, order: NDArray[np.intp]) -> Equal:
        """The sites in another order."""
        rank = np.empty(order.size, np.intp)
        rank[order] = np.arange(order.size)
        return Equal(self.rows.first[order], rank[self.rows.site])

    def ordered(self, order: NDArray[np.intp], rows: Equal) -> Collapsed:
        """Return the same with its sites in another order, `rows` being those of it."""
        whole = self.merged
        weights = None if whole.weights is None else whole.weights[order]
        parts = whole.y[order], whole.shift[order], weights, whole.constant[order]
        return replace(self, rows=rows, merged=Merged(whole.likelihood, *parts))

    def share(self) -> Array:
        """Every row's share of its site, shape (N,)."""
        site = self.rows.site
        weights = np.ones(site.size) if self.weights is None else self.weights
        total = np.bincount(site, weights, self.rows.first.size)[site]
        found: Array = np.divide(weights, total, out=np.zeros(site.size), where=total > 0.0)
        return found


def collapse(
    A: sparse.csr_array,
    offset: Array,
    y: Array,
    likelihood: Likelihood,
    weights: Array | None,
    wanted: bool,
    held: dict[str, Any],
) -> Collapsed:
    """Return the sites of rows whose observations are validated; of every row, if not `wanted`."""
    n = A.shape[0]
    merge = _MERGES.get(likelihood.name) if is_registered(likelihood) else None
    plain = np.ones(n) if weights is None else weights
    rows = Equal(np.arange(n), np.arange(n))
    if wanted and merge is not None and weights is None:
        rows = equal_rows(A, held, offset)
        if rows.first.size < n:
            merged = merge(rows.site, y, rows.first.size)
            if merged is not None:
                return Collapsed(rows, y, weights, merged, likelihood.name)
    elif wanted:
        rows = equal_rows(A, held, offset, *np.atleast_2d(y.T))
    S = rows.first.size
    total: Array | None = None
    if weights is not None or n > S:
        total = np.bincount(rows.site, plain, S).astype(float)
        if (total == 1.0).all():
            total = None
    merged = Merged(likelihood, y[rows.first], np.zeros(S), total, np.zeros(S))
    return Collapsed(rows, y, weights, merged, None)


def _labels(site: NDArray[np.intp], y: Array, size: int) -> tuple[Array, Array]:
    """How many labels every site has, and how many of them are +1."""
    ups = np.bincount(site, y > 0.0, size).astype(float)
    return ups, np.bincount(site, minlength=size).astype(float)


def _log_binomial(k: Array, n: Array) -> Array:
    found: Array = gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0)
    return found


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
    own = np.bincount(site, _log_binomial(*y.T), size) - _log_binomial(k, n)
    return Merged(get("binomial"), np.stack([k, n], axis=1), np.zeros(size), None, own)


def _poisson(site: NDArray[np.intp], y: Array, size: int) -> Merged | None:
    # m counts of rate e^f have the sum of one count of rate e^(f + log m).
    total = np.bincount(site, y, size).astype(float)
    m = np.bincount(site, minlength=size).astype(float)
    if total.max() > LARGEST_COUNT:
        return None
    shift = np.log(np.maximum(m, 1.0))
    own = gammaln(total + 1.0) - total * shift - np.bincount(site, gammaln(y + 1.0), size)
    return Merged(get("poisson-exp"), total, shift, None, own)


_MERGES: dict[str, Any] = {
    "binomial": _binomial,
    "logistic": _logistic,
    "poisson-exp": _poisson,
    "probit": _probit,
}
