"""Tables as zarr groups: what zarr and xarray see in them, what opening checks, where data go."""

import json
import os
import pickle
import shutil
import struct
import subprocess
import sys

import numpy as np
import pytest
import xarray
import zarr
from google_crc32c import value as crc32c
from numcodecs import blosc
from numcodecs.blosc import SHUFFLE, compress
from scipy.interpolate import BSpline

from qpruntime import TableError, open_table, project
from qpruntime.table_format import zarr as table_format_zarr, zarr_layout
from qpruntime.table_format.metadata import DATASET
from tablegen.files.formats import convert
from tablegen.verify import verify
from tests.tools.cases import refuses
from tests.tools.commands import python
from tests.tools.forge import bytes_of
from tests.tools.fuzz import KINDS, of_kind


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("QP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tables"


@pytest.fixture
def files(small_table, tmp_path):
    return lambda kind: of_kind(kind, tmp_path / f"{kind}.h5", small_table)


@pytest.fixture
def small_chunks(monkeypatch):
    """Cut small tables into chunks as large ones are, and have grids mapped."""
    monkeypatch.setattr(zarr_layout, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(table_format_zarr, "IN_MEMORY", 0)


@pytest.fixture
def grid(files, small_chunks):
    return convert(files("grid"))[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limit", [1 << 21, 5000])
def test_there_and_back(files, kind, limit, monkeypatch, tmp_path):
    monkeypatch.setattr(zarr_layout, "CHUNK_BYTES", limit)
    path = files(kind)
    group, metadata = convert(path)
    assert group == path.with_suffix(".zarr")
    one, other = open_table(path), open_table(group)
    assert other.metadata == one.metadata == metadata
    assert other.values.tobytes() == one.values.tobytes()
    assert not other.values.flags.writeable
    assert other.path == group
    back, _ = convert(group, tmp_path / "back.h5", format="hdf5")
    assert open_table(back, verify=True).sha256 == one.sha256
    if kind != "surfaces":  # made by forge, without HDF5
        assert back.read_bytes() == path.read_bytes()
    again, _ = convert(back, tmp_path / "again.zarr")
    assert bytes_of(again) == bytes_of(group)


@pytest.mark.parametrize("kind", KINDS)
def test_zarr_and_xarray_read_the_same(files, kind, monkeypatch):
    """Neither takes part in writing or reading."""
    monkeypatch.setattr(zarr_layout, "CHUNK_BYTES", 5000)
    path = files(kind)
    group, _ = convert(path)
    table = open_table(path)
    assert zarr.open_group(group, mode="r")[DATASET][...].tobytes() == table.values.tobytes()
    assert json.loads(zarr.open_group(group, mode="r").attrs["metadata"])["sha256"] == table.sha256
    for consolidated in (True, False):
        with xarray.open_zarr(group, consolidated=consolidated, chunks=None) as data:
            assert data[DATASET].values.tobytes() == table.values.tobytes()
            assert data[DATASET].attrs["units"] == "1"
            for name in set(data[DATASET].dims) - (
                {"u"} if kind in ("poisson", "heaviside") else set()
            ):
                assert data[name].attrs["units"]
                assert data[name].size == data.sizes[name]


def test_xarray_finds_a_node_by_its_labels(grid, small_table):
    with xarray.open_zarr(grid, chunks=None) as data:
        found = data[DATASET].sel(y=1, mu=-1.3, log10_sigma=0.4, method="nearest")
        star, _ = open_table(small_table).lookup(-1.3, 10.0**0.4, 1)
        assert float(found) == pytest.approx(float(star), rel=1e-13)  # on a node, up to 10**x
        assert data.sizes == {"y": 1, "mu": 41, "log10_sigma": 21}


def test_coordinates_of_splines_are_where_their_coefficients_belong(files):
    """The sum of c_j times the centres of B-splines is the identity, for every spline."""
    group, _ = convert(files("probit"))
    metadata = open_table(group).metadata
    with xarray.open_zarr(group, chunks=None) as data:
        for name, axis in zip("uv", metadata.axes, strict=True):
            knots = axis.start + axis.step * np.arange(-5, axis.size + 5)
            spline = BSpline(knots, data[name].values, 5)
            at = np.linspace(axis.start, axis.stop, 99)
            np.testing.assert_allclose(spline(at), at, rtol=0, atol=1e-13 * abs(at).max())


def test_bands_of_surfaces_have_names(files):
    with xarray.open_zarr(convert(files("surfaces"))[0], chunks=None) as data:
        assert data[DATASET].dims == ("y", "mu", "log10_sigma", "surface")
        names = data["surface"].attrs["flag_meanings"].split()
        assert names == ["log_z", "mean", "std_ep", "std_qp"]
        # What `fuzz.surfaces` holds everywhere.
        found = data[DATASET].isel(y=0, mu=3, log10_sigma=4).values
        np.testing.assert_array_equal(found, [-1.0, 0.1, -0.1, -0.05])


@pytest.mark.parametrize("kind", KINDS)
def test_one_flipped_bit_in_any_file(files, kind):
    group, _ = convert(files(kind))
    rng = np.random.default_rng(5)
    names = sorted(bytes_of(group))
    for turn in range(120):
        path = group / names[turn % len(names)]
        before = path.read_bytes()
        after = bytearray(before)
        after[rng.integers(len(before))] ^= 1 << rng.integers(8)
        path.write_bytes(after)
        refuses(group.name, open_table, group, error=TableError)
        path.write_bytes(before)
    assert open_table(group).sha256


@pytest.mark.parametrize("kind", ["grid", "probit"])
def test_missing_and_short_files(files, kind):
    group, _ = convert(files(kind))
    for name, before in bytes_of(group).items():
        (group / name).unlink()
        refuses(r"not copied|No such file|a directory", open_table, group, error=TableError)
        for end in (0, 3, len(before) // 2, len(before) - 1):
            (group / name).write_bytes(before[:end])
            refuses(group.name, open_table, group, error=TableError)
        (group / name).write_bytes(before)
    assert open_table(group).sha256


def test_swapped_chunks(grid):
    files = grid / DATASET / "c/0/0/0", grid / DATASET / "c/0/1/0"
    for path, content in zip(files, [path.read_bytes() for path in files[::-1]], strict=True):
        path.write_bytes(content)
    refuses("data hash", open_table, grid, error=TableError)


def test_files_that_do_not_belong_are_never_opened(grid):
    os.mkfifo(grid / "pipe")
    (grid / DATASET / "c/0/99").mkdir()
    (grid / DATASET / "c/0/99/0").write_bytes(b"x" * 100)
    (grid / ".zmetadata").write_text("nonsense")
    assert open_table(grid).lookup(0.0, 1.0, 1)[1]


def test_pipes_devices_and_vast_files_are_not_read(grid):
    chunk = grid / DATASET / "c/0/0/0"

    def vast():
        chunk.touch()
        os.truncate(chunk, 1 << 40)

    for make in (lambda: os.mkfifo(chunk), lambda: chunk.symlink_to("/dev/zero"), vast):
        chunk.unlink()
        make()
        refuses("not a file of at most", open_table, grid, error=TableError)


def forge(group, change, *, sealed=True):
    """Change the metadata document of a group, and write all documents anew for it."""
    page = json.loads((group / "zarr.json").read_bytes())
    document = json.loads(page["attributes"]["metadata"])
    change(document)
    text = json.dumps(document)
    seal = zarr_layout.seal(text) if sealed else "0" * 64
    page["attributes"] = {"metadata": text, "seal": seal}
    (group / "zarr.json").write_text(json.dumps(page, indent=1))


HOSTILE = {
    "another schema": lambda d: d.update(schema=99),
    "no axes": lambda d: d.update(axes=[]),
    "vast": lambda d: d["axes"][0].update(size=10**15),
    "beyond counting": lambda d: d["axes"][0].update(size=2**62),
    "one row more": lambda d: d["axes"][0].update(size=42),
    "a path for a hash": lambda d: d.update(sha256="../../../etc/passwd"),
    "no hash": lambda d: d.update(sha256=""),
    "objects": lambda d: d.update(dtype="object"),
    "text for a size": lambda d: d["axes"][0].update(size="41"),
    "unknown field": lambda d: d.update(codecs=[{"name": "numcodecs.pickle"}]),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("sealed", [True, False])
def test_hostile_metadata(grid, name, sealed, tmp_path):
    forge(grid, HOSTILE[name], sealed=sealed)
    refuses(grid.name, open_table, grid, error=TableError)
    assert not (tmp_path / "cache").exists()


def test_documents_that_are_none(grid):
    attributes = (b'{"attributes":1}', b'{"attributes":{"metadata":3}}')
    for page in (b"", b"{", b"[]", b"null", b"\xff", *attributes):
        (grid / "zarr.json").write_bytes(page)
        refuses(grid.name, open_table, grid, error=TableError)


CODECS = {
    "pickle": [{"name": "numcodecs.pickle", "configuration": {}}],
    "gzip": [{"name": "bytes"}, {"name": "gzip", "configuration": {"level": 1}}],
    "none": [{"name": "bytes", "configuration": {"endian": "little"}}],
    "big": [{"name": "bytes", "configuration": {"endian": "big"}}],
}


@pytest.mark.parametrize("name", CODECS)
def test_other_codecs_and_keys_of_an_array(grid, name):
    """Nothing that a document names is looked up: it has to be what tablegen writes."""
    path = grid / DATASET / "zarr.json"
    page = json.loads(path.read_bytes()) | {"codecs": CODECS[name]}
    path.write_text(json.dumps(page, indent=1))
    refuses("changed", open_table, grid, error=TableError)
    del page["codecs"]
    path.write_text(json.dumps(page | {"extra": 1}, indent=1))
    refuses("changed", open_table, grid, error=TableError)


def packed(values, compressor=b"zstd", shuffle=SHUFFLE):
    body = bytes(compress(np.ascontiguousarray(values), compressor, 5, shuffle, 0))
    return body + crc32c(body).to_bytes(4, "little")


def test_chunks_that_claim_another_size_are_not_decompressed(grid, monkeypatch):
    """Their checksums hold: their headers say what they would become."""
    chunk = grid / DATASET / "c/0/0/0"
    size = zarr_layout.arrays(table_format_zarr.read_metadata(grid))[0].chunk_nbytes
    bomb = packed(np.zeros(1 << 24))  # 128 MiB in a few KB
    assert len(bomb) < 70_000
    claims = bytearray(packed(np.zeros(size // 8)))
    claims[4:8] = struct.pack("<I", (1 << 31) - 1)
    claims[-4:] = crc32c(bytes(claims[:-4])).to_bytes(4, "little")
    other = [packed(np.zeros(size // 8), name) for name in (b"lz4", b"zlib", b"blosclz")]
    bits = packed(np.zeros(size // 8), shuffle=2)
    hostile = (bomb, bytes(claims), *other, bits)
    real, seen = blosc.decompress, []

    def decompress(body):
        seen.append(body)
        return real(body)

    monkeypatch.setattr(blosc, "decompress", decompress)
    for content in hostile:
        chunk.write_bytes(content)
        refuses(r"another size|at most", open_table, grid, error=TableError)
    assert seen  # the coordinates
    assert not {content[:-4] for content in hostile} & set(seen)


def test_a_store_that_claims_a_thousand_times_its_bytes(grid):
    """Chunks of zeros with the right headers, and all hashes right."""
    forge(grid, lambda d: d["axes"][0].update(size=4096))
    text = json.loads((grid / "zarr.json").read_bytes())["attributes"]["metadata"]
    metadata = table_format_zarr.Metadata.from_json(text, "x")
    for name, page in zarr_layout.documents(metadata.to_json(), metadata).items():
        (grid / name).write_bytes(page)
    assert table_format_zarr.read_metadata(grid).shape[1] == 4096
    refuses("not copied", open_table, grid, error=TableError)
    for name, _, _ in zarr_layout.arrays(metadata)[0].chunks():
        (grid / name).parent.mkdir(parents=True, exist_ok=True)
        (grid / name).write_bytes(b"")
    refuses(f"more than {table_format_zarr.RATIO} times", open_table, grid, error=TableError)


@pytest.mark.parametrize("count", [300, pytest.param(20_000, marks=pytest.mark.slow)])
def test_mutated_chunks_with_right_checksums(grid, count):
    """In a process of its own, which must not die; the hash of the data finds what decompresses."""
    code = (
        "import sys; from pathlib import Path; import numpy as np\n"
        "from google_crc32c import value\n"
        "from qpruntime import TableError, open_table\n"
        "from qpruntime.table_format import zarr_layout\n"
        "zarr_layout.CHUNK_BYTES = 1000\n"
        "rng, path = np.random.default_rng(9), Path(sys.argv[1]) / 'sigma_star/c/0/0/0'\n"
        "before, refused, kinds = path.read_bytes()[:-4], 0, set()\n"
        "for turn in range(int(sys.argv[2])):\n"
        "    body = bytearray(before)\n"
        "    for _ in range(rng.integers(1, 5)):\n"
        "        body[rng.integers(len(body))] = rng.integers(256)\n"
        "    path.write_bytes(bytes(body) + value(bytes(body)).to_bytes(4, 'little'))\n"
        "    try: open_table(sys.argv[1])\n"
        "    except TableError as error:\n"
        "        refused += 1; kinds.add(next(w for w in ('data hash', 'decompressed', 'another')\n"
        "                                     if w in str(error)))\n"
        "    else: assert bytes(body) == before\n"
        "print(refused, *sorted(kinds))\n"
    )
    refused, *kinds = python("-c", code, grid, count).stdout.strip().split(" ", 1)
    assert int(refused) > 0.9 * count
    assert "data hash" in kinds[0]
    assert "decompressed" in kinds[0]


def test_a_large_grid_is_materialised_once(grid, cache, monkeypatch):
    sha256 = open_table(grid).sha256
    assert [p.name for p in cache.iterdir()] == [f"{sha256}.data"]
    assert (cache.stat().st_mode & 0o077) == 0
    seen, plain = set(), table_format_zarr._decompress

    def counting(content, array, source):
        seen.add(array.name)
        return plain(content, array, source)

    monkeypatch.setattr(table_format_zarr, "_decompress", counting)
    table = open_table(grid)
    assert seen == {"y", "mu", "log10_sigma"}
    assert isinstance(table.values.base, np.memmap)
    assert open_table(grid, verify=True).sha256 == sha256
    assert DATASET in seen


def test_small_tables_leave_nothing(files, cache):
    for kind in KINDS:
        open_table(convert(files(kind))[0], verify=True)
    assert not cache.exists()


def test_damage_leaves_nothing_in_the_cache(grid, cache):
    chunks = sorted((grid / DATASET / "c").rglob("0"))
    size = zarr_layout.arrays(open_table(grid).metadata)[0].chunk_nbytes // 8
    body = packed(np.full(size, 0.5))
    shutil.rmtree(cache)
    next(p for p in reversed(chunks) if p.is_file()).write_bytes(body)
    refuses("data hash", open_table, grid, error=TableError)
    assert list(cache.iterdir()) == []


def test_a_cached_copy_is_of_the_right_size_and_can_be_read_again(grid, cache):
    values = np.array(open_table(grid).values)
    (kept,) = cache.iterdir()
    kept.write_bytes(kept.read_bytes()[:-8])
    np.testing.assert_array_equal(open_table(grid).values, values)
    damaged = bytearray(kept.read_bytes())
    damaged[5] ^= 1
    kept.write_bytes(damaged)
    np.testing.assert_array_equal(open_table(grid, verify=True).values, values)
    np.testing.assert_array_equal(open_table(grid).values, values)


def test_verify_reads_the_chunks_and_not_the_cache(grid):
    assert verify(grid, points=20, seed=0).ok
    chunk = grid / DATASET / "c/0/0/0"
    body = bytearray(chunk.read_bytes())
    body[30] ^= 4
    chunk.write_bytes(body)
    assert open_table(grid).sha256  # what is in the cache is right
    refuses("changed", verify, grid, error=TableError, points=20, seed=0)


def test_what_killed_processes_left_is_removed(grid, cache):
    cache.mkdir(parents=True)
    old, new = cache / "a.partial", cache / "b.partial"
    old.touch()
    new.touch()
    os.utime(old, (1.0, 1.0))
    open_table(grid)
    assert sorted(p.suffix for p in cache.iterdir()) == [".data", ".partial"]
    assert new.exists()


def test_where_nothing_can_be_kept(grid, monkeypatch, tmp_path):
    expected = np.array(open_table(grid).values)
    (tmp_path / "file").touch()
    monkeypatch.setenv("QP_CACHE", str(tmp_path / "file"))
    where = "set QP_CACHE to a directory that can be written"
    with pytest.warns(UserWarning, match=where) as opened:
        table = open_table(grid)
    with pytest.warns(UserWarning, match=where) as projected:
        project(None, 0.0, 1.0, 1.0, table=grid)
    # The line above, whatever calls are between.
    assert [w[0].filename for w in (opened, projected)] == [__file__] * 2
    np.testing.assert_array_equal(table.values, expected)
    monkeypatch.setattr(table_format_zarr, "MOST_IN_MEMORY", 0)
    refuses(r"set QP_CACHE.*too large for memory", open_table, grid, error=TableError)


def test_a_full_disk(grid, monkeypatch, cache):
    usage = shutil.disk_usage(grid)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10))
    with pytest.warns(UserWarning, match="MB are not free"):
        open_table(grid)
    assert list(cache.iterdir()) == []


@pytest.mark.slow
def test_many_processes_at_once(grid, cache):
    code = (
        "import sys; from qpruntime import open_table\n"
        "from qpruntime.table_format import zarr as zarr_group, zarr_layout\n"
        "zarr_layout.CHUNK_BYTES, zarr_group.IN_MEMORY = 1000, 0\n"
        "print(open_table(sys.argv[1]).values.sum())"
    )
    runs = [
        subprocess.Popen([sys.executable, "-c", code, grid], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert len({run.communicate()[0] for run in runs}) == 1
    assert {run.returncode for run in runs} == {0}
    assert [p.suffix for p in cache.iterdir()] == [".data"]


def test_found_by_name(files, tmp_path, monkeypatch):
    monkeypatch.setenv("QP_TABLES", str(tmp_path / "installed"))
    (tmp_path / "installed").mkdir()
    group, _ = convert(files("grid"), tmp_path / "installed" / "probit.zarr")
    assert open_table("probit").path == group
    fitted = open_table("probit")
    shutil.move(group, tmp_path / "probit-surfaces.zarr")
    # Without a grid the table that ships is found.
    assert open_table("probit").metadata.kind == "compact"
    shutil.move(tmp_path / "probit-surfaces.zarr", tmp_path / "installed")
    again = pickle.loads(pickle.dumps(fitted))  # by its hash, under another name
    assert again.path == tmp_path / "installed" / "probit-surfaces.zarr"


def test_a_directory_that_is_none_and_packages_that_are_missing(tmp_path, grid, monkeypatch):
    refuses("a directory, not a zarr table", open_table, tmp_path, error=TableError)
    zarr.create_group(tmp_path / "x.zarr")
    refuses("without the metadata of a table", open_table, tmp_path / "x.zarr", error=TableError)
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    words = r"need google_crc32c: run pip install '\.\[zarr\]' in"
    refuses(words, open_table, grid, error=TableError)


def test_conversion_refuses(files, tmp_path, small_chunks):
    path = files("grid")
    refuses("format must be one of hdf5, zarr", convert, path, format="hdf")
    refuses("name it x", convert, path, tmp_path / "x.h5")
    refuses(r"name it x\.h5", convert, path, tmp_path / "x.zarr", format="hdf5")
    refuses("is of format hdf5 already", convert, path, format="hdf5")
    refuses("no directory", convert, path, tmp_path / "none" / "x.zarr", error=TableError)
    group, _ = convert(path)
    refuses("exists; replace it with --force", convert, path, error=TableError)
    before = bytes_of(group)
    assert bytes_of(convert(path, force=True)[0]) == before
    damaged = bytearray(path.read_bytes())
    damaged[4000] ^= 1
    path.write_bytes(damaged)
    refuses("damaged and is not exported", convert, path, error=TableError, force=True)
    assert bytes_of(group) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["grid.h5", "grid.zarr"]
