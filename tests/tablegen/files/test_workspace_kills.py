"""Builds that are killed or interrupted at any moment, and then finished by the same command."""

import os
import random
import signal
import time
from contextlib import suppress

import pytest

from qpruntime.projection.open import open_table
from tests.tools.build_processes import names
from tests.tools.commands import start
from tests.tools.dask_cluster import until

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


@pytest.fixture(scope="module")
def old(host, tmp_path_factory):
    """Return the bytes of another table."""
    path = tmp_path_factory.mktemp("old") / "t.h5"
    assert host.build(path, options=("--mu-step", "0.5", "--log10-sigma-step", "0.1")).code == 0
    return path.read_bytes()


def quick(cases, chosen):
    """Leave some cases in the default run."""
    marks = pytest.mark.slow
    return [pytest.param(*case, marks=() if k in chosen else marks) for k, case in enumerate(cases)]


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


@pytest.mark.slow
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


@pytest.mark.slow
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
