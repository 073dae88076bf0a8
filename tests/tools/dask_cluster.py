"""A real dask cluster for tests: a scheduler and workers, each a process of its own."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time

__all__ = ["RealCluster", "two_workers"]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class RealCluster:
    """Processes that are killed and started as a test wants; all end with the ``with`` block."""

    def __init__(self, directory, workers=0):
        self.directory = directory
        self.address = f"tcp://127.0.0.1:{free_port()}"
        self.workers = []
        self.scheduler = None
        self.start_scheduler()
        for _ in range(workers):
            self.add_worker()

    def _start(self, *arguments, **environment):
        log = (self.directory / f"{arguments[0]}.log").open("a")
        with log:
            return subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", "dask", *arguments],
                cwd=self.directory,
                stdout=log,
                stderr=log,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", **environment},
                start_new_session=True,
            )

    def start_scheduler(self):
        port = self.address.rpartition(":")[2]
        self.scheduler = self._start(
            "scheduler", "--host", "127.0.0.1", "--port", port, "--no-dashboard"
        )

    def add_worker(self, **environment):
        """Start a worker of one thread, which waits for the scheduler if it has to."""
        process = self._start(
            *("worker", self.address, "--nthreads", "1", "--no-nanny", "--no-dashboard"),
            *("--local-directory", str(self.directory), "--death-timeout", "60"),
            **environment,
        )
        self.workers.append(process)
        return process

    def wait_for_workers(self, count, timeout=60.0):
        from distributed import Client

        with Client(self.address, timeout=timeout, set_as_default=False) as client:
            client.wait_for_workers(count, timeout=timeout)

    def freeze(self):
        """Stop the first worker, which neither works nor ends."""
        os.kill(self.workers[0].pid, signal.SIGSTOP)

    def restart(self):
        """Kill the scheduler and start it again, with a worker more."""
        self.scheduler.kill()
        self.scheduler.wait()
        self.start_scheduler()
        self.add_worker()

    def end(self):
        for process in (self.scheduler, *self.workers):
            process.kill()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in (*self.workers, self.scheduler):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextlib.contextmanager
def two_workers(directory, monkeypatch):
    """A cluster of two workers in a new directory, which takes frozen ones for lost after 10 s."""
    directory.mkdir()
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL", "10s")
    with RealCluster(directory, workers=2) as cluster:
        cluster.wait_for_workers(2)
        yield cluster


def until(moment, process, timeout=120.0):
    """Wait until `moment()`; return whether it came before the process ended."""
    limit = time.monotonic() + timeout
    while not moment():
        assert time.monotonic() < limit
        if process.poll() is not None:
            return False
        time.sleep(0.005)
    return True
