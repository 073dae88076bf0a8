"""The comparison of optimisers: its problems' optima, a run that is kept, and the report."""

import json

import numpy as np

from scripts import records
from scripts.benchmarks import bayesopt as bench
from scripts.reports import bayesopt as report
from tests.tools.script_modules import run_script


def test_optima_are_where_published():
    for name, x in [
        ("gramacy", [0.19541, 0.40438]),
        ("gardner2", [4.71239, 1.25324]),
        ("hartmann6", [0.20169, 0.150011, 0.476874, 0.275332, 0.311652, 0.6573]),
    ]:
        assert abs(bench.PROBLEMS[name].gap(np.array(x))) < 2e-3, name
    worse = bench.PROBLEMS["gramacy"]
    assert worse.gap(np.array([0.0, 0.0])) == worse.worst


def test_a_run_is_kept_and_reported(tmp_path):
    file = tmp_path / "bench_bayesopt.jsonl"
    wanted = ["benchmarks", "bayesopt", "--models", "random", "--seeds", "1", "--kept", file]
    assert run_script(*wanted).code == 0
    kept = file.read_text()
    assert run_script(*wanted).code == 0  # done already
    assert file.read_text() == kept
    assert "| random | 1 |" in run_script(*wanted, "--report").out


def test_a_problem_with_decoupled_runs_only():
    """Count evaluations of single functions in a line of their own."""
    run = {"problem": "svc", "method": "pesc-decoupled", "seed": 0, "seconds": 1.0}
    text = report.gaps([{**run, "recommended": {"12": 0.5, "15": 1e-4, "18": 0.0}}])
    assert text.splitlines()[2:] == ["| svc | 1 | 15 |"]


def test_times_are_kept_for_each_problem_and_size(tmp_path):
    wanted = ["--times", "--repeats", "1", "--kept", tmp_path / "runs.jsonl", "--sizes"]
    for sizes in (["5", "6"], ["6"]):  # the second time in place of the first
        done = run_script("benchmarks", "bayesopt", *wanted, *sizes)
        assert done.code == 0
    lines = (tmp_path / "runs_times.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    expected = [(n, what) for n in (5, 6) for what in ("ask", "ei", "conditioning")]
    assert [(row["N"], row["what"]) for row in rows] == expected
    for ask, _, one in (rows[:3], rows[3:]):
        assert 0.0 < one["seconds"] < ask["seconds"]
    assert "ms of CPU" in done.out


def test_the_page_says_from_which_cost_on_it_pays(tmp_path, monkeypatch):
    """Gaps within .01 after 10 and 20 evaluations, asks of .3 and .1 s: c > (10 .3 - 20 .1)/10."""
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    times = [("ask", 0.3), ("ei", 0.1), ("conditioning", 0.002)]
    shared = {"problem": "toy", "d": 1, "K": 1, "N": 30}
    lines = [json.dumps({**shared, "what": what, "seconds": s}) for what, s in times]
    (tmp_path / "bench_bayesopt_times.jsonl").write_text("\n".join(lines))
    runs = [
        {"problem": problem, "method": method, "recommended": dict(zip(marks, row, strict=True))}
        for problem, method, row in [
            ("toy", "pesc", (9e-3, 8e-3, 7e-3)),
            ("toy", "ei", (9e-3, 2e-2, 5e-4)),  # within it at first, and not to stay
            ("untimed", "pesc", (1.0, 1.0, 5e-4)),
            ("untimed", "ei", (5e-3, 5e-3, 1.0)),
            ("toy", "pesc-decoupled", (1.0, 1.0, 5e-4)),
        ]
        for marks in [("10", "15", "20")]
    ]
    (tmp_path / "bench_bayesopt.jsonl").write_text("\n".join(json.dumps(run) for run in runs))
    text = report.pays()
    assert "| toy | 0.01 | 10 | 20 | more than 0.1 s |" in text
    assert "| toy | 0.001 | not reached | 20 | EI gets there, PESC does not |" in text
    assert "| untimed | 0.001 | 20 | not reached | any time (EI does not get there) |" in text
    assert "| pesc | 1 | 0.009 | 0.008 | 0.007 |" in report.gaps()
    assert "| toy | 1 | 20 |" in report.gaps()
    assert "| toy | 1 | 1 | 30 | 300 ms | 100 ms |" in report.times()
