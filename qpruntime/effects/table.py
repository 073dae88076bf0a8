"""Tables of what is inferred: names, means, standard deviations, quantiles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from qpruntime.arrays import Array

__all__ = ["Table", "weighted_quantiles"]


@dataclass(frozen=True, eq=False)
class Table:
    """Rows with a name and numbers.

    Attributes
    ----------
    names : tuple of str
        Of the rows.
    columns : tuple of str
        Of the numbers: "mean", "sd", quantiles as "2.5%".
    values : ndarray, shape (R, columns)
    """

    names: tuple[str, ...]
    columns: tuple[str, ...]
    values: Array

    def __getitem__(self, row: str) -> dict[str, float]:
        """Numbers of one row, by column."""
        where = self.names.index(row)
        return dict(zip(self.columns, self.values[where].tolist(), strict=True))

    def __iter__(self) -> Iterator[tuple[str, dict[str, float]]]:
        for name in self.names:
            yield name, self[name]

    def __len__(self) -> int:
        return len(self.names)

    def column(self, name: str) -> Array:
        """One column, shape (R,)."""
        found: Array = self.values[:, self.columns.index(name)]
        return found

    def to_dict(self) -> dict[str, dict[str, float]]:
        """Rows by name."""
        return dict(self)

    def to_frame(self) -> Any:
        """The table as a data frame of pandas, which has to be installed."""
        import pandas as pd

        return pd.DataFrame(self.values, index=list(self.names), columns=list(self.columns))

    def __str__(self) -> str:
        width = max([4, *map(len, self.names)])
        head = " " * width + "".join(f"{name:>10}" for name in self.columns)
        lines = [
            f"{name:<{width}}" + "".join(f"{v:>10.4g}" for v in row)
            for name, row in zip(self.names, self.values, strict=True)
        ]
        return "\n".join([head, *lines])

    __repr__ = __str__


def header(q: Sequence[float] | Array) -> tuple[str, ...]:
    """Names of mean, deviation and quantiles."""
    return ("mean", "sd", *(f"{100.0 * float(level):g}%" for level in q))


def weighted_quantiles(values: Array, weights: Array, q: Array) -> Array:
    """Quantiles of weighted draws, between them by straight lines."""
    order = np.argsort(values)
    sums = np.cumsum(weights[order])
    middle = (sums - 0.5 * weights[order]) / sums[-1]
    found: Array = np.interp(q, middle, values[order])
    return found
