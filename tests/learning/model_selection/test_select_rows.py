"""The policy makes the same choice and the same bits wherever rows are, and whoever computes."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from qpruntime import GPClassifier, Inducing, NumericalError
from qpruntime.estimators import input_data
from qpruntime.inference.local import storage
from qpruntime.learning.inputs import Inputs
from qpruntime.learning.model_selection import budget, inducing_growth, select
from qpruntime.learning.settings import Data, settings_of
from qpruntime.likelihoods import get
from qpruntime.projection.projector import Projector
from tests.tools.dask_cluster import two_workers

N, D = 200, 11
RNG = np.random.default_rng(8)
X = RNG.standard_normal((N, D)) * np.linspace(1.0, 20.0, D)
LABELS = np.sin(2.0 * X[:, 0]) + 0.05 * X[:, 1] + 0.2 * RNG.standard_normal(N) > 0.0
NEW = RNG.standard_normal((40, D)) * np.linspace(1.0, 20.0, D)


@pytest.fixture(autouse=True)
def few_dense(monkeypatch):
    """More than 80 rows are many."""
    for room in (select, budget, input_data):
        monkeypatch.setattr(room, "DENSE_ROW_LIMIT", 80)
    monkeypatch.setattr(select, "FIRST_INDUCING", 10)


def fitted(rows, labels=LABELS, of_inducing=None, **options):
    own = {"nearest": 7, **(of_inducing or {})}
    given = {"random_state": 3, "inducing": Inducing(**own), "prior_mean": None, **options}
    return GPClassifier(**given).fit(rows, labels)


def same(model, plain):
    for name in ("engine_", "nearest_"):
        assert getattr(model, name) == getattr(plain, name)
    assert str(model.stages_) == str(plain.stages_)
    np.testing.assert_array_equal(model.inducing_points_, plain.inducing_points_)
    np.testing.assert_array_equal(model.predict_proba(NEW), plain.predict_proba(NEW))


def kinds(folder):
    da, zarr = pytest.importorskip("dask.array"), pytest.importorskip("zarr")
    np.save(folder / "X.npy", X)
    stored = zarr.create_array(str(folder / "X.zarr"), shape=X.shape, chunks=(120, D), dtype="f8")
    stored[:] = X
    return np.load(folder / "X.npy", mmap_mode="r"), stored, da.from_array(X, chunks=(120, D))


@pytest.mark.slow
def test_wherever_rows_are(tmp_path):
    """Also where they do not fit into memory: then their nearest are looked for on the disk."""
    plain = fitted(X)
    assert plain.engine_ == "inducing+nearest"
    assert not storage.on_disk(plain.posterior_._solution.rows.X)
    for rows in kinds(tmp_path):
        same(fitted(rows), plain)
    small, model = (fitted(at, of_inducing={"memory": 0.0}) for at in (X, rows))
    assert storage.on_disk(model.posterior_._solution.rows.X)
    same(model, small)
    same(pickle.loads(pickle.dumps(model)), small)


@pytest.mark.slow
def test_single_precision_steers_where_features_do_not_fit(monkeypatch):
    """And double where single loses the factor; the end is of double precision either way."""
    double = fitted(X, of_inducing={"dtype": "float64", "memory": 0.0})
    seen, settle = [], inducing_growth.settle

    def watched(engine, limits):
        seen.append(engine.dtype)
        return settle(engine, limits)

    monkeypatch.setattr(inducing_growth, "settle", watched)
    single = fitted(X, of_inducing={"memory": 0.0})
    assert set(seen) == {np.float32}
    assert single.posterior_.sparse._solution.inducing.dtype == np.float64
    # Both settle to the same tolerance, from starts that differ by rounding.
    np.testing.assert_allclose(single.predict_proba(NEW), double.predict_proba(NEW), atol=1e-4)

    def lost(engine, limits):
        if engine.dtype == np.float32:
            raise NumericalError("no factor")
        return settle(engine, limits)

    monkeypatch.setattr(inducing_growth, "settle", lost)
    same(fitted(X, of_inducing={"memory": 0.0}), double)


@pytest.mark.slow
def test_on_a_cluster(tmp_path, monkeypatch):
    plain = fitted(X)
    rows = kinds(tmp_path)
    with two_workers(tmp_path / "cluster", monkeypatch) as cluster:
        for inputs in (X, *rows):
            same(fitted(inputs, of_inducing={"scheduler": cluster.address}), plain)


def test_a_process_that_adds_nothing_to_trees_has_the_fewest_inducing_points(monkeypatch):
    grown, search = [], inducing_growth.InducingSearch
    grow = search.grow_inducing
    counted = lambda *given: grown.append(given) or grow(*given)  # noqa: E731
    monkeypatch.setattr(search, "grow_inducing", counted)
    settings = settings_of(GPClassifier(inducing=Inducing(nearest=7)))
    y, projector = np.where(LABELS, 1.0, -1.0), Projector(get("probit"), "ep")
    for compare in (True, False):
        data = Data(Inputs(X), y, projector, np.zeros(N))
        given = replace(settings, compare_kernels=compare)
        _, choice = select.fit_with_selection([data], given, np.random.default_rng(0), 1.0)
        assert len(grown) == 1
        assert (choice.inducing == (10,)) == (not compare)
