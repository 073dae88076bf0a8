"""Builds on a dask cluster: the bytes are those of a local build, or there is one clear error."""

import sys

import pytest

from qpruntime.errors import InputError, NumericalError
from qpruntime.execution import dask
from tablegen import builder
from tablegen.files.workspace import BuildStopped
from tests.tools.build_processes import names

OPTIONS = {"method": "direct", "mu_step": 0.1, "log10_sigma_step": 0.05}


@pytest.fixture(scope="module")
def inside():
    """Yield the address of a scheduler and one worker in threads of this process."""
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=1,
        threads_per_worker=1,
        processes=False,
        protocol="tcp",
        dashboard_address=":0",
        silence_logs=False,
    ) as local:
        yield local.scheduler_address


@pytest.mark.parametrize(
    ("likelihood", "chunk", "options"),
    [
        ("probit", 10_000, OPTIONS),
        pytest.param(
            *("probit", 1_000_000, {"mu_step": 0.02, "log10_sigma_step": 0.002}),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *("poisson", 200_000, {"mu_step": 0.1, "log10_sigma_step": 0.01, "counts": (0, 2)}),
            marks=pytest.mark.slow,
        ),
        ("heaviside", 200_000, {"mu_step": 0.1, "log10_sigma_step": 0.01}),
        pytest.param("heaviside", 0, {"preset": "compact"}, marks=pytest.mark.slow),
    ],
    ids=["direct", "series", "counts", "one axis", "compact"],
)
def test_bytes_are_those_of_a_local_build(
    inside, tmp_path, monkeypatch, likelihood, chunk, options
):
    monkeypatch.setattr("tablegen.grid.plan.CHUNK_BYTES", chunk)
    builder.build(likelihood, tmp_path / "local.h5", **options)
    seen = []
    builder.build(
        likelihood,
        tmp_path / "cluster.h5",
        scheduler=inside,
        progress=lambda *a: seen.append(a),
        **options,
    )
    assert (tmp_path / "local.h5").read_bytes() == (tmp_path / "cluster.h5").read_bytes()
    assert names(tmp_path) == ["cluster.h5", "local.h5"]
    assert seen[0] == ("connect", 0, 1)


def test_a_failing_call_is_the_error_of_a_local_build(inside, tmp_path):
    with pytest.raises(NumericalError, match="misses its tolerance"):
        builder.build("probit", tmp_path / "t.h5", scheduler=inside, tolerance=1e-18, **OPTIONS)
    with dask.Cluster(inside) as executor, pytest.raises(InputError, match="unknown likel"):
        executor.run(likelihood_of, ["cauchit"])
    assert names(tmp_path) == []


def likelihood_of(name):
    from qpruntime import likelihoods

    return likelihoods.get(name)


def broken(item):
    raise MemoryError(f"no memory for {item}")


def test_what_fails_on_workers_is_tried_three_times(inside):
    with (
        dask.Cluster(inside) as executor,
        pytest.raises(dask.ExecutorError, match=r"failed 3 times .*MemoryError: no memory for 7"),
    ):
        executor.run(broken, [7])


def test_another_version_is_refused(inside, tmp_path, monkeypatch):
    theirs = dask.provenance(("qpruntime", "tablegen"))
    for name, words in [
        ("qpruntime", r"worker tcp://.* cannot take part: it has qpruntime .* \(here 9\.9\)"),
        ("sources", r"it has sources .* install the same packages"),
        ("rounding", r"it rounds differently .* use workers like this machine"),
    ]:
        monkeypatch.setattr(dask.Cluster, "_own", lambda self: theirs | {name: "9.9"})  # noqa: B023
        with pytest.raises(BuildStopped, match=words):
            builder.build("probit", tmp_path / "t.h5", scheduler=inside, **OPTIONS)


def test_provenance_is_of_the_packages_it_is_handed():
    alone, both, lacking = (
        dask.provenance(packages)["sources"]
        for packages in [("qpruntime",), ("qpruntime", "tablegen"), ("qpruntime", "nowhere")]
    )
    assert len({alone, both}) == 2
    assert lacking == "without nowhere"


def test_usage(command, tmp_path, inside):
    for arguments, words in [
        (("--scheduler", "nowhere"), "must be an address like tcp://host:8786, got 'nowhere'"),
        (("--scheduler", "odd://host:1"), "unknown address scheme"),
        (("--scheduler", "tcp://host:1", "--timeout", "0"), "timeout must be in (0, 1e+06]"),
        (("--scheduler", "tcp://host:1", "--workers", "2"), "with a scheduler leave them out"),
    ]:
        run = command("build", "--output", tmp_path / "t.h5", *arguments)
        assert (run.code, run.err.count("\n")) == (2, 1)
        assert words in run.err
    assert names(tmp_path) == []


def test_nobody_there_is_one_error(command, tmp_path):
    run = command(
        *("build", "--output", tmp_path / "t.h5", "--timeout", "0.5"),
        *("--scheduler", "tcp://127.0.0.1:9"),
    )
    assert (run.code, run.err.count("\n")) == (1, 1)
    assert "no scheduler answers at tcp://127.0.0.1:9 within 0.5 s" in run.err
    assert "the same command resumes: tablegen build --output" in run.err
    assert names(tmp_path) == []


def test_without_distributed_the_extra_is_named(command, tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "qpruntime.execution.dask")
    monkeypatch.setitem(sys.modules, "distributed", None)
    run = command("build", "--output", tmp_path / "t.h5", "--scheduler", "tcp://h:1")
    assert run.code == 1
    assert "build needs distributed: run pip install '.[cluster]' in a checkout" in run.err
