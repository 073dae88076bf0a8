"""Fixed effects: coefficients of columns, and an intercept.

Inside, columns have mean 0 and unit spread, so that one prior serves all; coefficients are reported
in the columns' own units. Text and booleans become contrasts with their first level.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import qr

from qpruntime._restorable import restorable
from qpruntime._typing import Array
from qpruntime._validation import flag, number, shown
from qpruntime.dataframes.levels import numbers_of, object_array
from qpruntime.dataframes.readers import DataColumns
from qpruntime.effects.term import EffectBlock, Term, diagonal_pattern, units_of_columns
from qpruntime.errors import InputError

__all__ = ["Fixed", "FixedBlock"]

#: Columns whose condition number is larger than this are said to be nearly dependent.
CONDITION = 1e8


@restorable("fixed/1")
class Fixed(Term):
    """Coefficients of columns, normal with mean 0 before the data.

    Parameters
    ----------
    *columns : str or int
        Columns of numbers, or of text and booleans, whose coefficients are differences from the
        first level.
    std : float
        Prior standard deviation of the coefficient of a column of unit spread.
    standardise : bool
        Whether columns are centred and brought to unit spread inside. Reported coefficients are in
        the columns' own units in either case.

    See Also
    --------
    qpruntime.effects.EffectsModel, qpruntime.effects.Groups

    Examples
    --------
    >>> from qpruntime.effects import Fixed
    >>> Fixed("dose", "arm")
    Fixed('dose', 'arm')
    """

    def __init__(self, *columns: Hashable, std: float = 10.0, standardise: bool = True) -> None:
        self.columns, self.std, self.standardise = columns, std, standardise

    def __repr__(self) -> str:
        return f"Fixed({', '.join(map(repr, self.columns))})"

    @property
    def name(self) -> str:
        """Name of the part."""
        return "fixed"

    def bind(self, data: DataColumns, weights: Array | None = None) -> FixedBlock:
        """Return the block of these columns alone."""
        return FixedBlock([self], data, intercept=None, weights=weights)


@restorable("fixed-block/1")
class FixedBlock(EffectBlock):
    """All fixed effects of a model: its intercept, and columns of several terms.

    Parameters
    ----------
    terms : list of Fixed
    data : DataColumns
    intercept : float or None
        Prior standard deviation of the intercept where columns are at their means; None for none.
    weights : ndarray, shape (N,), optional
        Positive weights of the rows, by which means and spreads of columns are taken.
    """

    def __init__(
        self,
        terms: list[Fixed],
        data: DataColumns,
        intercept: float | None,
        weights: Array | None = None,
    ) -> None:
        self.name = "fixed"
        self.intercept = intercept is not None
        self.sources: list[tuple[Any, Any]] = []
        self.known: dict[Any, Any] = {}
        std: list[float] = [] if intercept is None else [number(intercept, "intercept", above=0.0)]
        labels = ["intercept"] if self.intercept else []
        standardised: list[bool] = []
        for term in terms:
            prior_std = number(term.std, "std of Fixed", above=0.0)
            wanted = flag(term.standardise, "standardise")
            for column in term.columns:
                if not data.is_numeric(column):
                    self.known[column] = data.distinct_levels(column)
                for label, level in _parts(column, data):
                    if label in labels:
                        raise InputError(
                            f"column {shown(label)} is a fixed effect twice: name it once"
                        )
                    labels.append(label)
                    self.sources.append((column, level))
                    std.append(prior_std)
                    standardised.append(wanted)
        if not labels:
            raise InputError("a model without fixed effects needs intercept=True")
        values = self._values(data)
        share = np.ones(data.rows) if weights is None else weights
        share = share / share.sum()
        mean = share @ values
        spread = np.sqrt(share @ (values - mean) ** 2)
        constant = spread <= 1e-12 * np.abs(values).max(axis=0, initial=0.0)
        if constant.any():
            which = labels[int(self.intercept) + int(np.argmax(constant))]
            raise InputError(
                f"column {shown(which)} of Fixed has one value in all rows: leave it out, the "
                "intercept is that column"
            )
        wanted_here = np.array(standardised, dtype=bool)
        self.centre = np.where(wanted_here & self.intercept, mean, 0.0)
        self.scale = np.where(wanted_here, spread, 1.0)
        self.labels = np.array(labels)
        self.std = np.array(std)
        self.pattern = diagonal_pattern(len(labels))
        self.start, self.bounds = np.empty(0), np.empty((0, 2))
        self.condition, self.dependent = self._rank(data)

    def _values(self, data: DataColumns) -> Array:
        values = np.empty((data.rows, len(self.sources)))
        for j, (column, level) in enumerate(self.sources):
            if level is None:
                values[:, j] = data.numbers(column)
            else:
                values[:, j] = numbers_of(data.levels(column), object_array([level])) == 0
        return values

    def _rank(self, data: DataColumns) -> tuple[float, tuple[str, ...]]:
        """Condition number of the columns at unit length, and those that others explain."""
        A = self.columns(data).toarray()
        A = A / np.maximum(np.sqrt((A * A).sum(axis=0)), 1e-300)
        triangle, order = qr(A, mode="r", pivoting=True)
        size = np.abs(np.diagonal(triangle))
        if len(size) < A.shape[1]:
            size = np.concatenate([size, np.zeros(A.shape[1] - len(size))])
        least = float(size.min())
        condition = float(size.max() / least) if least > 0.0 else np.inf
        dependent = order[: len(size)][size < size.max() / CONDITION]
        return condition, tuple(str(self.labels[j]) for j in sorted(dependent))

    def columns(self, data: DataColumns) -> sparse.csr_array:
        """Columns of unit spread, after a column of ones."""
        values = (self._values(data) - self.centre) / self.scale
        if self.intercept:
            values = np.hstack([np.ones((data.rows, 1)), values])
        return sparse.csr_array(values)

    def ahead(self, data: DataColumns, theta: Array) -> tuple[sparse.csr_array, Array]:
        """Return the same columns; a level that was not there has no coefficient."""
        for column, levels in self.known.items():
            new = numbers_of(data.levels(column), levels, f"column {shown(column)}") < 0
            if new.any():
                value = data.levels(column)[int(np.argmax(new))]
                raise InputError(
                    f"column {shown(column)} has the level {shown(value)}, which has no "
                    "coefficient: fit rows that have it, or make the column a term Groups"
                )
        return self.columns(data), np.zeros(data.rows)

    @property
    def raw(self) -> Array:
        """Matrix that turns effects into coefficients in the columns' own units, (K, K)."""
        return units_of_columns(self.intercept, self.centre, self.scale)

    def readings(self) -> tuple[NDArray[Any], sparse.csr_array]:
        """Coefficients in the columns' own units."""
        return self.labels, sparse.csr_array(self.raw)

    def entries(self, theta: Array) -> tuple[Array, Array]:
        """Entries of the precision: a diagonal 1/std^2."""
        return self.std**-2.0, np.empty((0, self.size))

    def log_det(self, theta: Array) -> tuple[float, Array]:
        """Log determinant, which is constant."""
        return float(-2.0 * np.log(self.std).sum()), np.empty(0)

    def deviations(self, theta: Array) -> dict[str, Array]:
        """Return no deviations, because none are learnt."""
        return {}


def _parts(column: Hashable, data: DataColumns) -> list[tuple[str, Any]]:
    """Labels of the coefficients of a column, each with its level, None for numbers."""
    if data.is_numeric(column):
        return [(str(column), None)]
    levels = data.distinct_levels(column)
    if len(levels) < 2:
        raise InputError(
            f"column {shown(column)} of Fixed has one level, {shown(levels[0])}: leave it out, the "
            "intercept is that column"
        )
    return [(f"{column}[{level}]", level) for level in levels[1:]]
