"""Files and command lines that nobody meant: refused in words, at once, in little memory."""

import ast
import builtins
import hashlib
import importlib
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import qpruntime
from qpruntime import TableError, open_table
from qpruntime.projection.open import shipped_path
from qpruntime.table_format import container
from tests.tools import command_lines, forge
from tests.tools.cases import every_case, refuses
from tests.tools.fuzz import fuzz

SLOW = pytest.mark.slow
#: Least shares of the ends of mutated files and of command lines.
LEAST = {
    "opener": {"refused": 0.2, "opened": 0.05},
    "commands": {"exit 0": 0.1, "exit 1": 0.02, "exit 2": 0.1, "limited, exit 1": 0.01},
}
RARE = {"opener": {"damaged": 0.01}, "commands": {"limited, exit 0": 0.01}}


@pytest.mark.parametrize(
    ("target", "first", "stop", "workers"),
    [
        # A second worker imports and compiles as long as the first one works.
        ("opener", 0, 1000, 1),
        pytest.param("commands", 0, 40, 1, marks=SLOW),
        pytest.param("opener", 1000, 101_000, 2, marks=SLOW),
        pytest.param("commands", 40, 1080, 2, marks=SLOW),
    ],
)
def test_mutations(target, first, stop, workers, tmp_path):
    seen, failures = fuzz(target, first, stop, tmp_path, workers)
    assert failures == []
    assert sum(seen.values()) == stop - first
    # All ends are reached, and often the good one: nothing is tested that fails at the door.
    least = LEAST[target]
    if stop - first >= 1000:
        least = least | RARE.get(target, {})
    shares = {end: seen.get(end, 0) / (stop - first) for end in least}
    assert all(shares[end] >= share for end, share in least.items()), shares


def test_command_lines_have_every_option_of_every_command():
    lines = [command_lines.line(number) for number in range(3000)]
    for command, options in command_lines.options().items():
        given = {word for line in lines if line[:1] == [command] for word in line}
        assert set(options) <= given, command
        assert not options or command == "list" or given & {"nan", "inf", "-inf"}
        assert all(command_lines.valued(command, option) for option in options)


@pytest.mark.slow
def test_the_fuzzer_sees_what_dies_raises_and_hangs(tmp_path):
    _, failures = fuzz("canary", 0, 12, tmp_path, workers=1)
    found = {failure["number"]: failure["error"] for failure in failures}
    assert sorted(found) == [3, 5, 7, 9]
    for number, words in {3: "SIGABRT", 5: "deep", 7: "took", 9: "Memory"}.items():
        assert words in found[number]


def parts():
    source = shipped_path("heaviside")
    at, _ = forge.layout(source)
    content = source.read_bytes()
    return json.dumps(forge.document(source)).encode(), content[at.start : at.start + at.nbytes]


SIZE = b'"size": 193'
CRAFTED = {
    "nested without end": lambda text: b'{"a":' + b"[" * 200_000,
    "many small lists": lambda text: b"[" + b"[]," * 80_000 + b"[]]",
    "many keys": lambda text: json.dumps({str(i): i for i in range(15_000)}).encode(),
    "a number of many digits": lambda text: text.replace(SIZE, b'"size": 1' + b"0" * 200_000),
    "a shape of 2^62 numbers": lambda text: text.replace(SIZE, b'"size": %d' % 2**62),
    "a shape that overflows": lambda text: text.replace(SIZE, b'"size": %d' % (2**63 - 1)),
    "many outcomes": lambda text: with_(text, outcomes=list(range(20_000))),
    "a long name": lambda text: with_(text, likelihood="x" * 200_000),
    "too long": lambda text: with_(text, likelihood="x" * container.LIMIT),
}


def with_(text, **fields):
    return json.dumps(json.loads(text) | fields).encode()


@every_case("name", CRAFTED)
def test_crafted_files_take_little_memory(name, tmp_path):
    text, data = parts()
    path = tmp_path / "table.h5"
    path.write_bytes(forge.sealed(CRAFTED[name](text), data))
    tracemalloc.start()
    try:
        refuses(str(path), open_table, path, error=TableError)
        # The most that a quarter of a megabyte of JSON, the largest that is read, becomes.
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


HUGE = (1 << 64) - 1
START = 4096
NBYTES = 1576
FIELDS = {
    "data beyond the end": (START, 1 << 40, 0, 100),
    "data before the beginning": (HUGE, 1, START, 100),
    "sizes that add up to less by overflow": (HUGE - 100, 200, START, 100),
    "metadata beyond the end": (START, NBYTES, 1 << 40, 100),
    "metadata that overflow": (START, NBYTES, HUGE, 2),
    "metadata across the data": (START, NBYTES, START - 10, NBYTES + 100),
    "metadata in the data": (START, NBYTES, START, 100),
    "no data": (START, 0, START, 100),
    "unaligned data": (START - 1, NBYTES, START + NBYTES, 1000),
    "no metadata": (START, NBYTES, START + NBYTES, 0),
}


@every_case("name", FIELDS)
def test_seals_that_point_elsewhere(name, tmp_path):
    text, data = parts()
    path = tmp_path / "table.h5"
    path.write_bytes(forge.sealed(text, data, fields=FIELDS[name]))
    refuses(str(path), open_table, path, error=TableError)


def test_the_forger_makes_tables_that_open(tmp_path):
    """Otherwise the tests above would be refused for another reason."""
    text, data = parts()
    path = tmp_path / "table.h5"
    path.write_bytes(forge.sealed(text, data))
    assert open_table(path).sha256 == hashlib.sha256(data).hexdigest()
    path.write_bytes(forge.sealed(text, data, fields=(START, NBYTES, START + NBYTES, len(text))))
    np.testing.assert_array_equal(open_table(path).lookup(0.3, 1.0, 1)[1], True)


def test_nothing_named_in_a_file_is_run_or_opened(tmp_path, monkeypatch):
    """Names are compared with those known; they are no modules, expressions or paths."""
    text, data = parts()
    names = ["os", "os:system", "__import__('os').system('x')", "/etc/passwd", "../heaviside"]
    opened = []
    monkeypatch.setattr(importlib, "import_module", lambda name: opened.append(name))
    monkeypatch.setattr(builtins, "eval", lambda *args: opened.append(args))
    path = tmp_path / "table.h5"
    for name in names:
        path.write_bytes(forge.sealed(with_(text, likelihood=name), data))
        refuses("made for the likelihood", open_table, path, error=TableError)
    assert opened == []


def test_the_load_path_unpickles_nothing():
    """Neither pickle nor an HDF5 library is imported by what reads tables."""
    package = Path(qpruntime.__file__).parent
    projection = [
        package / "projection" / f"{name}.py" for name in ("table", "interpolation", "site_kernel")
    ]
    for path in [*package.glob("table_format/*.py"), *projection]:
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = {a.name for a in node.names} | {getattr(node, "module", None)}
                assert not names & {"pickle", "h5py", "joblib", "importlib", "marshal", "shelve"}
            if isinstance(node, ast.Call):
                called = getattr(node.func, "id", getattr(node.func, "attr", ""))
                assert called not in ("eval", "exec", "__import__", "import_module", "load")
