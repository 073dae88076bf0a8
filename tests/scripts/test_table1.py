"""Table 1: splits, resuming, the report, and a rerun against the kept results."""

import csv
import json
import subprocess

import numpy as np
import pytest
from scipy.stats import t as student

from scripts import cluster, command_line
from scripts.benchmarks.data import paper, protocol
from scripts.records import RESULTS, Records
from scripts.reports import table1 as report, table1_numbers as summary
from scripts.studies import experiment, table1 as reproduce
from tests.tools.dask_cluster import RealCluster, until
from tests.tools.script_modules import DATA, TOP, command, needs_data, run_script

Task = protocol.Task


def fake(data, block, turn, fold, ntll=0.1, methods=("ep", "qp")):
    """A record as `experiment.run` returns it."""
    scores = {"te": 0.1, "converged": True, "sweeps": 5, "evidence": -1.0, "seconds": 0.01}
    found = {m: {**scores, "ntll": ntll - 0.001 * i + 0.01 * turn} for i, m in enumerate(methods)}
    return {
        **Task(data, block, turn, fold)._asdict(),
        **{"n_test": 10, "theta": [0.0, 0.0], "seconds": 0.1, "success": True, "cpu": 0.2},
        **{name: [9, 9, 0.9] for name in ("theorem2", "predictive", "marginal")},
        "methods": found,
    }


