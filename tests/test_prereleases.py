"""The package on pre-releases of what it stands on: what the next releases will break."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parents[1]
STANDS_ON = ("numpy", "scipy", "numba", "scikit-learn", "zarr", "h5py")
#: Tests of every engine, tables and files that take a minute or two.
TESTS = (
    "tests/inference/test_solver_protocol.py",
    "tests/kernels/test_radial_kernels.py",
    "tests/projection/test_table.py",
    "tests/persistence",
)


@pytest.mark.slow
@pytest.mark.prerelease
def test_on_prereleases(tmp_path):
    """pip takes the newest that fit together; the versions are in the message of a failure."""
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--pre"]
    output = {"capture_output": True, "text": True}
    install += ["--upgrade", *STANDS_ON, f"{TOP}[build]", "pytest", "hypothesis", "mpmath"]
    done = subprocess.run(install, **output)
    if done.returncode and "No matching distribution" in done.stderr:
        pytest.skip(f"no index of packages: {done.stderr[-200:]}")
    assert done.returncode == 0, done.stderr
    listed = subprocess.run([python, "-m", "pip", "list"], **output).stdout
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment["NUMBA_CACHE_DIR"] = str(tmp_path / "kernels")
    words = [python, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", *TESTS]
    done = subprocess.run(words, cwd=TOP, env=environment, **output)
    assert done.returncode == 0, done.stdout[-4000:] + listed
