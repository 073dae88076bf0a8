"""Executor that runs independent calls on a dask cluster."""

from __future__ import annotations

import logging
import os
import pickle
import re
import threading
import time
import uuid
from asyncio import CancelledError as LoopCancelledError
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import import_module
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any

import cloudpickle
import dask
from distributed import Client, Future, get_worker
from distributed.client import ClosedClientError
from distributed.scheduler import KilledWorker

from qpruntime._formatting import install_hint
from qpruntime.errors import InputError, QPError
from qpruntime.execution.fingerprint import difference, provenance
from qpruntime.execution.threads import Call, Divided, Executor, ExecutorError, one_blas_thread

__all__ = [
    "GONE",
    "TICK",
    "Cluster",
    "ClusterArguments",
    "ClusterTask",
    "Flight",
    "Unlike",
    "call",
    "connect",
    "pack",
    "quiet",
]

# --- Carry out calls on a dask cluster that comes and goes.
#
# Results travel back through dask to this process. Workers need no file system of ours; they need
# the packages of `provenance`, which each of them checks before it computes.
#
# dask itself repeats what a lost worker was doing. What it cannot do is done here: calls are handed
# out a few at a time, a scheduler that went away is looked for and gets the open calls again, and
# every wait has an end.

#: Times a call may fail on a worker, or the cluster be lost without a result in between.
_TRIES = 3
#: Seconds without any result, workers being there, after which they are taken for hung.
_STALLED = 3600.0


