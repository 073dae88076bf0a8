"""Files that are damaged, forged, crafted or mutated: refused in words, or nothing has changed."""

import ast
import builtins
import hashlib
import importlib
import json
import shutil
import tracemalloc
from pathlib import Path

import h5py
import numpy as np
import pytest

import qpruntime
from qpruntime import TableError, infer, open_table, project
from qpruntime.projection.open import shipped_path
from qpruntime.table_format import container
from qpruntime.table_format.metadata import DATASET
from tablegen.verify import verify
from tests.tools import command_lines, forge
from tests.tools.cases import every_case, refuses
from tests.tools.forge import flipped, forged, layout, positions
from tests.tools.fuzz import KINDS, fuzz, of_kind

FLIPS = 400


@pytest.fixture(params=KINDS)
def table(request, small_table, tmp_path):
    return of_kind(request.param, tmp_path / "table.h5", small_table)


@pytest.fixture
def grid(small_table, tmp_path):
    return Path(shutil.copy(small_table, tmp_path / "grid.h5"))


def refused(path, **options):
    try:
        open_table(path, **options)
    except TableError as error:
        return str(path) in str(error)
    return False


@pytest.mark.parametrize("where", ["data", "rest"])
def test_one_flipped_bit(table, where):
    for byte, bit in positions(table, FLIPS, np.random.default_rng(2020), where=where):
        with flipped(table, byte, bit):
            assert refused(table, verify=True), (byte, bit)
            # Plain opening leaves out nothing but the data of a grid.
            assert refused(table) or where == "data", (byte, bit)
    assert open_table(table, verify=True).values.size


@pytest.mark.slow
def test_every_bit_besides_the_data(grid):
    found, size = layout(grid)
    for byte in [*range(found.start), *range(found.start + found.nbytes, size)]:
        for bit in range(8):
            with flipped(grid, byte, bit):
                assert refused(grid), (byte, bit)


def seen_by_verify(path):
    try:
        return verify(path, points=1, seed=0, workers=1).ok is False
    except TableError:
        return True


@pytest.mark.parametrize("count", [20, pytest.param(FLIPS, marks=pytest.mark.slow)])
def test_one_flipped_bit_fails_verification(grid, count):
    rng = np.random.default_rng(8)
    for where in ("data", "rest"):
        for byte, bit in positions(grid, count, rng, where=where):
            with flipped(grid, byte, bit):
                assert seen_by_verify(grid), (byte, bit)
    assert not seen_by_verify(grid)


def test_cut_off_anywhere(table):
    content = table.read_bytes()
    ends = {*range(0, len(content), 1 << 16), *range(0, min(len(content), 1 << 14), 512)}
    for end in sorted(ends | {len(content) - 1}):
        table.write_bytes(content[:end])
        assert refused(table), end
        # A hole where the missing bytes were, as a disk leaves after a power failure.
        table.write_bytes(content[:end] + bytes(len(content) - end))
        assert refused(table), end
    table.write_bytes(content + b"\0")
    assert refused(table)


@pytest.mark.parametrize("block", [512, 1024, 4096])
def test_swapped_blocks(table, block):
    content = table.read_bytes()
    rng = np.random.default_rng(block)
    count = len(content) // block
    for _ in range(20):
        i, j = sorted(rng.choice(count, 2, replace=False) * block)
        one, two = content[i : i + block], content[j : j + block]
        if one == two:
            continue
        table.write_bytes(content[:i] + two + content[i + block : j] + one + content[j + block :])
        assert refused(table, verify=True)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("schema", 99, "schema is 99"),
        ("kind", "compact", r"6888 bytes of data.*float64 \(1, 45, 25\), 9000 bytes"),
        ("kind", "spline", "kind"),
        ("likelihood", "cauchit", "likelihood 'cauchit'; this version knows"),
        ("outcomes", [2.0], "outcomes"),
        ("outcomes", [0.0, 1.0], r"6888 bytes of data.*float64 \(2, 41, 21\), 13776 bytes"),
        ("dtype", "float32", "metadata says float32"),
        ("byte_order", "big", "byte_order"),
        ("parameters", {"nu": "four"}, "parameters"),
        ("method", None, "method"),
        ("axes", [], "axes"),
        ("sha256", "0" * 64, "data hash is .*, metadata says 0000"),
    ],
)
def test_metadata_that_do_not_belong_to_the_data(grid, name, value, words):
    """With a seal that holds, as a confused program would leave it."""
    grid.write_bytes(forged(grid, **{name: value}))
    refuses(rf"{grid}.*{words}", open_table, grid, error=TableError, verify=True)
    assert name == "sha256" or refused(grid)
    assert seen_by_verify(grid)


