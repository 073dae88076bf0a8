"""The benchmark of series runs, in small."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench_series.py"


def test_every_figure_is_printed():
    command = [sys.executable, str(SCRIPT), "--most", "300", "--repeat", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = [line for line in done.stdout.splitlines() if line.startswith("N=300:")]
    words = (
        "probit, EP",
        "QP / EP",
        "poisson-exp, EP",
        "fit, probit",
        "fit, poisson",
        "dense",
        "memory",
    )
    for word in words:
        assert any(word in line for line in found), word
    assert all(float(line.split()[-2]) > 0.0 for line in found if line.split()[-1] == "s")
