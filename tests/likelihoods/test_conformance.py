"""Every registered likelihood keeps the contract; one more file is all that one more takes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conformance import conforms
from qpruntime import likelihoods

TOP = Path(__file__).parents[2]


@pytest.mark.parametrize("name", likelihoods.names())
def test_conforms(name):
    conforms(likelihoods.get(name))


def test_a_likelihood_is_one_file(tmp_path):
    """Two files in another folder, which stands for that of the package, and nothing else."""
    folder = tmp_path / "more"
    folder.mkdir()
    shutil.copy(TOP / "docs" / "cauchit.py", folder)
    shutil.copy(TOP / "tests" / "tools" / "doubled.py", folder / "poisson_exp2.py")
    run = subprocess.run(
        [sys.executable, "-W", "error", TOP / "tests" / "tools" / "added.py", folder],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{TOP}:{TOP / 'tests' / 'tools'}"},
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert run.stdout.split() == [
        "conforms", "grid", "surfaces", "infer", "classifier", "conforms", "regressor"
    ]  # fmt: skip
