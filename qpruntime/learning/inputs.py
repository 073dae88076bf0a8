"""Rows and observations that a fit learns from: read once, and handed on as one value.

Rows with equal features are one group unless the user names groups: after oversampling, or where a
subject has several rows, the rest of a group knows what the row that is left out would say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import cast

import numpy as np
from numpy.typing import NDArray
from sklearn.gaussian_process.kernels import Kernel

from qpruntime._memory import require
from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime.dataframes.encoding import EncodedTable
from qpruntime.dataframes.lazy_rows import (
    LazyInputs,
    chunk_count,
    chunk_slice,
    mapped,
    read,
    sample as read_rows,
)
from qpruntime.inference.leave_groups import leave_groups_out
from qpruntime.inference.multiclass.linalg import Layout
from qpruntime.inference.posterior import Posterior, moved_to
from qpruntime.inference.sparse.rows import ChunkedRows, rows_of
from qpruntime.kernels.derivative_covariance import DerivativeRows
from qpruntime.learning.inducing_points import SAMPLE, sample
from qpruntime.learning.scaling import Units, Warp
from qpruntime.projection.projector import Projector

__all__ = ["Data", "InputView", "Inputs", "RowGroups", "Slopes", "equal_rows"]


@dataclass(frozen=True, eq=False)
class Inputs:
    """Rows of a fit, and what is known of them.

    Parameters
    ----------
    rows : ndarray or LazyInputs, shape (N, d)
    names : tuple of str
        Names of the columns that the user gave, if they have any.
    table : EncodedTable, optional
        Levels and missing values of these columns.
    groups : RowGroups, optional
        Rows that are left out together; without them each row is left out alone.
    """

    rows: Array | LazyInputs
    names: tuple[str, ...] = ()
    table: EncodedTable | None = None
    groups: RowGroups | None = None

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self.rows.shape[0])

    @property
    def width(self) -> int:
        """Number of columns."""
        return int(self.rows.shape[1])

    @property
    def levels(self) -> tuple[int, ...]:
        """Columns that are codes of levels."""
        return () if self.table is None else self.table.categorical

    @property
    def stored(self) -> bool:
        """True if rows are read in parts."""
        return not isinstance(self.rows, np.ndarray) or isinstance(self.rows, np.memmap)

    @property
    def X(self) -> Array:
        """Rows that are in memory."""
        assert isinstance(self.rows, np.ndarray)
        return self.rows

    def in_memory(self) -> Inputs:
        """Return all rows in memory, even those that could be read in parts."""
        if not self.stored:
            return self
        n, width = len(self), self.width
        require(
            8.0 * n * width,
            f"X of shape {n, width}, read at once",
            "inducing=200 reads it in parts, as does the default where kernel, solver, method, "
            "correction, and in optimize= objective and restarts, are left as they are",
        )
        return replace(self, rows=self.block(slice(0, n)))

    def block(self, rows: slice) -> Array:
        """Return successive rows."""
        return read(self.rows, rows) if self.stored else self.X[rows]

    def at(self, indices: NDArray[np.intp]) -> Array:
        """Return some rows, in ascending order."""
        return read_rows(self.rows, indices) if self.stored else self.X[indices]

    def mapped(self, function: Callable[[Array], Array], width: int) -> Inputs:
        """Return rows of another number of columns, each a function of one row."""
        rows = mapped(self.rows, function, width) if self.stored else function(self.X)
        return replace(self, rows=rows)

    def chunked(
        self, y: Array, weights: Array | None, prior: Array, scale: Array | None
    ) -> ChunkedRows:
        """Return the rows with their observations, as engines with inducing points take them."""
        return rows_of(self.rows, y, weights, prior if prior.any() else None, scale)


@dataclass(frozen=True, eq=False)
class InputView:
    """Inputs with the transform and the units in which a kernel is learnt."""

    inputs: Inputs
    warp: Warp | None
    units: Units

    @classmethod
    def fitted(
        cls,
        inputs: Inputs,
        weights: Array | None,
        rng: np.random.Generator,
        ranks: bool,
        most: int = SAMPLE,
        deviations: bool = False,
    ) -> InputView:
        """Fit the transform and the units to all rows, or to a sample of more than `most` rows.

        Rows that are read in parts are always sampled; `deviations` is that of `Units.of`.
        """
        points, mass = inputs.rows, weights
        if inputs.stored or len(inputs) > most:
            rows = sample(len(inputs), SAMPLE, rng)
            points, mass = inputs.at(rows), None if weights is None else weights[rows]
        assert isinstance(points, np.ndarray)
        if not ranks:
            return cls(inputs, None, Units.of(points, mass, inputs.levels, deviations))
        warp = Warp.of(points, mass, inputs.levels)
        return cls(inputs, warp, Units.of(warp(points), mass, inputs.levels, deviations))

    @cached_property
    def features(self) -> Inputs:
        """Features that the user's kernel is a function of."""
        return self.inputs.mapped(self.warp, self.inputs.width) if self.warp else self.inputs

    @cached_property
    def scaled(self) -> Inputs:
        """Features in the units of the kernel that is learnt."""
        return self.features.mapped(self.units.scaled, self.units.width)

    def points(self, X: Array) -> Array:
        """Return points (n, d) like the rows, transformed and scaled."""
        return self.units.scaled(self.warp(X) if self.warp else X)

    def of_features(self, kernel: Kernel, posterior: Posterior) -> tuple[Kernel, Posterior]:
        """Return a kernel and a posterior of the features in place of the scaled ones."""
        kernel, rows = self.units.kernel_of_features(kernel), cast(Array, self.features.rows)
        return kernel, moved_to(posterior, kernel, rows, self.units.unscaled)


