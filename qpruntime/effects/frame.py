"""Rows of data, by column: data frames of any library, mappings of columns, arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.names import meant
from qpruntime.validation import real, shown

__all__ = ["Frame"]


class Frame:
    """Columns of data by name, or by number of a 2-D array.

    Parameters
    ----------
    data : data frame, mapping of columns or array-like, shape (N, d)

    Raises
    ------
    InputError
        If it has no columns, or columns of different lengths.
    """

    def __init__(self, data: Any) -> None:
        self._columns: dict[Any, Any]
        self.rows: int
        if isinstance(data, Frame):
            self._columns, self.rows = data._columns, data.rows
            return
        if isinstance(data, Mapping):
            self._columns = dict(data)
        elif hasattr(data, "columns") and hasattr(data, "__getitem__"):
            self._columns = {name: data[name] for name in data.columns}
        else:
            values = np.asarray(data)
            if values.ndim != 2:
                raise InputError(
                    f"data must be a data frame, a mapping of columns or an array of shape (N, d), "
                    f"got shape {values.shape}"
                )
            self._columns = dict(enumerate(values.T))
        lengths = {len(column) for column in self._columns.values()}
        if len(lengths) != 1:
            raise InputError(f"the data's columns must be of one length, got {sorted(lengths)}")
        self.rows = lengths.pop()
        if not self.rows:
            raise InputError("the data have no rows")

    @property
    def names(self) -> list[Any]:
        """Names or numbers of the columns."""
        return list(self._columns)

    def column(self, name: Any) -> NDArray[Any]:
        """One column as it is, shape (N,)."""
        number = int(name) if isinstance(name, np.integer) else name
        try:
            found = self._columns[number]
        except (KeyError, TypeError):
            if isinstance(number, int) and not isinstance(number, bool):
                named = self.names
                if 0 <= number < len(named) and not all(isinstance(n, int) for n in named):
                    return self.column(named[number])
            known = ", ".join(map(str, self.names[:12]))
            hint = (
                meant(name, [n for n in self.names if isinstance(n, str)])
                if isinstance(name, str)
                else ""
            )
            raise InputError(
                f"the data have no column {shown(name)}{hint}; they have {known}"
            ) from None
        if hasattr(found, "to_numpy"):
            found = found.to_numpy()
        if np.ma.is_masked(found):
            raise InputError(f"column {name!r} has masked entries: leave these rows out")
        array = np.asarray(found)
        if array.ndim != 1:
            raise InputError(f"column {name!r} must have one value a row, got shape {array.shape}")
        return array

    def numbers(self, name: Any) -> Array:
        """One column as finite numbers, shape (N,); times become days since 1970."""
        column = self.column(name)
        if column.dtype.kind == "M":
            missing = np.isnat(column)
            days = column.astype("datetime64[us]").astype(np.int64) / 86_400e6
            found = np.where(missing, np.nan, days)
        else:
            found = real(column, f"column {name!r}")
        bad = ~np.isfinite(found)
        if bad.any():
            raise InputError(
                f"column {name!r} has {found[bad][0]} in row {int(np.argmax(bad))}: leave such "
                "rows out, or fill in a value"
            )
        return np.array(found, dtype=float)

    def is_numeric(self, name: Any) -> bool:
        """Whether a column holds numbers or times, not labels."""
        column = self.column(name)
        if column.dtype.kind == "O":
            return not any(isinstance(one, (str, bytes, bool, np.bool_)) for one in column)
        return column.dtype.kind in "fiuM"

    def levels(self, name: Any) -> NDArray[Any]:
        """One column as levels of any kind, none of them missing, shape (N,)."""
        column = self.column(name)
        if column.dtype.kind in "fc":
            missing = np.isnan(column)
        elif column.dtype.kind in "mM":
            missing = np.isnat(column)
        elif column.dtype.kind == "O":
            missing = np.array([one is None or one != one for one in column], dtype=bool)
        else:
            missing = np.zeros(len(column), dtype=bool)
        if missing.any():
            raise InputError(
                f"column {name!r} has no level in row {int(np.argmax(missing))}: leave the "
                f"{int(missing.sum())} rows without one out, or give them a level of their own"
            )
        if column.dtype.kind == "O" and all(isinstance(one, str) for one in column):
            return column.astype(str)
        return column
