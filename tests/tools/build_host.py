"""A process that has everything imported and forks one build after another, to be killed.

Each line on stdin is a JSON request: ``argv`` of the command line, ``chunk`` (bytes), ``log`` (a
file for stdout and stderr), and optionally ``die``: [place, before or after, which call], where
the build kills itself; ``pause``: [place, which call, file], where it waits until the file is gone;
``uid`` to run as; ``limit`` on the size of files. The answers are lines: the process id, then the
exit code as `subprocess` has it.
"""

import functools
import json
import mmap
import os
import pathlib
import resource
import shutil
import signal
import sys
import time
import traceback
from functools import partial

import tablegen.grid.plan
from tablegen.console import cli
from tablegen.files import hdf5 as export, workspace, zarr as zarr_files
from tablegen.grid import chebyshev as compute, errors as certify, store
from tablegen.grid.chebyshev import integrate

#: Where a build can be made to die or to wait: (object, name of the function).
PLACES = {
    "header": (store.ChunkStore, "_create"),
    "store": (store.ChunkStore, "write"),
    "expand": (compute, "expand"),
    "create": (export, "create_file"),
    "copy": (certify, "worst_nodes"),
    "certify": (certify, "certify"),
    "metadata": (export, "write_metadata"),
    "seal": (export, "seal"),
    "publish": (export, "publish"),
    "rename": (pathlib.Path, "replace"),
    "fsync": (os, "fsync"),
    "remove": (workspace.Workspace, "remove"),
    "rmtree": (shutil, "rmtree"),
    "zarr": (zarr_files, "write_file"),
    "swap": (pathlib.Path, "rename"),
}


def hook(place, moment, number, action):
    """Call `action` before or after call `number` of the function at `place`."""
    owner, name = PLACES[place]
    real, calls = getattr(owner, name), []

    @functools.wraps(real)
    def wrapped(*args, **kwargs):
        calls.append(None)
        mine = len(calls) == number
        if mine and moment == "before":
            action()
        result = real(*args, **kwargs)
        if mine and moment == "after":
            action()
        return result

    setattr(owner, name, wrapped)


def wait_until_gone(path):
    pathlib.Path(path).touch()
    while os.path.exists(path):
        time.sleep(0.002)


def child(request):
    log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    os.dup2(log, 1)
    os.dup2(log, 2)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if "limit" in request:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["limit"], request["limit"]))
    if "uid" in request:
        os.setuid(request["uid"])
    tablegen.grid.plan.CHUNK_BYTES = request["chunk"]
    if "die" in request:
        hook(*request["die"], lambda: os.kill(os.getpid(), signal.SIGKILL))
    if "pause" in request:
        place, number, path = request["pause"]
        hook(place, "before", number, partial(wait_until_gone, path))
    os._exit(cli.main(request["argv"]))


def warm():
    """Load what is compiled; no thread may be left when it comes to forking, so no zarr."""
    plan = compute.resolve(
        tablegen.grid.plan.make_plan("probit", mu_step=0.02, log10_sigma_step=0.002)
    )
    values = compute.fill(plan, compute.expand(plan, serial), lambda: False, plan.chunks[0])
    certify.certify(values[None], plan.metadata(), certify.worst_nodes(values, 0, 0), run=serial)
    integrate(plan.model, plan.mu.nodes()[:2], plan.mu.nodes()[-2:], 1.0)
    # Whom the child becomes may have no right to read the standard library.
    mmap.mmap(-1, 1).close()


def serial(function, items):
    return [function(item) for item in items]


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warm()
    print("ready", flush=True)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            try:
                child(json.loads(line))
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(99)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
