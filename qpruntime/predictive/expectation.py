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

__all__ = ["cdf", "expect", "mean_and_variance", "quantiles"]

# Nodes reach so many standard deviations, and further for what grows as e^2f.
_REACH, _FURTHER, _MOST = 8.8, 2.2, 37.0
# First step in standard deviations, halvings of it, and the change that ends them.
_STEP, _HALVINGS, _CLOSE = 0.5, 13, 1e-11
# Numbers at a time.
_BLOCK = 2_000_000
# Secant steps at most, and the error of the normal quantile that ends them.
_SECANTS, _SETTLED = 80, 1e-10
_LARGEST_COUNT = 2**53
#: Of observations and latent values: ``function(rows, f)`` for f of shape (n, nodes).
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
    for halving in range(_HALVINGS):
        nodes = int(count[rows].max(initial=0))
        k = np.arange(-nodes, nodes + 1) if halving == 0 else np.arange(-nodes, nodes) + 0.5
        size = max(1, _BLOCK // k.size)
        before = total / np.where(weight > 0.0, weight, 1.0)
        for start in range(0, rows.size, size):
            some = rows[start : start + size]
            z = step[some, None] * k
            w = np.exp(-0.5 * z * z) * (np.abs(k) <= count[some, None])
            values = function(some, mean[some, None] + std[some, None] * z)
            total[some] += (w * np.where(w > 0.0, values, 0.0)).sum(axis=1)
            weight[some] += w.sum(axis=1)
        out[rows] = total[rows] / weight[rows]
        if halving:
            change = np.abs(out[rows] - before[rows])
            rows = rows[(change > _CLOSE * np.abs(out[rows])) & np.isfinite(out[rows])]
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
        found: Array = _given(likelihood, f, trials, rows).mean()
        return found

    with np.errstate(all="ignore"):
        centre = expect(first, mean, std)

        def second(rows: NDArray[np.intp], f: Array) -> Array:
            given = _given(likelihood, f, trials, rows)
            return given.var() + (given.mean() - centre[rows, None]) ** 2

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
        given = _given(likelihood, f, trials, rows)
        found: Array = (given.sf if upper else given.cdf)(y[rows, None])
        return found

    with np.errstate(all="ignore"):
        return expect(tail, mean, np.sqrt(variance))


def quantiles(
    likelihood: Likelihood,
    mean: Array,
    variance: Array,
    q: Array,
    trials: Array | None = None,
) -> Array:
    """Quantiles of an observation, shape (T, Q); of counts the smallest y with P(Y <= y) >= q."""
    std = np.sqrt(variance)
    # Those given f, anywhere where f can be, are on either side of those of the mixture.
    f = mean[:, None] + std[:, None] * np.linspace(-_REACH, _REACH, 37)
    columns = []
    for level in q:
        with np.errstate(all="ignore"):
            ends = np.asarray(_given(likelihood, f, trials).ppf(level), dtype=float)
        low, high = ends.min(axis=1), ends.max(axis=1)
        args = likelihood, mean, variance, float(level), low, high
        columns.append(_smallest(*args, trials) if _discrete(likelihood) else _root(*args))
    return np.column_stack(columns)


def _given(
    likelihood: Likelihood, f: Array, trials: Array | None = None, rows: Any = slice(None)
) -> Any:
    """The distribution of y for f of shape (n, nodes), those of some rows."""
    given: Any = likelihood.given
    if trials is None:
        return given(f, likelihood.theta)
    return given(f, likelihood.theta, trials[rows, None])


def _discrete(likelihood: Likelihood) -> bool:
    """Whether observations are counts: their distribution has a mass function."""
    own = _given(likelihood, np.zeros(1))
    return not hasattr(getattr(own, "dist", own), "pdf")


def _smallest(
    likelihood: Likelihood,
    mean: Array,
    variance: Array,
    q: float,
    low: Array,
    high: Array,
    trials: Array | None,
) -> Array:
    """By bisection among whole numbers."""
    upper = q > 0.5
    low, high = low - 1.0, np.minimum(np.maximum(high, low), _LARGEST_COUNT)
    while (wide := np.flatnonzero(high - low > 1.0)).size:
        middle = np.floor(0.5 * (low[wide] + high[wide]))
        own = None if trials is None else trials[wide]
        p = cdf(likelihood, mean[wide], variance[wide], middle, upper, own)
        enough = p <= 1.0 - q if upper else p >= q
        high[wide[enough]], low[wide[~enough]] = middle[enough], middle[~enough]
    return high


def _root(
    likelihood: Likelihood, mean: Array, variance: Array, q: float, low: Array, high: Array
) -> Array:
    """By the secant rule of Illinois on normal quantiles of P(Y <= y), which are nearly straight.

    In the coordinate in which y reaches from minus to plus infinity.
    """
    into, back = _coordinate(likelihood)
    upper, target = q > 0.5, float(ndtri(q))
    sign = -1.0 if upper else 1.0

    def miss(x: Array, rows: NDArray[np.intp]) -> Array:
        p = cdf(likelihood, mean[rows], variance[rows], back(x), upper)
        found: Array = np.clip(sign * ndtri(p), -60.0, 60.0) - target
        return found

    rows = np.arange(mean.size)
    a, b = into(low), into(high)
    # One quantile is all there is where nothing of f is unknown.
    gap = 1e-9 * (1.0 + np.abs(a))
    a, b = a - gap, b + gap
    fa, fb = miss(a, rows), miss(b, rows)
    out = np.where(np.abs(fa) < np.abs(fb), a, b)
    last = np.zeros(mean.size)
    for _ in range(_SECANTS):
        with np.errstate(all="ignore"):
            x = (a * fb - b * fa) / (fb - fa)
        x = np.where((x > np.minimum(a, b)) & (x < np.maximum(a, b)), x, 0.5 * (a + b))
        fx = miss(x[rows], rows)
        out[rows] = x[rows]
        left = np.full(mean.size, False)
        left[rows] = fx < 0.0
        now = np.zeros(mean.size)
        now[rows] = fx
        right = np.zeros(mean.size, dtype=bool)
        right[rows] = fx >= 0.0
        # An end that stays twice counts half.
        fb = np.where(left & (last < 0.0), 0.5 * fb, fb)
        fa = np.where(right & (last > 0.0), 0.5 * fa, fa)
        a, fa = np.where(left, x, a), np.where(left, now, fa)
        b, fb = np.where(right, x, b), np.where(right, now, fb)
        last = np.where(left, -1.0, np.where(right, 1.0, last))
        narrow = np.abs(b - a)[rows] <= 4.0 * np.spacing(np.abs(x[rows]) + 1e-300)
        rows = rows[~((np.abs(fx) <= _SETTLED) | narrow)]
        if not rows.size:
            break
    return back(out)


def _coordinate(
    likelihood: Likelihood,
) -> tuple[Callable[[Array], Array], Callable[[Array], Array]]:
    """Logarithms of what is positive, logits of shares."""
    low, high = (float(np.ravel(end)[0]) for end in _given(likelihood, np.zeros(1)).support())
    if low == 0.0 and high == 1.0:
        return (
            lambda y: np.log(np.clip(y, 1e-300, None)) - np.log1p(-np.minimum(y, 1.0 - 1e-16)),
            lambda x: 1.0 / (1.0 + np.exp(-x)),
        )
    if low == 0.0:
        return lambda y: np.log(np.clip(y, 1e-300, 1e300)), lambda x: np.exp(np.minimum(x, 700.0))
    return lambda y: np.clip(y, -1e300, 1e300), lambda x: x
