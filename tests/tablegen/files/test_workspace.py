"""Builds that are killed, disturbed, or not alone: one clear error, and the same command resumes.

Disks fill up, directories vanish, permissions go; several build one table, and many read one that
is being replaced.
"""

import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from qpruntime.projection.open import open_table
from tests.tools import readers
from tests.tools.build_processes import names
from tests.tools.commands import python, start
from tests.tools.dask_cluster import until

slow = pytest.mark.slow
#: What a build does, in this order, and where it is made to die by its own hand.
STAGES = [
    ("header", "after", 1),
    ("store", "before", 4),
    ("rename", "before", 5),  # a chunk written under its temporary name
    ("store", "after", 20),
    ("create", "after", 1),
    ("copy", "before", 7),
    ("certify", "before", 1),
    ("metadata", "before", 1),
    ("seal", "before", 1),
    ("seal", "after", 1),
    ("fsync", "after", 1),  # then comes the rename
    ("fsync", "before", 2),  # the rename is done
    ("remove", "before", 1),
    ("rmtree", "after", 1),  # the chunks are gone, the directory is not
    ("remove", "after", 1),
]


def completes(host, path, whole, *arguments, **request):
    """Build to the end: the table is there, and nothing else."""
    assert host.build(path, *arguments, **request).code == 0
    assert path.read_bytes() == whole
    assert names(path.parent) == ["t.h5"]


@pytest.fixture(scope="module")
def old(host, tmp_path_factory):
    """Return the bytes of another table."""
    path = tmp_path_factory.mktemp("old") / "t.h5"
    assert host.build(path, options=("--mu-step", "0.5", "--log10-sigma-step", "0.1")).code == 0
    return path.read_bytes()


def quick(cases, chosen):
    """Leave some cases in the default run."""
    return [pytest.param(*case, marks=() if k in chosen else slow) for k, case in enumerate(cases)]


@pytest.mark.parametrize(
    ("stage", "replaced"),
    quick([(s, old) for s in STAGES for old in (False, True)], {4, 11, 18, 23}),
    ids=[f"{'-'.join(map(str, s))}-{old}" for s in STAGES for old in ("new", "replaced")],
)
def test_killed_at_every_stage(host, timed, old, tmp_path, stage, replaced):
    """A new table, and one that replaces another."""
    path = tmp_path / "t.h5"
    force = ("--force",) if replaced else ()
    if replaced:
        path.write_bytes(old)
    assert host.build(path, *force, die=stage).code == -signal.SIGKILL
    renamed = STAGES.index(stage) >= STAGES.index(("fsync", "before", 2))
    if replaced or renamed:
        assert path.read_bytes() == (timed[0] if renamed else old)
    else:
        assert not path.exists()
    again = host.build(path, *force)
    # A build that was killed when nothing was left to do is done.
    assert again.code == int(stage == ("remove", "after", 1) and not replaced), again.text
    assert path.read_bytes() == timed[0]
    assert names(tmp_path) == ["t.h5"]


def kill_at_random(host, timed, old, directory, count, seed):
    """Kill `count` builds at random moments, finish them; return what they had come to."""
    draw = random.Random(seed)
    moments = []
    for turn in range(4 * count):
        if len(moments) == count:
            break
        path = directory / f"{turn}" / "t.h5"
        path.parent.mkdir()
        force = ("--force",) if turn % 2 else ()
        if force:
            path.write_bytes(old)
        before = path.read_bytes() if force else None
        process = host.start(path, *force)
        time.sleep(draw.uniform(0.0, timed[1]))
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        ended = host.end()
        now = path.read_bytes() if path.exists() else None
        assert now in (before, timed[0])
        work = path.parent / ".t.h5.build"
        if ended.code == 0:
            pass  # it was faster
        elif now == timed[0]:
            moments.append("renamed")
        elif not work.exists():
            moments.append("before")
        elif (work / "table.partial").exists():
            moments.append("file")
        else:
            moments.append("chunks")
        # Without --force, and with nothing left to do, it would say that the table exists.
        if force or work.exists() or now is None:
            assert host.build(path, *force).code == 0
        assert path.read_bytes() == timed[0]
        assert names(path.parent) == ["t.h5"]
    return moments


def test_killed_at_random_moments(host, timed, old, tmp_path):
    assert len(kill_at_random(host, timed, old, tmp_path, 4, 1)) == 4


@slow
def test_killed_at_fifty_random_moments(host, timed, old, tmp_path):
    moments = kill_at_random(host, timed, old, tmp_path, 50, 2)
    assert len(moments) == 50
    assert min(moments.count("chunks"), moments.count("file")) >= 3, moments


