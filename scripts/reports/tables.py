"""Tables in Markdown: of which records, in which groups, and a column for every header."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from scripts.records import lines

__all__ = ["Cell", "Record", "Table", "mean_error", "number", "spaced", "table"]

Record = dict[str, Any]
#: A format of the fields of a group's last record, or a function of all records of the group.
Cell = str | Callable[[list[Record]], str]


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    right: int | None = None,
    tight: bool = False,
) -> str:
    """Markdown; columns from number `right` on are flush right."""
    marks = ["---:" if right is not None and k >= right else "---" for k in range(len(header))]
    space = "" if tight else " "
    rule = f"|{space}" + f"{space}|{space}".join(marks) + f"{space}|"
    cells = ["| " + " | ".join(row) + " |" for row in (header, *rows)]
    return "\n".join([cells[0], rule, *cells[1:]])


class Table(NamedTuple):
    """A line for every group of records that agree in some fields, in the order of the file.

    Parameters
    ----------
    file : str
        In tables/results.
    columns : dict, or pairs where two headers are alike
        Header and cell.
    group : tuple of str
        Fields; without any, every record has a line.
    where : callable, optional
        Which records count.
    order : callable, optional
        What groups are sorted by, of the values of their fields.
    """

    file: str
    columns: dict[str, Cell] | Sequence[tuple[str, Cell]]
    group: tuple[str, ...] = ()
    where: Callable[[Record], bool] | None = None
    order: Callable[[tuple[Any, ...]], Any] | None = None

    def groups(self, records: Iterable[Record] | None = None) -> dict[tuple[Any, ...], Any]:
        """Records by the values of the fields; those of the file, if none are given."""
        found: dict[tuple[Any, ...], list[Record]] = {}
        for k, record in enumerate(lines(self.file) if records is None else records):
            if self.where is None or self.where(record):
                key = tuple(record[name] for name in self.group) if self.group else (k,)
                found.setdefault(key, []).append(record)
        order = self.order
        return found if order is None else {key: found[key] for key in sorted(found, key=order)}

    def __call__(self, records: Iterable[Record] | None = None) -> str:
        """The table."""
        columns = self.columns.items() if isinstance(self.columns, dict) else self.columns
        rows = [
            [c.format(**some[-1]) if isinstance(c, str) else c(some) for _, c in columns]
            for some in self.groups(records).values()
        ]
        return table([header for header, _ in columns], rows)


def spaced(n: float) -> str:
    """A whole number with spaces between thousands."""
    return f"{n:,.0f}".replace(",", " ")


def number(value: float | None, unit: str = "") -> str:
    """Three digits, thousands and more in full; ratios have no unit."""
    if value is None:
        return "–"
    text = f"{value:.3g}" if abs(value) < 1000 else spaced(value)
    return f"{text} {unit}".strip() if unit and unit != "x" else text


def mean_error(values: Any, form: str = ".3f") -> str:
    """Mean and its standard error, if there are several; a dash if there are none."""
    values = np.asarray(values)
    if not len(values):
        return "–"
    if len(values) == 1:
        return f"{values[0]:{form}}"
    error = values.std(ddof=1) / np.sqrt(len(values))
    return f"{values.mean():{form}} ± {error:{form.replace('+', '')}}"
