"""Data sets as a newcomer has them: raw features in awkward units, at most 500 rows.

Classes, numbers and counts: scikit-learn's own sets, generators in units that nobody scaled, and
the raw files of the paper where there is a directory of them. Sets are numbered from 1 in their
order; those of even number are for choosing defaults, those of odd number for reporting.
Everything is seeded.
"""

import os
from dataclasses import dataclass

import numpy as np
from sklearn.utils import resample

from scripts.benchmarks.data import paper
from scripts.benchmarks.data.registry import Array
from scripts.benchmarks.data.small_numbers import small

_MOST_ROWS = 500
#: Names of all sets, or of one kind, in the order of their numbers.
names = small.names


@dataclass(frozen=True)
class RawSet:
    """Features (N, p), targets (N,), and for counts perhaps what they were exposed to (N,)."""

    name: str
    kind: str
    number: int
    X: Array
    y: Array
    exposure: Array | None = None


def load(name: str, directory: str | os.PathLike[str] | None = None) -> RawSet | None:
    """One data set; None if its file is asked for and there is no directory.

    More than 500 rows are sampled, with every class in its share.

    Raises
    ------
    KeyError
        If there is no set of that name.
    DataError
        If a file of the directory is missing or altered.
    """
    kind, make = small.find(name)
    files = name in (*paper.NAMES, *paper.VARIANTS)
    if files and directory is None:
        return None
    X, y, *exposure = make(directory) if files else make()
    X, y = np.asarray(X, dtype=float), np.asarray(y)
    if kind == "classes":
        y = np.unique(y, return_inverse=True)[1]
        if len(X) > _MOST_ROWS:
            X, y = resample(X, y, replace=False, n_samples=_MOST_ROWS, stratify=y, random_state=0)
    else:
        X, y = X[:_MOST_ROWS], y[:_MOST_ROWS].astype(float)
    number = 1 + names(kind).index(name)
    return RawSet(name, kind, number, X, y, *map(np.asarray, exposure))
