"""Rows that are read in chunks, by whoever; and sites on the disk."""

import errno
import tracemalloc
from unittest import mock

import dask.array as da
import numpy as np
import pytest
import zarr
from sklearn.gaussian_process.kernels import RBF

from qpruntime import ConvergenceWarning, infer_sparse
from qpruntime.dataframes import lazy_rows
from qpruntime.inference.sparse import passes, state
from tests.tools.cases import refuses

N = 1000
CHUNK = 200


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(lazy_rows, "CHUNK", CHUNK)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(3)
    x = np.round(64.0 * rng.standard_normal((N, 2))) / 64.0  # numbers of any dtype
    x[CHUNK : 2 * CHUNK, 1] = 0.5  # a column that is constant in a chunk
    y = np.sign(x[:, 0] + 0.3 * rng.standard_normal(N))
    y[: 2 * CHUNK] = 1.0  # chunks of one class
    return x, y, x[:12].copy()


@pytest.mark.slow
def test_where_rows_are_makes_no_difference(data, tmp_path):
    """Memory maps, zarr, dask arrays of chunks of any size, also unknown, empty or mixed."""
    x, y, z = data
    loose = {"tol": 1e-2, "scale": np.linspace(0.5, 2.0, N)}
    plain = infer_sparse(x, y, RBF(), z, **loose)
    stored = zarr.create_array(str(tmp_path / "x.zarr"), shape=x.shape, chunks=(99, 2), dtype="f8")
    stored[:] = x
    np.save(tmp_path / "x.npy", x)
    chunked = da.from_array(x, chunks=(170, 1))
    unknown = chunked[da.from_array(np.ones(N, bool), chunks=170)]
    empty = da.concatenate([chunked[:500], chunked[500:500], chunked[500:]])
    mixed = da.concatenate([chunked[:500].astype("f4"), chunked[500:]])
    mixed = mixed.map_blocks(lambda block: block.astype("f4"), dtype=float)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    for inputs in (stored, mapped, chunked, unknown, empty, mixed):
        outputs = da.from_array(y.astype(np.int8 if inputs is mixed else float), chunks=300)
        if inputs is chunked:
            loose["scale"] = da.from_array(loose["scale"], chunks=99)
        found = infer_sparse(inputs, outputs, RBF(), z, **loose)
        np.testing.assert_array_equal(found.sites, plain.sites)
        assert found.log_evidence == plain.log_evidence
    assert np.isnan(unknown.shape[0]), "the user's array was changed"
    narrow = infer_sparse(chunked.astype(np.float32), y, RBF(), z, **loose)
    same = infer_sparse(x.astype(np.float32), y, RBF(), z, **loose)
    assert narrow.log_evidence == same.log_evidence


def test_any_number_of_threads_gives_the_same_bits(data):
    x, y, z = (np.concatenate([part] * 5) for part in data)
    found = [infer_sparse(x, y, RBF(), z[:12], n_jobs=count) for count in (1, 2, 3)]
    for other in found[1:]:
        np.testing.assert_array_equal(other.sites, found[0].sites)
        assert other.log_evidence == found[0].log_evidence
    ends = [lazy_rows.chunk_slice(k, len(y)) for k in (0, lazy_rows.chunk_count(len(y)) - 1)]
    assert (ends[0].start, ends[1].stop) == (0, len(y))


def test_what_is_kept_between_passes_changes_no_bit(data, monkeypatch):
    """Variances are made once for a sweep and the means that are settled before it."""
    made = []
    solve = passes.marginals
    monkeypatch.setattr(passes, "marginals", lambda *given: made.append(0) or solve(*given))
    found, counts = [], []
    for memory in (0.0, 8.0 * len(data[1]), 1e9):
        made.clear()
        found.append(infer_sparse(*data[:2], RBF(), data[2], method="ep", memory=memory, n_jobs=1))
        counts.append(len(made))
    for other in found[1:]:
        np.testing.assert_array_equal(other.sites, found[0].sites)
        assert other.log_evidence == found[0].log_evidence
    chunks = lazy_rows.chunk_count(len(data[1]))
    # One for each sweep and one for the evidence at the end, where nothing is kept four.
    assert counts[1] == counts[2] == chunks * (found[0].n_sweeps + 1)
    assert counts[0] > 3 * counts[1] - 6 * chunks


def test_bad_chunks(data):
    x, y, z = data
    broken = x.copy()
    broken[3 * CHUNK + 5, 1] = np.nan
    for inputs, words in (
        (da.from_array(broken, chunks=100), rf"X\[{3 * CHUNK + 5}, 1\] is nan"),
        (da.from_array(x.astype(str), chunks=100), "real numbers in all columns"),
        (da.from_array(x[:, 0], chunks=100), "X must have shape"),
        (da.from_array(x[:99], chunks=100), "y must have shape"),
        (da.from_array(x[:0], chunks=100), "X must have shape"),
    ):
        refuses(words, infer_sparse, inputs, y, RBF(), z)


