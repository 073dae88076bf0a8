"""The ten data sets of the paper's Table 1, read from the raw public files.

`load` returns features and targets with nothing standardised. The two peculiarities of the
published data are kept under the paper's names (``pima`` holds 200 rows twice, ``glass`` has the
row number as a feature) and are gone from ``pima532`` and ``glass9``.
"""

import csv
import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from scripts.benchmarks.data.files import raw_path
from scripts.benchmarks.data.registry import Array, DataError, Group

Rows = Iterable[list[str]]
Reader = Callable[[str], list[list[str]]]
_paper = Group("paper")
#: Rows and features that a parser must find.
_SHAPES = {
    "ionosphere": (351, 33),
    "cancer": (683, 9),
    "pima": (732, 7),
    "crabs": (200, 7),
    "sonar": (208, 60),
    "glass": (214, 10),
    "wine1": (130, 13),
    "wine2": (107, 13),
    "wine3": (119, 13),
    "mining": (112, 1),
    "pima532": (532, 7),
    "glass9": (214, 9),
}
#: The data sets of Table 1, in its order.
NAMES = tuple(_SHAPES)[:10]
#: The same data without what should not be in them.
VARIANTS = tuple(_SHAPES)[10:]


def _labelled(
    rows: Rows, features: Callable[[Any], Any], positive: Callable[[Any], bool]
) -> tuple[Array, Array]:
    """Features as floats, and labels of -1 and 1."""
    found = list(rows)
    X = np.array([features(row) for row in found], dtype=float)
    return X, np.where([positive(row) for row in found], 1.0, -1.0)


@_paper("classes", "ionosphere")
def _ionosphere(read: Reader) -> tuple[Array, Array]:
    # The second column is 0 in every row.
    return _labelled(read("ionosphere.data"), lambda r: [r[0], *r[2:-1]], lambda r: r[-1] == "g")


@_paper("classes", "cancer")
def _cancer(read: Reader) -> tuple[Array, Array]:
    rows = (row for row in read("breast-cancer-wisconsin.data") if "?" not in row)
    return _labelled(rows, lambda r: r[1:-1], lambda r: r[-1] == "4")


# The complete rows of pima.tr2 are those of pima.tr.
@_paper("classes", {"pima": ("pima.tr", "pima.tr2", "pima.te"), "pima532": ("pima.tr", "pima.te")})
def _pima(*names_and_read: Any) -> tuple[Array, Array]:
    *names, read = names_and_read
    rows = (row for name in names for row in read(name)[1:] if "NA" not in row)
    return _labelled(rows, lambda r: r[:-1], lambda r: r[-1] == "Yes")


@_paper("classes", "crabs")
def _crabs(read: Reader) -> tuple[Array, Array]:
    rows = read("crabs.dat")[1:]
    return _labelled(rows, lambda r: [2 * (r[0] == "B") - 1, *r[2:]], lambda r: r[1] == "M")


@_paper("classes", "sonar")
def _sonar(read: Reader) -> tuple[Array, Array]:
    return _labelled(read("sonar.all-data"), lambda r: r[:-1], lambda r: r[-1] == "R")


@_paper("classes", {"glass": (0,), "glass9": (1,)})
def _glass(first: int, read: Reader) -> tuple[Array, Array]:
    return _labelled(read("glass.data"), lambda r: r[first:-1], lambda r: int(r[-1]) > 4)


@_paper("classes", {"wine1": ("1", "2"), "wine2": ("1", "3"), "wine3": ("2", "3")})
def _wine(first: str, second: str, read: Reader) -> tuple[Array, Array]:
    rows = (row for row in read("wine.data") if row[0] in (first, second))
    return _labelled(rows, lambda r: r[1:], lambda r: r[0] == second)


@_paper("counts", "mining")
def _mining(read: Reader) -> tuple[Array, Array]:
    table = np.array(read("coal-mining.csv")[1:], dtype=float)
    return table[:, :1], table[:, 1]


def load(
    name: str, directory: str | os.PathLike[str], *, download: bool = False
) -> tuple[Array, Array]:
    """Features and targets of one data set.

    Parameters
    ----------
    name : str
        One of `NAMES` or `VARIANTS`.
    directory : path
        Where the raw files are.
    download : bool
        Whether to fetch files that are missing.

    Returns
    -------
    X : ndarray, shape (m, n)
        As in the files: not standardised.
    y : ndarray, shape (m,)
        -1 and +1; for ``"mining"`` the counts, with the year as the one feature.

    Raises
    ------
    DataError
        If a file is missing or altered.
    KeyError
        If there is no data set of that name.
    """

    def read(file: str) -> list[list[str]]:
        text = raw_path(file, directory, download=download).read_text()
        if file.endswith(("data", "csv")):
            return [row for row in csv.reader(text.splitlines()) if row]
        return [line.split() for line in text.splitlines() if line.strip()]

    X, y = _paper.find(name, _SHAPES).make(read)
    if X.shape != _SHAPES[name] or y.shape != X.shape[:1]:
        raise DataError(f"{name} has shape {X.shape}, expected {_SHAPES[name]}")
    return X, y
