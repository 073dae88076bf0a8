"""The benchmark of thousands of rows: its scores, what it keeps, and its table."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from scripts.benchmarks import intervals, metrics, middle as bench
from scripts.benchmarks.data import middle as sets
from scripts.benchmarks.peers import tuned
from scripts.reports import middle as report
from tests.tools.cases import every_case
from tests.tools.script_modules import run_script


def test_calibration_error_and_coverage():
    """Ten rows said to be .25, of which five happen, and ten of .75, all of which do."""
    p = np.repeat([0.25, 0.75], 10)
    y = np.concatenate([np.arange(10) < 5, np.ones(10)])
    assert metrics.calibration_error(p, y) == pytest.approx(0.5 * 0.25 + 0.5 * 0.25)
    assert metrics.calibration_error(np.ones(3), np.ones(3)) == 0.0
    y = np.arange(10.0)
    low, high = np.full(10, 2.0), np.full(10, 5.0)
    assert metrics.coverage(low, high, y) == (0.4, 3.0)  # the ends are held


def tiny(kind):
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, (260, 3))
    f = np.sin(3.0 * X[:, 0]) + X[:, 1]
    y = {
        "classes": (f > 0.2).astype(int),
        "counts": rng.poisson(np.exp(f)),
        # Without noise the fit would follow them for seconds, to the end of double precision.
        "numbers": f + 0.1 * rng.standard_normal(260),
    }[kind]
    return sets.Middle("tiny", kind, X[:180], y[:180], X[180:], y[180:])


@pytest.mark.slow
@every_case("kind", ["classes", "counts", "numbers"])
def test_models_learn(kind, monkeypatch):
    data = tiny(kind)
    monkeypatch.setattr(tuned, "_GRID", {"learning_rate": [0.1]})
    base = {"classes": np.log(2.0), "counts": 1.5, "numbers": np.abs(data.y_new).mean()}[kind]
    # Boosting is tuned by cross-validation, and so takes seconds: of one kind only.
    for model in ("default", "linear", *(["boosting"] if kind == "classes" else [])):
        record = bench.run(bench.Task("tiny", 180, 0, model, "x"), data)
        assert record["loss"] < 0.95 * base
        assert record["n"] == 180
        assert (record["calibration"] is None) == (kind != "classes")
        assert record["words"] == ("dense" if model == "default" else "")
        if kind == "classes":
            continue
        # 80 new rows; whole counts are held more often.
        assert 0.8 < record["coverage"] <= 1.0
        assert (record["nlpd"] is None) == (kind == "numbers" and model == "linear")


def test_intervals_of_boosting_are_fitted_for_their_levels():
    rng = np.random.default_rng(3)
    X = rng.uniform(size=(1500, 1))
    y, y_new = rng.uniform(size=1000), rng.uniform(size=500)
    data = sets.Middle("flat", "numbers", X[:1000], y, X[1000:], y_new)
    model = SimpleNamespace(best_params_={"max_leaf_nodes": 2}, predict=None)
    said = intervals.judged("boosting", model, data, 0)
    # Four errors of 500 draws, and as much of the fit of 1000 rows.
    assert abs(said["coverage"] - 0.9) < 0.08
    assert abs(said["width"] - 0.9) < 0.05
    assert said["nlpd"] is None


def made(name, seed, model, loss, kind="classes"):
    return {
        "set": name, "rows": 100, "seed": seed, "model": model, "version": "x", "kind": kind,
        "columns": 3, "n": 90, "loss": loss, "calibration": 0.1, "cpu": 2.0, "elapsed": 3.0,
        "words": "",
    }  # fmt: skip


def test_the_table_and_what_it_comes_to(tmp_path):
    models = ("default", "without boosting", "boosting", "forest", "linear")
    losses = dict(zip(models, (0.3, 0.4, 0.5, 0.6, 0.7), strict=True))
    records = [
        made(name, seed, model, loss + 0.02 * seed)
        for name in ("letter", "banana")
        for seed in (0, 1)
        for model, loss in losses.items()
    ]
    # A seed that others lack, and a set that is not whole, are left out.
    records += [made("letter", 2, "default", 9.0), made("magic", 0, "default", 9.0)]
    rows = report.means(records)
    assert [row["set"] for row in rows] == ["banana", "letter"]
    assert rows[0]["default"]["loss"] == pytest.approx(0.31)
    assert rows[0]["trees"] == pytest.approx(0.51)
    text = report.sets(rows)
    cells = "**0.3100** | 0.4100 | 0.5100 | 0.7100 | 1× |"
    assert f"| banana\\* | {cells}" in text
    assert f"| letter | {cells}" in text
    assert report.intervals(rows).count("\n") == 1  # classes have no intervals
    said = {"coverage": 0.875, "width": 1.0, "nlpd": 2.5}
    counts = [made("goals", 0, model, loss, "counts") | said for model, loss in losses.items()]
    assert "| goals | 0.875 | 2.500 |" in report.intervals(report.means(counts))
    kept = tmp_path / "bench_middle.jsonl"
    kept.write_text("".join(json.dumps(record) + "\n" for record in records))
    wanted = ["benchmarks", "middle", "--report", "--kept"]
    done = run_script(*wanted, kept)
    assert (done.code, cells in done.out) == (0, True)
    assert run_script(*wanted, tmp_path / "none.jsonl").code == 1
