"""Processes that fork builds, and the table that a build makes which nobody disturbs."""

import time

import pytest

from tests.tools.build_processes import Host


def started(tmp_path_factory):
    """Return a process that has everything imported and forks builds."""
    host = Host(tmp_path_factory.mktemp("host"))
    yield host
    host.close()


host = pytest.fixture(scope="session")(started)
#: For two builds at once.
second_host = pytest.fixture(scope="session")(started)


@pytest.fixture(scope="session")
def timed(host, tmp_path_factory):
    """Return the bytes of a build that nobody disturbs, and how long it takes."""
    path, seconds = tmp_path_factory.mktemp("undisturbed") / "t.h5", []
    for _ in range(2):
        begin = time.perf_counter()
        assert host.build(path, "--force").code == 0
        seconds.append(time.perf_counter() - begin)
    return path.read_bytes(), min(seconds)


@pytest.fixture(scope="session")
def whole(timed):
    """Return the bytes of that build."""
    return timed[0]
