"""Effects of groups: an intercept for every level, slopes of columns, and their covariance."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import flag, shown
from qpruntime.dataframes.encoding import Coding, indicator_rows
from qpruntime.dataframes.readers import DataColumns
from qpruntime.effects.term import (
    COMPLEX_STEP,
    DEVIATION,
    LOG_DEVIATION,
    BlockPattern,
    EffectBlock,
    Term,
    deviation_prior,
    units_of_columns,
    with_complex_step,
)
from qpruntime.errors import InputError

__all__ = ["Groups", "GroupsBlock", "covariance_of"]


@restorable("groups/1")
class Groups(Term):
    """An effect for every level of a column, normal with one standard deviation.

    Levels may be of any kind. A level that was not fitted has the prior's effect.

    Parameters
    ----------
    *columns : str or int
        Whose levels have effects. Of several columns the combinations that occur do:
        ``Groups("school"), Groups("school", "class")`` are classes nested in schools, and
        ``Groups("plate"), Groups("sample")`` two crossed groups.
    slope : column or list of columns, optional
        The level's coefficients of these columns are effects as well.
    intercept : bool
        Whether each level has an intercept.
    correlated : bool
        Whether intercept and slopes of a level are correlated.
    prior : (limit, probability)
        P(sd > limit) = probability, for each standard deviation; slopes are those of columns of
        unit spread. Of families of real values the limit is in spreads of y.

    See Also
    --------
    qpruntime.effects.EffectsModel, qpruntime.effects.Fixed

    Notes
    -----
    Beside an intercept the columns of slopes are centred inside, so that a shift of a column
    changes the intercepts alone; what is reported of intercepts is at a value of 0. Without an
    intercept all levels agree where the column is 0, which is then part of the model. With
    ``correlated=False`` intercepts at the column's mean and slopes are independent.

    Examples
    --------
    >>> from qpruntime.effects import Groups
    >>> Groups("clinic", slope="dose").name
    'clinic(1 + dose)'
    """

    def __init__(
        self,
        *columns: Hashable,
        slope: Hashable | Sequence[Hashable] = None,
        intercept: bool = True,
        correlated: bool = True,
        prior: tuple[float, float] = DEVIATION,
    ) -> None:
        self.columns, self.slope, self.intercept = columns, slope, intercept
        self.correlated, self.prior = correlated, prior

    def __repr__(self) -> str:
        more = "" if self.slope is None else f", slope={self.slope!r}"
        return f"Groups({', '.join(map(repr, self.columns))}{more})"

    @property
    def slopes(self) -> tuple[Hashable, ...]:
        """Columns with slopes."""
        if self.slope is None:
            return ()
        return tuple(self.slope) if isinstance(self.slope, (list, tuple)) else (self.slope,)

    @property
    def name(self) -> str:
        """Name of the part."""
        levels = ":".join(map(str, self.columns))
        if not self.slopes:
            return levels
        sign = " + " if self.correlated else " | "
        parts = (["1"] if self.intercept else ["0"]) + [str(column) for column in self.slopes]
        return f"{levels}({sign.join(parts)})"

    def bind(self, data: DataColumns, weights: Array | None = None) -> GroupsBlock:
        """Return the block for the levels of these rows, whose weights scale columns of slopes."""
        if not self.columns:
            raise InputError('Groups needs a column whose levels have effects: Groups("clinic")')
        if not (flag(self.intercept, "intercept") or self.slopes):
            raise InputError("Groups with intercept=False needs slope=, a column or several")
        return GroupsBlock(self, data, weights)


@restorable("groups-block/1")
class GroupsBlock(EffectBlock):
    """Effects of K/d levels, d numbers each, level by level."""

    def __init__(self, term: Groups, data: DataColumns, weights: Array | None = None) -> None:
        self.name = term.name
        self.coding = Coding(term.columns, data)
        self.over = term.slopes
        self.intercept = bool(term.intercept)
        parts = (["intercept"] if self.intercept else []) + [str(name) for name in self.over]
        self.parts = tuple(parts)
        units = [_units(data.numbers(name), name, self.intercept, weights) for name in self.over]
        self.centre, self.scale = np.array(units).reshape(-1, 2).T
        d, n = len(parts), self.coding.size
        self.correlated = flag(term.correlated, "correlated") and d > 1
        levels = self.coding.labels
        self.labels = levels
        if d > 1:
            self.labels = np.array([f"{level}.{part}" for level in levels for part in parts])
        within = np.arange(d)
        rows, columns = (index.ravel() for index in np.meshgrid(within, within, indexing="ij"))
        if not self.correlated:
            rows, columns = within, within
        starts = d * np.arange(n)[:, None]
        self.pattern = BlockPattern((starts + rows).ravel(), (starts + columns).ravel(), n * d)
        self.cells = np.tile(rows * d + columns, n)
        self.priors = (deviation_prior(term.prior),) * d
        marks = [""] if d == 1 else [f" {part}" for part in parts]
        names = [f"log sd{mark}" for mark in marks]
        if self.correlated:
            names += [f"atanh {parts[i]}, {parts[j]}" for i in range(d) for j in range(i)]
        self.parameters = tuple(names)
        self.start = np.concatenate([np.full(d, np.log(0.5)), np.zeros(len(names) - d)])
        self.bounds = np.array([LOG_DEVIATION] * d + [(-4.0, 4.0)] * (len(names) - d))

    @property
    def width(self) -> int:
        """Numbers of a level."""
        return len(self.parts)

    def _numbers(self, data: DataColumns) -> Array:
        """Return the numbers by which each row multiplies those of its level, (N, d)."""
        units = zip(self.over, self.centre, self.scale, strict=True)
        slopes = [(data.numbers(name) - c) / s for name, c, s in units]
        return np.column_stack(([np.ones(data.rows)] if self.intercept else []) + slopes)

    def columns(self, data: DataColumns) -> sparse.csr_array:
        """Rows of known levels; of others they are empty."""
        rows, codes = indicator_rows(self.coding.codes(data))
        d, values = self.width, self._numbers(data)
        places = d * codes[:, None] + np.arange(d)
        shape = (data.rows, self.size)
        entries = values[rows].ravel()
        design = sparse.coo_array((entries, (np.repeat(rows, d), places.ravel())), shape=shape)
        return sparse.csr_array(design)

    def ahead(self, data: DataColumns, theta: Array) -> tuple[sparse.csr_array, Array]:
        """Return the same columns; rows of unknown levels vary as the prior has it."""
        unknown = self.coding.codes(data) < 0
        values = self._numbers(data)[unknown]
        S = covariance_of(self._full(theta), self.width)
        variance = np.zeros(data.rows)
        variance[unknown] = ((values @ S) * values).sum(axis=1)
        return self.columns(data), variance

    def readings(self) -> tuple[NDArray[Any], sparse.csr_array]:
        """Return intercepts where the columns are 0, and slopes in units of their columns."""
        identity = sparse.eye_array(self.coding.size)
        return self.labels, sparse.csr_array(sparse.kron(identity, sparse.csr_array(self.raw)))

    @property
    def raw(self) -> Array:
        """Matrix (d, d) that turns a level's numbers into those of the columns as they are."""
        return units_of_columns(self.intercept, self.centre, self.scale)

    def _full(self, theta: Array) -> Array:
        d = self.width
        missing = d * (d - 1) // 2 + d - len(theta)
        return np.concatenate([theta, np.zeros((missing, *theta.shape[1:]))])

    def entries(self, theta: Array) -> tuple[Array, Array]:
        """Return the inverse of S for every level."""
        d = self.width
        inverse, slopes = precision_of(self._full(theta), d)
        entries = self.pattern.added(inverse.ravel()[self.cells])
        block_slopes = slopes[: len(theta)].reshape(len(theta), -1)
        return entries, np.array(
            [self.pattern.added(entry_slopes[self.cells]) for entry_slopes in block_slopes]
        )

    def log_det(self, theta: Array) -> tuple[float, Array]:
        """-G log |S| for G levels."""
        value, slope = log_det_of(self._full(theta), self.width)
        count = self.coding.size
        return -count * value, -count * slope[: len(theta)]

    def log_prior(self, theta: Array) -> tuple[float, Array]:
        """Exponential deviations, and correlation matrices that are uniform."""
        d = self.width
        value, slope = super().log_prior(theta[:d])
        if not self.correlated:
            return value, slope
        more, partial = log_prior_of_partials(theta[d:], d)
        return value + more, np.concatenate([slope, partial])

    def deviations(self, theta: Array) -> dict[str, Array]:
        """Return the standard deviations in units of the columns, and correlations."""
        d = self.width
        S = np.einsum("ai,ij...,bj->ab...", self.raw, covariance_of(self._full(theta), d), self.raw)
        std = np.sqrt(np.einsum("aa...->a...", S))
        marks = [""] if d == 1 else [f" {part}" for part in self.parts]
        deviations = {f"sd{m}": s for m, s in zip(marks, std, strict=True)}
        if self.correlated:
            for i in range(d):
                for j in range(i):
                    where = f"correlation {self.parts[i]}, {self.parts[j]}"
                    deviations[where] = S[i, j] / (std[i] * std[j])
        return deviations


