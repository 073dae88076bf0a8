"""Long tables: a row a series and a time, brought into rows of single series."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qpruntime._validation import real
from qpruntime.dataframes.levels import numbers_of, object_array
from qpruntime.dataframes.readers import DataColumns
from qpruntime.errors import InputError

__all__ = ["LongTable", "part_of"]


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
    X : Frame or None
    """

    labels: tuple[Hashable, ...]
    rows: list[NDArray[np.intp]]
    y: Any
    X: DataColumns | None
    index: Any
    exposure: Any

    @classmethod
    def of(cls, y: Any, X: Any, by: Any, index: Any, exposure: Any, data: Any) -> LongTable:
        """Read columns, or names of columns of `data`.

        Raises
        ------
        InputError
            If lengths differ, a column is not there or rows have no label.
        """
        frame = None if data is None else DataColumns(data)
        if by is None and frame is None and getattr(getattr(y, "index", None), "nlevels", 1) == 2:
            by, index = (y.index.get_level_values(k) for k in (0, 1))
        if by is None:
            raise InputError("by= says which series a row is of: give labels, or a column of data=")
        several = isinstance(by, list | tuple) and all(isinstance(label, str) for label in by)
        if frame is not None and several and set(by) <= set(frame.names):
            by = object_array(zip(*(_labels(frame.levels(name)) for name in by), strict=True))
        elif frame is not None and isinstance(by, str):
            by = _column(data, frame, by)
        if frame is not None and isinstance(X, list | tuple | str):
            names = [X] if isinstance(X, str) else X
            X = {name: _column(data, frame, name) for name in names}
        y, index, exposure = (
            column if frame is None or not isinstance(column, str) else _column(data, frame, column)
            for column in (y, index, exposure)
        )
        series = DataColumns({"by": by})
        levels, distinct = series.levels("by"), series.distinct_levels("by")
        n = len(levels)
        columns = None if X is None else DataColumns(X)
        if columns is not None and columns.rows != n:
            raise InputError(f"X must have {n} rows, as by has, got {columns.rows}")
        for name, values in (("y", y), ("index", index)):
            if values is not None and len(values) != n:
                raise InputError(f"{name} must have {n} rows, as by has, got {len(values)}")
        if exposure is not None:
            exposure = np.broadcast_to(real(exposure, "exposure"), (n,))
        known, place = tuple(_labels(distinct)), numbers_of(levels, distinct)
        order = np.argsort(place, kind="stable")
        rows = np.split(order, np.cumsum(np.bincount(place, minlength=len(known)))[:-1])
        return cls(known, rows, y, columns, index, exposure)

    def series(self, k: int) -> dict[str, Any]:
        """Return the arguments of `GPForecaster.fit` for one series."""
        rows = self.rows[k]
        columns = None
        if self.X is not None:
            columns = self.X.take(rows)
        return {
            "y": part_of(self.y, rows),
            "X": columns,
            "index": part_of(self.index, rows),
            "exposure": None if self.exposure is None else self.exposure[rows],
        }


def part_of(column: Any, rows: Any) -> Any:
    """Return these rows of an array, a series or an index."""
    if column is None:
        return None
    if hasattr(column, "iloc"):
        return column.iloc[rows]
    return column[rows] if hasattr(column, "dtype") else np.asarray(column)[rows]


def _column(data: Any, frame: DataColumns, name: Any) -> Any:
    """Return a column unchanged: a pandas column keeps its time zone."""
    frame.column(name)
    try:
        return data[name]
    except (KeyError, TypeError, IndexError, ValueError):
        return frame.column(name)


def _labels(levels: NDArray[Any]) -> list[Any]:
    """Return levels as Python writes them; times as dates or datetimes."""
    fine = levels.dtype.kind == "M" and np.datetime_data(levels.dtype)[0] in ("ns", "ps", "fs")
    return (levels.astype("datetime64[us]") if fine else levels).tolist()