def test_folds_are_disjoint_and_the_remainder_is_never_tested():
    for m in (351, 683, 200):
        tested = []
        for fold in range(10):
            train, test = protocol.split(Task("wine1", "main", 3, fold), m)
            assert len(test) == m // 10
            assert set(train) | set(test) == set(range(m))
            assert not set(train) & set(test)
            tested.extend(test)
        assert len(set(tested)) == len(tested) == 10 * (m // 10)
        everything = [protocol.split(Task("wine1", "all", 3, k), m)[1] for k in range(10)]
        assert sorted(np.concatenate(everything)) == list(range(m))


def test_mining_splits_are_the_published_ones():
    train, test = protocol.split(Task("mining", "main", 5, 0), 112)
    np.testing.assert_array_equal(train, np.flatnonzero(np.random.RandomState(5).rand(112) > 0.5))
    assert len(train) + len(test) == 112


def test_plan():
    tasks = reproduce.plan(["wine1", "mining"], ["main", "vb"], 3)
    assert len(tasks) == len(set(tasks)) == 2 * (30 + 6)
    assert [t.round for t in tasks if t.data == "wine1"] == [0] * 20 + [1] * 20 + [2] * 20
    # All 100 rounds hold all 200 splits.
    assert len(reproduce.plan(["mining"], ["main"], None)) == 200
    assert not reproduce.plan(["mining"], ["grid", "ard", "all"], 1)


def test_results_survive_a_torn_line(tmp_path):
    path = tmp_path / "kept" / "folds.jsonl"
    results = Records(path, Task)
    results.add(fake("wine1", "main", 0, 0))
    with path.open("a") as file:
        file.write('{"data":"wine1","block":"ma')  # killed while writing
    results = Records(path, Task)
    assert set(results.records) == {Task("wine1", "main", 0, 0)}
    results.add(fake("wine1", "main", 0, 1))
    again = Records(path, Task)
    assert set(again.records) == {Task("wine1", "main", 0, k) for k in (0, 1)}
    assert again.records == results.records


def words(folder, *more):
    """Return arguments of one round of a small set, whose data are nowhere."""
    kept = ["--kept", str(folder / "f"), "--out", str(folder)]
    return ["table1", "--data", "x", "--sets", "wine1", "--rounds", "1", *kept, *more]


def test_stopped_and_started_again_it_repeats_none(tmp_path, monkeypatch, capsys):
    calls = []

    def stop(task, X, y, options):
        if len(calls) in (3, 9):
            calls.append(None)
            raise KeyboardInterrupt
        calls.append(task)
        return fake(*task)

    monkeypatch.setattr(experiment, "run", stop)
    monkeypatch.setattr(paper, "load", lambda name, directory, download: (None, None))
    arguments = words(tmp_path, "--blocks", "main", "--workers", "1")
    assert [command_line.main("studies", arguments) for _ in range(4)] == [130, 130, 0, 0]
    assert "the same command goes on" in capsys.readouterr().err
    assert [task for task in calls if task] == [Task("wine1", "main", 0, k) for k in range(10)]


@pytest.mark.slow
@needs_data
def test_a_real_cluster_that_loses_workers_and_its_scheduler(tmp_path):
    def arguments(name, *more):
        given = "--data", DATA, "--sets", "mining", "--rounds", 20, "--blocks", "main"
        kept = "--kept", tmp_path / name, "--out", tmp_path / "out"
        return command("studies", "table1", *given, *kept, *more)

    def done():
        return folds.read_bytes().count(b"\n") if folds.exists() else 0

    subprocess.run(arguments("serial", "--workers", 1), check=True, capture_output=True, cwd=TOP)
    folds = tmp_path / "cluster"
    (tmp_path / "logs").mkdir()
    with RealCluster(tmp_path / "logs", workers=3) as real:
        real.wait_for_workers(3)
        command_words = arguments("cluster", "--scheduler", real.address)
        run = subprocess.Popen(command_words, stderr=subprocess.PIPE, text=True, cwd=TOP)
        assert until(lambda: done() >= 2, run)
        real.workers[0].kill()
        real.add_worker()
        assert until(lambda: done() >= 5, run)
        real.restart()
        _, err = run.communicate(timeout=300)
    assert run.returncode == 0, err
    assert "Traceback" not in err
    one, two = (Records(tmp_path / name, Task).records for name in ("serial", "cluster"))
    assert len(one) == 40
    expected = {t: r["methods"]["qp"]["ntll"] for t, r in two.items()}
    assert {t: r["methods"]["qp"]["ntll"] for t, r in one.items()} == expected
    # No fit is kept twice.
    assert folds.read_bytes().count(b"\n") == 40


def test_no_scheduler_and_no_data_are_one_clear_error_each(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(paper, "load", lambda name, directory, download: (None, None))
    arguments = words(tmp_path, "--timeout", "0.5", "--scheduler")
    assert command_line.main("studies", [*arguments, "tcp://127.0.0.1:9"]) == 1
    err = capsys.readouterr().err.splitlines()[-1]
    assert err.startswith("error: no scheduler answers at tcp://127.0.0.1:9 within 0.5 s")
    assert "finished fits are kept, to go on: python" in err
    assert command_line.main("studies", [*arguments, "nowhere"]) == 2
    capsys.readouterr()

    def absent(name, directory, download):
        raise paper.DataError("x is missing; its address is y")

    monkeypatch.setattr(paper, "load", absent)
    assert command_line.main("studies", words(tmp_path)) == 1
    assert capsys.readouterr().err == "error: x is missing; its address is y\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rounds", "0"], "--rounds must be at least 1"),
        (["--workers", "0"], "--workers must be at least 1"),
        (["--blocks", "grid"], "need --grid"),
        (["--sets", "iris"], "invalid choice: 'iris'"),
    ],
)
def test_usage(arguments, message):
    done = run_script("studies", "table1", "--data", "x", *arguments)
    assert (done.code, message in done.err) == (2, True)


def test_progress_tells_the_time_left(capsys):
    progress = cluster.Progress(20, kept=4)
    for fold in range(20):
        progress.step(f"fold {fold}")
    shown = capsys.readouterr().err
    assert "20 fits, 4 are kept" in shown
    assert "20/20 fits, fold 19; " in shown
    assert shown.endswith("0:00:00 left\n")


