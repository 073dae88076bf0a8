"""Every kind of table with bits flipped, cut off, or replaced: nothing of it goes unseen.

Opening reads every byte but the data of a grid; ``verify=True`` and ``tablegen verify`` read all.
Lookups in a grid that nobody verified give a number in (0, sigma_EP], or say that it is damaged.
"""

import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from qpruntime import TableError, infer, open_table, project
from qpruntime.projection.open import shipped_path
from qpruntime.table_format.metadata import DATASET
from tablegen.verify import verify
from tests.tools.cases import refuses
from tests.tools.forge import flipped, forged, layout, positions
from tests.tools.fuzz import KINDS, of_kind

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


def test_only_values_can_tell_another_surface(grid):
    grid.write_bytes(forged(grid, likelihood="heaviside"))
    assert not verify(grid, points=10, seed=0).ok


CHANGES = {
    "shape": lambda v: v[:, 1:],
    "transposed": lambda v: v.transpose(0, 2, 1),
    "float32": lambda v: v.astype("f4"),
    "big-endian": lambda v: v.astype(">f8"),
    "integers": lambda v: v.astype("i8"),
    "not a number": lambda v: np.where(v == v[0, 9, 9], np.nan, v),
    "another node": lambda v: np.roll(v, 1),
    "another row": lambda v: v[:, ::-1],
}


@pytest.mark.parametrize("name", CHANGES)
def test_data_that_do_not_belong_to_the_metadata(grid, name):
    """With all hashes right: what is wrong is what is stored."""
    values = np.array(open_table(grid).values)
    grid.write_bytes(forged(grid, CHANGES[name](values)))
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
    values = np.array(open_table(grid).values)
    values[:] = value
    grid.write_bytes(forged(grid, values))
    mu, sigma = everywhere(open_table(grid))
    bound = project("probit", mu, sigma, 1, method="ep")[1]
    for order in ("sequential", "random", "parallel"):
        if 1e299 < value < np.inf:
            # Finite but too large: cut to sigma_EP, as between the nodes of a coarse grid.
            assert (project("probit", mu, sigma, 1, table=grid)[1] <= bound).all()
            assert infer(toy.K, toy.y, table=grid, order=order).converged
            continue
        with pytest.raises(TableError, match=rf"{grid}: damaged: .*tablegen verify"):
            project("probit", mu, sigma, 1, table=grid)
        with pytest.raises(TableError, match=rf"{grid}: damaged: .*tablegen verify"):
            infer(toy.K, toy.y, table=grid, order=order)


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