@pytest.mark.parametrize("turn", quick([(k,) for k in range(20)], {0}))
def test_interrupted(host, timed, tmp_path, turn):
    path = tmp_path / "t.h5"
    process = host.start(path)
    time.sleep(random.Random(turn).uniform(0.0, 0.9) * timed[1])
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGINT)
    ended = host.end()
    assert "Traceback" not in ended.text
    if ended.code:
        assert ended.code == 130
        assert ended.text.endswith(
            f"tablegen: interrupted; to resume: tablegen build --mu-step 0.02 "
            f"--log10-sigma-step 0.002 --output {path}\n"
        )
        assert ended.text.count("\n") == 1
        # Interrupted after the rename, only the clearing up is left.
        if not path.exists() or names(tmp_path) != ["t.h5"]:
            assert host.build(path).code == 0
    assert path.read_bytes() == timed[0]
    assert names(tmp_path) == ["t.h5"]


@slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("turn", range(6))
def test_from_the_shell(host, tmp_path, number, turn):
    """A process that starts from nothing, imports included."""
    options = ("--mu-step", "0.004")
    whole = host.build(tmp_path / "whole.h5", options=options, chunk=8_000_000)
    path = tmp_path / "t.h5"
    process = start("build", *options, "--output", path)
    work = tmp_path / ".t.h5.build"
    if turn < 3:
        time.sleep(0.2 * (turn + 2))
    else:
        count = 2 * (turn - 3) + 1
        assert until(lambda: len(list(work.glob("chunks.zarr/c/0/*/0"))) >= count, process)
    process.send_signal(number)
    _, err = process.communicate()
    if number == signal.SIGINT:
        # Interrupted while a source is evaluated, Python dies of the signal itself: the same 130
        # to a shell.
        assert process.returncode in (130, -signal.SIGINT), err
        assert (err.count("\n"), "Traceback" in err) == (1, False), err
    else:
        assert process.returncode == -signal.SIGKILL
    if path.exists():  # it came after the last byte
        options += ("--force",)
    assert whole.code == host.build(path, options=options, chunk=8_000_000).code == 0
    assert path.read_bytes() == (tmp_path / "whole.h5").read_bytes()
    assert names(tmp_path) == ["t.h5", "whole.h5"]
    assert open_table(path, verify=True).metadata.shape == (1, 5001, 2001)


# --- disks, directories and permissions

NOBODY = 65534
#: Where a build is held while its disk is disturbed: (place, call).
PLACES = [("store", 1), ("store", 8), ("create", 1), ("copy", 5), ("metadata", 1), ("publish", 1)]


@pytest.fixture
def mount(tmp_path):
    """Return a function that mounts a file system of some size; only root may."""
    path = tmp_path / "disk"
    path.mkdir()

    def make(megabytes, kind="tmpfs"):
        run = subprocess.run(
            ["mount", "-t", kind, "-o", f"size={megabytes}m", "none", path], capture_output=True
        )
        if run.returncode:
            pytest.skip("needs the right to mount a file system")
        return path

    yield make
    subprocess.run(["umount", "--lazy", path], capture_output=True)


@pytest.fixture
def public():
    """Return a directory that any user may enter and write to, if this process can become one."""
    if os.getuid() != 0:
        pytest.skip("needs root, to become a user whom permissions stop")
    path = Path(tempfile.mkdtemp())
    path.chmod(0o777)
    yield path
    path.chmod(0o777)
    shutil.rmtree(path)


def is_one_error(ended, *words):
    assert ended.code == 1, ended.text
    assert ended.text.count("\n") == 1, ended.text
    assert ended.text.startswith("tablegen: error: ")
    for word in words:
        assert word in ended.text, ended.text


@pytest.mark.parametrize(("place", "number"), quick(PLACES, {1, 3}))
def test_the_disk_fills_up(host, whole, mount, place, number):
    disk = mount(26)
    path, ballast = disk / "t.h5", disk / "ballast"
    path.write_bytes(b"an old table")

    def fill():
        with ballast.open("wb", buffering=0) as file:
            try:
                while file.write(bytes(1 << 16)):
                    pass
                while file.write(bytes(16)):
                    pass
            except OSError:
                pass

    ended = host.build_disturbed(path, place, number, fill, "--force")
    if place in ("metadata", "publish") and ended.code == 0:
        # All that was left to write found room in pages it had.
        assert path.read_bytes() == whole
        return
    is_one_error(ended, "No space left on device", f"--output {path} --force")
    assert path.read_bytes() == b"an old table"
    ballast.unlink()
    completes(host, path, whole, "--force")


@pytest.mark.parametrize("limit", [200_000, pytest.param(1_000_000, marks=slow)])
def test_a_limit_on_the_size_of_files(host, whole, tmp_path, limit):
    """No chunk fits, or all do and the table does not."""
    path = tmp_path / "t.h5"
    is_one_error(host.build(path, limit=limit), "File too large", "same command resumes: tablegen")
    assert names(tmp_path) == [".t.h5.build"]
    completes(host, path, whole)


def test_a_read_only_file_system(host, mount):
    disk = mount(26)
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True, capture_output=True)
    is_one_error(host.build(disk / "t.h5"), f"cannot write to {disk}; choose another --output")


