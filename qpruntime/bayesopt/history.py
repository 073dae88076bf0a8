"""The table of evaluations: what was asked, what was told, and the file that it lives in."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from qpruntime.arrays import Array
from qpruntime.errors import InputError
from qpruntime.validation import path_of, shown
from qpruntime.whole_file import write_whole

__all__ = ["History", "Record", "read_json", "write_json"]


@dataclass
class Record:
    """One point: values of (f, c_1, ..., c_K), NaN where not known, and what is still awaited."""

    id: str
    x: tuple[float, ...]
    values: list[float]
    awaited: set[int] = field(default_factory=set)


class History:
    """Records in the order in which they were begun; `outputs` is K + 1."""

    def __init__(self, outputs: int) -> None:
        self.outputs = outputs
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
        """Await nothing more of a record; it is dropped if nothing is known of it."""
        record = self._by_id.get(id)
        if record is None:
            raise InputError(f"no evaluation has the id {shown(id)}")
        record.awaited.clear()
        if all(math.isnan(v) for v in record.values):
            self.records.remove(record)
            del self._by_id[id]

    def tell(self, x: Array, values: Array, id: str | None) -> None:
        """Fill in values, NaN for those not given; again and the same is nothing."""
        record = self._by_id.get(id) if id is not None else self._matching(x, values)
        if record is None:
            record = self.add(x, (), id)
        elif tuple(float(v) for v in x) != record.x:
            raise InputError(
                f"id {record.id!r} belongs to the point {record.x}, got {tuple(x.tolist())}: "
                "use another id"
            )
        told = [j for j in range(self.outputs) if not math.isnan(values[j])]
        for j in told:
            known = record.values[j]
            if not math.isnan(known) and known != values[j]:
                raise InputError(
                    f"evaluation {record.id!r} was told {known:g} for function {j}, now "
                    f"{values[j]:g}: a repeated measurement needs an id of its own"
                )
        for j in told:
            record.values[j] = float(values[j])
        # Who asked for all and is told some has no more to come.
        record.awaited -= set(told) if told else record.awaited

    def _matching(self, x: Array, values: Array) -> Record | None:
        """The oldest record of this point that awaits one of the values."""
        place = tuple(float(v) for v in x)
        told = {j for j in range(self.outputs) if not math.isnan(values[j])}
        for record in self.records:
            if record.x == place and (record.awaited & told or (record.awaited and not told)):
                return record
        return None

    def begun(self) -> int:
        """How many values are known or awaited."""
        known = sum(not math.isnan(v) for r in self.records for v in r.values)
        return known + sum(len(r.awaited) for r in self.records)

    def pending(self) -> list[Record]:
        """Records of which something is awaited."""
        return [r for r in self.records if r.awaited]

    def known(self, j: int) -> tuple[Array, Array]:
        """Points (n, d) and values (n,) at which function j is known."""
        rows = [r for r in self.records if not math.isnan(r.values[j])]
        width = len(self.records[0].x) if self.records else 0
        X = np.array([r.x for r in rows], dtype=float).reshape(len(rows), width)
        return X, np.array([r.values[j] for r in rows], dtype=float)

    def columns(self) -> dict[str, list[Any]]:
        """The table by columns: id, x0, ..., f, c1, ..., awaited."""
        width = len(self.records[0].x) if self.records else 0
        table: dict[str, list[Any]] = {"id": [r.id for r in self.records]}
        for i in range(width):
            table[f"x{i}"] = [r.x[i] for r in self.records]
        for j in range(self.outputs):
            table["f" if j == 0 else f"c{j}"] = [r.values[j] for r in self.records]
        table["awaited"] = [
            " ".join("f" if j == 0 else f"c{j}" for j in sorted(r.awaited)) for r in self.records
        ]
        return table

    def state(self) -> list[dict[str, Any]]:
        """Plain values that JSON holds to the last bit; None is not known."""
        return [
            {
                "id": r.id,
                "x": list(r.x),
                "values": [None if math.isnan(v) else v for v in r.values],
                "awaited": sorted(r.awaited),
            }
            for r in self.records
        ]

    def restore(self, state: Sequence[dict[str, Any]]) -> None:
        """Become what `state` gave."""
        self.records, self._by_id = [], {}
        for row in state:
            record = self.add(np.array(row["x"], dtype=float), row["awaited"], str(row["id"]))
            record.values = [math.nan if v is None else float(v) for v in row["values"]]


def write_json(path: str | os.PathLike[str], state: dict[str, Any]) -> None:
    """Write a file whole or not at all: beside its place, to the disk, then in its place."""
    text = json.dumps(state, allow_nan=False, indent=1)
    write_whole(path, lambda file: file.write(text.encode()))


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read what `write_json` wrote, or raise `InputError`."""
    source = path_of(path, "path")
    try:
        state = json.loads(source.read_text())
    except FileNotFoundError as error:
        raise InputError(f"{source}: no such file") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{source}: not a saved optimisation: {error}") from error
    if not isinstance(state, dict) or state.get("format") != "qpruntime-bayesopt-1":
        raise InputError(f"{source}: not a saved optimisation of this version")
    return state
