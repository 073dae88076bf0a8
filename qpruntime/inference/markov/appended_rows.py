"""More rows for a series that has a posterior: checked, and sorted in among those it has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.inference.markov.observations import Series
from qpruntime.inference.markov.rows import Rows
from qpruntime.inference.markov.stream import Piece
from qpruntime.inference.markov.times import Clock
from qpruntime.inference.sites import Sites
from qpruntime.kernels.state_space import StateSpace
from qpruntime.projection.projector import Projector
from qpruntime.validation import finite, real

__all__ = ["More", "merged", "read_more", "with_times"]


@dataclass(frozen=True)
class More:
    """Times, observations, prior means and weights (M,) of rows that were observed.

    Those `seen` among so many `given`; weights are None if none were given.
    """

    t: Array
    y: Array
    prior: Array
    weights: Array | None
    seen: NDArray[np.intp]
    given: int

    def piece(self, before: int, scaled: bool) -> Piece:
        """Return these rows in order of time, without sites; so many rows were given before."""
        order = np.argsort(self.t, kind="stable")
        zero = np.zeros(self.t.size)
        return Piece(
            t=self.t[order],
            y=self.y[order],
            prior=self.prior[order],
            weights=None,
            scale=np.ones(self.t.size) if scaled else None,
            tau=zero,
            nu=zero,
            mean=zero,
            variance=zero,
            log_z=zero,
            index=before + order,
            marks=np.empty((0, 0)),
        )


def read_more(
    clock: Clock,
    projector: Projector | None,
    t: ArrayLike,
    y: ArrayLike,
    mean: ArrayLike,
    weights: ArrayLike | None,
) -> More:
    """Check rows that come later, as `SeriesPosterior.extend` takes them; NaN are dropped.

    Raises
    ------
    InputError
        If they are not usable, or there is no projector to observe them with.
    """
    if projector is None:
        raise InputError(
            "this posterior was pickled without its likelihood or table: call infer_series "
            "with all rows, and sites=post.sites for those it had"
        )
    new, given = clock.read(t), np.asarray(y)
    offset = finite(mean, "mean")
    if given.shape != new.shape or offset.shape not in ((), new.shape):
        raise InputError(f"y and mean must have shape {new.shape} like t, got {given.shape}")
    seen = np.flatnonzero(~np.isnan(real(y, "y")))
    events = projector.likelihood.validate(given[seen])
    projector.check_outcomes(events)
    checked = None if weights is None else finite(weights, "weights", new.shape)
    if checked is not None:
        if (checked < 0.0).any():
            raise InputError(f"weights must not be negative, got {checked.min():g}")
        projector.need_density("weights are integrated")
        checked = checked[seen]
    prior = np.array(np.broadcast_to(offset, new.shape)[seen])
    return More(new[seen], events, prior, checked, seen, new.size)


def merged(series: Series, sites: Sites, more: More) -> tuple[Series, Sites, NDArray[np.intp]]:
    """Sort rows in among those of a series, which have sites; theirs are none.

    The last is where each of the joined rows was: in the series, or behind it in `more`.
    """
    sort = np.argsort(np.concatenate([series.t, more.t]), kind="stable")

    def joined(values: Array, others: Array) -> Array:
        return np.concatenate([values, others])[sort]

    one, none = np.ones(more.t.size), np.zeros(more.t.size)
    weights = None
    if series.weights is not None or more.weights is not None:
        weights = joined(series.exponents, one if more.weights is None else more.weights)
    both = replace(
        series,
        t=joined(series.t, more.t),
        y=joined(series.y, more.y),
        prior=joined(series.prior, more.prior),
        weights=weights,
        scale=None if series.scale is None else joined(series.scale, one),
    )
    return both, Sites(joined(sites.tau, none), joined(sites.nu, none)), sort


def with_times(series: Series, space: StateSpace, sites: Sites, new: Array) -> tuple[Rows, Any]:
    """Return the rows of a series with T times at which nothing is observed, and where these are.

    Sites are about the prior mean.
    """
    both = np.concatenate([series.t, new])
    order = np.argsort(both, kind="stable")
    place = np.empty(both.size, dtype=np.intp)
    place[order] = np.arange(both.size)
    none = np.zeros(new.size)

    def joined(values: Array, more: Array) -> Array:
        return np.concatenate([values, more])[order]

    scale = None if series.scale is None else joined(series.scale, none + 1.0)
    grid = replace(series, t=both[order], scale=scale, weights=None)
    rows = Rows(grid, space, Sites(joined(sites.tau, none), joined(sites.nu, none)))
    return rows, place[series.t.size :]
