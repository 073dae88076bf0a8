"""The raw public files of the paper's data: found in a directory, checked against their hash."""

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

from scripts.benchmarks.data.registry import DataError

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
