"""Carry out calls on a dask cluster that comes and goes.

Results travel back through dask to this process. Workers need no file system of ours; they need the
packages of `provenance`, which every one of them checks before it computes: what they do is in
`worker`.

dask itself repeats what a lost worker was doing. What it cannot do is done here: calls are handed
out a few at a time, a scheduler that went away is looked for and gets the open calls again, and
every wait has an end.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError
from contextlib import ExitStack, suppress
from functools import partial
from importlib import import_module
from types import TracebackType
from typing import Any

from distributed import Client, Future
from distributed.scheduler import KilledWorker

from qpruntime.errors import InputError, QPError
from qpruntime.execution import worker
from qpruntime.execution.calls import Call, Executor, ExecutorError
from qpruntime.execution.connection import GONE, TICK, Flight, Held, Task, connect, quiet
from qpruntime.execution.provenance import provenance

__all__ = ["Cluster"]

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
            self._pack = partial(worker.pack, self.packages, self._own())
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
        with worker.one_blas_thread():
            found = provenance(self.packages)
        if not self.same_rounding:
            found = {name: found[name] for name in found if name != "rounding"}
        return found

    def each(self, calls: Iterable[Call], take: Callable[[int, Any], None]) -> None:
        fresh = (Task(number, call) for number, call in enumerate(calls))
        again: deque[Task] = deque()
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

    def _result(self, task: Task, future: Future, again: deque[Task]) -> tuple[Any] | None:
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
        if isinstance(error, worker.Unlike):
            raise ExecutorError("worker {} cannot take part: {}".format(*error.args)) from error
        if isinstance(error, (ImportError, AttributeError)):
            raise ExecutorError(
                f"a worker at {self.address} cannot load what it has to call ({error}); "
                "install the same packages there as here, with qpruntime[cluster]"
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
        found = client.sync(client.scheduler.ncores, callback_timeout=self.timeout)
        count: int = sum(found.values())
        self._alone = None if count else self._alone or time.monotonic()
        return count

    def _connected(self) -> Client:
        assert self._client is not None, "a Cluster is a context manager"
        return self._client

    def _connect(self) -> None:
        self._disconnect()
        self._client = connect(self.address, self.timeout)
        self._held = Held(self._client)
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
            there = client.sync(client.scheduler.ncores, callback_timeout=self.timeout)
            asked = [
                (name, module) for name in there for module in (worker.__name__, *self.packages)
            ]
            for name, module in asked:
                loaded = client.submit(import_module, module, workers=[name], pure=False)
                error = loaded.exception(timeout=self.timeout)
                if error is not None:
                    raise ExecutorError(
                        f"worker {name} cannot import {module} ({error}); install the "
                        "same packages there as here, with qpruntime[cluster]"
                    ) from error

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(*GONE):
                client.close(timeout=TICK)
