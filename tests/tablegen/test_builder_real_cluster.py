"""Builds on a scheduler and three workers that are killed, added and started again meanwhile."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tablegen import builder
from tests.tools import small_chunks
from tests.tools.dask_cluster import RealCluster, until

pytestmark = pytest.mark.slow

#: 4001 x 201 nodes, integrated one by one in 67 chunks: 3 s of one core.
OPTIONS = {"method": "direct", "mu_step": 0.005, "log10_sigma_step": 0.01}
CHUNK = 100_000


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the bytes of a build without a cluster."""
    path = tmp_path_factory.mktemp("whole") / "t.h5"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tablegen.grid.plan.CHUNK_BYTES", CHUNK)
        builder.build("probit", path, **OPTIONS)
    return path.read_bytes()


@pytest.fixture
def cluster(tmp_path):
    directory = tmp_path / "cluster"
    directory.mkdir()
    with RealCluster(directory, workers=3) as cluster:
        cluster.wait_for_workers(3)
        yield cluster


class Build:
    """The command line, building ``t.h5`` in `directory`, its grid cut into small chunks."""

    def __init__(self, directory, *arguments):
        self.path = directory / "t.h5"
        self.arguments = ["build", "--output", str(self.path), *arguments]
        for name, value in OPTIONS.items():
            self.arguments += [f"--{name.replace('_', '-')}", str(value)]
        self.process = subprocess.Popen(
            [sys.executable, str(Path(small_chunks.__file__)), str(CHUNK), *self.arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def chunks(self):
        return len(list(self.path.parent.glob(".t.h5.build/chunks.zarr/c/0/*/0")))

    def until(self, count):
        """Wait for this many finished chunks."""
        assert until(lambda: self.chunks() >= count, self.process), self.process.communicate()

    def end(self):
        out, err = self.process.communicate(timeout=300)
        return self.process.returncode, out, err

    def fails(self, *words):
        """Wait for one line of error, which ends with the command that resumes."""
        code, out, err = self.end()
        assert (code, out, err.count("\n")) == (1, "", 1), err
        for word in words:
            assert word in err
        assert "the same command resumes: tablegen build --output" in err
        assert not self.path.exists()

    def succeeds(self, whole):
        code, _, err = self.end()
        assert code == 0, err
        assert "Traceback" not in err
        assert self.path.read_bytes() == whole
        assert not self.path.with_name(".t.h5.build").exists()


def test_the_scheduler_never_comes_back(cluster, tmp_path, whole):
    build = Build(tmp_path, "--scheduler", cluster.address, "--timeout", "3")
    build.until(5)
    cluster.scheduler.kill()
    build.fails(f"no scheduler answers at {cluster.address} within 3 s")
    assert build.chunks() >= 5
    # Where there is no cluster any more, this machine goes on.
    Build(tmp_path).succeeds(whole)


def test_every_worker_dies_and_one_comes_back(cluster, tmp_path, whole):
    build = Build(tmp_path, "--scheduler", cluster.address)
    build.until(5)
    for worker in cluster.workers:
        worker.kill()
    time.sleep(3.0)
    cluster.add_worker()
    build.succeeds(whole)


def test_every_worker_dies_for_good(cluster, tmp_path, whole):
    build = Build(tmp_path, "--scheduler", cluster.address, "--timeout", "4")
    build.until(5)
    for worker in cluster.workers:
        worker.kill()
    build.fails(f"no worker at {cluster.address} for 4 s; start one there: dask worker")
    cluster.add_worker()
    Build(tmp_path, "--scheduler", cluster.address).succeeds(whole)


def test_a_frozen_scheduler(cluster, tmp_path, whole):
    build = Build(tmp_path, "--scheduler", cluster.address, "--timeout", "4")
    build.until(5)
    cluster.scheduler.send_signal(signal.SIGSTOP)
    build.fails(cluster.address)
    cluster.scheduler.send_signal(signal.SIGCONT)
    Build(tmp_path, "--scheduler", cluster.address).succeeds(whole)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_the_client_is_stopped(cluster, tmp_path, whole, number):
    build = Build(tmp_path, "--scheduler", cluster.address)
    build.until(5)
    build.process.send_signal(number)
    code, _, err = build.end()
    if number == signal.SIGINT:
        assert (code, err.count("\n")) == (130, 1), err
        assert "interrupted; to resume: tablegen build --output" in err
    else:
        assert code == -signal.SIGKILL
    Build(tmp_path, "--scheduler", cluster.address).succeeds(whole)


def test_a_worker_without_tablegen(cluster, tmp_path):
    fake = tmp_path / "elsewhere"
    fake.mkdir()
    (fake / "sitecustomize.py").write_text("import sys; sys.modules['tablegen'] = None")
    cluster.add_worker(PYTHONPATH=str(fake))
    cluster.wait_for_workers(4)
    Build(tmp_path, "--scheduler", cluster.address).fails("cannot import tablegen")


MODULE = """
import math
from qpruntime import Likelihood

def log_prob(f, y, theta):
    return -math.log1p(math.exp(-y * f)) if y * f > -700.0 else y * f

likelihood = Likelihood.from_log_prob(log_prob, name="mine", outcomes=[-1.0, 1.0])
"""


def build_surfaces(directory, path, monkeypatch, *arguments):
    """Run the command line beside the module `mine`; return a code and what it said."""
    (directory / "mine.py").write_text(MODULE)
    monkeypatch.setenv("PYTHONPATH", str(directory), prepend=os.pathsep)
    ranges = ("--mu-range", "-2", "2", "--log10-sigma-range", "-0.5", "0.5", "--tolerance", "1e-6")
    command = "import sys; from tablegen.console.cli import main; sys.exit(main())"
    options = "--likelihood", "mine:likelihood", "--output", str(path), *ranges, *arguments
    run = subprocess.run(
        [sys.executable, "-c", command, "build", *options],
        capture_output=True,
        text=True,
        timeout=300,
    )
    return run.returncode, run.stderr


def test_surfaces_of_a_module(tmp_path, monkeypatch):
    code, err = build_surfaces(tmp_path, tmp_path / "here.h5", monkeypatch)
    assert code == 0, err
    with RealCluster(tmp_path, workers=2) as cluster:  # workers are children: they find the module
        cluster.wait_for_workers(2)
        there = "--scheduler", cluster.address
        code, err = build_surfaces(tmp_path, tmp_path / "there.h5", monkeypatch, *there)
    assert code == 0, err
    assert (tmp_path / "there.h5").read_bytes() == (tmp_path / "here.h5").read_bytes()


def test_workers_without_the_module(cluster, tmp_path, monkeypatch):
    there = "--scheduler", cluster.address
    code, err = build_surfaces(tmp_path, tmp_path / "t.h5", monkeypatch, *there)
    assert (code, err.count("\n")) == (1, 1), err
    assert "cannot load what it has to call (No module named 'mine')" in err
    assert not (tmp_path / "t.h5").exists()