# --- Groups of rows that are left out together

# Multipliers and shifts of the finaliser of SplitMix64 (Steele, Lea & Flood, OOPSLA 2014).
_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
_LAST = np.uint64(31)


class RowGroups:
    """Group of each row.

    Parameters
    ----------
    rows : ndarray or LazyInputs, shape (N, d), or None
        Read when the groups are first asked for; None if they are given.
    given : ndarray of int, shape (N,), or None
        Groups that the user names; by default rows with equal features are a group.
    """

    def __init__(
        self, rows: Array | LazyInputs | None, given: NDArray[np.intp] | None = None
    ) -> None:
        self._rows, self._given = rows, given

    @cached_property
    def codes(self) -> NDArray[np.intp]:
        """Number of the group of each row, shape (N,)."""
        if self._given is None:
            return self._equal
        return np.unique(self._given, return_inverse=True)[1].astype(np.intp)

    @cached_property
    def _equal(self) -> NDArray[np.intp]:
        assert self._rows is not None
        return equal_rows(self._rows)

    @cached_property
    def count(self) -> int:
        """Number of groups."""
        return int(self.codes.max()) + 1 if self.codes.size else 0

    @property
    def repeat(self) -> bool:
        """True if any group has two rows."""
        return self.count < self.codes.size

    @cached_property
    def coincide(self) -> bool:
        """True if all rows of a group have equal features."""
        if self._given is None:
            return True
        pairs = np.unique(np.column_stack([self.codes, self._equal]), axis=0)
        return len(pairs) == self.count

    def subset(self, rows: slice | NDArray[np.intp]) -> RowGroups:
        """Return the groups of these rows."""
        subset = RowGroups(None, self.codes[rows])
        subset.__dict__["coincide"] = self.coincide
        return subset

    def pooled(self, values: Array, rows: NDArray[np.intp] | slice = slice(None)) -> Array:
        """Sum values (..., n) by group, times the number of groups per row, which keeps the mean.

        Rows of one group carry the same information, so the standard error of a mean is that of its
        groups.
        """
        codes = np.unique(self.codes[rows], return_inverse=True)[1]
        count = int(codes.max()) + 1
        if count == codes.size:
            return values
        sums = [np.bincount(codes, row, minlength=count) for row in np.atleast_2d(values)]
        return np.reshape(sums, (*values.shape[:-1], count)) * (count / codes.size)

    def pooled_codes(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the group of each of the values that `pooled` returns for rows."""
        codes = self.codes[rows]
        groups = np.unique(codes)
        return codes if groups.size == codes.size else groups

    def left_out(self, posterior: Posterior, rows: NDArray[np.intp] | None = None) -> Array:
        """Return log predictive densities of rows without all rows of their groups."""
        if not self.repeat:
            return np.asarray(posterior.loo(rows))
        indices = np.arange(self.codes.size) if rows is None else rows
        return leave_groups_out(posterior, self.codes, indices, self.coincide)


def equal_rows(rows: Array | LazyInputs) -> NDArray[np.intp]:
    """Return labels (N,) that are equal for equal rows (N, d).

    Rows are compared by a 64-bit hash. Among a million distinct rows, two have the same hash with
    probability 3e-8.
    """
    inputs = Inputs(rows)
    n = len(inputs)
    hashes = np.empty(n, np.uint64)
    for number in range(chunk_count(n)):
        block = chunk_slice(number, n)
        hashes[block] = _marks(inputs.block(block))
    return np.unique(hashes, return_inverse=True)[1].astype(np.intp)


def _marks(X: Array) -> NDArray[np.uint64]:
    """Return 64 bits for each row; 0 and -0 are equal, and so is all that is not a number."""
    points = np.array(X, dtype=np.float64) + 0.0
    points[np.isnan(points)] = np.nan
    marks = np.zeros(len(points), np.uint64)
    for column in np.ascontiguousarray(points.T).view(np.uint64):
        marks = (marks + _STEP) ^ column
        for shift, times in _MIX:
            marks = (marks ^ (marks >> shift)) * times
        marks ^= marks >> _LAST
    return marks


# --- Data that one process is fitted to


@dataclass(frozen=True)
class Data:
    """Data that one process is fitted to; the fields are arguments of `optimise.maximise`.

    The projector is of the method that the posterior is to have; `prior` is the prior mean of f.
    Rows observe `scale` times f. Weights and scales are positive, and None if all are 1. `discrete`
    says that p(y|f) is a probability, not a density. If there are `slopes` of f, every array with a
    row for each observation has their rows after those of X. The signs of the slopes are observed
    by the likelihood of the labels, or by the probit if that likelihood has no labels; `own_signs`
    is False then. `joint` has the rows of classes fitted jointly; `y` then has a row for each site.
    """

    inputs: Inputs
    y: Array
    projector: Projector
    prior: Array
    weights: Array | None = None
    scale: Array | None = None
    learn: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    discrete: bool = True
    slopes: Slopes | None = None
    own_signs: bool = True
    joint: Layout | None = None

    @property
    def X(self) -> Array:
        """Inputs that are in memory, shape (N, d)."""
        return self.inputs.X

    @property
    def groups(self) -> RowGroups | None:
        """Rows that are left out together."""
        return self.inputs.groups

    @property
    def observed_prior(self) -> Array:
        """Prior mean of what is observed, `scale` times that of f."""
        return self.prior if self.scale is None else self.prior * self.scale


# --- Observed slopes


@restorable("slopes/1")
@dataclass(frozen=True)
class Slopes:
    """Points and directions of observed slopes.

    Attributes
    ----------
    where : ndarray, shape (M, d)
    feature : ndarray of int, shape (M,)
        Feature that each slope is along.
    times : ndarray, shape (M,)
        Factor of each slope in what is observed.
    """

    where: Array
    feature: NDArray[np.intp]
    times: Array

    def scaled(self, units: Units) -> Slopes:
        """Return these slopes for scaled features."""
        kept = np.cumsum(units.spread > 0.0) - 1
        times = self.times / units.spread[self.feature]
        return Slopes(units.scaled(self.where), kept[self.feature], times)

    def unscaled(self, units: Units, first: Slopes) -> Slopes:
        """Return these slopes for the features themselves; those of `first` keep their points."""
        kept = np.flatnonzero(units.spread > 0.0)
        feature = kept[self.feature]
        where = units.unscaled(self.where)
        where[: len(first.where)] = first.where
        return Slopes(where, feature, self.times * units.spread[feature])

    def joined(self, other: Slopes) -> Slopes:
        """Return these slopes, followed by others."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Slopes(*(np.concatenate(pair) for pair in pairs))

    def asked(self, X: Array) -> DerivativeRows:
        """Return rows of the function at X, followed by these slopes."""
        return DerivativeRows.both(X, self.where, self.feature)

    def scales(self, n: int, scale: Array | float | None = None) -> Array:
        """Return the factors of n values, followed by those of slopes, shape (n + M,)."""
        values = np.broadcast_to(1.0 if scale is None else scale, n)
        return np.concatenate([values, self.times])
