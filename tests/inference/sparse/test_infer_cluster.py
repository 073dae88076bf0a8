"""Sparse inference on a scheduler and workers that are killed, frozen and started meanwhile."""

import threading
import time
from functools import partial

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF

from qpruntime import infer_sparse
from qpruntime.execution.threads import ExecutorError
from qpruntime.inference.sparse.checkpoint import SitesFile
from tests.tools.dask_cluster import RealCluster, two_workers

pytestmark = pytest.mark.slow

N, M = 200_000, 60
#: Seconds after the beginning of a pass: it takes about two.
SOON = 0.3


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(3)
    x = rng.standard_normal((N, 2))
    return x, np.sign(x[:, 0] + 0.3 * rng.standard_normal(N)), x[:M].copy()


@pytest.fixture(scope="module")
def plain(data):
    return infer_sparse(*data[:2], RBF(), data[2])


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    with two_workers(tmp_path / "cluster", monkeypatch) as cluster:
        yield cluster


def run(data, cluster, tmp_path, monkeypatch, action):
    """Infer on the cluster; `action` takes place in the middle of a pass after the second sweep."""
    began = []

    def offer(self, engine):
        self.save(engine)
        began.append(time.monotonic())
        if len(began) == 2:
            threading.Timer(SOON, action).start()

    monkeypatch.setattr(SitesFile, "offer", offer)
    path = tmp_path / "sites.npz"
    return infer_sparse(*data[:2], RBF(), data[2], scheduler=cluster.address, checkpoint=path)


def same(found, plain):
    assert found.log_evidence == plain.log_evidence
    np.testing.assert_array_equal(found.sites, plain.sites)


def test_any_number_of_workers(data, plain, cluster):
    for _ in range(2):
        same(infer_sparse(*data[:2], RBF(), data[2], scheduler=cluster.address), plain)
        for _ in range(2):
            cluster.add_worker()
        cluster.wait_for_workers(4)


@pytest.mark.parametrize(
    "action", [lambda cluster: cluster.workers[0].kill(), RealCluster.freeze, RealCluster.restart]
)
def test_what_fails_comes_back(data, plain, cluster, tmp_path, monkeypatch, action):
    same(run(data, cluster, tmp_path, monkeypatch, partial(action, cluster)), plain)


def test_the_cluster_goes_away_for_good(data, plain, cluster, tmp_path, monkeypatch):
    with pytest.raises(ExecutorError, match="resume=True"):
        run(data, cluster, tmp_path, monkeypatch, cluster.end)
    again = infer_sparse(*data[:2], RBF(), data[2], checkpoint=tmp_path / "sites.npz", resume=True)
    assert again.n_sweeps < plain.n_sweeps
    # Both within tol of the fixed point.
    np.testing.assert_allclose(again.log_evidence, plain.log_evidence, rtol=1e-8)
