"""Loaders of the paper's data: shapes and contents where the files are, errors everywhere."""

import shutil

import numpy as np
import pytest

from scripts.benchmarks.data import paper
from scripts.benchmarks.data.paper import FILES, raw_path
from scripts.benchmarks.data.registry import DataError
from tests.tools.cases import every_case
from tests.tools.script_modules import DATA, needs_data

# Rows and features as in the paper, but for Ionosphere, whose second column is constant.
SHAPES = {
    "ionosphere": (351, 33, 225),
    "cancer": (683, 9, 239),
    "pima": (732, 7, 245),
    "crabs": (200, 7, 100),
    "sonar": (208, 60, 97),
    "glass": (214, 10, 51),
    "wine1": (130, 13, 71),
    "wine2": (107, 13, 48),
    "wine3": (119, 13, 48),
    "mining": (112, 1, 191),
    "pima532": (532, 7, 177),
    "glass9": (214, 9, 51),
}


@needs_data
@every_case("name", SHAPES)
def test_shapes_and_classes(name):
    assert tuple(SHAPES) == paper.NAMES + paper.VARIANTS
    X, y = paper.load(name, DATA)
    rows, features, positive = SHAPES[name]
    assert X.shape == (rows, features)
    assert np.isfinite(X).all()
    if name == "mining":
        assert y.sum() == positive
        np.testing.assert_array_equal(X[:, 0], np.arange(1851, 1963))
    else:
        assert set(np.unique(y)) == {-1.0, 1.0}
        assert (y > 0).sum() == positive
        assert (X.std(axis=0) > 0).all()


@needs_data
def test_the_two_quirks():
    pima, _ = paper.load("pima", DATA)
    clean, _ = paper.load("pima532", DATA)
    assert len(np.unique(pima, axis=0)) == len(np.unique(clean, axis=0)) == len(clean)
    glass, y = paper.load("glass", DATA)
    np.testing.assert_array_equal(glass[:, 0], np.arange(1, 215))
    # Sorted by class: the row number alone separates the classes.
    assert (np.diff(y) >= 0).all()
    np.testing.assert_array_equal(glass[:, 1:], paper.load("glass9", DATA)[0])


@every_case("name", sorted(FILES))
def test_missing_file(name, tmp_path):
    with pytest.raises(DataError) as caught:
        raw_path(name, tmp_path)
    for words in (str(tmp_path / name), FILES[name].sha256, FILES[name].url or "Jarrett"):
        assert words in str(caught.value)


@needs_data
def test_altered_file(tmp_path):
    content = (DATA / "wine.data").read_text()
    (tmp_path / "wine.data").write_text(content.replace("14.23", "14.24", 1))
    with pytest.raises(DataError, match=r"is not the file.*wine/wine\.data"):
        paper.load("wine1", tmp_path, download=True)


def test_failed_download_and_unknown_name(tmp_path, monkeypatch):
    pooch = pytest.importorskip("pooch")

    def offline(*arguments, **options):
        raise OSError("no network")

    monkeypatch.setattr(pooch, "retrieve", offline)
    with pytest.raises(DataError, match=r"no network.*crabs\.dat.*sha256"):
        paper.load("crabs", tmp_path, download=True)
    with pytest.raises(KeyError, match="unknown data set 'iris'; known are ionosphere"):
        paper.load("iris", tmp_path)


@needs_data
def test_download(tmp_path, monkeypatch):
    pooch = pytest.importorskip("pooch")
    asked = []

    def fetch(url, known_hash, fname, path):
        asked.append((url, known_hash))
        shutil.copy(DATA / fname, path)

    monkeypatch.setattr(pooch, "retrieve", fetch)
    X, _ = paper.load("crabs", tmp_path, download=True)
    raw = FILES["crabs.dat"]
    assert asked == [(raw.url, f"sha256:{raw.sha256}")]
    paper.load("crabs", tmp_path, download=True)
    assert len(asked) == 1
    assert X.shape == (200, 7)
