"""The command line: exit codes, one-line errors, one JSON document (kills: tablegen/files)."""

import io
import json
import os
import subprocess
import sys

import pytest

import qpruntime
import tablegen
import tablegen.console.cli
from qpruntime.projection.open import open_table
from tablegen import builder
from tablegen.grid import build as grid, chebyshev
from tablegen.grid.plan import make_plan
from tests.tools.build_processes import names
from tests.tools.cases import every_case
from tests.tools.commands import SMALL, python

COUNTS = ("build", "--likelihood", "poisson")


def test_build_then_info_verify_list(command, tmp_path, monkeypatch):
    monkeypatch.setenv("QP_TABLES", str(tmp_path))
    built = command("build", *SMALL)
    assert built.code == 0
    assert str(tmp_path / "probit.h5") in built.out
    assert "built in" in built.err
    info = command("info", "probit")
    assert info.code == 0
    assert info.out == built.out
    assert "-10 to 10, step 0.5, 41 nodes" in info.out
    assert "error at nodes" in info.out
    assert command("info", tmp_path / "probit.h5").out == info.out
    verified = command("verify", "probit", "--points", "50", "--seed", "4")
    assert verified.code == 0
    assert "error" not in verified.err
    listed = command("list")
    assert listed.code == 0
    assert "probit" in listed.out
    assert "41 x 21" in listed.out


def test_json_is_one_document(command, tmp_path, monkeypatch):
    monkeypatch.setenv("QP_TABLES", str(tmp_path))
    empty = json.loads(command("list", "--json").out)
    assert (empty["directory"], empty["tables"]) == (str(tmp_path), [])
    dry = json.loads(command("build", *SMALL, "--dry-run", "--json").out)
    assert (dry["nodes"], dry["bytes"], dry["method"]) == (41 * 21, 41 * 21 * 8, "direct")
    assert names(tmp_path) == []
    built = json.loads(command("build", *SMALL, "--json").out)
    info = json.loads(command("info", "probit", "--json").out)
    assert built == info
    assert info["sha256"] == open_table("probit").sha256
    assert info["certificate"]["nodes"]["points"] > 2000
    assert json.loads(command("verify", "probit", "--json", "--points", "9").out)["ok"] is True
    expected = [str(tmp_path / "probit.h5")]
    assert [t["path"] for t in json.loads(command("list", "--json").out)["tables"]] == expected


def test_dry_run_on_a_cluster_asks_nobody(command, tmp_path):
    arguments = ("build", *SMALL, "--output", tmp_path / "t.h5", "--dry-run", "--json")
    dry = json.loads(command(*arguments, "--scheduler", "tcp://127.0.0.1:9").out)
    assert dry["scheduler"] == "tcp://127.0.0.1:9"
    assert "workers" not in dry
    assert names(tmp_path) == []


