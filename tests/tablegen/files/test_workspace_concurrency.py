"""Several builds of one table, and many readers of a table that is being replaced."""

import socket
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from qpruntime.projection.open import open_table
from tests.tools import readers
from tests.tools.build_processes import names
from tests.tools.commands import python


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


@pytest.mark.parametrize("turn", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in range(8))])
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
    assert hosts[1].build(path).code == 0
    assert path.read_bytes() == whole
    assert names(tmp_path) == ["t.h5"]


@pytest.mark.slow
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
