"""Long tables: a row a series and a time, brought into rows of single series."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qpruntime._typing import Array
from qpruntime.dataframes.levels import numbers_of, object_array
from qpruntime.dataframes.readers import ColumnLike, DataColumns, DataLike
from qpruntime.errors import InputError
from qpruntime.forecasting.families import exposures_of

__all__ = ["LongTable"]


@dataclass(frozen=True, eq=False)
class LongTable:
    """Columns of all series, and which rows are of which.

    Attributes
    ----------
    labels : tuple
        Of the series, in their order of sorting.
    rows : list of ndarray of int
        Of each series.
    y, index, exposure
        Columns of all rows, or None.
    X : DataColumns or None
    """

    labels: tuple[Hashable, ...]
    rows: list[NDArray[np.intp]]
    y: ColumnLike
    X: DataColumns | None
    index: ColumnLike | None
    exposure: Array | None

    @classmethod
    def of(
        cls,
        y: ColumnLike,
        X: DataLike | None,
        by: ColumnLike | None,
        index: ColumnLike | None,
        exposure: ArrayLike | None,
        data: DataLike | None,
    ) -> LongTable:
        """Read columns, or names of columns of `data`.

        Raises
        ------
        InputError
            If lengths differ, a column is not there or rows have no label.
        """
        frame = None if data is None else DataColumns(data)
        labels = getattr(y, "index", None)
        if by is None and frame is None and getattr(labels, "nlevels", 1) == 2:
            by, index = (cast("Any", labels).get_level_values(k) for k in (0, 1))
        if by is None:
            raise InputError("by= says which series a row is of: give labels, or a column of data=")
        if frame is not None:
            several = isinstance(by, list | tuple) and all(isinstance(label, str) for label in by)
            if several and set(by) <= set(frame.names):
                by = object_array(zip(*(_labels(frame.levels(name)) for name in by), strict=True))
            elif isinstance(by, str):
                by = _column(frame, by)
            if isinstance(X, list | tuple | str):
                names = [X] if isinstance(X, str) else X
                X = {name: _column(frame, name) for name in names}
            y = _column(frame, y) if isinstance(y, str) else y
            index = _column(frame, index) if isinstance(index, str) else index
            exposure = _column(frame, exposure) if isinstance(exposure, str) else exposure
        series = DataColumns({"by": by})
        levels, distinct = series.levels("by"), series.distinct_levels("by")
        n = len(levels)
        columns = None if X is None else DataColumns(X)
        if columns is not None and columns.rows != n:
            raise InputError(f"X must have {n} rows, as by has, got {columns.rows}")
        for name, values in (("y", y), ("index", index)):
            if values is not None and len(values) != n:
                raise InputError(f"{name} must have {n} rows, as by has, got {len(values)}")
        known, place = tuple(_labels(distinct)), numbers_of(levels, distinct)
        order = np.argsort(place, kind="stable")
        rows = np.split(order, np.cumsum(np.bincount(place, minlength=len(known)))[:-1])
        return cls(known, rows, y, columns, index, exposures_of(exposure, n))

    def series(self, k: int) -> dict[str, Any]:
        """Return the arguments of `GPForecaster.fit` for one series."""
        return self.part(self.rows[k])

    def part(self, rows: NDArray[np.intp]) -> dict[str, Any]:
        """Return the arguments of `GPForecaster.fit` for some rows, with their types kept."""
        return {
            "y": _part_of(self.y, rows),
            "X": None if self.X is None else self.X.take(rows),
            "index": _part_of(self.index, rows),
            "exposure": None if self.exposure is None else self.exposure[rows],
        }


def _part_of(column: ColumnLike | None, rows: NDArray[np.intp]) -> ColumnLike | None:
    """Return these rows of an array, a series or an index."""
    if column is None:
        return None
    if hasattr(column, "iloc"):
        return cast("ColumnLike", column.iloc[rows])
    return cast("NDArray[Any]", column if hasattr(column, "dtype") else np.asarray(column))[rows]


def _column(frame: DataColumns, name: Hashable) -> ColumnLike:
    """Return a column unchanged: a pandas column keeps its time zone."""
    frame.column(name)
    return cast("ColumnLike", frame._raw(name))


def _labels(levels: NDArray[Any]) -> list[Any]:
    """Return levels as Python writes them; times as dates or datetimes."""
    fine = levels.dtype.kind == "M" and np.datetime_data(levels.dtype)[0] in ("ns", "ps", "fs")
    return list((levels.astype("datetime64[us]") if fine else levels).tolist())