def test_a_read_only_directory(host, public):
    public.chmod(0o555)
    ended = host.build(public / "t.h5", uid=NOBODY)
    is_one_error(ended, f"cannot write to {public}; choose another --output")
    assert names(public) == []


@pytest.mark.parametrize(("place", "number"), quick(PLACES, {5}))
def test_permission_is_lost(host, whole, public, place, number):
    path = public / "t.h5"
    path.write_bytes(b"an old table")
    work = public / ".t.h5.build"
    closed = [public, work, *(work / "chunks.zarr" / part for part in ("", "c/0"))]

    def close():
        for directory in filter(Path.is_dir, (*closed, *work.glob("chunks.zarr/c/0/*"))):
            directory.chmod(0o555)

    ended = host.build_disturbed(path, place, number, close, "--force", uid=NOBODY)
    if place in ("copy", "metadata"):
        assert path.read_bytes() in (b"an old table", whole)
    is_one_error(ended, "Permission denied", "same command resumes: tablegen build")
    assert path.read_bytes() == b"an old table"
    for directory in filter(Path.is_dir, (*closed, *work.glob("chunks.zarr/c/0/*"))):
        directory.chmod(0o777)
    completes(host, path, whole, "--force", uid=NOBODY)


@pytest.mark.parametrize(
    ("place", "number", "all_of_it"),
    [
        *(pytest.param(*p, True, marks=() if p == ("store", 8) else slow) for p in PLACES),
        pytest.param("certify", 1, True, marks=slow),
        *(pytest.param(place, 3, False, marks=slow) for place in ("store", "copy")),
        ("publish", 1, False),
    ],
)
def test_a_directory_is_removed(host, whole, tmp_path, place, number, all_of_it):
    """The working directory, or the table's."""
    path = tmp_path / "made" / "t.h5"
    path.parent.mkdir()
    if not all_of_it:
        path.write_bytes(b"an old table")
    removed = path.parent if all_of_it else path.parent / ".t.h5.build"
    ended = host.build_disturbed(path, place, number, lambda: shutil.rmtree(removed), "--force")
    words = "the same command resumes: tablegen build"
    if all_of_it:
        is_one_error(ended, f"{path.parent}/.t.h5.build was removed", words)
        assert names(tmp_path) == []
        path.parent.mkdir()
    else:
        is_one_error(ended, words)
        assert path.read_bytes() == b"an old table"
    completes(host, path, whole, "--force")


# --- several processes


@pytest.fixture
def hosts(host, second_host):
    return host, second_host


@pytest.mark.parametrize("place", ["store", "copy", "publish"])
def test_the_second_build_says_who_holds_the_lock(hosts, whole, tmp_path, place):
    path, told = tmp_path / "t.h5", []

    def compete():
        told.append(hosts[1].build(path))
        told.append(hosts[1].build(path, "--preset", "compact", options=()))

    first = hosts[0].build_disturbed(path, place, 1, compete)
    assert first.code == 0, first.text
    for second in told:
        assert (second.code, second.text.count("\n")) == (1, 1)
        assert f"{path} is being built by process" in second.text
        assert f" on {socket.gethostname()}; wait for it" in second.text
    assert path.read_bytes() == whole
    assert names(tmp_path) == ["t.h5"]


@pytest.mark.parametrize("turn", [0, *(pytest.param(k, marks=slow) for k in range(8))])
def test_two_builds_at_once(hosts, whole, tmp_path, turn):
    path = tmp_path / "t.h5"
    for host in hosts:
        host.start(path, "--force", "--workers", str(1 + turn % 2))
    ended = [host.end() for host in hosts]
    assert sorted(e.code for e in ended) in ([0, 0], [0, 1])
    for loser in ended:
        assert loser.code == 0 or "is being built by process" in loser.text
    assert path.read_bytes() == whole
    assert names(tmp_path) == ["t.h5"]


def test_the_lock_of_a_dead_process_is_taken_over(hosts, whole, tmp_path):
    path = tmp_path / "t.h5"
    dead = hosts[0].start(path, die=("store", "after", 3))
    assert hosts[0].end().code < 0
    assert (tmp_path / ".t.h5.build" / "lock").read_text() == f"{dead} on {socket.gethostname()}"
    completes(hosts[1], path, whole)


@slow
def test_four_processes_read_while_the_table_is_replaced(tmp_path):
    python(readers.__file__, tmp_path, 4)


def test_threads_look_up_in_one_table(small_table):
    table = open_table(small_table)
    rng = np.random.default_rng(0)
    cavities = [
        (rng.uniform(-3, 3, 5000), 10 ** rng.uniform(-1.2, 1.2, 5000), rng.choice([-1, 1], 5000))
        for _ in range(16)
    ]
    alone = [table.lookup(*cavity) for cavity in cavities]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda cavity: table.lookup(*cavity), cavities * 4))
    for (star, inside), (expected, expected_inside) in zip(together, alone * 4, strict=True):
        np.testing.assert_array_equal(star, expected)
        np.testing.assert_array_equal(inside, expected_inside)