CHANGES = {
    "shape": lambda v: v[:, 1:],
    "transposed": lambda v: v.transpose(0, 2, 1),
    "float32": lambda v: v.astype("f4"),
    "big-endian": lambda v: v.astype(">f8"),
    "integers": lambda v: v.astype("i8"),
    "not a number": lambda v: np.where(v == v[0, 9, 9], np.nan, v),
    "another node": lambda v: np.roll(v, 1),
    "another row": lambda v: v[:, ::-1],
    "of another likelihood": lambda v: v,
}


@pytest.mark.parametrize("name", CHANGES)
def test_data_that_do_not_belong_to_the_metadata(grid, name):
    """With all hashes right: what is wrong is what is stored."""
    values = np.array(open_table(grid).values)
    likelihood = "heaviside" if name == "of another likelihood" else "probit"
    grid.write_bytes(forged(grid, CHANGES[name](values), likelihood=likelihood))
    assert seen_by_verify(grid)


@pytest.mark.parametrize("layout", ["external", "virtual", "chunked", "compressed", "link"])
def test_datasets_whose_data_are_elsewhere(grid, tmp_path, layout):
    """HDF5 itself would read other files, or run filters; a seal covers one block in this one."""
    content = grid.read_bytes()
    shutil.copy(grid, tmp_path / "other.h5")
    values = np.array(open_table(grid).values)
    with h5py.File(grid, "r+") as file:
        del file[DATASET]
        if layout == "external":
            outside = [(tmp_path / "values.bin", 0, values.nbytes)]
            file.create_dataset(DATASET, values.shape, "f8", data=values, external=outside)
        elif layout == "virtual":
            source = h5py.VirtualSource(tmp_path / "other.h5", DATASET, values.shape)
            target = h5py.VirtualLayout(values.shape, "f8")
            target[...] = source
            file.create_virtual_dataset(DATASET, target)
        elif layout == "link":
            file[DATASET] = h5py.ExternalLink("other.h5", DATASET)
        else:
            options = {"compression": "gzip"} if layout == "compressed" else {}
            file.create_dataset(DATASET, data=values, chunks=(1, 7, 7), **options)
    assert refused(grid)
    # Nor does it help to put the old seal behind it.
    grid.write_bytes(grid.read_bytes() + content[-72:])
    assert refused(grid)


def everywhere(table):
    """Cavities in every cell of a grid, near its lower left corner and off the middle."""
    mu, sigma = table.metadata.mu, table.metadata.log10_sigma
    places = [
        np.meshgrid(mu.nodes()[:-1] + a * mu.step, sigma.nodes()[:-1] + b * sigma.step)
        for a, b in ((1e-3, 1e-3), (0.3, 0.6))
    ]
    return np.ravel([p[0] for p in places]), 10.0 ** np.ravel([p[1] for p in places])


def look(path, mu, sigma):
    """Return sigma* and "", or None and what was wrong with the table."""
    try:
        return open_table(path).lookup(mu, sigma, 1)[0], ""
    except TableError as error:
        return None, str(error)


