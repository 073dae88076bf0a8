"""First runs: eight processes at once on an empty cache, no cache at all, one notice."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

import numba
import pytest
from scipy import special

# A kernel that compiles in a second, and all those of a projection.
SMALL = "from qpruntime.special import log_ndtr;print(repr(log_ndtr(-30.0)))"
PROJECT = "from qpruntime import project;print(repr(float(project('probit', 0.0, 1.0, 1)[1])))"


def start(cache, *options, code=SMALL):
    return subprocess.Popen(
        [sys.executable, *options, "-c", code],
        env={**os.environ, "NUMBA_CACHE_DIR": str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return float(out), err


def test_one_notice_when_cold_and_none_when_warm(tmp_path):
    value, err = finish(start(tmp_path))
    assert value == pytest.approx(special.log_ndtr(-30.0), rel=1e-14)
    assert err.count("compiling kernels") == len(err.splitlines()) == 1
    assert finish(start(tmp_path, "-W", "error")) == (value, "")


LATER = """
import numba, sys, time
from qpruntime import jit
jit._QUIET = 0.2

def compiled(value):
    def function(x):
        return x + value
    function.__module__ = "qpruntime.test"
    return numba.njit(function)

compiled(1.0)(1.0)
compiled(2.0)(1.0)  # at once: the same wait
time.sleep(0.4)
inner = compiled(3.0)

def outer(x):
    return inner(x)

outer.__module__ = "qpruntime.test"
numba.njit(outer)(1.0)
"""


def test_what_compiles_later_is_announced_again():
    done = subprocess.run(
        [sys.executable, "-c", LATER], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    first, second = done.stderr.splitlines()
    assert "compiling kernels" in first
    assert "compiling more kernels" in second


def test_a_cache_that_cannot_be_written_is_none():
    value, _ = finish(start("/proc/nowhere"))
    assert value == pytest.approx(special.log_ndtr(-30.0), rel=1e-14)


def test_a_cache_of_other_sources_is_not_read(tmp_path):
    """It may name classes that are no more, and then cannot be read."""
    value, _ = finish(start(tmp_path))
    for index in tmp_path.rglob("*.nbi"):
        index.write_bytes(pickle.dumps(numba.__version__) + b"of other sources")
    again, err = finish(start(tmp_path))
    assert again == value
    assert "compiling" in err


@pytest.mark.slow
def test_eight_first_runs_at_once(tmp_path):
    ended = [finish(p) for p in [start(tmp_path, code=PROJECT) for _ in range(8)]]
    (value,) = {value for value, _ in ended}
    # To the 1e-9 of the shipped table.
    assert value == pytest.approx(0.825215532323065547, rel=1e-9)
    assert [err.count("compiling kernels") for _, err in ended] == [1] * 8
    assert finish(start(tmp_path, code=PROJECT))[1] == ""
