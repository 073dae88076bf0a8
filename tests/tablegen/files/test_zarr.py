"""Zarr tables from the command line: built, exported, replaced, killed and resumed."""

import json
import signal
import sys

import pytest

from qpruntime.projection.open import open_table
from tablegen.files import zarr as zarr_files
from tests.tools.build_processes import names
from tests.tools.commands import SMALL
from tests.tools.forge import bytes_of


@pytest.fixture(autouse=True)
def tables(tmp_path, monkeypatch):
    """Return the directory of installed tables, empty."""
    monkeypatch.setenv("QP_TABLES", str(tmp_path))
    monkeypatch.setenv("QP_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_built_exported_and_listed(command, tables):
    assert command("build", *SMALL).code == 0
    exported = command("export", "probit", "--format", "zarr")
    assert exported.code == 0
    assert str(tables / "probit.zarr") in exported.out
    group = bytes_of(tables / "probit.zarr")
    (tables / "probit.h5").rename(tables / "kept")
    built = command("build", *SMALL, "--format", "zarr", "--force")
    assert built.code == 0
    assert bytes_of(tables / "probit.zarr") == group
    assert built.out == exported.out == command("info", "probit").out
    assert command("verify", "probit", "--points", "50", "--seed", "4").code == 0
    assert "probit.zarr" in command("list").out
    assert command("export", "probit", "--format", "hdf5").code == 0
    assert (tables / "probit.h5").read_bytes() == (tables / "kept").read_bytes()
    assert names(tables) == ["kept", "probit.h5", "probit.zarr"]


def test_one_json_document(command, tables):
    built = json.loads(command("build", *SMALL, "--format", "zarr", "--json").out)
    assert built["path"] == str(tables / "probit.zarr")
    back = json.loads(command("export", "probit", "--format", "hdf5", "--json").out)
    assert back == built | {"path": str(tables / "probit.h5")}


def test_shipped_tables_are_exported_to_the_directory_of_tables(command, tables):
    assert command("export", "probit-compact").code == 0
    assert names(tables) == ["probit-compact.zarr"]
    assert open_table(tables / "probit-compact.zarr").sha256 == open_table("probit-compact").sha256


@pytest.mark.parametrize("preset", ["compact", pytest.param("surfaces", marks=pytest.mark.slow)])
def test_other_kinds(command, tables, preset):
    options = ["--mu-range", "-1", "1", "--log10-sigma-range", "-0.2", "0.2", "--tolerance", "1e-3"]
    options = options if preset == "surfaces" else []
    path = tables / "t.zarr"
    run = command(
        "build", "--likelihood", "heaviside", "--preset", preset, "--output", path, *options
    )
    assert run.code == 0, run.err
    assert open_table(path).metadata.kind == preset
    assert names(tables) == ["t.zarr"]


def test_list_and_info_read_no_chunk(command, tables):
    assert command("build", *SMALL, "--format", "zarr").code == 0
    for chunk in (tables / "probit.zarr/sigma_star/c").rglob("*"):
        if chunk.is_file():
            chunk.write_bytes(b"")
    assert "41 x 21" in command("list").out
    assert command("info", "probit").code == 0
    verified = command("verify", "probit")
    assert (verified.code, verified.err.count("\n")) == (1, 1)
    assert "tablegen: error:" in verified.err


@pytest.mark.parametrize("package", ["numcodecs", "google_crc32c"])
def test_a_missing_package_is_named_with_its_extra(command, tables, monkeypatch, package):
    for name in list(sys.modules):
        if name.split(".")[0] == package:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    run = command("export", "probit-compact")
    assert (run.code, run.err.count("\n")) == (1, 1)
    assert "run pip install '.[zarr]' in a checkout of qpruntime" in run.err
    assert names(tables) == []


# Killed: in the middle of the files, and around the renames.
STAGES = [
    *(("zarr", "before", 1), ("zarr", "after", 5), ("swap", "before", 1), ("swap", "after", 1)),
    *(("swap", "after", 2), ("remove", "before", 1)),
]
#: What the default run has of them.
QUICK = [
    (("zarr", "after", 5), False),
    (("swap", "after", 1), True),
    (("remove", "before", 1), True),
]


@pytest.fixture(scope="module")
def undisturbed(host, tmp_path_factory):
    """Return the files of a build that nobody disturbs."""
    path = tmp_path_factory.mktemp("undisturbed") / "t.zarr"
    assert host.build(path).code == 0
    return bytes_of(path)


@pytest.mark.parametrize(
    ("stage", "replaced"),
    # Where nothing is replaced, there is one rename.
    [
        pytest.param(s, old, marks=() if (s, old) in QUICK else pytest.mark.slow)
        for s in STAGES
        for old in (False, True)
        if old or s != ("swap", "after", 2)
    ],
    ids=lambda part: "-".join(map(str, part)) if isinstance(part, tuple) else str(part),
)
def test_killed_at_every_stage(host, undisturbed, tables, stage, replaced):
    path, force = tables / "t.zarr", ("--force",) if replaced else ()
    if replaced:
        assert host.build(path, options=SMALL).code == 0
        old = bytes_of(path)
    assert host.build(path, *force, die=stage).code == -signal.SIGKILL
    # Whole or absent, never in between.
    if path.exists():
        assert bytes_of(path) in ([undisturbed, old] if replaced else [undisturbed])
    else:
        assert not replaced or stage == ("swap", "after", 1)
    again = host.build(path, *force)
    assert again.code == 0, again.text
    assert bytes_of(path) == undisturbed
    assert names(tables) == ["t.zarr"]


def test_an_old_table_stays_until_the_new_one_is_whole(host, tables, monkeypatch, command):
    path = tables / "t.zarr"
    assert host.build(path, options=SMALL).code == 0
    before = bytes_of(path)

    def full(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(zarr_files, "write_file", full)
    run = command("build", *SMALL, "--mu-range", "-5", "5", "--output", path, "--force")
    assert (run.code, run.err.count("\n")) == (1, 1)
    assert "No space left on device" in run.err
    assert bytes_of(path) == before
    monkeypatch.undo()
    assert host.build(path, "--force").code == 0
    assert names(tables) == ["t.zarr"]
