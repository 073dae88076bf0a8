"""Runs that share a suite: every test is run by exactly one, from whichever end it began."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

TOP = Path(__file__).parents[1]
#: Files of a small suite; tests of the last say in which order fixtures come and go.
SUITE = {
    "tests/execution/test_a.py": "def test_one(): pass\ndef test_two(): pass\n",
    "tests/kernels/test_b.py": "def test_three(): pass\n",
    "tests/plotting/conftest.py": "",
    "tests/plotting/test_c.py": "def test_four(): pass\n",
    "tests/plotting/test_d.py": "def test_five(): pass\n",
    "tests/test_e.py": "def test_six(): pass\n",
    "tests/scripts/test_f.py": """
import pytest

@pytest.fixture(scope="module")
def held():
    print("opened")
    yield
    print("closed")

def test_seven(held): pass
def test_eight(held): assert False
""",
}


@pytest.fixture
def run(tmp_path):
    """Return a function that runs the suite as one lane; it returns the tests it ran, in order."""
    for name, text in SUITE.items():
        path = tmp_path / "suite" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    claims = tmp_path / "claims"
    claims.mkdir()

    def start(*arguments):
        command = [sys.executable, "-m", "pytest", "-v", "-s", "-p", "no:cacheprovider"]
        command += ["--import-mode=importlib", "-p", "tests.tools.lanes", f"--claims={claims}"]
        options = {"cwd": tmp_path / "suite", "env": {**os.environ, "PYTHONPATH": str(TOP)}}
        return subprocess.Popen(
            [*command, *arguments], stdout=subprocess.PIPE, text=True, **options
        )

    (tmp_path / "suite" / "pytest.ini").write_text("[pytest]\ntestpaths = tests\n")
    return start


def ran(process):
    out = process.communicate(timeout=120)[0]
    lines = [line for line in out.splitlines() if "::" in line and not line.startswith("FAILED")]
    return [line.partition("::")[2].split()[0] for line in lines], out


def test_two_runs_at_once_run_every_test_once(run):
    lanes = [run(), run("--downwards")]
    found = Counter(name for lane in lanes for name in ran(lane)[0])
    words = ("one", "two", "three", "four", "five", "six", "seven", "eight")
    assert found == {f"test_{word}": 1 for word in words}


def test_down_from_the_top_and_no_further_than_asked(run):
    first = run("--downwards", "-x", "-k", "six or eight or one")
    assert ran(first)[0] == ["test_six", "test_eight"]
    assert first.returncode == 1
