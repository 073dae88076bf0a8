"""The benchmark of series runs, in small."""

import json

import pytest

from tests.tools.commands import python
from tests.tools.script_modules import TOP, command


@pytest.mark.slow
def test_every_figure_is_printed_and_kept(tmp_path):
    kept = tmp_path / "kept.json"
    kept.write_text('{"an older figure": [1.0, "s"]}')
    run = command("benchmarks", "series", "--most", 300, "--repeat", 1, "--kept", kept)
    done = python(*run[1:], cwd=TOP)
    found = [line for line in done.stdout.splitlines() if line.startswith("N=300:")]
    words = (
        *("probit, EP", "QP / EP", "poisson-exp, EP", "fit, probit", "fit, poisson", "dense"),
        "memory",
    )
    for word in words:
        assert any(word in line for line in found), word
    assert all(float(line.split()[-2]) > 0.0 for line in found if line.split()[-1] == "s")
    # Those of the run that compiles are not kept; older ones stay.
    names = {line.rsplit(maxsplit=2)[0] for line in found if line.endswith(" s")}
    figures = json.loads(kept.read_text())
    assert names | {"an older figure"} <= set(figures)
    assert "N=100: probit, EP" not in figures
