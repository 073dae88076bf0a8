"""Predictive distributions of y under f ~ N(mean, variance), where SciPy has that of y given f.

Means over f are sums of the trapezoid rule, which converges geometrically for what is smooth; it is
halved until nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from qpruntime._typing import Array
from qpruntime.likelihoods import Likelihood
from qpruntime.likelihoods.base import ResponseDistribution
from qpruntime.predictive.inversion import Component, Transform, mixture_quantiles

__all__ = ["cdf", "component", "discrete", "expect", "kind_of", "mean_and_variance", "quantiles"]

# Nodes reach so many standard deviations, and further for what grows as e^2f.
_REACH, _FURTHER, _MOST = 8.8, 2.2, 37.0
# First step in standard deviations, halvings of it, and the change that ends them.
_STEP, _HALVINGS, _CLOSE = 0.5, 13, 1e-11
# Numbers at a time.
_BLOCK = 2_000_000
_LARGEST_COUNT = 2**53
#: A function of observations and latent values, ``function(rows, f)`` for f of shape (n, nodes).
OfLatent = Callable[[NDArray[np.intp], Array], Array]


def expect(function: OfLatent, mean: Array, std: Array) -> Array:
    """Mean of functions of f ~ N(mean, std^2), shape (T,).

    Parameters
    ----------
    function : callable
        ``function(rows, f)`` returns values (n, nodes) for f (n, nodes) of these rows.
    mean, std : ndarray, shape (T,)
    """
    reach = np.minimum(_REACH + _FURTHER * np.minimum(std, 20.0), _MOST)
    out = np.empty(mean.size)
    rows = np.arange(mean.size)
    step = np.full(mean.size, _STEP)
    count = np.ceil(reach / step).astype(int)
    total, weight = np.zeros(mean.size), np.zeros(mean.size)
    ends = np.zeros(mean.size)
    for halving in range(_HALVINGS):
        nodes = int(count[rows].max(initial=0))
        k = np.arange(-nodes, nodes + 1) if halving == 0 else np.arange(-nodes, nodes) + 0.5
        size = max(1, _BLOCK // k.size)
        before = total / np.where(weight > 0.0, weight, 1.0)
        for start in range(0, rows.size, size):
            batch = rows[start : start + size]
            z = step[batch, None] * k
            w = np.exp(-0.5 * z * z) * (np.abs(k) <= count[batch, None])
            values = function(batch, mean[batch, None] + std[batch, None] * z)
            terms = w * np.where(w > 0.0, values, 0.0)
            total[batch] += terms.sum(axis=1)
            weight[batch] += w.sum(axis=1)
            if halving == 0:
                first = nodes - count[batch]
                edge_terms = np.abs(terms[np.arange(batch.size), [first, -1 - first]])
                ends[batch] = edge_terms.max(axis=0) / (reach[batch] * np.sqrt(2.0 * np.pi))
        out[rows] = total[rows] / weight[rows]
        if halving:
            change = np.abs(out[rows] - before[rows])
            # The integral beyond the nodes is about as large as `ends`: finer steps do not find it.
            least = np.maximum(_CLOSE * np.abs(out[rows]), ends[rows])
            rows = rows[(change > least) & np.isfinite(out[rows])]
            if not rows.size:
                break
            step[rows] *= 0.5
            count[rows] *= 2
    return out


def mean_and_variance(
    likelihood: Likelihood, mean: Array, variance: Array, trials: Array | None = None
) -> tuple[Array, Array]:
    """Mean and variance of an observation, each (T,); of so many trials, where it is of trials."""
    std = np.sqrt(variance)

    def first(rows: NDArray[np.intp], f: Array) -> Array:
        return _given(likelihood, f, trials, rows).mean()

    with np.errstate(all="ignore"):
        centre = expect(first, mean, std)

        def second(rows: NDArray[np.intp], f: Array) -> Array:
            response = _given(likelihood, f, trials, rows)
            return response.var() + (response.mean() - centre[rows, None]) ** 2

        return centre, expect(second, mean, std)


def cdf(
    likelihood: Likelihood,
    mean: Array,
    variance: Array,
    y: Array,
    upper: bool = False,
    trials: Array | None = None,
) -> Array:
    """P(Y <= y), or P(Y > y), for T latent values and as many y."""

    def tail(rows: NDArray[np.intp], f: Array) -> Array:
        response = _given(likelihood, f, trials, rows)
        return (response.sf if upper else response.cdf)(y[rows, None])

    with np.errstate(all="ignore"):
        return expect(tail, mean, np.sqrt(variance))


def quantiles(
    likelihood: Likelihood, mean: Array, variance: Array, q: Array, trials: Array | None = None
) -> Array:
    """Quantiles of an observation, shape (T, Q); of counts the smallest y with P(Y <= y) >= q."""
    parts = [component(likelihood, mean, variance, q, trials)]
    return mixture_quantiles(parts, np.ones(1), q, *kind_of(likelihood))


def component(
    likelihood: Likelihood, mean: Array, variance: Array, q: Array, trials: Array | None = None
) -> Component:
    """Return the distribution of an observation for f ~ N(mean, variance), as mixtures take it.

    Quantiles of numbers given any f that is possible enclose those of the mixture.
    """

    def tail(rows: NDArray[np.intp], y: Array, upper: bool) -> Array:
        row_trials = None if trials is None else trials[rows]
        return cdf(likelihood, mean[rows], variance[rows], y, upper, row_trials)

    if discrete(likelihood):
        return Component(tail, *_count_brackets(likelihood, mean, variance, q, trials))
    f = _latent(mean, variance, _REACH)
    low, high = np.empty((mean.size, q.size)), np.empty((mean.size, q.size))
    with np.errstate(all="ignore"):
        for k, level in enumerate(q):
            ends = np.asarray(_given(likelihood, f, trials).ppf(level), dtype=float)
            low[:, k], high[:, k] = ends.min(axis=1), ends.max(axis=1)
    return Component(tail, low, high)


def _latent(mean: Array, variance: Array, reach: float) -> Array:
    """Return latent values up to so many standard deviations away, shape (T, 37)."""
    return mean[:, None] + np.sqrt(variance)[:, None] * np.linspace(-reach, reach, 37)


def _count_brackets(
    likelihood: Likelihood, mean: Array, variance: Array, q: Array, trials: Array | None
) -> tuple[Array, Array]:
    """Return brackets (T, Q) of quantiles of counts, the same for all levels.

    A set of latent values f has probability 1 - e. If P(Y <= y | f) < q - e for all f in it, then
    P(Y <= y) < q. If P(Y <= y | f) >= q + e for all of them, and q + e <= 1, then
    P(Y <= y) >= (1 - e) (q + e) >= q.
    """
    ends = []
    with np.errstate(all="ignore"):
        for level, sign in ((q.min(), -1.0), (q.max(), 1.0)):
            outside = 0.5 * min(level, 1.0 - level)
            f = _latent(mean, variance, min(-float(ndtri(0.5 * outside)), _REACH))
            ends.append(_given(likelihood, f, trials).ppf(level + sign * outside))
    low, high = ends[0].min(axis=1), ends[1].max(axis=1)
    low = np.minimum(low, _LARGEST_COUNT) - 1.0
    high = np.minimum(np.where(np.isnan(high), _LARGEST_COUNT, high), _LARGEST_COUNT)
    high = np.maximum(high, low + 1.0)
    return np.repeat(low[:, None], q.size, axis=1), np.repeat(high[:, None], q.size, axis=1)


def kind_of(likelihood: Likelihood) -> tuple[bool, Transform | None]:
    """Return whether quantiles are integers, and else the coordinate to search them in."""
    whole = discrete(likelihood)
    return whole, None if whole else _coordinate(likelihood)


def _given(
    likelihood: Likelihood,
    f: Array,
    trials: Array | None = None,
    rows: NDArray[np.intp] | slice = slice(None),
) -> ResponseDistribution:
    """Return the distribution of y for f of shape (n, nodes), those of some rows."""
    response = likelihood.given
    assert response is not None
    if trials is None:
        return response(f, likelihood.theta)
    return response(f, likelihood.theta, trials[rows, None])


def discrete(likelihood: Likelihood) -> bool:
    """Return whether observations are counts: their distribution has a mass function."""
    response = _given(likelihood, np.zeros(1))
    return not hasattr(getattr(response, "dist", response), "pdf")


def _coordinate(likelihood: Likelihood) -> Transform:
    """Logarithms of what is positive, logits of shares."""
    distribution: Any = _given(likelihood, np.zeros(1))  # one of SciPy's, which have a support
    low, high = (float(np.ravel(end)[0]) for end in distribution.support())
    if low == 0.0 and high == 1.0:
        return (
            lambda y: np.log(np.clip(y, 1e-300, None)) - np.log1p(-np.minimum(y, 1.0 - 1e-16)),
            lambda x: 1.0 / (1.0 + np.exp(-x)),
        )
    if low == 0.0:
        return lambda y: np.log(np.clip(y, 1e-300, 1e300)), lambda x: np.exp(np.minimum(x, 700.0))
    return lambda y: np.clip(y, -1e300, 1e300), lambda x: x
