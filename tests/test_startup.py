"""First runs: eight processes at once on an empty cache, no cache at all, one notice."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

FIT = "from qpruntime import project;print(repr(float(project('probit', 0.0, 1.0, 1)[1])))"


def start(cache, *options):
    return subprocess.Popen(
        [sys.executable, *options, "-c", FIT],
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
    # To the 1e-9 of the shipped table.
    assert value == pytest.approx(0.825215532323065547, rel=1e-9)
    assert err.count("compiling kernels") == len(err.splitlines()) == 1
    assert finish(start(tmp_path, "-W", "error")) == (value, "")


def test_a_cache_that_cannot_be_written_is_none():
    value, _ = finish(start("/proc/nowhere"))
    assert value == pytest.approx(0.825215532323065547, rel=1e-9)


@pytest.mark.slow
def test_eight_first_runs_at_once(tmp_path):
    values = {finish(p)[0] for p in [start(tmp_path) for _ in range(8)]}
    assert len(values) == 1
    assert finish(start(tmp_path))[1] == ""