def test_no_flipped_bit_gets_past_a_lookup(grid):
    """Plain opening does not read a grid: what is looked up is in (0, sigma_EP] or refused."""
    rng = np.random.default_rng(3)
    mu, sigma = everywhere(open_table(grid))
    bound = project("probit", mu, sigma, 1, method="ep")[1]
    raised = 0
    for byte, bit in positions(grid, FLIPS, rng, where="data"):
        with flipped(grid, byte, bit):
            star, error = look(grid, mu, sigma)
            if star is None:
                assert "tablegen verify" in error
                assert seen_by_verify(grid)
                raised += 1
            else:
                assert ((star > 0.0) & (star <= bound)).all(), (byte, bit)
    assert raised > FLIPS // 100  # signs alone are one bit in 64, but not all nodes are a corner


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0.0, -1.0, 1e-300, 1e300, 1.7e308])
def test_impossible_numbers_reach_no_result(grid, toy, value):
    grid.write_bytes(forged(grid, np.full_like(open_table(grid).values, value)))
    mu, sigma = everywhere(open_table(grid))
    bound = project("probit", mu, sigma, 1, method="ep")[1]
    for order in ("sequential", "random", "parallel"):
        if 1e299 < value < np.inf:
            # Finite but too large: cut to sigma_EP, as between the nodes of a coarse grid.
            assert (project("probit", mu, sigma, 1, table=grid)[1] <= bound).all()
            assert infer(toy.K, toy.y, table=grid, order=order).converged
            continue
        words = rf"{grid}: damaged: .*tablegen verify"
        given = {"table": grid, "error": TableError}
        refuses(words, project, "probit", mu, sigma, 1, **given)
        refuses(words, infer, toy.K, toy.y, order=order, **given)


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0, -1.0, 1e300])
def test_compact_tables_with_right_hashes_and_wrong_coefficients(tmp_path, value):
    path = tmp_path / "table.h5"
    source = shipped_path("probit")
    values = np.array(open_table(source).values)
    values[:, 20:60, 40:120] = value
    path.write_bytes(forged(source, values))
    mu, sigma = np.array([-3.0, 0.0, -8.0]), np.array([1.0, 2.0, 5.0])
    star, error = look(path, mu, sigma)
    if star is None:
        assert str(path) in error
    else:
        assert (star > 0.0).all()
        assert (star <= project("probit", mu, sigma, 1, method="ep")[1]).all()
        assert value == 1e300
    assert seen_by_verify(path)


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
        pytest.param("commands", 0, 40, 1, marks=pytest.mark.slow),
        pytest.param("opener", 1000, 101_000, 2, marks=pytest.mark.slow),
        pytest.param("commands", 40, 1080, 2, marks=pytest.mark.slow),
    ],
)
def test_mutations(target, first, stop, workers, tmp_path):
    seen, failures = fuzz(target, first, stop, tmp_path, workers)
    assert (failures, sum(seen.values())) == ([], stop - first)
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


def test_nothing_named_in_a_file_is_run_or_opened(tmp_path, monkeypatch):
    """Names are compared with those known; they are no modules, expressions or paths."""
    text, data = parts()
    path = tmp_path / "table.h5"
    # The forger makes tables that open.
    for fields in (None, (START, NBYTES, START + NBYTES, len(text))):
        path.write_bytes(forge.sealed(text, data, fields=fields))
        assert open_table(path).sha256 == hashlib.sha256(data).hexdigest()
    np.testing.assert_array_equal(open_table(path).lookup(0.3, 1.0, 1)[1], True)
    names = ["os", "os:system", "__import__('os').system('x')", "/etc/passwd", "../heaviside"]
    opened = []
    monkeypatch.setattr(importlib, "import_module", lambda name: opened.append(name))
    monkeypatch.setattr(builtins, "eval", lambda *args: opened.append(args))
    for name in names:
        path.write_bytes(forge.sealed(with_(text, likelihood=name), data))
        refuses("made for the likelihood", open_table, path, error=TableError)
    assert opened == []


def test_the_load_path_unpickles_nothing():
    """Neither pickle nor an HDF5 library is imported by what reads tables."""
    package = Path(qpruntime.__file__).parent
    names = ("table", "interpolation", "site_kernel")
    files = [package / "projection" / f"{name}.py" for name in names]
    for path in [*package.glob("table_format/*.py"), *files]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = {a.name for a in node.names} | {getattr(node, "module", None)}
                assert not names & {"pickle", "h5py", "joblib", "importlib", "marshal", "shelve"}
            if isinstance(node, ast.Call):
                called = getattr(node.func, "id", getattr(node.func, "attr", ""))
                assert called not in ("eval", "exec", "__import__", "import_module", "load")