def _units(
    values: Array, name: Hashable, centred: bool, weights: Array | None
) -> tuple[float, float]:
    """Centre and spread of a column that has slopes; without an intercept it keeps its origin."""
    centre = float(np.average(values, weights=weights)) if centred else 0.0
    spread = float(np.sqrt(np.average((values - centre) ** 2, weights=weights)))
    if not spread > 1e-12 * float(np.abs(values).max(initial=0.0)):
        what = f"is {values[0]:g} in all rows" if centred else "is 0 in all rows"
        raise InputError(f"column {shown(name)}, which has slopes, {what}: leave it out")
    return centre, spread


# --- Covariances S = D R D of the d random effects of a group ------------------------------------


def _factor(theta: Array, d: int) -> Array:
    """Cholesky factor of S; of complex theta too."""
    std, partial = np.exp(theta[:d]), np.tanh(theta[d:])
    L = np.zeros((d, d, *theta.shape[1:]), dtype=theta.dtype)
    k = 0
    for i in range(d):
        remaining = np.ones(theta.shape[1:], dtype=theta.dtype)
        for j in range(i):
            L[i, j] = partial[k] * np.sqrt(remaining)
            remaining = remaining * (1.0 - partial[k] ** 2)
            k += 1
        L[i, i] = np.sqrt(remaining)
    return std[:, None] * L


