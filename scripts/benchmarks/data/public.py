"""The ten data sets of the paper's Table 1, read from the raw public files.

`load` returns features and targets with nothing standardised. The files are looked for in a
directory and checked against their hash; with ``download=True`` and a network pooch fetches what is
not there. The two peculiarities of the published data are kept under the paper's names (``pima``
holds 200 rows twice, ``glass`` has the row number as a feature) and are gone from ``pima532`` and
``glass9``.
"""

from __future__ import annotations

import csv
import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scripts.command_line import Failure

Array = NDArray[np.float64]

_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/"
_PRNN = "https://www.stats.ox.ac.uk/pub/PRNN/"


class DataError(Failure):
    """A raw file is missing, altered or not what its parser expects."""


@dataclass(frozen=True)
class RawFile:
    """One public file: where it comes from and the hash of what we read."""

    name: str
    url: str
    sha256: str
    made: str = ""


FILES = {
    raw.name: raw
    for raw in (
        RawFile(
            "ionosphere.data",
            f"{_UCI}ionosphere/ionosphere.data",
            "46d52186b84e20be52918adb93e8fb9926b34795ff7504c24350ae0616a04bbd",
        ),
        RawFile(
            "breast-cancer-wisconsin.data",
            f"{_UCI}breast-cancer-wisconsin/breast-cancer-wisconsin.data",
            "402c585309c399237740f635ef9919dc512cca12cbeb20de5e563a4593f22b64",
        ),
        RawFile(
            "pima.tr",
            f"{_PRNN}pima.tr",
            "789098206b1ef9482743f197aaf98d27d98b49a0f46317fd773563f200c4449a",
        ),
        RawFile(
            "pima.tr2",
            f"{_PRNN}pima.tr2",
            "52e9043595a2375291fd7c03b55295e564ebb2bd4a3e71640586370fe7cd0812",
        ),
        RawFile(
            "pima.te",
            f"{_PRNN}pima.te",
            "a065e2debfad108fa24d40d43dd97d95b05832f2f2e6689ce53fbf41f9282b4b",
        ),
        RawFile(
            "crabs.dat",
            f"{_PRNN}crabs.dat",
            "7425e025e84665544502f62aea1f481a318cf3ac34179d8cee2782aa5334fa6c",
        ),
        RawFile(
            "sonar.all-data",
            f"{_UCI}undocumented/connectionist-bench/sonar/sonar.all-data",
            "e90434cdbf00fcf93ffa911fe447ae25606979658e60f1d32e155c3b5240234d",
        ),
        RawFile(
            "glass.data",
            f"{_UCI}glass/glass.data",
            "dd67373f4baf2807345df02cbfef2093d342e61ad0d82a4fb79af43ef8ce449d",
        ),
        RawFile(
            "wine.data",
            f"{_UCI}wine/wine.data",
            "6be6b1203f3d51df0b553a70e57b8a723cd405683958204f96d23d7cd6aea659",
        ),
        RawFile(
            "coal-mining.csv",
            "",
            "ff472ea9b3ac20e2cf54b62ca3f059e9c81d5601ef12f9f2fe6a1018f499f864",
            "accidents per year 1851 to 1962 of Jarrett, Biometrika 66 (1979), boot::coal in R, as "
            "lines 'year,count' under that header",
        ),
    )
}


def raw_path(name: str, directory: str | os.PathLike[str], *, download: bool = False) -> Path:
    """Path of the raw file `name` in `directory`, its hash checked.

    Parameters
    ----------
    name : str
        A key of `FILES`.
    directory : path
    download : bool
        Whether to fetch a file that is missing. One that is there is never overwritten.

    Raises
    ------
    DataError
        If the file is missing or is not the one whose hash is known here.
    """
    raw = FILES[name]
    path = Path(directory) / name
    origin = f"its address is {raw.url}" if raw.url else f"it holds the {raw.made}"
    if not path.exists():
        if not (download and raw.url):
            raise DataError(f"{path} is missing; {origin}, its sha256 {raw.sha256}")
        _download(raw, path, origin)
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != raw.sha256:
        raise DataError(
            f"{path} is not the file these experiments use: its sha256 is {found}, expected "
            f"{raw.sha256}; {origin}. Remove it and fetch it again"
        )
    return path


