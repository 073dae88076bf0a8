"""The threaded executor does what the serial loop does, and stops when it should."""

from __future__ import annotations

import threading

import pytest

from qpruntime.errors import InputError
from tablegen.executors import run, thread_count


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 2, 40])
def test_results_keep_the_order_of_items(workers, count):
    assert run(lambda x: x * x, range(count), workers) == [x * x for x in range(count)]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failure_drops_what_waits_and_cancels_what_runs(error):
    stopped, started = threading.Event(), []

    def task(item):
        started.append(item)
        if item == started[0]:
            raise error("no")
        # A running task ends because it is told to, not because it is done.
        assert stopped.wait(30)

    with pytest.raises(error):
        run(task, range(50), 2, cancel=stopped.set)
    assert len(started) < 50


def test_thread_count():
    assert thread_count(3) == 3
    assert thread_count(None) >= 1
    with pytest.raises(InputError, match="workers must be at least 1, got 0"):
        thread_count(0)