class Cluster(Executor):
    """The workers of one dask scheduler; a context manager.

    Parameters
    ----------
    address : str
        ``tcp://host:port``; of ``tls://``, dask's configuration has the keys.
    timeout : float
        Seconds to wait for the scheduler, and for a first worker whenever there is none.
    same_rounding : bool
        Refuse workers whose elementary functions or matrix products round otherwise than here.
    modules : sequence of path
        Python files that workers are given, to import functions from.
    packages : sequence of str
        Packages whose sources workers need as they are here.

    Raises
    ------
    InputError
        If the address is none, or the timeout is not positive.
    ExecutorError
        On entry, if the scheduler does not answer or has no worker.
    """

    def __init__(
        self,
        address: str,
        timeout: float = 60.0,
        *,
        same_rounding: bool = True,
        modules: Sequence[str | os.PathLike[str]] = (),
        packages: Sequence[str] = ("qpruntime",),
    ) -> None:
        super().__init__()
        if not re.fullmatch(r"([a-z]+://)?[^/\s]+:\d+/?", address):
            raise InputError(f"scheduler must be an address like tcp://host:8786, got {address!r}")
        if not timeout > 0.0:
            raise InputError(f"timeout must be positive, got {timeout:g}")
        self.address = address
        self.timeout = timeout
        self.same_rounding = same_rounding
        self.modules = [os.fspath(path) for path in modules]
        self.packages = tuple(packages)
        self._client: Client | None = None
        #: Since when there has been no worker.
        self._alone: float | None = None

    def __enter__(self) -> Cluster:
        with ExitStack() as stack:
            stack.enter_context(quiet())
            stack.callback(self._disconnect)
            self._pack = partial(pack, self.packages, self._own())
            self._connect()
            self._leave = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leave.close()

    def _own(self) -> dict[str, str]:
        with one_blas_thread():
            versions = provenance(self.packages)
        if not self.same_rounding:
            versions = {name: versions[name] for name in versions if name != "rounding"}
        return versions

    def each(self, calls: Iterable[Call], take: Callable[[int, Any], None]) -> None:
        """Run the calls on the cluster, and repeat those whose workers are lost."""
        fresh = (ClusterTask(number, call) for number, call in enumerate(calls))
        again: deque[ClusterTask] = deque()
        flight = Flight(self._connected(), self._pack, self._held)
        lost, since = 0, time.monotonic()
        try:
            while True:
                try:
                    while len(flight) < flight.room(self._threads):
                        task = again.popleft() if again else next(fresh, None)
                        if task is None:
                            break
                        again.appendleft(task)  # until it is handed out
                        flight.submit(task)
                        again.popleft()
                    if not len(flight):
                        return
                    arrived = flight.next()
                    if arrived is None:
                        self._look(since)
                        continue
                    task, future = arrived
                    result = self._result(task, future, again)
                    flight.done(future)
                except GONE as error:
                    lost += 1
                    if lost > _TRIES:
                        raise ExecutorError(
                            f"the cluster at {self.address} was lost {lost} times in a row"
                        ) from error
                    again.extend(flight.drop())
                    self._connect()
                    flight = Flight(self._connected(), self._pack, self._held)
                    continue
                if result is not None:
                    take(task.number, result[0])
                    lost, since = 0, time.monotonic()
        except BaseException:
            self.stop.set()
            raise
        finally:
            flight.drop()

    def _result(
        self, task: ClusterTask, future: Future, again: deque[ClusterTask]
    ) -> tuple[Any] | None:
        """Return what came back, or None if the call goes out again."""
        if future.status == "finished":
            try:
                return (future.result(timeout=self.timeout),)
            except TimeoutError:
                # Its worker went away with the result, and nobody is there to repeat it.
                again.append(task)
                return None
        if future.status != "error":
            raise CancelledError
        error = future.exception(timeout=self.timeout)
        if isinstance(error, QPError):
            raise error
        if isinstance(error, Unlike):
            raise ExecutorError("worker {} cannot take part: {}".format(*error.args)) from error
        if isinstance(error, (ImportError, AttributeError)):
            raise ExecutorError(
                f"a worker at {self.address} cannot load what it has to call ({error}); "
                f"install the same packages there as here: {install_hint('cluster')}"
            ) from error
        if isinstance(error, KilledWorker):
            raise ExecutorError(
                f"{error.allowed_failures + 1} workers at {self.address} died over one chunk, the "
                f"last at {error.last_worker.address}; look in their logs, do they have memory?"
            ) from error
        task.tries += 1
        if task.tries == _TRIES:
            raise ExecutorError(
                f"a chunk failed {_TRIES} times on workers at {self.address}: "
                f"{type(error).__name__}: {error}"
            ) from error
        again.append(task)
        return None

    def _look(self, since: float) -> None:
        """Raise if there is nothing to wait for any more."""
        if self._connected().status != "running":
            raise ConnectionError("connection lost")
        self._threads()
        if self._alone and time.monotonic() - self._alone > self.timeout:
            raise ExecutorError(
                f"no worker at {self.address} for {self.timeout:g} s; start one there: "
                f"dask worker {self.address}"
            )
        if time.monotonic() - since > _STALLED:
            raise ExecutorError(
                f"the workers at {self.address} have returned nothing for {_STALLED / 60:g} minutes"
            )

    def _threads(self) -> int:
        """Ask how many threads the workers have."""
        client = self._connected()
        cores = client.sync(client.scheduler.ncores, callback_timeout=self.timeout)
        count: int = sum(cores.values())
        self._alone = None if count else self._alone or time.monotonic()
        return count

    def _connected(self) -> Client:
        assert self._client is not None, "a Cluster is a context manager"
        return self._client

    def _connect(self) -> None:
        self._disconnect()
        self._client = connect(self.address, self.timeout)
        self._held = ClusterArguments(self._client)
        self._alone = None
        since = time.monotonic()
        try:
            while not self._threads():
                self._look(since)
                time.sleep(min(TICK, 0.1 * self.timeout))
            self._probe()
        except GONE as error:
            raise ExecutorError(f"the scheduler at {self.address} stopped answering") from error

    def _probe(self) -> None:
        """Have every worker import what it will be sent: one that cannot would just go away."""
        client = self._connected()
        with suppress(*GONE):
            for path in self.modules:
                client.upload_file(path)
            workers = client.sync(client.scheduler.ncores, callback_timeout=self.timeout)
            modules = [(name, module) for name in workers for module in (__name__, *self.packages)]
            for name, module in modules:
                loaded = client.submit(import_module, module, workers=[name], pure=False)
                error = loaded.exception(timeout=self.timeout)
                if error is not None:
                    raise ExecutorError(
                        f"worker {name} cannot import {module} ({error}); install the "
                        f"same packages there as here: {install_hint('cluster')}"
                    ) from error

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(*GONE):
                client.close(timeout=TICK)


# --- One connection to a dask scheduler, and the calls that are out over it.

#: Seconds between two looks at the cluster.
TICK = 1.0
#: Calls handed out for each thread of the cluster: one at work, one waiting.
AHEAD = 2
#: Exceptions that distributed raises when the other side is gone.
GONE = (OSError, RuntimeError, CancelledError, LoopCancelledError, ClosedClientError)