def _download(raw: RawFile, path: Path, origin: str) -> None:
    import pooch

    try:
        pooch.retrieve(raw.url, f"sha256:{raw.sha256}", fname=path.name, path=path.parent)
    except Exception as error:  # pooch passes on whatever its HTTP library raises
        raise DataError(
            f"{path} is missing and could not be fetched ({error}); {origin}, its sha256 "
            f"{raw.sha256}"
        ) from error


Reader = Callable[[str], list[list[str]]]


def _ionosphere(read: Reader) -> tuple[Array, Array]:
    rows = read("ionosphere.data")
    # The second column is 0 in every row.
    X = np.array([[row[0], *row[2:-1]] for row in rows], dtype=float)
    return X, _signs([row[-1] == "g" for row in rows])


def _cancer(read: Reader) -> tuple[Array, Array]:
    rows = [row for row in read("breast-cancer-wisconsin.data") if "?" not in row]
    return np.array([row[1:-1] for row in rows], dtype=float), _signs(r[-1] == "4" for r in rows)


def _pima(
    read: Reader, names: tuple[str, ...] = ("pima.tr", "pima.tr2", "pima.te")
) -> tuple[Array, Array]:
    rows = [row for name in names for row in read(name)[1:] if "NA" not in row]
    return np.array([row[:-1] for row in rows], dtype=float), _signs(r[-1] == "Yes" for r in rows)


def _pima532(read: Reader) -> tuple[Array, Array]:
    # The complete rows of pima.tr2 are those of pima.tr.
    return _pima(read, ("pima.tr", "pima.te"))


def _crabs(read: Reader) -> tuple[Array, Array]:
    rows = read("crabs.dat")[1:]
    X = np.array([[1.0 if r[0] == "B" else -1.0, *map(float, r[2:])] for r in rows])
    return X, _signs(row[1] == "M" for row in rows)


def _sonar(read: Reader) -> tuple[Array, Array]:
    rows = read("sonar.all-data")
    return np.array([row[:-1] for row in rows], dtype=float), _signs(r[-1] == "R" for r in rows)


def _glass(read: Reader) -> tuple[Array, Array]:
    rows = read("glass.data")
    return np.array([row[:-1] for row in rows], dtype=float), _signs(int(r[-1]) > 4 for r in rows)


def _glass9(read: Reader) -> tuple[Array, Array]:
    X, y = _glass(read)
    return X[:, 1:], y


def _wine(first: str, second: str) -> Callable[[Reader], tuple[Array, Array]]:
    def parse(read: Reader) -> tuple[Array, Array]:
        rows = [row for row in read("wine.data") if row[0] in (first, second)]
        return np.array([r[1:] for r in rows], dtype=float), _signs(r[0] == second for r in rows)

    return parse


def _mining(read: Reader) -> tuple[Array, Array]:
    table = np.array(read("coal-mining.csv")[1:], dtype=float)
    return table[:, :1], table[:, 1]


def _signs(positive: Iterable[bool]) -> Array:
    return np.where(list(positive), 1.0, -1.0)


#: Parser and the (rows, features) it must find.
_SETS: dict[str, tuple[Callable[[Reader], tuple[Array, Array]], tuple[int, int]]] = {
    "ionosphere": (_ionosphere, (351, 33)),
    "cancer": (_cancer, (683, 9)),
    "pima": (_pima, (732, 7)),
    "crabs": (_crabs, (200, 7)),
    "sonar": (_sonar, (208, 60)),
    "glass": (_glass, (214, 10)),
    "wine1": (_wine("1", "2"), (130, 13)),
    "wine2": (_wine("1", "3"), (107, 13)),
    "wine3": (_wine("2", "3"), (119, 13)),
    "mining": (_mining, (112, 1)),
    "pima532": (_pima532, (532, 7)),
    "glass9": (_glass9, (214, 9)),
}

#: The data sets of Table 1, in its order.
NAMES = tuple(_SETS)[:10]
#: The same data without what should not be in them.
VARIANTS = tuple(_SETS)[10:]


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
    if name not in _SETS:
        raise KeyError(f"unknown data set {name!r}; known are {', '.join(_SETS)}")
    parse, shape = _SETS[name]

    def read(file: str) -> list[list[str]]:
        text = raw_path(file, directory, download=download).read_text()
        if file.endswith(("data", "csv")):
            return [row for row in csv.reader(text.splitlines()) if row]
        return [line.split() for line in text.splitlines() if line.strip()]

    X, y = parse(read)
    if X.shape != shape or y.shape != shape[:1]:
        raise DataError(f"{name} has shape {X.shape}, expected {shape}")
    return X, y
