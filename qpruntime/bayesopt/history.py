"""The table of evaluations: what was asked, what was told, and what failed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.validation import shown

__all__ = ["History", "Record"]


@dataclass
class Record:
    """One point: values of (f, c_1, ..., c_K), NaN if not known; what is awaited, what failed."""

    id: str
    x: tuple[float, ...]
    values: list[float]
    awaited: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)

    def known(self, j: int) -> bool:
        """Whether function j was told."""
        return not math.isnan(self.values[j])


class History:
    """Records in the order in which they were begun; `outputs` is K + 1.

    Points are rows of numbers; `shown` gives them in their user's terms.
    """

    def __init__(self, outputs: int, shown: Callable[[Any], Any] = tuple) -> None:
        self.outputs, self._shown = outputs, shown
        self.records: list[Record] = []
        self._by_id: dict[str, Record] = {}

    def __contains__(self, id: str) -> bool:
        return id in self._by_id

    def add(self, x: Array, awaited: Sequence[int] = (), id: str | None = None) -> Record:
        """Begin a record, under the first free number if it has no id."""
        if id is None:
            n = len(self.records)
            while str(n) in self._by_id:
                n += 1
            id = str(n)
        values = [math.nan] * self.outputs
        record = Record(id, tuple(float(v) for v in x), values, set(awaited))
        self.records.append(record)
        self._by_id[id] = record
        return record

    def forget(self, id: str) -> None:
        """Await nothing more of a record; it is dropped if nothing is known of it, nor failed."""
        record = self._by_id.get(id)
        if record is None:
            raise InputError(f"no evaluation has the id {shown(id)}")
        record.awaited.clear()
        if not record.failed and not any(record.known(j) for j in range(self.outputs)):
            self.records.remove(record)
            del self._by_id[id]

    def tell(self, x: Array, values: Array, left_out: set[int], id: str | None) -> None:
        """Fill in values, NaN for those that are not there; again and the same is nothing.

        What is awaited, and is neither told nor left out, has failed: everything, if nothing is
        told at all. A value takes the place of a failure.
        """
        told = {j for j in range(self.outputs) if not math.isnan(values[j])}
        record = self._by_id.get(id) if id is not None else self._matching(x, told)
        new = record is None
        if record is None:
            record = self.add(x, (), id)
        elif tuple(float(v) for v in x) != record.x:
            raise InputError(
                f"id {record.id!r} belongs to the point {self._shown(record.x)}, got "
                f"{self._shown(x)}: use another id"
            )
        for j in sorted(told):
            known = record.values[j]
            if record.known(j) and known != values[j]:
                raise InputError(
                    f"evaluation {record.id!r} was told {known:g} for function {j}, now "
                    f"{values[j]:g}: a repeated measurement needs an id of its own"
                )
        for j in told:
            record.values[j] = float(values[j])
        if told:
            lost = record.awaited - told - left_out
        else:
            # Of what nobody asked for nothing is known but that it failed.
            every = set(range(self.outputs))
            lost = (every - left_out or every) if new else set(record.awaited)
        record.failed = (record.failed | lost) - told
        record.awaited -= told | lost

    def _matching(self, x: Array, told: set[int]) -> Record | None:
        """The oldest record of this point that awaits one of the values told, or else lost it."""
        place = tuple(float(v) for v in x)
        here = [r for r in self.records if r.x == place]
        for record in here:
            if record.awaited & told if told else record.awaited:
                return record
        return next((r for r in here if r.failed & told), None)

    def begun(self) -> int:
        """How many values are known, awaited, or failed."""
        return sum(
            sum(r.known(j) for j in range(self.outputs)) + len(r.awaited) + len(r.failed)
            for r in self.records
        )

    def pending(self) -> list[Record]:
        """Records of which something is awaited."""
        return [r for r in self.records if r.awaited]

    def known(self, j: int) -> tuple[Array, Array]:
        """Points (n, d) and values (n,) at which function j is known."""
        rows = [r for r in self.records if not math.isnan(r.values[j])]
        width = len(self.records[0].x) if self.records else 0
        X = np.array([r.x for r in rows], dtype=float).reshape(len(rows), width)
        return X, np.array([r.values[j] for r in rows], dtype=float)

    def columns(self, variables: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """The table by columns: id, the variables', f, c1, ..., awaited, and failed if any did."""
        table: dict[str, list[Any]] = {"id": [r.id for r in self.records], **variables}
        for j in range(self.outputs):
            table[_name(j)] = [r.values[j] for r in self.records]
        table["awaited"] = [" ".join(map(_name, sorted(r.awaited))) for r in self.records]
        if any(r.failed for r in self.records):
            table["failed"] = [" ".join(map(_name, sorted(r.failed))) for r in self.records]
        return table

    def state(self) -> list[dict[str, Any]]:
        """Plain values that JSON holds to the last bit; None is not known."""
        return [
            {
                "id": r.id,
                "x": list(r.x),
                "values": [None if math.isnan(v) else v for v in r.values],
                "awaited": sorted(r.awaited),
                "failed": sorted(r.failed),
            }
            for r in self.records
        ]

    def restore(self, state: Sequence[dict[str, Any]]) -> None:
        """Become what `state` gave."""
        self.records, self._by_id = [], {}
        for row in state:
            record = self.add(np.array(row["x"], dtype=float), row["awaited"], row["id"])
            record.values = [math.nan if v is None else float(v) for v in row["values"]]
            record.failed = set(row["failed"])


def _name(j: int) -> str:
    return "f" if j == 0 else f"c{j}"