@dataclass
class ClusterTask:
    """One call, its number, and how often it was handed out."""

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
        outcome = made.get(timeout=timeout + TICK)
    except Empty:
        outcome = TimeoutError("frozen")
    if isinstance(outcome, ValueError):
        raise InputError(f"scheduler {address}: {outcome}") from outcome
    if isinstance(outcome, BaseException):
        raise ExecutorError(
            f"no scheduler answers at {address} within {timeout:g} s; is the address right, does "
            "`dask scheduler` run there, and is its port open?"
        ) from outcome
    return outcome


class ClusterArguments:
    """The lasting parts of arguments that one connection has on the cluster, of one owner."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._name = f"qpruntime-{uuid.uuid4().hex[:12]}"
        self._owner: object = None
        self._parts: dict[int, Future] = {}
        self._count = 0

    def part(self, item: Divided) -> Future:
        """Return where a part is; it is sent if it is not there.

        It is the result of a task like any other: if a worker is lost, dask makes it again.
        """
        if item.owner is not self._owner:
            self._owner, self._parts = item.owner, {}
        future = self._parts.get(item.number)
        if future is None:
            self._count += 1
            sent = cloudpickle.dumps(item.make(item.number))
            key = f"{self._name}-part-{self._count}"
            future = self._client.submit(pickle.loads, sent, key=key, pure=False)
            self._parts[item.number] = future
        return future


class Flight:
    """Calls that were handed out over one connection, and have not come back."""

    def __init__(
        self, client: Client, pack: Callable[[Callable[[Any], Any]], bytes], held: ClusterArguments
    ) -> None:
        self._client = client
        self._pack = pack
        self._held = held
        self._name = f"qpruntime-{uuid.uuid4().hex[:12]}"
        self._tasks: dict[Any, tuple[ClusterTask, Future]] = {}
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

    def submit(self, task: ClusterTask) -> None:
        """Submit a task, and share its function with the workers once."""
        function, item = task.call
        self._count += 1
        key = f"{self._name}-{self._count}"
        if self._shared is None or function is not self._function:
            # A task like any other: if the workers that hold it are lost, dask makes it again.
            shared = self._pack(function)
            self._shared = self._client.submit(bytes, shared, key=f"{key}-function", pure=False)
            self._function = function
        items = (item.remainder, self._held.part(item)) if isinstance(item, Divided) else (item,)
        future = self._client.submit(call, self._shared, *items, key=key, pure=False)
        self._tasks[key] = task, future
        future.add_done_callback(lambda future: self._arrived.put(future.key))

    def next(self) -> tuple[ClusterTask, Future] | None:
        """Wait for a call to come back; return None if none does for a while."""
        with suppress(Empty):
            return self._tasks[self._arrived.get(timeout=TICK)]
        return None

    def done(self, future: Future) -> None:
        """Forget a call, which frees its result on the cluster."""
        del self._tasks[future.key]
        future.release()

    def drop(self) -> list[ClusterTask]:
        """Forget what is out, and return it."""
        tasks = [task for task, _ in self._tasks.values()]
        with suppress(*GONE):
            for _, future in self._tasks.values():
                future.release()
        self._tasks.clear()
        return tasks


# --- What a worker of a dask cluster does for `qpruntime.execution.dask`: check itself, then call.
#
# Here and there it is one BLAS thread that multiplies, as in a build without a cluster.


class Unlike(Exception):
    """A worker cannot compute our bytes; its address, and why."""


def pack(
    packages: tuple[str, ...], expected: dict[str, str], function: Callable[[Any], Any]
) -> bytes:
    """Return what `call` takes: the provenance a worker has to have, and the function."""
    return pickle.dumps((packages, expected, cloudpickle.dumps(function)))


@lru_cache(maxsize=4)
def _loaded(shared: bytes) -> tuple[str, Callable[[Any], Any]]:
    """Return why this worker cannot take part, if it cannot, and the function."""
    packages, expected, function = pickle.loads(shared)
    words = difference(expected, provenance(packages))
    return words, (str if words else pickle.loads(function))


def call(shared: bytes, item: object, *lasting: object) -> object:
    """Do what a worker does: check itself, then call; with (lasting, item), if there is such."""
    with one_blas_thread():
        words, function = _loaded(shared)
        if words:
            raise Unlike(get_worker().address, words)
        return function((*lasting, item) if lasting else item)
