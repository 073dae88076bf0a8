"""The robust demonstration, end to end, where the data are ($QP_DATA)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from script_modules import TOP, command, run_script

DATA = os.environ.get("QP_DATA", "")


@pytest.mark.slow
@pytest.mark.skipif(
    not (DATA and (Path(DATA) / "glass.data").is_file()),
    reason="set QP_DATA to a folder with glass.data",
)
def test_outliers_cost_student_t_little():
    words = command("examples", "robust", "--data", DATA, "--seeds", 2)
    done = subprocess.run(words, capture_output=True, text=True, cwd=TOP)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if "+-" in line]
    nlpd, rmse = ({(r[0], r[2]): float(r[k]) for r in rows} for k in (3, 6))
    # Ten splits: NLPD 0.18 and 0.31 against 0.45 and 2.05; RMSE 0.37 twice against 0.37 and 1.26.
    assert nlpd["10", "Student-t"] < nlpd["10", "normal"] - 1.0
    assert rmse["10", "Student-t"] < 0.5 * rmse["10", "normal"]
    assert rmse["10", "Student-t"] < rmse["0", "Student-t"] + 0.05
    assert nlpd["0", "Student-t"] < nlpd["0", "normal"]
    assert all(row[-2] == "100" for row in rows)


def test_missing_data_are_named(tmp_path):
    done = run_script("examples", "robust", "--data", tmp_path, "--seeds", 1)
    assert done.code == 1
    assert "glass.data is missing" in done.err
