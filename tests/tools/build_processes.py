"""Builds in processes of their own, started in milliseconds: the client of build_host.py."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

#: 1001 x 1001 nodes by a series, in 20 chunks: half a second.
OPTIONS = ("--mu-step", "0.02", "--log10-sigma-step", "0.002")
CHUNK = 400_000


class Ended(NamedTuple):
    """How a build ended: the exit code as `subprocess` has it, stdout and stderr together."""

    code: int
    text: str


class Host:
    """Forks builds off a process that has everything imported."""

    def __init__(self, directory):
        self.log = directory / "log"
        # Builds of another user wait there.
        self._open = Path(tempfile.mkdtemp())
        self._open.chmod(0o777)
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("build_host.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            bufsize=1,
        )
        assert self._process.stdout.readline() == "ready\n"
        self._running = 0

    def start(self, path, *arguments, options=OPTIONS, chunk=CHUNK, **request):
        """Start a build of `path` and return its process id; `build_host` has the requests."""
        argv = ["build", *options, "--output", str(path), *arguments]
        if self._running:
            # A test that failed did not wait.
            with suppress(ProcessLookupError):
                os.kill(self._running, signal.SIGKILL)
            self.end()
        request |= {"argv": argv, "chunk": chunk, "log": str(self.log)}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._running = int(self._process.stdout.readline())
        return self._running

    def end(self):
        """Wait for the build that was started."""
        code, self._running = int(self._process.stdout.readline()), 0
        return Ended(code, self.log.read_text())

    def build(self, *arguments, **request):
        self.start(*arguments, **request)
        return self.end()

    def build_disturbed(self, path, place, number, disturb, *arguments, **request):
        """Hold a build before call `number` of the function at `place`, disturb it, release it."""
        gate = self._open / "gate"
        gate.unlink(missing_ok=True)
        arguments = (*arguments, "--workers", "1")  # nobody goes on meanwhile
        process = self.start(path, *arguments, pause=(place, number, str(gate)), **request)
        limit = time.monotonic() + 60.0
        while not gate.exists():
            if time.monotonic() > limit or not os.path.exists(f"/proc/{process}"):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
                raise AssertionError(f"never came to {place}: {self.end()}")
            time.sleep(0.002)
        disturb()
        gate.unlink()
        return self.end()

    def close(self):
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()
        shutil.rmtree(self._open)


def names(path):
    return sorted(os.listdir(path))
