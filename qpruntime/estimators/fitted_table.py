"""The table of a fit, which a fitted model keeps to: found again by its hash, also unpickled."""

from __future__ import annotations

import os
from typing import Any

from qpruntime.errors import TableError
from qpruntime.projection.opening import reopen
from qpruntime.projection.table import Table

__all__ = ["fitted_table", "remember", "table_to_fit"]


def table_to_fit(model: Any) -> Table | str | os.PathLike[str] | None:
    """Return the parameter ``table``, or the very table of the fit before if it names that one.

    A name may stand for another file by now.

    Raises
    ------
    TableError
        If the table of the fit before is missing, or there is another one in its place.
    """
    given, known = getattr(model, "_table_reference_", (None, None))
    if known is None or given is None or given != _path_or_none(model.table):
        table: Table | str | os.PathLike[str] | None = model.table
        return table
    try:
        return fitted_table(model)
    except TableError as error:
        raise TableError(
            f"{error}; to fit with whatever table has that name now, fit a "
            "sklearn.base.clone of the model"
        ) from error


def fitted_table(model: Any) -> Table:
    """Return the table of the fit; `TableError` if it is missing."""
    reference = model._table_reference_[1]
    assert reference is not None
    return reopen(*reference)


def remember(model: Any, table: Table | None) -> None:
    """Keep the hash of the table, the path or name given, and how to find it by its hash."""
    model.table_sha256_ = None if table is None else table.sha256
    reference = None if table is None else table.reference()
    model._table_reference_ = _path_or_none(model.table), reference


def _path_or_none(table: Any) -> str | None:
    """Return the path or name a table is given by, None if it is given in another way."""
    if not isinstance(table, (str, os.PathLike)) or table == "exact":
        return None
    return str(os.fspath(table))
