"""Opening a table file, and refusing everything else. Lookups are in test_lookup.py."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from qpruntime import InputError, TableError, open_table, project
from qpruntime.artifact import DATASET
from qpruntime.table import table_directory


@pytest.fixture
def copy(small_table, tmp_path):
    """Return a private copy of the small table."""
    return Path(shutil.copy(small_table, tmp_path / "probit.h5"))


def rewrite(path, **fields):
    """Change fields of the metadata in place."""
    with h5py.File(path, "r+") as file:
        file.attrs["metadata"] = json.dumps(json.loads(file.attrs["metadata"]) | fields)


def replace(path, values, **options):
    """Put another dataset in the place of the table's."""
    with h5py.File(path, "r+") as file:
        del file[DATASET]
        file.create_dataset(DATASET, data=values, **options)


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
    np.testing.assert_allclose(
        table.values[0], project("probit", *nodes, 1, table="exact")[1], rtol=1e-12
    )


def test_open_by_name(small_table, tmp_path, monkeypatch):
    monkeypatch.setenv("QP_TABLES", str(tmp_path))
    assert table_directory() == tmp_path
    with pytest.raises(TableError, match=r"no table 'probit' in .*tablegen build --likelihood pro"):
        open_table("probit")
    shutil.copy(small_table, tmp_path / "probit.h5")
    assert open_table("probit").path == tmp_path / "probit.h5"
    monkeypatch.delenv("QP_TABLES")
    assert table_directory().is_absolute()


def test_refuses_what_is_not_there(tmp_path):
    with pytest.raises(TableError, match=r"no table at .*missing\.h5.*tablegen build --output"):
        open_table(tmp_path / "missing.h5")
    with pytest.raises(TableError, match="is a directory"):
        open_table(tmp_path)


@pytest.mark.parametrize("keep", [0, 100, 2000, -8, -1])
def test_refuses_truncated(copy, keep):
    content = copy.read_bytes()
    copy.write_bytes(content[:keep])
    with pytest.raises(TableError, match="truncated"):
        open_table(copy)


def test_refuses_other_files(tmp_path, copy):
    text = tmp_path / "table.h5"
    text.write_text("not HDF5 at all\n" * 1000)
    with pytest.raises(TableError, match="not a readable HDF5 file"):
        open_table(text)
    with h5py.File(text, "w") as file:
        file["other"] = 1.0
    with pytest.raises(TableError, match="not a table of tablegen"):
        open_table(text)
    with h5py.File(copy, "r+") as file:
        del file[DATASET]
        file.create_group(DATASET)
    with pytest.raises(TableError, match="not a table of tablegen"):
        open_table(copy)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"schema": 99}, "schema is 99"),
        ({"likelihood": "cauchit"}, "likelihood 'cauchit'; this version knows"),
        ({"dtype": "float32"}, "dataset is float64"),
        ({"outcomes": [0.0, 1.0]}, "dataset is float64"),
        ({"outcomes": [2.0]}, "outcomes"),
        ({"kind": "spline"}, "kind"),
    ],
)
def test_refuses_other_metadata(copy, fields, words):
    rewrite(copy, **fields)
    with pytest.raises(TableError, match=words):
        open_table(copy)


def test_refuses_metadata_that_is_no_text(copy):
    with h5py.File(copy, "r+") as file:
        file.attrs["metadata"] = 3.0
    with pytest.raises(TableError, match="not a table"):
        open_table(copy)


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (lambda v: v, {"chunks": (1, 41, 21)}, "contiguous"),
        (lambda v: v, {"chunks": (1, 8, 8), "compression": "gzip"}, "contiguous"),
        (lambda v: v[0], {}, "dataset is float64"),
        (lambda v: v[:, :, 1:], {}, "dataset is float64"),
        (lambda v: v.transpose(0, 2, 1), {}, "dataset is float64"),
        (lambda v: v.astype(">f8"), {}, "dataset is >f8"),
        (lambda v: v.astype("f4"), {}, "dataset is float32"),
        (lambda v: v.astype(int), {}, "dataset is int64"),
    ],
)
def test_refuses_other_datasets(copy, make, options, words):
    replace(copy, make(np.array(open_table(copy).values)), **options)
    with pytest.raises(TableError, match=words):
        open_table(copy)


def test_verify_finds_one_flipped_bit(copy):
    with h5py.File(copy, "r") as file:
        offset = file[DATASET].id.get_offset()
    content = bytearray(copy.read_bytes())
    content[offset + 1234] ^= 1
    copy.write_bytes(content)
    assert open_table(copy).values.shape == (1, 41, 21)  # reading it all is what verify is for
    with pytest.raises(TableError, match=r"data hash is .* damaged"):
        open_table(copy, verify=True)


def test_refuses_unknown_outside(small_table):
    with pytest.raises(InputError, match="outside must be one of"):
        open_table(small_table, outside="extrapolate")


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
