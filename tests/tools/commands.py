"""Python and the command line in processes of their own."""

import os
import subprocess
import sys
from typing import NamedTuple

#: A grid of 41 x 21 nodes: integrated directly, in milliseconds.
SMALL = ("--mu-step", "0.5", "--log10-sigma-step", "0.1")


class Finished(NamedTuple):
    code: int
    out: str
    err: str
    seconds: float
    peak_bytes: int


def start(*arguments, **kwargs):
    """Start the command line in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "tablegen", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **kwargs,
    )


def python(*words, environment=None, **options):
    """Run Python, which has to succeed, with more of an environment; return what it printed."""
    command, env = [sys.executable, *map(str, words)], os.environ | (environment or {})
    run = subprocess.run(command, capture_output=True, text=True, env=env, **options)
    assert run.returncode == 0, run.stdout + run.stderr
    return run
