"""Distributions of observations whose latent value has a density on a grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, pdtr, pdtrc

from qpruntime._memory import PointError
from qpruntime._typing import Array
from qpruntime.inference.corrections.marginals import CorrectedMarginals
from qpruntime.likelihoods.responses import LARGEST_COUNT
from qpruntime.predictive.counts import MAX_EXPONENT
from qpruntime.predictive.inversion import integer_quantiles

__all__ = ["counts_by_grid", "rates_by_grid", "signs_by_grid"]


def rate_of(f: Array, link: str) -> Array:
    """Rate of a latent value that has taken in the exposure."""
    return f * f if link == "square" else np.exp(np.minimum(f, MAX_EXPONENT))


def rates_by_grid(found: CorrectedMarginals, link: str) -> tuple[Array, Array]:
    """Mean and standard deviation of the rate, each (T,)."""
    rate = found.expect(lambda f: rate_of(f, link))
    gap = found.expect(lambda f: (rate_of(f, link) - rate[:, None]) ** 2)
    return rate, np.sqrt(gap)


def _count_mass(count: Array, upper: bool, link: str, dispersion: float, f: Array) -> Array:
    rate = rate_of(f, link)
    if dispersion == math.inf:
        return np.asarray((pdtrc if upper else pdtr)(count, rate))
    if upper:
        return np.asarray(betainc(count + 1.0, dispersion, rate / (dispersion + rate)))
    return np.asarray(betainc(dispersion, count + 1.0, dispersion / (dispersion + rate)))


def counts_by_grid(
    found: CorrectedMarginals, link: str, dispersion: float, q: Array
) -> NDArray[np.int64]:
    """Smallest counts y with P(Y <= y) >= q, shape (T, len(q)).

    Raises
    ------
    PointError
        If one is beyond `LARGEST_COUNT`.
    """

    def cdf(rows: NDArray[np.intp], y: Array, upper: bool) -> Array:
        return found.expect(partial(_count_mass, y[:, None], upper, link, dispersion), rows)

    shape = found.mean.size, q.size
    counts = integer_quantiles(cdf, np.full(shape, -1), np.full(shape, LARGEST_COUNT + 1), q)
    if (counts > LARGEST_COUNT).any():
        i = int(np.argmax(counts.max(axis=1)))
        raise PointError(
            i,
            f"has latent mean {found.mean[i]:.3g}: its counts reach beyond {LARGEST_COUNT}; "
            "predict further inside the data or for a smaller exposure",
        )
    return counts.astype(np.int64)


def signs_by_grid(found: Sequence[CorrectedMarginals]) -> tuple[Array, Array]:
    """Log p(-1) and log p(+1), each (T,), or (T, K) for K processes."""
    pairs = [marginals.log_probability([[-1.0, 1.0]]) for marginals in found]
    pairs = [pair - np.logaddexp(*pair.T)[:, None] for pair in pairs]
    columns = [np.column_stack([pair[:, i] for pair in pairs]) for i in (0, 1)]
    minus, plus = (c[:, 0] if len(pairs) == 1 else c for c in columns)
    return minus, plus
