"""Whole builds of small grids: the file, its bytes, and what happens when something goes wrong.

On a dask cluster the bytes are those of a local build, or there is one clear error.
"""

import hashlib
import os
import pickle
import shutil
import sys
from dataclasses import replace

import h5py
import numpy as np
import pytest

import tablegen
from qpruntime import likelihoods
from qpruntime.errors import InputError, NumericalError, TableError
from qpruntime.execution import dask
from qpruntime.execution.threads import Stop
from qpruntime.projection.open import open_table
from qpruntime.table_format.metadata import DATASET, Metadata
from tablegen import builder
from tablegen.files.workspace import BuildStopped, Workspace
from tablegen.grid import build as grid, chebyshev, errors as certify, plan
from tests.tools import oracle
from tests.tools.build_processes import names
from tests.tools.cases import refuses

SMALL = {"mu_step": 0.5, "log10_sigma_step": 0.1}
SERIES = {"mu_step": 0.02, "log10_sigma_step": 0.002}


@pytest.fixture
def target(tmp_path):
    (tmp_path / "with a space").mkdir()
    return tmp_path / "with a space" / "probit.h5"


def test_the_package_exports_build():
    assert tablegen.build is builder.build
    assert "build" in dir(tablegen)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tablegen.nothing


@pytest.mark.parametrize(
    ("name", "preset", "options"),
    [("probit", "grid", SMALL), ("probit", "grid", SERIES), ("heaviside", "compact", {})],
)
def test_the_registry_is_asked_once_by_each_who_has_only_a_name(
    target, name, preset, options, monkeypatch
):
    """The request, the plan and the certificate: not once a chunk, nor once a block of points."""
    asked, get = [], likelihoods.get

    def counted(likelihood, **parameters):
        if isinstance(likelihood, str):
            asked.append(likelihood)
        return get(likelihood, **parameters)

    for path, module in list(sys.modules.items()):
        if path.startswith(("qpruntime", "tablegen")) and getattr(module, "get", None) is get:
            monkeypatch.setattr(module, "get", counted)
    plan._registered.cache_clear()
    builder.build(name, target, preset=preset, **options)
    assert 1 <= len(asked) <= 3, asked


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_file_is_one_contiguous_plain_dataset(target, dtype):
    metadata = builder.build("probit", target, dtype=dtype, **SMALL)
    assert names(target.parent) == ["probit.h5"]
    with h5py.File(target, "r") as file:
        assert list(file) == [DATASET]
        data = file[DATASET]
        assert (data.chunks, data.compression, data.fletcher32) == (None, None, False)
        assert data.dtype == np.dtype(dtype).newbyteorder("<")
        assert data.shape == metadata.shape == (1, 41, 21)
        stored = Metadata.from_json(file.attrs["metadata"], "test")
        values, offset = data[...], data.id.get_offset()
    assert stored == metadata
    certificate = stored.certificate
    assert certificate["random_nodes"] >= 2000
    assert certificate["tolerance"] == certify.TOLERANCES[dtype]
    # 41 x 21 nodes are coarse: cells are reported, not judged.
    assert certificate["cells"]["max_relative_error"] > 1e-3
    assert metadata.sha256 == hashlib.sha256(values.tobytes()).hexdigest()
    assert target.read_bytes()[offset : offset + values.nbytes] == values.tobytes()
    mu, sigma = metadata.mu.nodes(), 10 ** metadata.log10_sigma.nodes()
    for i, j in [(0, 0), (40, 20), (0, 20), (20, 10), (33, 7)]:
        star = oracle.tilted(oracle.probit, mu[i], sigma[j])[3]
        assert values[0, i, j] == pytest.approx(star, rel=2e-13 if dtype == "float64" else 6e-8)


@pytest.mark.parametrize("options", [SMALL, SERIES], ids=["direct", "series"])
def test_bytes_do_not_depend_on_time_or_workers(target, options):
    builder.build("probit", target, workers=1, **options)
    first = target.read_bytes()
    builder.build("probit", target, workers=3, force=True, **options)
    assert target.read_bytes() == first


def test_default_output_is_the_directory_of_installed_tables(target, monkeypatch):
    monkeypatch.setenv("QP_TABLES", str(target.parent / "installed"))
    builder.build(**SMALL)
    assert names(target.parent / "installed") == ["probit.h5"]
    assert open_table("probit").metadata.likelihood == "probit"


def test_every_stage_reports_progress(target):
    seen = []
    builder.build("probit", target, progress=lambda *a: seen.append(a), **SERIES)
    assert list(dict.fromkeys(stage for stage, _, _ in seen)) == [
        "integrate",
        "fill",
        "export",
        "certify",
    ]
    assert all(0 <= done <= total for _, done, total in seen)


