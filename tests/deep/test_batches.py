"""Rows that stay in files, and batches that devices share."""

import itertools

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="the extra deep is not installed")

from qpruntime.deep import DeepGPClassifier, DeepGPRegressor, batches  # noqa: E402
from qpruntime.deep.batches import feed_of, standard_units  # noqa: E402
from qpruntime.learning.scaling import Units  # noqa: E402
from tests.tools.cases import refuses  # noqa: E402

OPTIONS = {"inducing": 6, "max_iter": 60, "batch_size": 16, "random_state": 0}


def stored(X, path, chunk=16):
    zarr = pytest.importorskip("zarr", reason="the extra zarr is not installed")
    array = zarr.create_array(str(path), shape=X.shape, dtype=X.dtype, chunks=(chunk, X.shape[1]))
    array[:] = X
    return array


def test_rows_in_a_file_train_the_same_model(data, fitted, tmp_path):
    """Up to a window the order of rows is that in memory: the same bits."""
    X, y = data
    mapped = np.lib.format.open_memmap(tmp_path / "X.npy", "w+", float, X.shape)
    mapped[:] = X
    for rows in (stored(X, tmp_path / "X.zarr"), mapped):
        model = DeepGPRegressor((2,), **OPTIONS).fit(rows, y)
        np.testing.assert_array_equal(model.history_, fitted.history_)
        np.testing.assert_array_equal(model.predict(X), fitted.predict(X))
        assert model.n_features_in_ == 1
    labels = np.where(y > 0.0, "up", "down")
    classes = [DeepGPClassifier((2,), **OPTIONS).fit(rows, labels) for rows in (X, mapped)]
    np.testing.assert_array_equal(classes[0].history_, classes[1].history_)


def test_refuses_rows_in_a_file_and_devices(data, tmp_path):
    X, y = data
    spoilt = X.copy()
    spoilt[33] = np.nan
    model, rows = DeepGPRegressor(**OPTIONS), stored(X, tmp_path / "a")
    refuses(r"X\[33, 0\] is nan", model.fit, stored(spoilt, tmp_path / "b"), y)
    refuses("y must have 40 rows", model.fit, rows, y[:-1])
    refuses("polish takes rows in memory", model.set_params(polish=5).fit, rows, y)
    have = len(jax.devices())
    model = DeepGPRegressor(**OPTIONS, devices=have + 1)
    refuses(f"devices is {have + 1}, and JAX has {have}", model.fit, *data)
    if have > 1:
        model.set_params(devices=2, batch_size=15)
        refuses(r"2 devices .* 15 rows: take batch_size=14", model.fit, *data)


def test_columns_that_are_constant_are_ignored(data, fitted, tmp_path):
    """Also in new rows, where they are something else; sums over rows are rounded otherwise."""
    X, y = data
    for value in (0.0, 1e6):
        flat = np.hstack([np.full_like(X, value), X])
        model = DeepGPRegressor((2,), **OPTIONS).fit(stored(flat, tmp_path / str(value)), y)
        np.testing.assert_allclose(model.history_, fitted.history_, rtol=1e-9)
        new = np.hstack([np.full_like(X, -3.0), X])
        np.testing.assert_allclose(model.predict(new), fitted.predict(X), rtol=1e-7, atol=1e-8)
        assert model.n_features_in_ == 2


def test_windows_have_every_row_once_and_few_at_a_time(monkeypatch, tmp_path):
    """Three times over 1000 rows in windows of 64, whose blocks come from everywhere."""
    monkeypatch.setattr(batches, "WINDOW", 64)
    monkeypatch.setattr(batches, "BLOCK", 8)
    X = np.arange(1000.0)[:, None]
    y = 2.0 * X[:, 0]
    read = []

    class Counted(np.memmap):
        def __getitem__(self, some):
            found = np.asarray(super().__getitem__(some))
            read.append(len(found))
            return found

    rows = np.memmap(tmp_path / "X", float, "w+", shape=X.shape)
    rows[:] = X
    units = Units(np.array([10.0]), np.array([4.0]))
    source = feed_of(rows.view(Counted), y, np.ones(1000), units)
    found = list(itertools.islice(source.batches(50, np.random.default_rng(0)), 60))
    assert all(len(batch.y) == 50 for batch in found)
    seen = np.concatenate([batch.X[:, 0] for batch in found]) * 4.0 + 10.0
    np.testing.assert_array_equal(np.concatenate([batch.y for batch in found]), 2.0 * seen)
    for epoch in np.split(seen, 3):
        np.testing.assert_array_equal(np.sort(epoch), X[:, 0])
    assert (seen[:1000] != seen[1000:2000]).any()
    assert max(read) == 8
    # Rows of one window are from all over: a window of neighbours would have a spread of 18.
    assert np.std(seen[:64]) > 100.0


def test_units_by_parts(tmp_path):
    """Beside NumPy's, of two and a half parts, far from zero."""
    rng = np.random.default_rng(0)
    X = 1e3 + rng.standard_normal((80_000, 2)) * [1.0, 5.0]
    weight = rng.uniform(0.5, 2.0, 80_000)
    found = standard_units(stored(X, tmp_path / "X", 10_000), weight)
    centre = np.average(X, axis=0, weights=weight)
    np.testing.assert_allclose(found.centre, centre, rtol=1e-14)
    scale = np.sqrt(np.average((X - centre) ** 2, axis=0, weights=weight))
    np.testing.assert_allclose(found.spread, scale, rtol=1e-12)


def test_two_devices_share_batches(data, fitted):
    if len(jax.devices()) < 2:
        pytest.skip("JAX has one device here, and XLA_FLAGS was given without a second")
    model = DeepGPRegressor((2,), **OPTIONS, devices=2).fit(*data)
    # The first energies are those of one device but for the order of sums; then Adam moves apart.
    np.testing.assert_allclose(model.history_[:5], fitted.history_[:5], rtol=1e-12)
    np.testing.assert_allclose(model.predict(data[0]), fitted.predict(data[0]), rtol=1e-6)
    again = DeepGPRegressor((2,), **OPTIONS, devices=2).fit(*data)
    np.testing.assert_array_equal(again.history_, model.history_)


def test_the_same_model_on_a_gpu(data, fitted):
    try:
        gpu = jax.devices("gpu")[0]
    except RuntimeError:
        pytest.skip("no GPU here")
    with jax.default_device(gpu):
        model = DeepGPRegressor((2,), **OPTIONS).fit(*data)
        found = model.predict(data[0])
    np.testing.assert_allclose(model.history_[:5], fitted.history_[:5], rtol=1e-10)
    np.testing.assert_allclose(found, fitted.predict(data[0]), rtol=1e-4)
