"""Distributions of observations whose latent value has a density on a grid: `Marginals`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, pdtr, stdtr, stdtrit

from qpruntime._row_blocks import PointError
from qpruntime._typing import Array
from qpruntime.inference.corrections.marginals import Marginals
from qpruntime.likelihoods import Likelihood
from qpruntime.likelihoods.responses import LARGEST_COUNT

__all__ = ["counts_by_grid", "rates_by_grid", "signs_by_grid", "t_quantiles_by_grid"]

#: Largest exponent of a rate.
_MOST = 700.0
_HALVINGS = 60


def rate_of(f: Array, link: str) -> Array:
    """Rate of a latent value that has taken in the exposure."""
    return f * f if link == "square" else np.exp(np.minimum(f, _MOST))


def rates_by_grid(found: Marginals, link: str) -> tuple[Array, Array]:
    """Mean and standard deviation of the rate, each (T,)."""
    rate = found.expect(lambda f: rate_of(f, link))
    gap = found.expect(lambda f: (rate_of(f, link) - rate[:, None]) ** 2)
    return rate, np.sqrt(gap)


def _count_mass(count: Array, link: str, dispersion: float, f: Array) -> Array:
    rate = rate_of(f, link)
    if dispersion == math.inf:
        found: Array = pdtr(count, rate)
    else:
        found = betainc(dispersion, count + 1.0, dispersion / (dispersion + rate))
    return found


def _t_mass(y: Array, nu: float, scale: float, f: Array) -> Array:
    found: Array = stdtr(nu, (y - f) / scale)
    return found


def counts_by_grid(found: Marginals, link: str, dispersion: float, q: Array) -> NDArray[np.int64]:
    """Smallest counts y with P(Y <= y) >= q, shape (T, len(q)), by bisection.

    Raises
    ------
    PointError
        If one is beyond `LARGEST_COUNT`.
    """
    columns = []
    for level in q:
        low, high = np.full(found.mean.size, -1), np.full(found.mean.size, LARGEST_COUNT + 1)
        while (high - low).max(initial=0) > 1:
            middle = (low + high) // 2
            mass = found.expect(
                partial(_count_mass, np.maximum(middle, 0)[:, None], link, dispersion)
            )
            enough = (mass >= level) & (middle >= 0)
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        columns.append(high)
    counts = np.column_stack(columns)
    if (counts > LARGEST_COUNT).any():
        i = int(np.argmax(counts.max(axis=1)))
        raise PointError(
            i,
            f"has latent mean {found.mean[i]:.3g}: its counts reach beyond {LARGEST_COUNT}; "
            "predict further inside the data or for a smaller exposure",
        )
    return counts.astype(np.int64)


def signs_by_grid(found: Sequence[Marginals]) -> tuple[Array, Array]:
    """Log p(-1) and log p(+1), each (T,), or (T, K) for K processes."""
    both = [one.log_probability([[-1.0, 1.0]]) for one in found]
    both = [pair - np.logaddexp(*pair.T)[:, None] for pair in both]
    columns = [np.column_stack([pair[:, i] for pair in both]) for i in (0, 1)]
    minus, plus = (c[:, 0] if len(both) == 1 else c for c in columns)
    return minus, plus


def t_quantiles_by_grid(found: Marginals, likelihood: Likelihood, q: Array) -> Array:
    """Quantiles of observations with Student-t noise, shape (T, len(q)), by bisection."""
    nu, scale = likelihood.parameters["nu"], likelihood.parameters["scale"]
    columns = []
    for level in q:
        # That of the sum is between the sums of outer quantiles of its parts.
        tail = 0.5 * min(level, 1.0 - level)
        ends = found.quantile([tail, 1.0 - tail])
        reach = -scale * stdtrit(nu, tail)
        low, high = ends[:, 0] - reach, ends[:, 1] + reach
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            mass = found.expect(partial(_t_mass, middle[:, None], nu, scale))
            low, high = np.where(mass < level, middle, low), np.where(mass < level, high, middle)
        columns.append(0.5 * (low + high))
    return np.column_stack(columns)