@pytest.mark.parametrize(("workers", "chunks"), [(1, 1), (1, 3), (4, 3)])
def test_progress_within_chunks_counts_every_block_once(target, monkeypatch, workers, chunks):
    plan = replace(
        chebyshev.resolve(builder.check("probit", **SMALL).recipe.plan), rows=-(-41 // chunks)
    )
    monkeypatch.setattr(chebyshev, "resolve", lambda p: plan)
    monkeypatch.setattr(chebyshev, "_BLOCK", 4 * plan.rows)
    seen = []
    builder.build("probit", target, workers=workers, progress=lambda *a: seen.append(a), **SMALL)
    blocks = 6  # of 21 columns
    fills = [(done, total) for stage, done, total in seen if stage == "fill"]
    steps = [done for done, _ in fills]
    assert {total for _, total in fills} == {chunks * blocks}
    assert steps[0] == 0
    assert steps[-1] == chunks * blocks
    assert steps == sorted(steps)
    assert len(set(steps)) == 1 + chunks * blocks
    single = target.read_bytes()
    monkeypatch.setattr(chebyshev, "_BLOCK", 10**9)
    builder.build("probit", target, force=True, **SMALL)
    assert target.read_bytes() == single


def test_what_counts_blocks_travels_as_a_flag():
    plan, stop = chebyshev.resolve(builder.check("probit", **SMALL).recipe.plan), Stop()
    steps = grid._Steps(plan, 1, stop, lambda done, total: None)
    assert pickle.dumps(steps) == pickle.dumps(stop)
    stop.set()
    assert steps()


def test_a_failed_build_leaves_nothing_or_the_old_table(target):
    with pytest.raises(NumericalError, match=r"misses its tolerance.*raise --tolerance"):
        builder.build("probit", target, tolerance=1e-18, **SMALL)
    assert names(target.parent) == []
    builder.build("probit", target, **SMALL)
    before = target.read_bytes()
    with pytest.raises(NumericalError):
        builder.build("probit", target, tolerance=1e-18, force=True, **SMALL)
    assert target.read_bytes() == before
    assert names(target.parent) == ["probit.h5"]


def test_an_unwritable_directory(target, monkeypatch):
    # The tests may run as root, whom permissions do not stop.
    monkeypatch.setattr(os, "access", lambda *a, **k: False)
    refuses("cannot write to", builder.build, "probit", target, error=TableError, **SMALL)
    assert names(target.parent) == []


def test_a_disk_too_small_is_seen_before_the_work(target, monkeypatch):
    usage = shutil.disk_usage(target.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda p: usage._replace(free=2_000_000))
    with pytest.raises(TableError, match=r"needs \d+\.\d MB, 2\.0 MB are free"):
        builder.build("probit", target, **SERIES)
    assert not target.exists()


def test_finished_chunks_are_kept_and_damaged_ones_computed_again(target, monkeypatch):
    plan = replace(chebyshev.resolve(builder.check("probit", **SERIES).recipe.plan), rows=100)
    monkeypatch.setattr(chebyshev, "resolve", lambda p: plan)
    builder.build("probit", target, **SERIES)
    whole = target.read_bytes()
    target.unlink()
    computed = []
    real = chebyshev.fill

    def fill(plan, expansion, interrupted, chunk):
        computed.append(chunk)
        if len(computed) == 7:
            raise KeyboardInterrupt
        return real(plan, expansion, interrupted, chunk)

    monkeypatch.setattr(chebyshev, "fill", fill)
    with pytest.raises(KeyboardInterrupt):
        builder.build("probit", target, workers=1, **SERIES)
    assert not target.exists()
    damaged = Workspace(target).chunks / "c" / "0" / "3" / "0"
    data = bytearray(damaged.read_bytes())
    data[1000] ^= 4
    damaged.write_bytes(data)
    del computed[:]
    monkeypatch.setattr(chebyshev, "fill", lambda *a: computed.append(a[3]) or real(*a))
    builder.build("probit", target, workers=1, **SERIES)
    assert computed == [plan.chunks[3], *plan.chunks[6:]]
    assert target.read_bytes() == whole


def test_a_build_killed_after_the_rename_is_finished_by_the_same_command(target):
    metadata = builder.build("probit", target, **SMALL)
    Workspace(target).directory.mkdir()
    assert builder.build("probit", target, **SMALL) == metadata
    assert names(target.parent) == ["probit.h5"]
    # The remains of another build do not pass another table off as this one.
    Workspace(target).directory.mkdir()
    with pytest.raises(TableError, match="exists; replace it with --force"):
        builder.build("probit", target, mu_step=1.0, log10_sigma_step=0.1)


# --- on a dask cluster

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
