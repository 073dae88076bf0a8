"""The coal-mining demonstration, end to end, where the data are ($QP_DATA)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from script_modules import TOP, command, run_script

DATA = os.environ.get("QP_DATA", "")
needs_data = pytest.mark.skipif(
    not (DATA and (Path(DATA) / "coal-mining.csv").is_file()),
    reason="set QP_DATA to a folder with coal-mining.csv",
)


def run(*arguments):
    words = command("examples", "coal", *arguments)
    return subprocess.run(words, capture_output=True, text=True, cwd=TOP)


def numbers(output):
    """NTLL and TE of EP and QP."""
    rows = [line.split() for line in output.splitlines() if line.startswith(("EP", "QP"))]
    return [(float(r[1]), float(r[6])) for r in rows]


@pytest.mark.slow
@needs_data
def test_six_splits(tmp_path):
    pytest.importorskip("matplotlib")
    figure = tmp_path / "rate.png"
    done = run("--data", DATA, "--seeds", 6, "--figure", figure)
    assert done.returncode == 0, done.stderr
    # A prototype of the protocol gave 1597.4 and 1597.3, TE 118.
    for ntll, error in numbers(done.stdout):
        assert ntll == pytest.approx(1597.3, abs=0.3)
        assert error == pytest.approx(118.0, abs=0.5)
    assert figure.stat().st_size > 10_000


@pytest.mark.slow
@needs_data
def test_all_splits():
    done = run("--data", DATA, "--seeds", 200)
    # Measured 1591.5 and 114.1, of which a split in another maximum takes or gives 2. Published:
    # 1606.8 (EP), 1606.5 (QP) and 118.6, from other maxima yet, as the script explains.
    for ntll, error in numbers(done.stdout):
        assert ntll == pytest.approx(1591.5, abs=4.0)
        assert error == pytest.approx(114.1, abs=1.0)


def test_says_how_to_get_the_data(tmp_path):
    done = run_script("examples", "coal", "--data", tmp_path)
    assert done.code == 1
    assert "coal-mining.csv" in done.err
    assert "--help" in done.err
    help_text = run_script("examples", "coal", "--help").out
    assert "Jarrett" in help_text
    assert "boot::coal" in help_text
    (tmp_path / "coal-mining.csv").write_text("year,count\n1851,4\n")
    done = run_script("examples", "coal", "--data", tmp_path)
    assert "is not the file these experiments use" in done.err
