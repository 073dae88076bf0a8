"""Files of sparse inference that are damaged, of other problems, or left by killed writers."""

import json
import os
import pickle
import signal
import stat
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from qpruntime import InputError, Likelihood, _atomic_file as whole_file
from qpruntime._atomic_file import write_whole
from qpruntime.dataframes.lazy_rows import as_array, mapped, read, sample
from qpruntime.inference.sites import Sites
from qpruntime.inference.sparse import checkpoint
from qpruntime.inference.sparse.checkpoint import (
    digest,
    kernel_words,
    projector_words,
    write_arrays,
)
from qpruntime.inference.sparse.rows import Held, Lazy
from qpruntime.learning.optimise import Optimum
from qpruntime.learning.scaling import Units
from qpruntime.learning.sparse.objective import Place
from qpruntime.learning.sparse.train import FitFile, FitState
from tests.tools.cases import refuses
from tests.tools.fuzz import bytewise

N, M, CORRUPTIONS = 12, 3, 300
PROBLEM = {"kernel": "RBF(1.0)", "data": "0" * 64}


@pytest.fixture(autouse=True)
def one_problem(monkeypatch):
    monkeypatch.setattr(checkpoint, "_problem", lambda engine: PROBLEM)


def fit_file(path):
    rng = np.random.default_rng(1)
    theta, state = rng.standard_normal(2), json.dumps(rng.bit_generator.state)
    ended = Optimum(theta, -3.0, 4, 5, True, "converged", theta, theta)
    sites = Sites(rng.random(N), rng.standard_normal(N))
    place = Place(theta, rng.random((M, 2)))
    FitFile(path, PROBLEM).keep(FitState(1, place, (ended,), None, None, sites, state))

    def again():
        found = FitFile(path, PROBLEM).state(N, 2)
        optima = [(one.value, one.message, one.theta.tolist()) for one in found.optima]
        place = found.place.theta.tolist(), found.place.Z.tolist()
        return found.stages, place, optima, [part.tolist() for part in found.sites], found.random

    return again


def sites_file(path):
    engine = SimpleNamespace(tau=np.arange(N) / 7.0, nu=np.ones(N), rows=SimpleNamespace(n=N))
    checkpoint.SitesFile(path).save(engine)

    def again():
        found = SimpleNamespace(rows=engine.rows)
        assert checkpoint.SitesFile(path).restore(found)
        return [part.tolist() for part in found.sites]

    return again


def refused(path, again, words="is no checkpoint, or damaged"):
    with pytest.raises(InputError, match=words) as caught:
        again()
    assert str(path) in str(caught.value)


def test_random_corruptions_are_refused_or_change_nothing(tmp_path):
    path = tmp_path / "kept.npz"
    for begin in (fit_file, sites_file):
        again = begin(path)
        whole, expected, harmless = path.read_bytes(), again(), 0
        for seed in range(CORRUPTIONS):
            path.write_bytes(bytewise(whole, np.random.default_rng(seed)))
            try:
                found = again()
            except InputError as error:
                words = str(error)
            else:
                words, harmless = str(path), harmless + 1
                assert found == expected
            assert str(path) in words
        # Times of members, and what is behind the end, mean nothing.
        assert harmless < CORRUPTIONS // 3
        path.unlink()


def test_files_that_are_none(tmp_path):
    path = tmp_path / "kept.npz"
    for begin in (fit_file, sites_file):
        again = begin(path)
        whole = path.read_bytes()
        for content in (b"", b"PK", b"[" * 100_000, whole[:100], whole[:-30], whole[40:]):
            path.write_bytes(content)
            refused(path, again)
        for arrays in ({}, {"tau": np.ones(N)}, {"tau": np.array([{}, []], dtype=object)}):
            np.savez(path, **arrays)
            refused(path, again)
        with path.open("wb") as file:
            np.save(file, np.ones(5))
        refused(path, again)
        path.write_bytes(pickle.dumps([1, 2]))
        refused(path, again)
        # Whole, but without a word of the problem, or of the numbers.
        write_arrays(path, {"data": PROBLEM["data"]})
        refused(path, again, "its kernel is missing, not RBF")
        write_arrays(path, PROBLEM)
        refused(path, again)
        path.unlink()
        os.mkfifo(path)
        refused(path, again)  # and nobody waits for who writes to it
        path.unlink()


def test_kernels_are_told_apart():
    """By every digit and by bounds, which theta does not show."""
    plain = ConstantKernel(2.0) * RBF([1.0, 2.0]) + WhiteKernel(0.1)
    others = [
        ConstantKernel(2.0) * RBF([1.0, np.nextafter(2.0, 3.0)]) + WhiteKernel(0.1),
        ConstantKernel(2.0) * RBF([1.0, 2.0], (1e-5, 2e5)) + WhiteKernel(0.1),
        ConstantKernel(2.0) * RBF([1.0, 2.0]) + WhiteKernel(0.1, "fixed"),
        RBF([1.0, 2.0]) * ConstantKernel(2.0) + WhiteKernel(0.1),
        ConstantKernel(2.0) * RBF(1.0) + WhiteKernel(0.1),
    ]
    with_bounds = {kernel_words(kernel, bounds=True) for kernel in (plain, *others)}
    assert len(with_bounds) == 1 + len(others)
    assert kernel_words(clone(plain), True) in with_bounds
    # Sites do not depend on bounds.
    assert kernel_words(others[1], bounds=False) == kernel_words(plain, bounds=False)


