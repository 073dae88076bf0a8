"""The table of evaluations: what was asked, what was told, and what failed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtr

from qpruntime._typing import Array
from qpruntime._validation import shown
from qpruntime.bayesopt.surrogate import Surrogate
from qpruntime.errors import InputError

__all__ = ["Failing", "History", "Record", "failing"]


@dataclass
class Record:
    """One point: values of (f, c_1, ..., c_K), NaN if not known; what is awaited, what failed."""

    id: str
    x: tuple[float, ...]
    values: list[float]
    awaited: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)

    def known(self, j: int) -> bool:
        """Decide whether function j was told."""
        return not math.isnan(self.values[j])


class History:
    """Records in the order in which they were begun; `outputs` is K + 1.

    Points are rows of numbers; `shown` gives them in their user's terms.
    """

    def __init__(self, outputs: int, shown: Callable[[Any], object] = tuple) -> None:
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

        A function that is awaited, and neither told nor left out, has failed. If nothing is told,
        all awaited functions have failed. A value takes the place of a failure.
        """
        observed = {j for j in range(self.outputs) if not math.isnan(values[j])}
        record = self._by_id.get(id) if id is not None else self._matching(x, observed)
        new = record is None
        if record is None:
            record = self.add(x, (), id)
        elif tuple(float(v) for v in x) != record.x:
            raise InputError(
                f"id {record.id!r} belongs to the point {self._shown(record.x)}, got "
                f"{self._shown(x)}: use another id"
            )
        for j in sorted(observed):
            known = record.values[j]
            if record.known(j) and known != values[j]:
                raise InputError(
                    f"evaluation {record.id!r} was told {known:g} for function {j}, now "
                    f"{values[j]:g}: a repeated measurement needs an id of its own"
                )
        for j in observed:
            record.values[j] = float(values[j])
        if observed:
            lost = record.awaited - observed - left_out
        else:
            # If nobody asked for a point, only its failure is known.
            every = set(range(self.outputs))
            lost = (every - left_out or every) if new else set(record.awaited)
        record.failed = (record.failed | lost) - observed
        record.awaited -= observed | lost

    def _matching(self, x: Array, told: set[int]) -> Record | None:
        """Return the oldest record of this point that awaits a value told, or else lost it."""
        place = tuple(float(v) for v in x)
        same_place = [r for r in self.records if r.x == place]
        for record in same_place:
            if record.awaited & told if told else record.awaited:
                return record
        return next((r for r in same_place if r.failed & told), None)

    def begun(self) -> int:
        """Return how many values are known, awaited, or failed."""
        return sum(
            sum(r.known(j) for j in range(self.outputs)) + len(r.awaited) + len(r.failed)
            for r in self.records
        )

    def pending(self) -> list[Record]:
        """Return the records of which something is awaited."""
        return [r for r in self.records if r.awaited]

    def known(self, j: int) -> tuple[Array, Array]:
        """Points (n, d) and values (n,) at which function j is known."""
        rows = [r for r in self.records if not math.isnan(r.values[j])]
        width = len(self.records[0].x) if self.records else 0
        X = np.array([r.x for r in rows], dtype=float).reshape(len(rows), width)
        return X, np.array([r.values[j] for r in rows], dtype=float)

    def columns(self, variables: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """Return columns: id, the variables', f, c1, ..., awaited, and failed if any did."""
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


# --- Evaluations that failed: whether one succeeds is a constraint that nobody has to declare.
#
# It is 1 where an evaluation gave a value and -1 where it failed, and is modelled as any constraint
# from the first failure on: minimisers are looked for where evaluations succeed, and what one is
# worth counts by the probability that it does. Without failures nothing of this is there.


class Failing(NamedTuple):
    """Constraints of success, and whose they are.

    Attributes
    ----------
    data : list of (int, ndarray (n, variables), ndarray (n,))
        Of each constraint: the first function it is of, points tried, and 1 or -1 there.
    of : list of int or None
        Of each function, the place of its constraint among `data`.
    """

    data: list[tuple[int, Array, Array]]
    of: list[int | None]

    def rows(self, functions: set[int]) -> set[int]:
        """Functions that an evaluation tells: these, and which of them succeed."""
        n_functions = len(self.of)
        more = {self.of[j] for j in functions} - {None}
        return functions | {n_functions + i for i in more if i is not None}

    def expected(
        self, groups: Sequence[Sequence[Surrogate]], gains: Array, U: Array, apart: bool
    ) -> Array:
        """Gains (K + 1, T), or their sum (1, T), of evaluations that may fail.

        Parameters
        ----------
        groups : list of list of Surrogate
        gains : ndarray, shape (K + 1 + len(data), T)
            Of all functions if evaluations succeed, then of knowing whether they do.
        U : ndarray, shape (T, d)
        apart : bool
            Each function's own, not all together.
        """
        n_functions = len(self.of)
        chances = []
        for i in range(len(self.data)):
            sampled = []
            for group in groups:
                mean, variance = group[n_functions + i].predict(U)
                sampled.append(ndtr(mean / np.sqrt(np.maximum(variance, 1e-14))))
            chances.append(np.mean(sampled, axis=0))
        expected_gains = gains[:n_functions].copy()
        for j, place in enumerate(self.of):
            if place is not None:
                expected_gains[j] *= chances[place]
                if apart:
                    expected_gains[j] += gains[n_functions + place]
        return (
            expected_gains
            if apart
            else expected_gains.sum(axis=0, keepdims=True) + gains[n_functions:].sum(axis=0)
        )


def failing(history: History) -> Failing:
    """Constraints of success of all functions that ever failed.

    Functions that failed in the same evaluations have one together: as one program that crashes.
    """
    of: list[int | None] = []
    places: dict[tuple[str, ...], int] = {}
    groups: list[list[int]] = []
    for j in range(history.outputs):
        lost = tuple(r.id for r in history.records if j in r.failed)
        if not lost:
            of.append(None)
            continue
        if lost not in places:
            places[lost] = len(groups)
            groups.append([])
        groups[places[lost]].append(j)
        of.append(places[lost])
    data = []
    for group in groups:
        tried = [r for r in history.records if any(r.known(j) or j in r.failed for j in group)]
        fine = [not r.failed & set(group) for r in tried]
        data.append((group[0], np.array([r.x for r in tried]), np.where(fine, 1.0, -1.0)))
    return Failing(data, of)
