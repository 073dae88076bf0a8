"""Rows whose nearest are looked for on the disk: the numbers of rows in memory; nothing stays."""

import copy
import gc
import os
import pickle
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from qpruntime import _memory, infer_sparse
from qpruntime.inference.local import neighbours, storage
from qpruntime.inference.posterior import moved_to
from tests.tools.cases import every_case, refuses


def drawn(d, n=1500):
    """Rows, some of them at one place; labels, inducing inputs, points and a kernel."""
    rng = np.random.default_rng(d)
    X = rng.standard_normal((n, d))
    X[100:120] = X[0]
    y = np.sign(X[:, 0] + 0.3 * rng.standard_normal(n))
    kernel = ConstantKernel(2.0) * Matern(np.full(d, 2.0), nu=2.5) + WhiteKernel(0.1)
    return X, y, X[::50], rng.standard_normal((60, d)), kernel


def both(d, tmp_path, **options):
    """Posteriors of rows in memory, and of rows that do not fit; and points."""
    X, y, Z, points, kernel = drawn(d)
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    given = {"method": "ep", "nearest": 12, **options}
    held = infer_sparse(X, y, kernel, Z, **given)
    return held, infer_sparse(mapped, y, kernel, Z, **given, memory=0.0), points


def same(one, two, points):
    np.testing.assert_array_equal(one.predict(points), two.predict(points))
    some = np.arange(95, 125)
    np.testing.assert_array_equal(one.loo(some), two.loo(some))


def files():
    """Files without a name that this process maps."""
    return sum("(deleted)" in line for line in Path("/proc/self/maps").read_text().splitlines())


@every_case("d", [2, 12])
def test_the_same_bits_as_of_rows_in_memory(d, tmp_path):
    held, stored, points = both(d, tmp_path)
    assert not held.summary()["rows_on_disk"]
    assert stored.summary()["rows_on_disk"]
    assert storage.on_disk(stored._solution.rows.X)
    assert "rows are held on the disk and pickled" in str(stored)
    same(held, stored, points)
    # Their places are on the disk as well, and what cells look at.
    ground = stored._solution._ground
    assert storage.on_disk(ground.places.X)
    assert d == 2 or storage.on_disk(ground.search.index._front)


def test_copies_hold_rows_in_memory(tmp_path, monkeypatch):
    held, stored, points = both(12, tmp_path)
    for found in (pickle.loads(pickle.dumps(stored)), copy.deepcopy(stored)):
        same(held, found, points)
        assert type(found._solution.rows.X) is np.ndarray
        assert not found.summary()["rows_on_disk"]
    # A pickle that would not fit into memory says so before.
    monkeypatch.setattr(_memory, "_SMALL", 0.0)
    monkeypatch.setattr(_memory, "left", lambda: (1000.0, "by the machine"))
    refuses(r"pickling the rows of .*: its attribute sparse", pickle.dumps, stored)
    assert pickle.loads(pickle.dumps(stored.sparse)).predict(points)[0].shape == (60,)


def test_later_rows_and_other_units(tmp_path):
    held, stored, points = both(12, tmp_path)
    more = points[:9] + 0.1
    labels = np.where(more[:, 0] > 0.0, 1.0, -1.0)
    one, two = (post.extend(more, labels) for post in (held, stored))
    assert two.summary()["rows_on_disk"]
    assert two.summary()["rows_held"] == 1509
    np.testing.assert_array_equal(one.predict(points), two.predict(points))
    kernel = ConstantKernel(2.0) * Matern(np.full(12, 4.0), nu=2.5) + WhiteKernel(0.1)
    moved = [moved_to(post, kernel, None, lambda inputs: 2.0 * inputs) for post in (held, stored)]
    assert storage.on_disk(moved[1]._solution.rows.X)
    for post in moved:
        np.testing.assert_array_equal(post.predict(2.0 * points), held.predict(points))


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="counts files by /proc")
def test_nothing_stays(tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    before = files()
    _, stored, points = both(12, tmp_path)
    stored.predict(points)
    assert files() > before
    # Without a name: what ends this process, however, leaves nothing.
    assert not os.listdir(folder)
    del stored
    gc.collect()
    assert files() == before


def test_a_full_disk_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    refuses(r"has 1e-06 GB left: let TMPDIR name .* nearest=0", both, 2, tmp_path)

    monkeypatch.undo()
    refused = mock.Mock(side_effect=PermissionError(13, "Permission denied"))
    monkeypatch.setattr(storage.tempfile, "TemporaryFile", refused)
    refuses(r"fails \(Permission denied\): let TMPDIR", both, 2, tmp_path)


def test_a_users_own_map_is_no_file_of_ours(tmp_path):
    X, y, Z, points, kernel = drawn(12)
    np.save(tmp_path / "X.npy", X.astype(np.float32))
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    single = X.astype(np.float32).astype(float)
    found = [infer_sparse(rows, y, kernel, Z, method="ep", nearest=12) for rows in (single, mapped)]
    assert not any(post.summary()["rows_on_disk"] for post in found)
    same(*found, points)


def test_all_rows_by_cells_are_all_rows_by_a_tree(tmp_path, monkeypatch):
    """What cells put in another order are the same places; all of them are looked at."""
    X, y, Z, points, kernel = drawn(3, 130)
    options = {"method": "ep", "nearest": 130}
    by_tree = infer_sparse(X, y, kernel, Z, **options)
    expected, left_out = by_tree.predict(points), by_tree.loo(np.arange(130))
    monkeypatch.setattr(neighbours, "MOST_FEATURES", 0)
    by_cells = infer_sparse(X, y, kernel, Z, **options)
    # Rounding of some hundred operations, in another order.
    np.testing.assert_allclose(by_cells.predict(points), expected, rtol=0.0, atol=1e-10)
    np.testing.assert_allclose(by_cells.loo(np.arange(130)), left_out, rtol=0.0, atol=1e-10)
