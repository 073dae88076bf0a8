"""The threaded executor does what the serial loop does, and stops when it should."""

import pickle
import time

import pytest

from qpruntime.execution.threads import Stop, Threads, run, thread_count
from tests.tools.cases import refuses


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 2, 40])
def test_results_keep_the_order_of_items(workers, count):
    assert run(lambda x: x * x, range(count), workers) == [x * x for x in range(count)]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failure_drops_what_waits_and_stops_what_runs(error):
    executor, started = Threads(2), []

    def task(item):
        started.append(item)
        if item == started[0]:
            raise error("no")
        # A running call ends because it is told to, not because it is done.
        while not executor.stop():
            assert time.monotonic() < limit

    limit = time.monotonic() + 30.0
    with pytest.raises(error):
        executor.run(task, range(50))
    assert len(started) < 50


def test_calls_are_drawn_as_they_are_carried_out():
    """A plan of a million chunks must not become a list of a million tasks."""
    drawn, taken, ahead = [], [], []

    def calls():
        for i in range(200):
            drawn.append(i)
            ahead.append(len(drawn) - len(taken))
            yield str, i

    Threads(2).each(calls(), lambda number, text: taken.append((number, text)))
    assert sorted(taken) == [(i, str(i)) for i in range(200)]
    assert max(ahead) <= 7


def test_progress_counts_up():
    seen = []
    assert Threads(3).run(abs, [-1, 2, -3], lambda *a: seen.append(a)) == [1, 2, 3]
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_a_stop_does_not_travel():
    stop = Stop()
    stop.set()
    assert stop()
    assert not pickle.loads(pickle.dumps(stop))()


def test_thread_count():
    assert thread_count(3) == 3
    assert thread_count(None) >= 1
    refuses("workers must be at least 1, got 0", thread_count, 0)
