"""Processes that read a table which is being replaced: ``readers.py DIRECTORY COUNT``.

Exits with 0 if every value that any of them saw belongs to one version of the table, whole.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np

from qpruntime.projection.open import open_table
from tablegen import build

OPTIONS = {"mu_step": 0.5, "log10_sigma_step": 0.1, "method": "direct", "workers": 1}
VERSIONS = ("probit", "heaviside")


def read(path, known, stop):
    """Look up until told to stop; return how many versions were seen."""
    mu, sigma = np.meshgrid(np.linspace(-9.9, 9.9, 67), np.logspace(-0.99, 0.99, 31))
    seen, held = set(), open_table(path)
    first = held.lookup(mu, sigma, 1)[0]
    while not stop.exists():
        table = open_table(path, verify=True)
        seen.add(table.sha256)
        for _ in range(5):
            np.testing.assert_array_equal(table.lookup(mu, sigma, 1)[0], known[table.sha256])
        # What was mapped stays what it was.
        np.testing.assert_array_equal(held.lookup(mu, sigma, 1)[0], first)
    return len(seen)


def main(directory, count):
    path, stop = directory / "t.h5", directory / "stop"
    mu, sigma = np.meshgrid(np.linspace(-9.9, 9.9, 67), np.logspace(-0.99, 0.99, 31))
    known = {}
    for name in VERSIONS:
        metadata = build(name, directory / f"{name}.h5", **OPTIONS)
        known[metadata.sha256] = open_table(directory / f"{name}.h5").lookup(mu, sigma, 1)[0]
    os.link(directory / "probit.h5", path)
    children = []
    for _ in range(count):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = 0 if read(path, known, stop) > 1 else 2
            finally:
                os._exit(code)
        children.append(pid)
    limit = time.monotonic() + 0.3
    turn = 1
    while time.monotonic() < limit or turn < 8:
        # As a build does it: a new file gets the old name.
        fresh = directory / "fresh"
        fresh.write_bytes((directory / f"{VERSIONS[turn % 2]}.h5").read_bytes())
        fresh.replace(path)
        turn += 1
        time.sleep(0.05)
    build(VERSIONS[turn % 2], path, force=True, **OPTIONS)
    time.sleep(0.2)
    stop.touch()
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    print(turn, codes)
    # On a busy machine a reader may see one version only; not all of them do.
    return 0 if set(codes) <= {0, 2} and 0 in codes else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