def test_chunks_of_other_types_and_sizes(data):
    """Truth values are numbers, dates and objects are not; blocks of other sizes are found out."""
    x, y, z = data
    mixed = da.concatenate([da.from_array(x[:300] > 0.0), da.from_array((x[300:] > 0.0) * 1.0)])
    plain = infer_sparse((x > 0.0) * 1.0, y, RBF(), z)
    assert infer_sparse(mixed, y, RBF(), z).log_evidence == plain.log_evidence
    dates = da.from_array(np.zeros((N, 2), "M8[D]"), chunks=99)
    objects = da.from_array(x.astype(object), chunks=99)
    lost = da.from_array(x, chunks=99).map_blocks(lambda part: 1 / 0, dtype=float)
    for inputs, words in ((dates, "datetime64"), (objects, "dtype object")):
        refuses(words, infer_sparse, inputs, y, RBF(), z)
    with pytest.raises(ZeroDivisionError):
        infer_sparse(lost, y, RBF(), z)
    # Blocks that are not what their array says.
    short = da.from_array(x, chunks=(100, 2)).map_blocks(lambda part: part[:-1], dtype=float)
    said = {"dtype": float, "chunks": ((100,) * 10, (2,))}
    wide = da.from_array(x, chunks=(100, 2)).map_blocks(lambda part: np.c_[part, part], **said)
    # Of chunks that threads read at once, any may be the first to say so.
    for inputs in (short, wide):
        refuses(r"X\[\d+:\d+\] has shape", infer_sparse, inputs, y, RBF(), z)


def test_sums_do_not_depend_on_the_order_of_arrival():
    rng = np.random.default_rng(4)
    for count in (1, 2, 3, 7, 13):
        parts = [{"a": rng.standard_normal(5) * 1e8, "worst": (k % 4, k)} for k in range(count)]
        found = []
        for _ in range(4):
            tree = state.SumTree(count)
            for number in rng.permutation(count):
                tree.put(int(number), parts[number])
            found.append(tree.total())
        for other in found[1:]:
            np.testing.assert_array_equal(other["a"], found[0]["a"])
        # Sums of numbers of 1e8 to the rounding of few of them.
        expected = np.sum([part["a"] for part in parts], axis=0)
        np.testing.assert_allclose(found[0]["a"], expected, rtol=0.0, atol=1e-6)
        assert all(other["worst"] == (min(count - 1, 3), min(count - 1, 3)) for other in found)


def test_checkpoints(data, tmp_path, monkeypatch):
    x, y, z = data
    path = tmp_path / "sites.npz"
    plain = infer_sparse(x, y, RBF(), z, tol=1e-9)
    monkeypatch.setattr("qpruntime.inference.sparse.checkpoint.EVERY", 0.0)
    with pytest.warns(ConvergenceWarning, match="not converged after 2 sweeps"):
        infer_sparse(x, y, RBF(), z, tol=1e-9, max_sweeps=2, checkpoint=path)
    again = infer_sparse(x, y, RBF(), z, tol=1e-9, checkpoint=path, resume=True)
    assert again.n_sweeps < plain.n_sweeps
    # Both within tol of the fixed point.
    np.testing.assert_allclose(again.log_evidence, plain.log_evidence, rtol=1e-9)
    for change, words in (
        ({"likelihood": "logistic"}, "likelihood is probit, not logistic"),
        ({"y": -y}, "data is"),
        ({"Z": z[:5]}, "data is"),
        ({"scale": np.linspace(0.999, 1.001, N)}, "data is"),
    ):
        given = {"kernel": RBF(), "X": x, "y": y, "Z": z, **change}
        refuses(words, infer_sparse, **given, checkpoint=path, resume=True)
    path.write_bytes(b"PK nothing")
    refuses("is no checkpoint", infer_sparse, x, y, RBF(), z, checkpoint=path, resume=True)
    refuses("resume=True needs checkpoint", infer_sparse, x, y, RBF(), z, resume=True)


def test_a_full_disk_at_a_checkpoint(data, tmp_path, monkeypatch):
    x, y, z = data
    full = mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr("qpruntime.inference.sparse.checkpoint.EVERY", 0.0)
    monkeypatch.setattr("os.fsync", full)
    path = tmp_path / "sites.npz"
    with pytest.warns(ConvergenceWarning, match="no checkpoint: .*No space left") as caught:
        found = infer_sparse(x, y, RBF(), z, checkpoint=path)
    assert len(caught) == 1
    assert found.log_evidence == infer_sparse(x, y, RBF(), z).log_evidence
    assert list(tmp_path.iterdir()) == []


class Made:
    """Rows that are made as they are read, and look like an array of zarr."""

    shape, dtype, chunks = (10**6, 2), np.dtype(float), (32_768, 2)

    def __getitem__(self, some):
        k = np.arange(some.start, some.stop)
        return np.column_stack([np.sin(1.7 * k), np.cos(0.37 * k)])


@pytest.mark.slow
def test_a_row_takes_sixteen_bytes_beside_the_data(monkeypatch):
    """A million rows that are read as they are needed: two numbers each, and a chunk's work."""
    monkeypatch.undo()
    x, n = Made(), Made.shape[0]
    y = np.where(np.sin(1.7 * np.arange(n)) > 0.1, 1.0, -1.0)
    z = x[slice(0, 10)]
    infer_sparse(x[slice(0, 200)], y[:200], RBF(), z)  # compiles
    tracemalloc.start()
    try:
        options = {"method": "ep", "memory": 0, "n_jobs": 1, "max_sweeps": 2}
        with pytest.warns(ConvergenceWarning, match="not converged"):
            found = infer_sparse(x, y, RBF(), z, **options)
        held, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found.n == n
    # Two blocks of features, 4 MB each, stay; a chunk of 32 768 rows needs some 25 numbers a row.
    assert held < 16 * n + 9e6
    assert most < 16 * n + 17e6
