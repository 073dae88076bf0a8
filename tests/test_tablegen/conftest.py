"""Fixtures of the tablegen tests: the command line, and one build of the whole default grid.

The folder is not called ``tablegen``: that would hide the package when pytest puts ``tests`` on the
path.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from commands import Finished


@pytest.fixture(scope="session")
def full_grid(tmp_path_factory):
    """Build the paper's grid once by the command line; return its path and how it went."""
    path = tmp_path_factory.mktemp("full") / "probit.h5"
    begin = time.perf_counter()
    with Path(os.devnull).open("w") as nowhere:
        process = subprocess.Popen(
            [sys.executable, "-m", "tablegen", "build", "--output", path],
            stdout=nowhere,
            stderr=nowhere,
        )
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - begin
    return path, Finished(process.returncode, "", "", seconds, usage.ru_maxrss * 1024)


@pytest.fixture
def command(capsys):
    """Return a function that runs the command line in this process."""
    from tablegen.console.cli import main

    def run(*arguments):
        capsys.readouterr()
        begin = time.perf_counter()
        try:
            code = main([str(a) for a in arguments])
        except SystemExit as stop:
            code = stop.code
        out, err = capsys.readouterr()
        return Finished(code, out, err, time.perf_counter() - begin, 0)

    return run