def test_own_densities_and_inputs_are_told_apart():
    def of(scale):
        density = Likelihood.from_log_prob(lambda f, y: -abs(y - f) / scale, name="mine")
        projector = SimpleNamespace(likelihood=density, method="ep", p=None, table=None)
        return projector_words(projector, np.arange(3.0))["likelihood"]

    assert of(1.0) == of(1.0) != of(1.0 + 1e-9)
    X, y = np.arange(8.0).reshape(4, 2), np.ones(4)
    other = X.copy()
    other[3, 1] += 1e-12
    for kind in (Held, Lazy):
        assert digest(kind(X, y)) == digest(kind(X, y)) != digest(kind(other, y))
    assert digest(Held(X, y, y)) != digest(Held(X, y, None, y))


WRITER = """
import sys, time
from qpruntime._atomic_file import write_whole

def write(file):
    file.write(b"half")
    file.flush()
    print("begun", flush=True)
    time.sleep(600.0)

write_whole(sys.argv[1], write)
"""


def test_parts_of_killed_writers_are_removed_and_those_of_living_ones_are_not(tmp_path):
    path = tmp_path / "kept.npz"
    others = [tmp_path / "other.npz.abcdefgh.part", tmp_path / "kept.npz.part"]
    for other in others:
        other.touch()
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"begun\n"
            write_whole(path, lambda file: file.write(b"whole"))
            (part,) = tmp_path.glob("kept.npz.*.part")
            assert part.read_bytes() == b"half"
        finally:
            process.send_signal(signal.SIGKILL)
    write_whole(path, lambda file: file.write(b"again"))
    assert sorted(tmp_path.iterdir()) == sorted([path, *others])
    assert path.read_bytes() == b"again"


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")
def test_whole_files_have_the_permissions_of_others(tmp_path):
    """As `open` would give them; a file that is replaced keeps its own."""
    path, plain = tmp_path / "kept.npz", tmp_path / "plain"
    plain.write_bytes(b"")
    write_whole(path, lambda file: file.write(b"whole"))
    assert path.stat().st_mode == plain.stat().st_mode
    for mode in (0o600, 0o664):
        path.chmod(mode)
        write_whole(path, lambda file: file.write(b"again"))
        assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_part_that_another_process_removed_before_it_was_locked(tmp_path, monkeypatch):
    """It looked abandoned; the writer begins another."""
    plain, begun = os.fdopen, []

    def removed_once(handle, mode):
        begun.append(handle)
        if len(begun) == 1:
            whole_file.remove_parts(tmp_path / "kept")
            assert not any(tmp_path.iterdir())
        return plain(handle, mode)

    monkeypatch.setattr(whole_file.os, "fdopen", removed_once)
    write_whole(tmp_path / "kept", lambda file: file.write(b"whole"))
    assert len(begun) == 2
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"whole"]


def stored(path, values, **options):
    import zarr

    options = {"config": {"write_empty_chunks": True}, **options}
    array = zarr.create_array(str(path), shape=values.shape, dtype="f8", **options)
    array[:] = values
    return array, sorted(p for p in path.rglob("*") if p.is_file() and "json" not in p.name)


def test_missing_and_short_chunks_of_rows(tmp_path):
    x = np.random.default_rng(0).standard_normal((90, 3))
    x[30:40] = 0.0  # is written, and counts
    layouts = [
        {"chunks": (10, 2)},
        {"chunks": (5, 1), "shards": (10, 3)},
        {"chunks": (10, 3), "fill_value": np.nan},
    ]
    for number, options in enumerate(layouts):
        array, files = stored(tmp_path / f"{number}.zarr", x, **options)
        np.testing.assert_array_equal(read(array, slice(15, 45)), x[15:45])
        units = mapped(array, Units(np.zeros(3), np.ones(3)).scaled, 3)
        lost = files[len(files) // 2]
        content, where = lost.read_bytes(), "/".join(lost.parts[-3:])
        for cut in (0, 1, len(content) // 2, len(content) - 1, None):
            if cut is None:
                lost.unlink()
            else:
                lost.write_bytes(content[:cut])
            absent = not cut and (cut is None or "shards" in options)
            refuses(f"{where} is {'missing' if absent else 'damaged'}", read, array, slice(0, 90))
        for reader, inputs, how in (
            (sample, array, np.arange(0, 90, 7)),
            (read, units, slice(0, 90)),
            (as_array, array, "mean"),
        ):
            refuses(f"{where} is missing", reader, inputs, how)
        array.attrs["missing_chunks"] = "fill_value"
        if "fill_value" not in options:
            filled = read(array, slice(0, 90))
            assert (filled != x).any()
            np.testing.assert_array_equal(filled, array[:])


def test_random_corruptions_of_chunks_with_checksums(tmp_path):
    from zarr.codecs import Crc32cCodec

    x = np.random.default_rng(0).standard_normal((40, 2))
    array, files = stored(tmp_path / "x.zarr", x, chunks=(10, 2), compressors=[Crc32cCodec()])
    for seed in range(CORRUPTIONS // 4):
        rng = np.random.default_rng(seed)
        file = files[rng.integers(len(files))]
        whole = file.read_bytes()
        file.write_bytes(bytewise(whole, rng))
        words = "x.zarr/c/"
        try:
            np.testing.assert_array_equal(read(array, slice(0, 40)), x)
        except InputError as error:
            words = str(error)
        assert "x.zarr/c/" in words
        file.write_bytes(whole)
