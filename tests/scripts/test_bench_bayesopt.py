"""The comparison of optimisers: its problems' optima, a run that is kept, and the report."""

from __future__ import annotations

import numpy as np

from script_modules import script


def test_optima_are_where_published():
    script("records")
    bench = script("bench_bayesopt")
    for name, x in [
        ("gramacy", [0.19541, 0.40438]),
        ("gardner2", [4.71239, 1.25324]),
        ("hartmann6", [0.20169, 0.150011, 0.476874, 0.275332, 0.311652, 0.6573]),
    ]:
        assert abs(bench.PROBLEMS[name].gap(np.array(x))) < 2e-3, name
    worse = bench.PROBLEMS["gramacy"]
    assert worse.gap(np.array([0.0, 0.0])) == worse.worst


def test_a_run_is_kept_and_reported(tmp_path, capsys):
    script("records")
    bench = script("bench_bayesopt")
    script("bayesopt_report")
    file = tmp_path / "bench_bayesopt.jsonl"
    wanted = ["--methods", "random", "--seeds", "1", "--file", str(file)]
    assert bench.main(wanted) == 0
    kept = file.read_text()
    assert bench.main(wanted) == 0  # done already
    assert file.read_text() == kept
    assert bench.main([*wanted, "--report"]) == 0
    assert "| random | 1 |" in (tmp_path / "bench_bayesopt.md").read_text()
    assert (tmp_path / "bench_bayesopt_gramacy.png").stat().st_size > 1000


def test_a_problem_with_decoupled_runs_only(tmp_path):
    """Their counts of evaluations are of single functions: a line, and no empty figure."""
    report = script("bayesopt_report")
    run = {"problem": "svc", "method": "pesc-decoupled", "seed": 0, "seconds": 1.0}
    report.write([{**run, "recommended": {"12": 0.5, "15": 1e-4, "18": 0.0}}], tmp_path)
    text = (tmp_path / "bench_bayesopt.md").read_text()
    assert "within .001 after 15 evaluations of single functions (median of 1" in text
    assert not list(tmp_path.glob("*.png"))