def test_report(tmp_path):
    records = [fake("wine1", "main", r, k) for r in range(3) for k in range(10)]
    records += [fake("wine1", "vb", 0, k, methods=("vb",)) for k in range(10)]
    records.append(fake("wine1", "main", 3, 0, ntll=9.0))  # of a round that is not whole
    report.write(records, tmp_path)
    main, vb = json.loads((tmp_path / "table1.json").read_text())["rows"]
    assert (main["rounds"], vb["rounds"]) == (3, 1)
    ntll = main["methods"]["ep"]["ntll"]
    known = {"mean": 110.0, "sd": 10.0, "se": 10.0 / 3**0.5}
    assert {name: ntll[name] for name in known} == pytest.approx(known)
    assert main["methods"]["qp"]["ntll_rounds"] == pytest.approx([99.0, 109.0, 119.0])
    assert main["qp_against_ep"]["won"] == 1.0
    assert main["qp_against_ep"]["difference"] == pytest.approx(-1.0)
    text = (tmp_path / "table1.md").read_text()
    assert "| Wine1 (1 v 2) | 3/1 | 10.0 ± 0.0 |" in text
    assert "| *published* | 100 | 1.5 ± 0.5 |" in text
    lines = list(csv.DictReader((tmp_path / "table1.csv").read_text().splitlines()))
    assert [line["method"] for line in lines] == ["ep", "qp", "vb"]
    assert lines[1]["ntll_published"] == "47.4"


def test_corrected_test_is_the_textbook_one():
    rng = np.random.default_rng(0)
    records = [fake("wine1", "main", r, k) for r in range(2) for k in range(10)]
    d = rng.normal(-1.0, 1.0, 20)
    for record, value in zip(records, d, strict=True):
        record["methods"]["qp"]["ntll"] = record["methods"]["ep"]["ntll"] + value / 1000.0
    found = summary.paired(records, "qp", "ep", "ntll")
    t = d.mean() / (d.std(ddof=1) * np.sqrt(1 / 20 + 1 / 9))
    assert found["p"] == pytest.approx(2 * student.sf(abs(t), 19), rel=1e-6)
    assert found["won"] == pytest.approx((d < 0).mean())


@pytest.fixture(scope="module")
def kept():
    rows = json.loads((RESULTS / "table1.json").read_text())["rows"]
    return {(r["data"], r["block"]): r for r in rows}


@needs_data
@pytest.mark.parametrize("data", ["wine1", "wine2", "mining"])
def test_one_round_again_gives_the_kept_numbers(data, kept):
    X, y = paper.load(data, DATA)
    row = kept[data, "main"]
    tasks = [Task(data, "main", 1, k) for k in range(protocol.folds(data))]
    records = [experiment.run(task, X, y) for task in tasks]
    for method in ("ep", "qp"):
        for measure in ("te", "ntll"):
            found = summary.per_round(records, method, measure)[0]
            # Optimiser paths on flat ground differ between machines; the densities hardly do.
            stored = row["methods"][method][f"{measure}_rounds"][1]
            assert found == pytest.approx(stored, rel=2e-3, abs=1e-3)
    for name in ("theorem2", "predictive"):
        found = summary.counted(records, name)
        assert found["held"] == found["of"]


def test_kept_results_agree_with_the_paper(kept):
    given = summary.published()
    assert tuple(given) == paper.NAMES
    assert (given["sonar"]["ntll_vb"], given["mining"]["te_ep_sd"]) == (693.1, 27)
    for entry in summary.agreement({"rows": list(kept.values())}):
        if entry["method"] in ("ep", "qp"):
            assert abs(entry["deviations"]) <= entry["allowed"], entry
    for (data, _), row in kept.items():
        for method, values in row["methods"].items():
            if method != "qp_clamp":
                assert values["finite"] == row["fits"], (data, method)
        if "theorem2" in row:
            assert row["theorem2"]["held"] == row["theorem2"]["of"]