def test_dry_run_of_the_default_grid(command, tmp_path, monkeypatch):
    monkeypatch.setenv("QP_TABLES", str(tmp_path / "not made"))
    dry = command("build", "--dry-run")
    assert dry.code == 0
    assert "320.2 MB" in dry.out
    assert "40022001" in dry.out
    assert "estimated seconds" in dry.out
    assert not (tmp_path / "not made").exists()
    # Chunks are counted, not listed: these are 40 000 million.
    endless = json.loads(command("build", "--dry-run", "--json", "--mu-step", "1e-12").out)
    assert endless["chunks"] == -(-endless["mu"]["size"] // 499)


def test_list_shows_what_cannot_be_read(command, tmp_path, monkeypatch):
    monkeypatch.setenv("QP_TABLES", str(tmp_path))
    assert "no tables; build one" in command("list").out
    (tmp_path / "broken.h5").write_bytes(b"not a table")
    listed = command("list")
    assert listed.code == 0
    assert "broken" in listed.out
    assert "not an HDF5 file" in listed.out


def test_verify_fails_on_damaged_data(command, tmp_path):
    path = tmp_path / "t.h5"
    assert command("build", *SMALL, "--output", path).code == 0
    data = bytearray(path.read_bytes())
    data[4000] ^= 16
    path.write_bytes(data)
    verified = command("verify", path, "--points", "50")
    assert verified.code == 1
    assert "tablegen: error:" in verified.err
    assert "hash" in verified.err


@every_case(
    ("arguments", "code", "message"),
    [
        ((), 2, "the following arguments are required: COMMAND"),
        (("nonsense",), 2, "invalid choice: 'nonsense'"),
        (("build", "--nonsense"), 2, "unrecognized arguments: --nonsense"),
        (("build", "--mu-range", "1"), 2, "expected 2 arguments"),
        (("build", "--mu-range", "-1", "x"), 2, "invalid float value: 'x'"),
        (("build", "--mu-ran", "-1", "1"), 2, "unrecognized arguments"),
        (("build", "--workers", "1.5"), 2, "invalid int value"),
        (("build", "--workers", "0"), 2, "workers must be at least 1, got 0"),
        (("build", "--tolerance", "inf"), 2, "tolerance must be positive and finite, got inf"),
        (("build", "--dry-run", "--tolerance", "nan"), 2, "tolerance must be positive"),
        (("build", "--timeout", "-1"), 2, "timeout must be in (0, 1e+06], got -1.0"),
        (("build", "--dry-run", "--timeout", "inf"), 2, "timeout must be in (0, 1e+06], got inf"),
        (("build", "--preset", "surfaces", "--size-limit", "inf"), 2, "positive number of MB"),
        (("build", "--preset", "surfaces", "--mu-range", "-inf", "1"), 2, "finite LO < HI"),
        (("build", "--preset", "surfaces", "--p", "nan", "--projection", "wp"), 2, "p must be"),
        (("build", "--counts", "0:9" + "9" * 30), 2, "needs FIRST:LAST"),
        (
            (*COUNTS, "--preset", "surfaces", "--outcomes", "0:99999999"),
            2,
            "at most 20000 outcomes",
        ),
        (COUNTS, 2, "may take 16.3 GB, and twice that"),
        (("build", "--dry-run", "--output", "old.h5"), 1, "old.h5 exists; replace it"),
        (("biuld",), 2, "(did you mean 'build'?)"),
        (("build", "--likelihod", "probit"), 2, "(did you mean '--likelihood'?)"),
        (("verify", "old.h5", "--tolerance", "inf"), 2, "tolerance must be positive"),
        (("build", "--likelihood", "probt"), 2, "(did you mean 'probit'?)"),
        (("info", "probt"), 1, "did you mean 'probit'?"),
        (("build", "--likelihood", "nope"), 2, "unknown likelihood 'nope'; known are:"),
        (("build", "--mu-step", "0.3"), 2, "step 0.3 does not divide -10 to 10"),
        (("build", "--output", "missing/x.h5"), 1, "no directory"),
        (("build", "--output", "/dev/null/x.h5"), 1, "no directory"),
        (("build", "--output", "."), 1, "is a directory"),
        (("build", "--output", "old.h5"), 1, "old.h5 exists; replace it with --force"),
        (("build", "--mu-step", "1e-9", "--output", "new.h5", "--yes"), 1, "needs 640.3 TB"),
        (("build", "--tolerance", "1e-18", *SMALL, "--output", "new.h5"), 1, "misses its tolera"),
        (("info", "old.h5"), 1, "old.h5"),
        (("info", "none.h5"), 1, "none.h5"),
        (("info", "."), 1, "directory"),
        (("verify", "old.h5"), 1, "old.h5"),
        (("verify", "nothing-of-this-name"), 1, "no table"),
        (("build", "--format", "hdf"), 2, "format must be one of hdf5, zarr, got 'hdf'"),
        (("build", "--format", "zarr", "--output", "t.h5"), 2, "name it t.zarr"),
        (("build", "--format", "hdf5", "--output", "t.zarr"), 2, "name it t.h5"),
        (("build", "--output", "theirs.zarr"), 1, "no table of tablegen's, and is not replaced"),
        (("build", "--output", "theirs.zarr", "--force"), 1, "is not replaced; remove it yourself"),
        (("export", "old.h5"), 1, "old.h5"),
        (("export", "nothing"), 1, "no table 'nothing'"),
        (("export", "probit-compact", "--format", "csv"), 2, "format must be one of"),
        (("plot", "probit-compact"), 2, "--output"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    command, tmp_path, monkeypatch, arguments, code, message
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QP_TABLES", str(tmp_path))
    (tmp_path / "old.h5").write_bytes(b"precious")
    (tmp_path / "theirs.zarr").mkdir(exist_ok=True)
    (tmp_path / "theirs.zarr" / "data").write_bytes(b"precious")
    result = command(*arguments)
    assert result.code == code
    assert result.out == ""
    assert result.err.startswith("tablegen: error: ")
    assert result.err.count("\n") == 1
    assert message in result.err
    assert names(tmp_path) == ["old.h5", "theirs.zarr"]
    assert names(tmp_path / "theirs.zarr") == ["data"]
    assert (tmp_path / "old.h5").read_bytes() == b"precious"


@every_case("low", ["-2", "-2.0", "-.2e1", "-2e0", "-20e-1"])
def test_negative_numbers_are_arguments(command, low):
    dry = command("build", "--dry-run", "--json", *SMALL, "--mu-range", low, "2")
    assert dry.code == 0
    assert json.loads(dry.out)["mu"]["start"] == -2.0


def test_help_and_list_load_little(tmp_path):
    code = (
        "import sys; from tablegen.console.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'numba', 'dask', 'zarr', 'h5py', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert main(['list']) == 0\n"
        "heavy = {'dask', 'zarr', 'rich'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    python("-c", code, environment={"QP_TABLES": str(tmp_path)})


def test_a_terminal_gets_a_bar_and_nobody_else(monkeypatch, capsys):
    with tablegen.console.cli.bar() as progress:
        assert progress is None
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with tablegen.console.cli.bar() as progress:
        progress("fill", 0, 4)
        progress("fill", 4, 4)
        progress("export", 1, 4)
    out, _ = capsys.readouterr()
    assert out == ""


@pytest.mark.parametrize(("package", "extra"), [("zarr", "build"), ("matplotlib", "plot")])
def test_a_missing_extra_is_named(command, monkeypatch, package, extra):
    def absent(arguments):
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    monkeypatch.setattr(tablegen.console.cli, "_list", absent)
    result = command("list")
    assert result.code == 1
    assert (
        f"list needs {package}: run pip install '.[{extra}]' in a checkout of qpruntime"
        in result.err
    )


def test_version(command):
    found = command("--version")
    assert (found.code, found.out) == (0, f"tablegen {qpruntime.__version__}\n")


def test_a_table_with_parameters_is_found_by_its_name(command, tmp_path, monkeypatch):
    monkeypatch.setenv("QP_TABLES", str(tmp_path))
    spelt = "negative-binomial(dispersion=0.2)"
    build = ("build", "--likelihood", spelt, "--counts", "0:1", *SMALL, "--json")
    promised = json.loads(command(*build, "--dry-run").out)["path"]
    assert json.loads(command(*build).out)["path"] == promised
    assert names(tmp_path) == ["negative-binomial,dispersion=0.2.h5"]
    for name in (spelt, "negative-binomial( dispersion = .2 )", "negative-binomial,dispersion=0.2"):
        assert command("info", name).code == 0
    assert "negative-binomial,dispersion=0.2 " in command("list").out


@pytest.mark.parametrize(("answer", "code"), [("n\n", 1), ("\n", 1), ("", 1), ("y\n", 0)])
def test_a_large_plan_is_confirmed_on_a_terminal(command, tmp_path, monkeypatch, answer, code):
    monkeypatch.setattr(builder, "LARGE", 5000)

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    monkeypatch.setattr(tablegen.console.cli, "_on_terminal", lambda: True)
    path = tmp_path / "t.h5"
    result = command("build", *SMALL, "--output", path)
    assert result.code == code
    assert (
        "the table may take 6.9 KB, and twice that while it is built. Build it? [y/N]" in result.err
    )
    assert path.exists() == (code == 0)
    assert command("build", *SMALL, "--output", path, "--force", "--yes").code == 0


def test_a_dry_run_says_that_a_large_plan_is_confirmed(command, tmp_path):
    options = ("--likelihood", "poisson", "--output", tmp_path / "t.h5", "--dry-run")
    dry = command("build", *options)
    assert "(16.3 GB)" in dry.out
    assert "--yes" in dry.out
    assert "--yes" not in command("build", *options, *SMALL).out


def test_names_of_files_are_escaped(command, tmp_path, monkeypatch):
    monkeypatch.setenv("QP_TABLES", str(tmp_path))
    (tmp_path / "a\nb\x1b[2J.h5").write_bytes(b"")
    (tmp_path / os.fsdecode(b"\xff.h5")).write_bytes(b"")
    listed = command("list")
    assert listed.code == 0
    assert "a\\nb\\x1b[2J" in listed.out
    assert "\x1b" not in listed.out
    assert json.loads(command("list", "--json").out)["tables"]
    failed = command("info", tmp_path / "a\nb\x1b[2J.h5")
    assert failed.err.count("\n") == 1
    assert "\x1b" not in failed.err


@pytest.mark.parametrize(
    "megabytes",
    [50, 717, *(pytest.param(m, marks=pytest.mark.slow) for m in (300, 350, 450, 600, 700, 800))],
)
def test_a_limit_on_memory_is_one_line_and_leaves_nothing(megabytes, tmp_path):
    limit = megabytes * 1_000_000
    code = (
        "import resource, sys; from tablegen.console.cli import main\n"
        f"resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, "build", "--workers", "2", "--output", tmp_path / "t.h5"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 1
    assert run.stderr.startswith("tablegen: error: not enough memory for build: ")
    assert run.stderr.count("\n") == 1
    assert names(tmp_path) == []


def test_a_build_that_fails_before_its_first_chunk_leaves_nothing(command, tmp_path, monkeypatch):
    def fail(*arguments):
        raise MemoryError

    monkeypatch.setattr(grid.GridRecipe, "make", fail)
    result = command("build", *SMALL, "--output", tmp_path / "t.h5")
    assert result.code == 1
    assert "not enough memory for build: allocation failed" in result.err
    assert names(tmp_path) == []


def test_a_dry_run_of_thousands_of_counts_answers_at_once(command, monkeypatch):
    tried = []
    count = chebyshev._count
    monkeypatch.setattr(chebyshev, "_count", lambda *a: tried.append(a[-1]) or count(*a))
    spread = ("--mu-range", "2", "4", "--log10-sigma-range", "-1", "-0.5")
    likelihood = "negative-binomial(dispersion=2)"
    grid = ("build", "--likelihood", likelihood, *spread, "--dry-run", "--json", "--counts")
    few, many = (json.loads(command(*grid, counts).out) for counts in ("0:4", "0:4000"))
    # Two axes of five outcomes each.
    assert tried == 2 * [0.0, 1.0, 2.0, 3.0, 4.0] + 2 * [0.0, 1000.0, 2000.0, 3000.0, 4000.0]
    assert few["method"] == many["method"] == "spectral"
    assert "estimated_from_outcomes" not in few
    assert many["estimated_from_outcomes"] == 5
    axes = {"mu_range": (2, 4), "log10_sigma_range": (-1, -0.5)}
    plan = chebyshev.resolve(builder.check(likelihood, counts=(0, 4), **axes).recipe.plan)
    assert few["chebyshev_nodes"] == list(plan.nodes)


def test_a_series_is_given_up_at_the_first_outcome_that_has_none(monkeypatch):
    tried = []
    most = chebyshev._MOST_NODES
    monkeypatch.setattr(chebyshev, "_count", lambda *a: tried.append(a[-1]) or most + (a[-1] == 1))
    assert chebyshev.resolve(make_plan("negative-binomial", counts=(0, 3000))).method == "direct"
    assert tried == [0.0, 1.0]
