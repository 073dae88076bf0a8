"""Tables in Markdown: of which records, in which groups, and a cell for every header."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from scripts import records
from scripts.records import lines

Record = dict[str, Any]
#: A format of the fields of a group's last record, or a function of all records of the group.
Cell = str | Callable[[list[Record]], str]
Grouped = dict[tuple[Any, ...], list[Record]]
Columns = dict[str, Cell] | Sequence[tuple[str, Cell]]


def table(header: Sequence[str], rows: Iterable[Sequence[str]], right: int | None = None) -> str:
    """Markdown; columns from number `right` on are flush right."""
    marks = ["---:" if right is not None and k >= right else "---" for k in range(len(header))]
    rule = "|" + "|".join(marks) + "|"
    cells = ["| " + " | ".join(row) + " |" for row in (header, *rows)]
    return "\n".join([cells[0], rule, *cells[1:]])


def printed(name: str, *headers: str) -> Callable[[], str]:
    """Return a function that prints a CSV file of results, or its columns with these headers."""
    return partial(_printed, name, headers)


def _printed(name: str, headers: Sequence[str]) -> str:
    with (records.RESULTS / name).open(newline="") as file:
        header, *rows = csv.reader(file)
    shown = [header.index(word) for word in headers or header]
    return table([header[k] for k in shown], [[row[k] for k in shown] for row in rows], right=1)


class Table(NamedTuple):
    """A line for every group of records that agree in some fields, in the order of the file.

    Parameters
    ----------
    file : str or callable
        A file of tables/results, or what returns the records.
    columns : dict, or pairs where two headers are alike
        Header and cell.
    group : tuple of str
        Fields; without any, every record has a line.
    where : callable, optional
        Which records count.
    order : callable, optional
        What groups are sorted by, of the values of their fields.
    right : int, optional
        The first column that is flush right.
    last : tuple of str
        Of records of a group that agree in these fields the last counts; without any, all do.
    """

    file: str | Callable[[], Iterable[Record]]
    columns: Columns
    group: tuple[str, ...] = ()
    where: Callable[[Record], bool] | None = None
    order: Callable[[tuple[Any, ...]], Any] | None = None
    right: int | None = None
    last: tuple[str, ...] = ()

    def groups(self, records: Iterable[Record] | None = None) -> Grouped:
        """Records by the values of the fields; those of the file, if none are given."""
        if records is None:
            records = lines(self.file) if isinstance(self.file, str) else self.file()
        found = grouped(filter(self.where, records), self.group, self.last)
        return {key: found[key] for key in sorted(found, key=self.order)} if self.order else found

    def select(self, *headers: str, where: Callable[[Record], bool] | None = None) -> Table:
        """Return the table with some of its columns and, if `where` is given, other records."""
        columns = self.columns.items() if isinstance(self.columns, dict) else self.columns
        shown = [(header, cell) for header, cell in columns if header in headers]
        return self._replace(columns=shown, where=where or self.where)

    def __call__(self, records: Iterable[Record] | None = None) -> str:
        """The table."""
        columns = self.columns.items() if isinstance(self.columns, dict) else self.columns
        groups = self.groups(records).values()
        rows = [[filled(cell, some) for _, cell in columns] for some in groups]
        return table([header for header, _ in columns], rows, self.right)


def grouped(
    records: Iterable[Record], names: tuple[str, ...], last: tuple[str, ...] = ()
) -> Grouped:
    """Records by the values of some fields; of those that agree in others too the last counts."""
    found: dict[tuple[Any, ...], dict[Any, Record]] = {}
    for k, record in enumerate(records):
        group = found.setdefault(_values(record, names) or (k,), {})
        group[_values(record, last) or k] = record
    return {key: list(own.values()) for key, own in found.items()}


def _values(record: Record, names: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(record[name] for name in names)


def filled(cell: Cell, some: list[Record]) -> str:
    """What a cell says of records."""
    return cell.format(**some[-1]) if isinstance(cell, str) else cell(some)


def count(some: list[Record]) -> str:
    """How many records there are."""
    return str(len(some))


def size(name: str) -> Cell:
    """A whole number of the last record, thousands apart."""
    return lambda some: spaced(some[-1][name])


def average(name: str, form: str, way: Callable[[Any], Any] = np.mean) -> Cell:
    """Mean of a field, or what `way` makes of its values."""
    return lambda some: f"{way([record[name] for record in some]):{form}}"


def spread(name: str, form: str = ".3f") -> Cell:
    """Mean and standard error of a field, of the records that have it."""
    return lambda some: mean_error([record[name] for record in some if name in record], form)


def percent(name: str) -> Cell:
    """Mean of a share, in hundredths."""
    return average(name, ".0f", lambda values: 100.0 * np.mean(values))


def beside(name: str, other: str) -> Cell:
    """Means of two fields, the other in brackets."""
    return lambda some: f"{average(name, '.3f')(some)} ({average(other, '.3f')(some)})"


def within(name: str, cell: Cell) -> Cell:
    """The cell of what records have under ``of`` and this name."""
    return lambda some: filled(cell, [record["of"][name] for record in some])


def gain(name: str, before: str, after: str, form: str = "+.3f", scale: float = 1.0) -> Cell:
    """Mean and standard error of a field's change between what records have under ``of``."""
    return lambda some: mean_error(
        [scale * (r["of"][after][name] - r["of"][before][name]) for r in some], form
    )


def of(field: str, value: Any, cell: Cell, otherwise: str = "") -> Cell:
    """The cell of those records of a group whose field has a value, if there are any."""

    def chosen(some: list[Record]) -> str:
        own = [record for record in some if record.get(field) == value]
        return filled(cell, own) if own else otherwise

    return chosen


def across(field: str, values: Iterable[Any], cell: Cell) -> dict[str, Cell]:
    """A column for each value of a field."""
    return {str(value): of(field, value, cell) for value in values}


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
