"""The demonstration of series, end to end, where the data are ($QP_DATA)."""

import os
import re
from pathlib import Path

import pytest

from tests.tools.commands import python
from tests.tools.script_modules import TOP, command

DATA = os.environ.get("QP_DATA", "")


@pytest.mark.slow
@pytest.mark.skipif(
    not (DATA and (Path(DATA) / "coal-mining.csv").is_file()),
    reason="set QP_DATA to a folder with coal-mining.csv",
)
def test_days_and_years_give_one_rate(tmp_path):
    pytest.importorskip("matplotlib")
    figure = tmp_path / "series.png"
    words = command("examples", "series", "--data", DATA, "--years", 40, "--figure", figure)
    done = python(*words[1:], cwd=TOP)
    found = re.findall(r"(days|years) +N = +(\d+) .* (\w+), (\d+) disasters", done.stdout)
    assert [row[0] for row in found] == ["days", "years"]
    assert [int(row[1]) for row in found] == [14610, 40]
    # Days are drawn to add up to the years; what they add is noise within a year.
    assert found[0][2:] == found[1][2:]
    assert found[0][2] == "converged"
    assert float(re.search(r"differ by ([\d.]+) %", done.stdout).group(1)) < 5.0
    assert figure.read_bytes().startswith(b"\x89PNG")
