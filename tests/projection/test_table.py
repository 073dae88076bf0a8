"""Opening a table file, and refusing everything else. Lookups are in test_table_lookup.py."""

import pickle
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from qpruntime import TableError, open_table, project
from qpruntime.projection.open import table_directory
from tablegen.files.hdf5 import seal
from tests.tools.cases import refuses


@pytest.fixture
def copy(small_table, tmp_path):
    return Path(shutil.copy(small_table, tmp_path / "probit.h5"))


def test_open(small_table):
    table = open_table(small_table, verify=True)
    assert table.values.shape == table.metadata.shape == (1, 41, 21)
    assert table.values.dtype == np.float64
    assert not table.values.flags.writeable
    assert isinstance(table.values.base, np.memmap)
    assert table.values.base.mode == "r"
    assert (table.path, table.outside, table.likelihood.name) == (small_table, "ep", "probit")
    with pytest.raises(ValueError, match="read-only"):
        table.values[0, 0, 0] = 1.0
    nodes = table.metadata.mu.nodes()[:, None], 10.0 ** table.metadata.log10_sigma.nodes()
    # What the table promises about itself.
    expected = project("probit", *nodes, 1, table="exact")[1]
    np.testing.assert_allclose(table.values[0], expected, rtol=1e-12)


def test_open_by_name(small_table, tmp_path, monkeypatch):
    monkeypatch.setenv("QP_TABLES", str(tmp_path))
    assert table_directory() == tmp_path
    with pytest.raises(TableError, match=r"no table 'student-t' in .*tablegen build --likelihood"):
        open_table("student-t")
    # Without a grid of this name the table that ships, which is what table=None takes.
    assert open_table("probit").sha256 == open_table("probit-compact").sha256
    refuses("no table at", open_table, tmp_path / "probit", error=TableError)
    shutil.copy(small_table, tmp_path / "probit.h5")
    assert open_table("probit").path == tmp_path / "probit.h5"
    monkeypatch.delenv("QP_TABLES")
    assert table_directory().is_absolute()


def test_refuses_other_files(tmp_path, small_table):
    text = tmp_path / "table.h5"
    words = r"no table at .*table\.h5.*tablegen build --output"
    refuses(words, open_table, text, error=TableError)
    refuses("is a directory", open_table, tmp_path, error=TableError)
    refuses("outside must be one of", open_table, small_table, outside="extrapolate")
    for content in (b"", b"not HDF5 at all\n" * 1000):
        text.write_bytes(content)
        refuses("not an HDF5 file", open_table, text, error=TableError)
    with h5py.File(text, "w") as file:
        file["other"] = 1.0
    refuses(r"no seal at its end.*build it again", open_table, text, error=TableError)


def test_refuses_what_other_programs_changed(copy):
    """HDF5 itself drops the seal when it writes; what leaves it in place no longer fits it."""
    sealed = copy.read_bytes()
    with h5py.File(copy, "r+") as file:
        file.attrs["note"] = "edited"
    refuses("no seal at its end: truncated, edited", open_table, copy, error=TableError)
    copy.write_bytes(copy.read_bytes() + sealed[-72:])
    refuses("the seal does not fit", open_table, copy, error=TableError)
    seal(copy)
    assert open_table(copy, verify=True).values.shape == (1, 41, 21)


def test_pickles_refer_to_the_table_by_its_hash(small_table, tmp_path, monkeypatch):
    moved = tmp_path / "here.h5"
    moved.write_bytes(small_table.read_bytes())
    table = open_table(moved, outside="exact")
    document = pickle.dumps(table)
    assert len(document) < 1000
    again = pickle.loads(document)
    assert (again.path, again.sha256, again.outside) == (moved, table.sha256, "exact")
    # Elsewhere it is found among the installed tables, by what it holds.
    installed = tmp_path / "installed" / "probit.h5"
    installed.parent.mkdir()
    moved.rename(installed)
    monkeypatch.setenv("QP_TABLES", str(installed.parent))
    assert pickle.loads(document).path == installed
    installed.unlink()
    with pytest.raises(TableError, match=rf"{table.sha256}.*tablegen build --likelihood probit"):
        pickle.loads(document)


def test_a_folder_of_the_same_name_does_not_hide_a_table(small_table, tmp_path, monkeypatch):
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "probit.h5").write_bytes(small_table.read_bytes())
    (tmp_path / "probit").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QP_TABLES", str(tmp_path / "tables"))
    assert open_table("probit").path == tmp_path / "tables" / "probit.h5"
