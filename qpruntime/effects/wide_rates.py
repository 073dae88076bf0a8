"""Predictions of counts whose log rates are wide, which no normal density describes.

A row of zeros bounds its log rate from above and not from below: the density has a cliff on one
side, and a normal density of its moments promises rates that the counts rule out.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from qpruntime._typing import Array
from qpruntime.dataframes.readers import DataColumns
from qpruntime.effects.objective import EffectsObjective
from qpruntime.effects.state import EffectsState
from qpruntime.errors import CorrectionWarning, NumericalError, warn
from qpruntime.inference.corrections.marginals import CorrectedMarginals
from qpruntime.inference.precision.posterior import PrecisionPosterior
from qpruntime.inference.precision.solution import MOST_CORRECTED_ROWS
from qpruntime.inference.sites import Sites
from qpruntime.predictive.mixtures import FAR_TAIL_VARIANCE, Mixture

__all__ = ["FEW_ROWS", "PredictorPart", "correct_rates", "parts_by_width", "wide_variance"]

#: Rows up to which coefficients are profiled by default, and rates above `_WIDE` corrected; with
#: more rows it is those above `FAR_TAIL_VARIANCE`.
FEW_ROWS = 2000
#: Variance of a log rate above which its mean is not that of a normal density: for a count of 0 it
#: is 10 % off at 1.5, 30 % at 3, and twice as large at 5.
_WIDE = 1.0
#: Events expected in a short time, as a logarithm.
_SHORT = 20.0
#: Wide rates for which EP runs once more: from 8 to 600, such that their number times that of rows
#: is at most this. Evidences are corrected up to 500 rows.
_RATES, _RATES_TIMES_ROWS, _FEW_PAIRED = (8, 600), 30_000, 500
#: Tolerance of the sites with one more event: it leaves errors of 3e-4 in the logarithm of a rate.
_EVENT_TOL = 1e-4
#: Share of each step where whole steps do not settle.
_DAMPING = 0.3
#: Largest logarithm of a number of double precision.
_LARGEST = 709.0
#: Largest distance allowed between logarithms of two corrected variances.
_MOST_SPREAD = 0.2
#: Levels between which a wide density is replaced by a normal one of the same mean and variance.
#: They are closest where counts come from.
_LEVELS = np.array(
    [0.0, 0.002, 0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.96, 0.985, 0.995, 0.999, 0.9999, 1.0]
)


class PredictorPart(NamedTuple):
    """Linear predictors of some rows, as mixtures of the same number of normals.

    Attributes
    ----------
    rows : ndarray of int, shape (R,)
    mixture : Mixture
        J normals for each of the R rows, without offsets.
    nodes : ndarray of int, shape (J,)
        Node of the hyper-parameters to which each normal belongs.
    tops : ndarray, shape (J, R), or None
        Largest predictor, without offset, that each normal stands for; None if it has no end.
    """

    rows: NDArray[np.intp]
    mixture: Mixture
    nodes: NDArray[np.intp]
    tops: Array | None = None

    def expected(self, rates: Array, offset: Array, count: int) -> Array:
        """Average expected counts (J, R) of the normals over those of each node, (count, R)."""
        if self.tops is not None:
            # A normal reaches beyond the levels between which it stands for a density.
            rates = np.minimum(rates, np.exp(np.minimum(self.tops + offset, _LARGEST)))
        totals = np.zeros((count, rates.shape[1]))
        np.add.at(totals, self.nodes, self.mixture.weights[:, None] * rates)
        weights = np.bincount(self.nodes, self.mixture.weights, count)
        return totals / weights[:, None]


def parts_by_width(
    state: EffectsState, data: DataColumns, mixture: Mixture
) -> tuple[PredictorPart, ...]:
    """Split rows into those with normal linear predictors at each node, and wide log rates.

    Parameters
    ----------
    state : EffectsState
    data : DataColumns
        T rows.
    mixture : Mixture
        Their linear predictors without offsets, a normal at each node.

    Returns
    -------
    tuple of PredictorPart
        The shape of a wide density is that of the corrected marginal at the node of the largest
        weight, moved and stretched to the mean and the variance at each node. It is a mixture of
        13 normals. Rows stay normal if the fit has more rows than corrections take, or two
        corrections of the variance differ by a fifth.
    """
    nodes = np.arange(len(mixture.weights))
    everything = PredictorPart(np.arange(data.rows), mixture, nodes)
    is_wide = (mixture.variance > FAR_TAIL_VARIANCE).any(axis=0)
    if state.family.kind != "counts" or state.rows > MOST_CORRECTED_ROWS or not is_wide.any():
        return (everything,)
    rows = np.flatnonzero(is_wide)
    designs, unknown = _designs(state, data.take(rows))
    known = mixture.variance[:, rows] - unknown
    inner = (known > FAR_TAIL_VARIANCE).any(axis=0)
    if not inner.any():
        return (everything,)
    rows, unknown, known = rows[inner], unknown[:, inner], known[:, inner]
    best = int(np.argmax(mixture.weights))
    try:
        marginals, places = _distinct_marginals(state, best, designs[best][np.flatnonzero(inner)])
    except NumericalError:
        return (everything,)
    reliable = marginals.spread[places] < _MOST_SPREAD
    if not reliable.any():
        return (everything,)
    rows, places = rows[reliable], places[reliable]
    unknown, known = unknown[:, reliable], known[:, reliable]
    means, variances, tops = _shape(marginals, mixture.mean[best, rows], known[best], places)
    weights = np.diff(_LEVELS)
    # Normals by node, then by level.
    mean = mixture.mean[:, None, rows] + np.sqrt(known)[:, None] * means
    variance = known[:, None] * variances + unknown[:, None]
    # An unknown part of variance v multiplies an expected rate by e^(v/2).
    top = mixture.mean[:, None, rows] + np.sqrt(known)[:, None] * tops + 0.5 * unknown[:, None]
    wide = Mixture(
        mean.reshape(-1, rows.size),
        variance.reshape(-1, rows.size),
        np.outer(mixture.weights, weights).ravel(),
    )
    others = np.setdiff1d(everything.rows, rows)
    tops = top.reshape(-1, rows.size)
    part = PredictorPart(rows, wide, np.repeat(nodes, weights.size), tops)
    if not others.size:
        return (part,)
    return PredictorPart(others, mixture.at(others), nodes), part


def _designs(state: EffectsState, data: DataColumns) -> tuple[list[sparse.csr_array], Array]:
    """Return the design of rows at each node, and the variance (J, T) of what is unknown there."""
    thetas = [state.split(theta)[0] for theta in state.nodes.theta]
    designs, unknown = zip(*state.assembly.ahead(data, thetas), strict=True)
    return list(designs), np.array(unknown)


def _key(row: sparse.csr_array) -> Hashable:
    return row.indices.tobytes(), row.data.tobytes()


def _distinct_marginals(
    state: EffectsState, k: int, design: sparse.csr_array
) -> tuple[CorrectedMarginals, NDArray[np.intp]]:
    """Return corrected marginals of distinct rows at a node, and the place of each row in them."""
    first: dict[Hashable, int] = {}
    chosen: list[int] = []
    places = np.empty(design.shape[0], dtype=np.intp)
    for t in range(design.shape[0]):
        key = _key(design[[t]])
        if key not in first:
            first[key] = len(chosen)
            chosen.append(t)
        places[t] = first[key]
    # The fit has said what there is to say.
    with warnings.catch_warnings(action="ignore"):
        posterior = _posterior(state.objective(), state, k)
        return posterior.marginals(design[chosen], mean=0.0, correction="blend"), places


def _shape(
    marginals: CorrectedMarginals, mean: Array, variance: Array, places: NDArray[np.intp]
) -> tuple[Array, Array, Array]:
    """Return mean, variance and maximum of (f - mean)/std between levels, each of shape (B, R)."""
    points, weights = marginals.densities.points[places], marginals.densities.weights[places]
    weights = weights / weights.sum(axis=1, keepdims=True)
    z = (points - mean[:, None]) / np.sqrt(variance)[:, None]
    above = np.cumsum(weights, axis=1)
    below = above - weights
    means, variances, tops = np.empty((3, _LEVELS.size - 1, len(places)))
    for b, (low, high) in enumerate(pairwise(_LEVELS)):
        share = np.maximum(np.minimum(above, high) - np.maximum(below, low), 0.0)
        share /= share.sum(axis=1, keepdims=True)
        means[b] = (share * z).sum(axis=1)
        variances[b] = (share * (z - means[b][:, None]) ** 2).sum(axis=1)
        tops[b] = np.where(share > 0.0, z, -np.inf).max(axis=1)
    return means, variances, tops


def correct_rates(
    state: EffectsState,
    data: DataColumns,
    offset: Array,
    mixture: Mixture,
    rates: Array,
    is_normal: NDArray[np.bool_],
) -> None:
    """Replace expected counts where log rates are wide.

    The mean of e^f under a wide normal is made by its upper tail, which the counts may rule out.
    Here it is the probability of one event in a short time, divided by that time: the evidence of
    the data with one more row that counts 1, over the evidence without.

    Parameters
    ----------
    state : EffectsState
    data : DataColumns
        T rows.
    offset : ndarray, shape (T,)
    mixture : Mixture
        Log rates without offsets, a normal at each node.
    rates : ndarray, shape (J, T)
        Expected counts, which change where log rates are wide: NaN there if EP does not settle
        with the additional row, or pairs of a row and a node are more than a call corrects.
    is_normal : ndarray of bool, shape (T,)
        Rows whose `rates` are those of normal densities.

    Warns
    -----
    CorrectionWarning
        If a call leaves out normal log rates with a variance above 4.
    """
    designs, unknown = _designs(state, data)
    variance = mixture.variance - unknown
    most = int(np.clip(_RATES_TIMES_ROWS // state.rows, *_RATES))
    ratios = _EventRatios(state)
    logs: dict[Hashable, float] = {}
    is_wide = variance > wide_variance(state)
    is_corrected = np.zeros(data.rows, dtype=bool)
    rates[is_wide] = np.nan
    # Every row is corrected at the node of the largest weight before any is at the next.
    for k in np.argsort(-state.nodes.weights, kind="stable"):
        for t in np.flatnonzero(is_wide[k]):
            row = designs[k][[t]]
            key = k, _key(row)
            if key not in logs:
                if len(logs) >= most:
                    continue
                # An event is rare in it even at the rate that makes the mean of a normal density.
                far = float(mixture.mean[k, t] + mixture.variance[k, t])
                logs[key] = ratios.log_rate(k, row, far)
            is_corrected[t] = True
            with np.errstate(over="ignore"):
                rates[k, t] = np.exp(logs[key] + offset[t] + 0.5 * unknown[k][t])
    left_out = (variance > FAR_TAIL_VARIANCE).any(axis=0) & is_normal & ~is_corrected
    if left_out.any():
        warn(
            f"expected counts of {left_out.sum()} rows are those of a normal log rate with "
            f"a variance above {FAR_TAIL_VARIANCE:g}, whose far tail the counts may rule out: "
            f"of {state.rows} rows a call corrects at most {most} pairs of a row and a node of the "
            "hyper-parameters; predict fewer different rows at a time",
            CorrectionWarning,
        )


class _EventRatios:
    """Expected rates by the evidence of one more event."""

    def __init__(self, state: EffectsState) -> None:
        self._state, self._objective = state, state.objective()
        self._level = float(np.log((1.0 + state.y.sum()) / np.exp(state.offset).sum()))
        self._evidences: dict[int, float] = {}
        self._with_event: dict[Hashable, EffectsObjective] = {}

    def log_rate(self, k: int, row: sparse.csr_array, far: float) -> float:
        """Return the log of the expected rate of a row at a node; NaN if EP does not settle.

        `far` is the log of a rate that is rarely exceeded.
        """
        time = -_SHORT - max(self._level, far)
        theta, key = self._state.nodes.theta[k], _key(row)
        with warnings.catch_warnings(action="ignore"):
            try:
                if k not in self._evidences:
                    self._evidences[k] = _evidence(_posterior(self._objective, self._state, k))
                if key not in self._with_event:
                    self._with_event[key] = self._objective.with_row(row, 1.0, time)
                objective = self._with_event[key]
                objective.offset[-1] = time
                # An event moves all sites by far: from those without it sweeps would go in circles.
                with_event = objective.posterior(theta, tol=_EVENT_TOL)
                if not with_event.converged:
                    with_event = objective.posterior(theta, tol=_EVENT_TOL, damping=_DAMPING)
                return _evidence(with_event) - self._evidences[k] - time
            except NumericalError:
                return np.nan


def wide_variance(state: EffectsState) -> float:
    """Return the variance of a log rate above which its mean is corrected."""
    return _WIDE if state.rows <= FEW_ROWS else FAR_TAIL_VARIANCE


def _posterior(objective: EffectsObjective, state: EffectsState, k: int) -> PrecisionPosterior:
    """Return the posterior at a node."""
    return objective.posterior(state.nodes.theta[k], sites=Sites(*state.sites[k]))


def _evidence(posterior: PrecisionPosterior) -> float:
    """Return the log evidence, corrected where pairs of rows are few; NaN if sites move."""
    if not posterior.converged:
        return np.nan
    if len(posterior.mean) > _FEW_PAIRED:
        return posterior.log_evidence
    return posterior.corrected_evidence().value
