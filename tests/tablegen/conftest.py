"""Fixtures of the tablegen tests: the command line, and one build of the whole default grid."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.tools.commands import Finished

# A process begins with the most memory that its parent had, here all the tests: a small process in
# between starts the command and reads what it took.
_MEASURED = """
import resource, subprocess, sys
code = subprocess.call([sys.executable, *sys.argv[1:]], stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)
"""


@pytest.fixture(scope="session")
def full_grid(tmp_path_factory):
    """Build the paper's grid once by the command line; return its path and how it went."""
    path = tmp_path_factory.mktemp("full") / "probit.h5"
    begin = time.perf_counter()
    with Path(os.devnull).open("w") as nowhere:
        process = subprocess.run(
            [sys.executable, "-c", _MEASURED, "-m", "tablegen", "build", "--output", path],
            stdout=subprocess.PIPE,
            stderr=nowhere,
            text=True,
        )
    seconds = time.perf_counter() - begin
    return path, Finished(process.returncode, "", "", seconds, int(process.stdout) * 1024)


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