def covariance_of(theta: Array, d: int) -> Array:
    """S, shape (d, d), or (d, d, D) for theta (p, D)."""
    L = _factor(theta, d)
    return np.asarray(np.einsum("ik...,jk...->ij...", L, L))


def precision_of(theta: Array, d: int) -> tuple[Array, Array]:
    """Inverse of S, shape (d, d), and its derivatives by theta, (p, d, d)."""

    def inverse(at: Array) -> Array:
        root = np.linalg.inv(_factor(at, d))
        return root.T @ root

    slopes = np.empty((len(theta), d, d))
    for k in range(len(theta)):
        slopes[k] = inverse(with_complex_step(theta, k)).imag / COMPLEX_STEP
    return inverse(theta), slopes


def log_det_of(theta: Array, d: int) -> tuple[float, Array]:
    """Return log |S| and its slopes."""
    t, slope = theta[d:], np.zeros(len(theta))
    value = 2.0 * float(theta[:d].sum())
    slope[:d] = 2.0
    # |R| is the product of 1 - partial^2.
    value -= 2.0 * float((np.logaddexp(t, -t) - np.log(2.0)).sum())
    slope[d:] = -2.0 * np.tanh(t)
    return value, slope


def log_prior_of_partials(t: Array, d: int) -> tuple[float, Array]:
    """Log density of atanh of partial correlations with R uniform, not normalised, and slopes."""
    # The partial correlation in column j has density (1 - p^2)^((d - j)/2 - 1), and the Jacobian
    # of tanh is one power more.
    columns = np.array([j for i in range(d) for j in range(i)], dtype=float)
    power = 0.5 * (d - 2.0 - columns) + 1.0
    log_cosh = np.logaddexp(t, -t) - np.log(2.0)
    return float((-2.0 * power * log_cosh).sum()), -2.0 * power * np.tanh(t)
