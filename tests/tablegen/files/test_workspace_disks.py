"""Disks that fill up, directories that vanish, permissions that go: one clear error, and resume."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.tools.build_processes import names

NOBODY = 65534
#: Where a build is held while its disk is disturbed: (place, call).
PLACES = [("store", 1), ("store", 8), ("create", 1), ("copy", 5), ("metadata", 1), ("publish", 1)]
slow = pytest.mark.slow


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


def places(quick):
    return [p if p in quick else pytest.param(*p, marks=slow) for p in PLACES]


@pytest.mark.parametrize(("place", "number"), places({("store", 8), ("copy", 5)}))
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
    assert host.build(path, "--force").code == 0
    assert path.read_bytes() == whole
    assert names(disk) == ["t.h5"]


@pytest.mark.parametrize("limit", [200_000, pytest.param(1_000_000, marks=slow)])
def test_a_limit_on_the_size_of_files(host, whole, tmp_path, limit):
    """No chunk fits, or all do and the table does not."""
    path = tmp_path / "t.h5"
    is_one_error(host.build(path, limit=limit), "File too large", "same command resumes: tablegen")
    assert names(tmp_path) == [".t.h5.build"]
    assert host.build(path).code == 0
    assert path.read_bytes() == whole
    assert names(tmp_path) == ["t.h5"]


def test_a_read_only_file_system(host, mount):
    disk = mount(26)
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True, capture_output=True)
    is_one_error(host.build(disk / "t.h5"), f"cannot write to {disk}; choose another --output")


def test_a_read_only_directory(host, public):
    public.chmod(0o555)
    ended = host.build(public / "t.h5", uid=NOBODY)
    is_one_error(ended, f"cannot write to {public}; choose another --output")
    assert names(public) == []


@pytest.mark.parametrize(("place", "number"), places({("publish", 1)}))
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
    assert host.build(path, "--force", uid=NOBODY).code == 0
    assert path.read_bytes() == whole
    assert names(public) == ["t.h5"]


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
    assert host.build(path, "--force").code == 0
    assert path.read_bytes() == whole
    assert names(path.parent) == ["t.h5"]
