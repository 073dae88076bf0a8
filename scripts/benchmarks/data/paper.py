"""The ten data sets of the paper's Table 1, read from the raw public files.

`load` returns features and targets with nothing standardised. The two peculiarities of the
published data are kept under the paper's names (``pima`` holds 200 rows twice, ``glass`` has the
row number as a feature) and are gone from ``pima532`` and ``glass9``.
"""

import csv
import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

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


_UCI = "uci", "https://archive.ics.uci.edu/ml/machine-learning-databases"
_PRNN = "prnn", "https://www.stats.ox.ac.uk/pub/PRNN"
# Name, folder and hash.
_PUBLIC = """
ionosphere.data uci/ionosphere
    46d52186b84e20be52918adb93e8fb9926b34795ff7504c24350ae0616a04bbd
breast-cancer-wisconsin.data uci/breast-cancer-wisconsin
    402c585309c399237740f635ef9919dc512cca12cbeb20de5e563a4593f22b64
pima.tr prnn
    789098206b1ef9482743f197aaf98d27d98b49a0f46317fd773563f200c4449a
pima.tr2 prnn
    52e9043595a2375291fd7c03b55295e564ebb2bd4a3e71640586370fe7cd0812
pima.te prnn
    a065e2debfad108fa24d40d43dd97d95b05832f2f2e6689ce53fbf41f9282b4b
crabs.dat prnn
    7425e025e84665544502f62aea1f481a318cf3ac34179d8cee2782aa5334fa6c
sonar.all-data uci/undocumented/connectionist-bench/sonar
    e90434cdbf00fcf93ffa911fe447ae25606979658e60f1d32e155c3b5240234d
glass.data uci/glass
    dd67373f4baf2807345df02cbfef2093d342e61ad0d82a4fb79af43ef8ce449d
wine.data uci/wine
    6be6b1203f3d51df0b553a70e57b8a723cd405683958204f96d23d7cd6aea659
"""


class RawFile(NamedTuple):
    """One public file: the hash of what we read, and where it comes from or how it is made."""

    name: str
    sha256: str
    url: str
    made: str = ""

    @property
    def origin(self) -> str:
        """Words on where to get it."""
        return f"its address is {self.url}" if self.url else f"it holds the {self.made}"


_WORDS = _PUBLIC.split()
FILES = {
    name: RawFile(name, sha256, f"{folder.replace(*_UCI).replace(*_PRNN)}/{name}")
    for name, folder, sha256 in zip(_WORDS[::3], _WORDS[1::3], _WORDS[2::3], strict=True)
}
FILES["coal-mining.csv"] = RawFile(
    "coal-mining.csv",
    "ff472ea9b3ac20e2cf54b62ca3f059e9c81d5601ef12f9f2fe6a1018f499f864",
    "",
    "accidents per year 1851 to 1962 of Jarrett, Biometrika 66 (1979), boot::coal in R, as "
    "lines 'year,count' under that header",
)


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
    if not path.exists():
        if not (download and raw.url):
            raise DataError(f"{path} is missing; {raw.origin}, its sha256 {raw.sha256}")
        _download(raw, path)
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != raw.sha256:
        raise DataError(
            f"{path} is not the file these experiments use: its sha256 is {found}, expected "
            f"{raw.sha256}; {raw.origin}. Remove it and fetch it again"
        )
    return path


def _download(raw: RawFile, path: Path) -> None:
    import pooch

    try:
        pooch.retrieve(raw.url, f"sha256:{raw.sha256}", fname=path.name, path=path.parent)
    except Exception as error:  # pooch passes on whatever its HTTP library raises
        raise DataError(
            f"{path} is missing and could not be fetched ({error}); {raw.origin}, its sha256 "
            f"{raw.sha256}"
        ) from error
