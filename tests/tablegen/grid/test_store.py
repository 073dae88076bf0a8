"""The working store: what is written is read, what is damaged is missing."""

from dataclasses import replace

import numpy as np
import pytest

from tablegen.grid.plan import make_plan
from tablegen.grid.store import ChunkStore


@pytest.fixture
def plan():
    return replace(make_plan("probit", mu_step=1.0, log10_sigma_step=0.5), rows=4)


@pytest.fixture
def store(plan, tmp_path):
    store = ChunkStore(tmp_path / "chunks.zarr", plan)
    for n, chunk in enumerate(plan.chunks):
        store.write(chunk, np.full((chunk.stop - chunk.start, 5), n + 1.0))
    return store


def chunk_file(store, n):
    return store.path / "c" / "0" / str(n) / "0"


def test_chunks_come_back(plan, store):
    again = ChunkStore(store.path, plan)
    assert again.missing() == []
    for n, chunk in enumerate(plan.chunks):
        values = again.read(chunk)
        assert values.shape == (chunk.stop - chunk.start, 5)
        assert (values == n + 1.0).all()


def test_a_new_store_misses_everything(plan, tmp_path):
    assert ChunkStore(tmp_path / "new", plan).missing() == list(plan.chunks)


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "remove"])
def test_a_damaged_chunk_is_missing(plan, store, damage):
    path = chunk_file(store, 2)
    data = bytearray(path.read_bytes())
    if damage == "flip":
        data[17] ^= 1
        path.write_bytes(data)
    elif damage == "truncate":
        path.write_bytes(data[:-9])
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        path.unlink()
    again = ChunkStore(store.path, plan)
    assert again.missing() == [plan.chunks[2]]
    again.write(plan.chunks[2], np.full((4, 5), 3.0))
    assert again.missing() == []


def test_swapped_chunks_are_missing(plan, store):
    """Both are whole, and their checksums hold: only the rows' own numbers tell."""
    one, two = chunk_file(store, 1), chunk_file(store, 3)
    swapped = two.read_bytes(), one.read_bytes()
    one.write_bytes(swapped[0])
    two.write_bytes(swapped[1])
    assert ChunkStore(store.path, plan).missing() == [plan.chunks[1], plan.chunks[3]]


def test_another_plan_starts_anew(plan, store):
    other = replace(plan, method="direct")
    assert ChunkStore(store.path, other).missing() == list(other.chunks)


@pytest.mark.parametrize("content", [b"", b"{}", b"not json", b'{"zarr_format": 3}'])
def test_a_damaged_header_starts_anew(plan, store, content):
    (store.path / "zarr.json").write_bytes(content)
    assert ChunkStore(store.path, plan).missing() == list(plan.chunks)


def contents(path):
    return {p: p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_no_flipped_bit_gets_into_a_table(plan, store, count):
    """In chunks or in the header: what is read is what was written, or is computed again."""
    whole = contents(store.path)
    names = list(whole)
    written = [store.read(chunk) for chunk in plan.chunks]
    rng = np.random.default_rng(5)
    lost = 0
    for _ in range(count):
        name = names[rng.integers(len(names))]
        data = bytearray(whole[name])
        data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))
        name.write_bytes(data)
        again = ChunkStore(store.path, plan)
        for chunk, values in zip(plan.chunks, written, strict=True):
            found = again.read(chunk)
            lost += found is None
            assert found is None or np.array_equal(found, values), name
        if not name.exists() or name.read_bytes() != data:  # discarded and made anew
            for path, content in whole.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        name.write_bytes(whole[name])
    assert lost > count // 2
    assert ChunkStore(store.path, plan).missing() == []
