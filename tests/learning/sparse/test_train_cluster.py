"""Estimators whose rows are computed by the workers of a real cluster, wherever rows are."""

import threading

import numpy as np
import pytest

from qpruntime import GPClassifier, Inducing
from qpruntime import Search as Few
from qpruntime.execution.threads import ExecutorError
from qpruntime.learning.sparse.objective import EvidenceSearch
from tests.tools.dask_cluster import two_workers

pytestmark = pytest.mark.slow

N = 20_000
#: Defaults of `executor_of`: four seconds for a scheduler to come back.
PATIENCE = (4.0, ("qpruntime",))


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(5)
    x = rng.standard_normal((N, 2)) * [1.0, 30.0]
    return x, x[:, 0] + 0.02 * x[:, 1] + 0.3 * rng.standard_normal(N) > 0.0


def fitted(x, y, kept=None, **options):
    given = {"inducing": Inducing(15, subsample=2000, **kept or {}), "optimize": Few(max_iter=3)}
    return GPClassifier(**given | {"method": "ep", "random_state": 0} | options).fit(x, y)


@pytest.fixture(scope="module")
def plain(data, tmp_path_factory):
    """A fit of this process, of rows read in parts: whose units are those of a sample."""
    path = tmp_path_factory.mktemp("rows") / "x.npy"
    np.save(path, data[0])
    return fitted(np.load(path, mmap_mode="r"), data[1])


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    with two_workers(tmp_path / "cluster", monkeypatch) as cluster:
        yield cluster


def same(model, plain):
    assert model.posterior_.log_evidence == plain.posterior_.log_evidence
    np.testing.assert_array_equal(model.inducing_points_, plain.inducing_points_)
    np.testing.assert_array_equal(model.posterior_.sites, plain.posterior_.sites)


def test_wherever_rows_are(data, plain, cluster, tmp_path):
    """zarr, dask arrays of any chunks, of unknown sizes, persisted with two clients; frames."""
    import dask.array as da
    import zarr
    from distributed import Client

    x, y = data
    stored = zarr.create_array(str(tmp_path / "x.zarr"), shape=x.shape, chunks=(999, 2), dtype="f8")
    stored[:] = x
    chunked = da.from_array(x, chunks=(7001, 1))
    unknown = chunked[da.from_array(np.ones(N, bool), chunks=7001)]
    with Client(cluster.address, set_as_default=False) as client:
        # In this process, and on the cluster: both with rows and labels that live there.
        there, labels = client.persist([unknown, da.from_array(y, chunks=5000)])
        same(fitted(there, labels), plain)
        for inputs, outputs in ((stored, y), (unknown, y), (there, labels)):
            same(fitted(inputs, outputs, {"scheduler": cluster.address}), plain)
    cluster.add_worker()
    cluster.add_worker()
    cluster.wait_for_workers(4)
    same(fitted(chunked, y, {"scheduler": cluster.address}), plain)


def test_data_frames(data, plain, cluster):
    pytest.importorskip("pyarrow", reason="dask data frames need pyarrow")
    import dask.dataframe as dd
    import pandas as pd

    frame = pd.DataFrame(data[0], columns=["a", "b"]).assign(y=data[1])
    rows = dd.from_pandas(frame, npartitions=5)
    same(fitted(rows[["a", "b"]], rows["y"], {"scheduler": cluster.address}), plain)


def disturbed(data, cluster, monkeypatch, action, kept=None, **options):
    """Fit on the cluster; `action` takes place during the second evaluation of all rows."""
    evaluate, seen = EvidenceSearch.evaluate, []

    def watched(self, place):
        seen.append(self.engine.rows.n == N)
        if sum(seen) == 2:
            threading.Timer(0.1, action).start()
        return evaluate(self, place)

    monkeypatch.setattr(EvidenceSearch, "evaluate", watched)
    return fitted(*data, {"scheduler": cluster.address, **(kept or {})}, **options)


def test_failures(data, cluster, monkeypatch, tmp_path):
    """A worker is killed, another freezes, then the scheduler is killed; all come back.

    Then they do not, and the fit goes on without them.
    """
    plain = fitted(*data)

    for action in (cluster.workers[1].kill, cluster.freeze, cluster.restart):
        cluster.add_worker()
        with monkeypatch.context() as patch:
            same(disturbed(data, cluster, patch, action), plain)

    monkeypatch.setattr("qpruntime.execution.resolve.executor_of.__defaults__", PATIENCE)
    kept = {"checkpoint": tmp_path / "fit.npz", "resume": True}
    with monkeypatch.context() as patch:
        words = r"no scheduler answers .*fit.npz has the sites so far: fit again with resume=True"
        with pytest.raises(ExecutorError, match=words):
            disturbed(data, cluster, patch, cluster.end, kept=kept)
    again = fitted(*data, kept)
    assert not list(tmp_path.glob("fit*"))
    assert again.posterior_.log_evidence > plain.posterior_.log_evidence - 1e-5 * N
    with pytest.raises(ExecutorError, match=r"no scheduler answers .* fit again, from the first"):
        fitted(*data, {"scheduler": cluster.address})
