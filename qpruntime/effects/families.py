"""Observations yet to come: their distribution functions and quantiles, for every family.

The latent value is a mixture of normals, a node of the hyper-parameters each. Counts have their own
sums, in `qpruntime.estimators.predictive.count_nodes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, ndtri
from scipy.stats import binom

from qpruntime.arrays import Array
from qpruntime.effects.families import Family
from qpruntime.errors import InputError
from qpruntime.estimators.predictive.by_likelihood import Predicted
from qpruntime.estimators.predictive.count_nodes import count_quantiles
from qpruntime.estimators.predictive.density import log_density, wide
from qpruntime.estimators.predictive.mixture import expect
from qpruntime.estimators.predictive.mixture import quantiles as quantiles_of_one
from qpruntime.estimators.predictive.normals import Mixture
from qpruntime.likelihoods import Likelihood

__all__ = ["below", "below_given", "discrete", "observation_quantiles", "trials_of"]

#: Steps of the secant rule at most, and the error of the normal quantile that ends them.
_SECANTS, _SETTLED = 80, 1e-10
#: Normal quantiles of probabilities, kept finite.
_LEAST = 1e-300


def discrete(family: Family, likelihood: Likelihood) -> bool:
    """Whether observations have probabilities, not densities."""
    if family.kind in ("labels", "pairs", "counts"):
        return True
    return Predicted.discrete(likelihood)


def below_given(
    family: Family, likelihood: Likelihood, f: Array, y: Array, trials: Array | None = None
) -> Array:
    """P(Y <= y | f), for f (n, M) and one y a row; of pairs y are successes of so many trials.

    Raises
    ------
    InputError
        If the likelihood is known by its density alone.
    """
    if family.kind == "labels":
        low = np.exp(log_density(likelihood, f, wide(np.zeros(f.shape)), np.full(f.shape, -1.0)))
        return np.where(y[:, None] >= 1.0, 1.0, np.where(y[:, None] >= -1.0, low, 0.0))
    if family.kind == "pairs":
        assert trials is not None
        return np.asarray(binom.cdf(y[:, None], trials[:, None], expit(f)))
    if likelihood.given is None:
        raise InputError(
            f"{likelihood.name!r} is known by its density alone, and has no distribution function: "
            "use loo() or predict_log_density(X, y)"
        )
    return np.asarray(likelihood.given(f, likelihood.theta).cdf(y[:, None]))


def below(
    family: Family,
    likelihood: Likelihood,
    mean: Array,
    variance: Array,
    y: Array,
    trials: Array | None = None,
) -> Array:
    """P(Y <= y) for latent values N(mean, variance), each of shape (n,)."""

    def given(rows: NDArray[np.intp], f: Array) -> Array:
        own = None if trials is None else trials[rows]
        return below_given(family, likelihood, f, y[rows], own)

    if family.kind == "labels":
        # In closed form, or by one integral.
        low = np.exp(log_density(likelihood, mean, wide(variance), np.full(mean.shape, -1.0)))
        return np.where(y >= 1.0, 1.0, np.where(y >= -1.0, low, 0.0))
    with np.errstate(all="ignore"):
        return expect(given, mean, np.sqrt(wide(variance)))


def observation_quantiles(
    mixture: Mixture,
    likelihoods: Sequence[Likelihood],
    family: Family,
    seen: Array,
    q: Array,
    trials: Array | None = None,
) -> NDArray[Any]:
    """Quantiles of an observation, shape (R, Q): the smallest y with P(Y <= y) >= q.

    Of labels the class; of pairs the successes of so many trials.

    Parameters
    ----------
    mixture : Mixture
        Of linear predictors, with their offsets.
    likelihoods : sequence of Likelihood, length J
        With the parameters of each node.
    family : Family
    seen : ndarray
        Observations of the fit: where those of a likelihood can be that is known by its density
        alone. Its latent values are then taken to be normal, with the mixture's moments.
    q : ndarray, shape (Q,)
    trials : ndarray, shape (R,), optional
        Of pairs.
    """
    if family.kind == "counts":
        return count_quantiles(mixture, [one.parameters for one in likelihoods], q)
    if family.kind != "labels" and family.kind != "pairs" and likelihoods[0].given is None:
        best = likelihoods[int(np.argmax(mixture.weights))]
        mean, variance = mixture.moments()
        return Predicted.of(best, seen).quantiles(mean, variance, q)

    def total(rows: Any, y: Array) -> Array:
        own = None if trials is None else trials[rows]
        pairs = zip(likelihoods, mixture.mean, mixture.variance, strict=True)
        each = [below(family, one, m[rows], v[rows], y, own) for one, m, v in pairs]
        return np.asarray(mixture.weights @ np.array(each))

    R = mixture.mean.shape[1]
    if family.kind == "labels":
        assert family.classes is not None
        first = total(np.arange(R), np.full(R, -1.0))
        return family.classes[(first[:, None] < q).astype(int)]
    if family.kind == "pairs":
        assert trials is not None
        ends = np.full((1, R, len(q)), -1.0), np.broadcast_to(trials[:, None], (1, R, len(q)))
    else:
        pairs = zip(likelihoods, mixture.mean, mixture.variance, strict=True)
        each = np.array([quantiles_of_one(one, m, wide(v), q) for one, m, v in pairs])
        if len(each) == 1:
            return np.asarray(each[0])
        ends = each - (1.0 if discrete(family, likelihoods[0]) else 0.0), each
    # A mixture's quantile is between those of its parts.
    low, high = ends[0].min(axis=0), ends[1].max(axis=0)
    find = _smallest if discrete(family, likelihoods[0]) else _root
    found = [find(total, float(level), low[:, k], high[:, k]) for k, level in enumerate(q)]
    return np.column_stack(found)


def trials_of(given: ArrayLike | None, family: Family, rows: int) -> Array | None:
    """Trials of rows of pairs (T,), 1 by default; None for other families."""
    if family.kind != "pairs":
        if given is not None:
            raise InputError(f'trials are for family "binomial", not {family.kind}')
        return None
    found = np.asarray(1 if given is None else given, dtype=float)
    if found.shape not in ((), (rows,)):
        raise InputError(f"trials must be a number or have shape ({rows},), got {found.shape}")
    found = np.broadcast_to(found, (rows,))
    wrong = ~((found >= 0.0) & (found == np.floor(found)))
    if wrong.any():
        i = int(np.argmax(wrong))
        raise InputError(f"trials must be whole numbers from 0 on, got {found[i]:g} in row {i}")
    return found


def _smallest(total: Any, q: float, low: Array, high: Array) -> Array:
    """By bisection among whole numbers."""
    low, high = low.copy(), high.copy()
    while (wide_ones := np.flatnonzero(high - low > 1.0)).size:
        middle = np.floor(0.5 * (low[wide_ones] + high[wide_ones]))
        enough = total(wide_ones, middle) >= q
        high[wide_ones[enough]], low[wide_ones[~enough]] = middle[enough], middle[~enough]
    return high


def _root(total: Any, q: float, low: Array, high: Array) -> Array:
    """By the secant rule of Illinois on normal quantiles of P(Y <= y)."""
    aim, rows = float(ndtri(q)), np.arange(low.size)

    def off(some: Any, y: Array) -> Array:
        p = np.clip(total(some, y), _LEAST, 1.0 - 1e-16)
        return np.asarray(ndtri(p) - aim)

    low, high = low.copy(), high.copy()
    f_low, f_high = off(rows, low), off(rows, high)
    found = 0.5 * (low + high)
    # Both ends are the quantile where the parts agree.
    rows = rows[(f_low < 0.0) & (f_high > 0.0)]
    side = np.zeros(low.size)
    for _ in range(_SECANTS):
        if not rows.size:
            break
        gap = f_high[rows] - f_low[rows]
        y = (low[rows] * f_high[rows] - high[rows] * f_low[rows]) / gap
        found[rows] = y
        value = off(rows, y)
        above = value > 0.0
        up, down = rows[above], rows[~above]
        f_low[up] *= np.where(side[up] > 0.0, 0.5, 1.0)
        f_high[down] *= np.where(side[down] < 0.0, 0.5, 1.0)
        high[up], f_high[up], side[up] = y[above], value[above], 1.0
        low[down], f_low[down], side[down] = y[~above], value[~above], -1.0
        rows = rows[np.abs(value) > _SETTLED]
    return found
