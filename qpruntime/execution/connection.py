"""One connection to a dask scheduler, and the calls that are out over it."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from asyncio import CancelledError as LoopCancelledError
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

import cloudpickle
import dask
from distributed import Client, Future
from distributed.client import ClosedClientError

from qpruntime.errors import InputError
from qpruntime.execution import worker
from qpruntime.execution.calls import Call, Divided, ExecutorError

__all__ = ["GONE", "TICK", "Flight", "Held", "Task", "connect", "quiet"]

#: Seconds between two looks at the cluster.
TICK = 1.0
#: Calls handed out for each thread of the cluster: one at work, one waiting.
AHEAD = 2
#: What distributed raises when the other side is gone.
GONE = (OSError, RuntimeError, CancelledError, LoopCancelledError, ClosedClientError)


@dataclass
class Task:
    number: int
    call: Call
    tries: int = 0


@contextmanager
def quiet() -> Iterator[None]:
    """Keep distributed from logging what is handled, or raised, here, and from advice on sizes."""
    loggers = [logging.getLogger(name) for name in ("distributed", "distributed.client")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1GB"}):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def connect(address: str, timeout: float) -> Client:
    """Return a client; its own timeout does not hold once a frozen scheduler's port is open."""
    made: SimpleQueue[Client | BaseException] = SimpleQueue()

    def attempt() -> None:
        try:
            made.put(Client(address, timeout=timeout, set_as_default=False))
        except (ValueError, *GONE) as error:
            made.put(error)

    threading.Thread(target=attempt, daemon=True).start()
    try:
        found = made.get(timeout=timeout + TICK)
    except Empty:
        found = TimeoutError("frozen")
    if isinstance(found, ValueError):
        raise InputError(f"scheduler {address}: {found}") from found
    if isinstance(found, BaseException):
        raise ExecutorError(
            f"no scheduler answers at {address} within {timeout:g} s; is the address right, does "
            "`dask scheduler` run there, and is its port open?"
        ) from found
    return found


class Held:
    """The lasting parts of arguments that one connection has on the cluster, of one owner."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._name = f"tablegen-{uuid.uuid4().hex[:12]}"
        self._owner: object = None
        self._parts: dict[int, Future] = {}
        self._count = 0

    def part(self, item: Divided) -> Future:
        """Return where a part is; it is sent if it is not there.

        It is the result of a task like any other: if a worker is lost, dask makes it again.
        """
        if item.owner is not self._owner:
            self._owner, self._parts = item.owner, {}
        found = self._parts.get(item.number)
        if found is None:
            self._count += 1
            sent = cloudpickle.dumps(item.make(item.number))
            key = f"{self._name}-part-{self._count}"
            found = self._client.submit(worker.keep, sent, key=key, pure=False)
            self._parts[item.number] = found
        return found


class Flight:
    """Calls that were handed out over one connection, and have not come back."""

    def __init__(
        self, client: Client, pack: Callable[[Callable[[Any], Any]], bytes], held: Held
    ) -> None:
        self._client = client
        self._pack = pack
        self._held = held
        self._name = f"tablegen-{uuid.uuid4().hex[:12]}"
        self._tasks: dict[Any, tuple[Task, Future]] = {}
        self._arrived: SimpleQueue[Any] = SimpleQueue()
        self._count = 0
        self._function: Callable[[Any], Any] | None = None
        self._shared: Future | None = None
        self._room, self._asked = 0, -1.0

    def __len__(self) -> int:
        return len(self._tasks)

    def room(self, threads: Callable[[], int]) -> int:
        """Return how many calls may be out: workers come and go, so ask now and then."""
        if time.monotonic() - self._asked > 2.0 * TICK:
            self._room, self._asked = max(2, AHEAD * threads()), time.monotonic()
        return self._room

    def submit(self, task: Task) -> None:
        function, item = task.call
        self._count += 1
        key = f"{self._name}-{self._count}"
        if self._shared is None or function is not self._function:
            # A task like any other: if the workers that hold it are lost, dask makes it again.
            shared = self._pack(function)
            self._shared = self._client.submit(bytes, shared, key=f"{key}-function", pure=False)
            self._function = function
        items = (item.rest, self._held.part(item)) if isinstance(item, Divided) else (item,)
        future = self._client.submit(worker.call, self._shared, *items, key=key, pure=False)
        self._tasks[key] = task, future
        future.add_done_callback(lambda future: self._arrived.put(future.key))

    def next(self) -> tuple[Task, Future] | None:
        """Wait for a call to come back; return None if none does for a while."""
        with suppress(Empty):
            return self._tasks[self._arrived.get(timeout=TICK)]
        return None

    def done(self, future: Future) -> None:
        """Forget a call, which frees its result on the cluster."""
        del self._tasks[future.key]
        future.release()

    def drop(self) -> list[Task]:
        """Forget what is out, and return it."""
        tasks = [task for task, _ in self._tasks.values()]
        with suppress(*GONE):
            for _, future in self._tasks.values():
                future.release()
        self._tasks.clear()
        return tasks
