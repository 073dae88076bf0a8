"""The benchmark of defaults: its data, its scores, what it keeps, and its table."""

import csv

import numpy as np
import pytest
from sklearn.metrics import log_loss, mean_poisson_deviance

from scripts.benchmarks import defaults as bench, defaults_fits as raw_fits
from scripts.benchmarks.data import small as raw_data
from scripts.benchmarks.data.registry import KINDS
from scripts.benchmarks.peers import small as raw_peers
from scripts.reports import defaults as report
from tests.tools.cases import every_case
from tests.tools.script_modules import DATA, needs_data, run_script


def tiny(kind="classes", number=2, rows=40):
    """A set of two features in thousands, and a name of its kind."""
    rng = np.random.default_rng(0)
    X = 1e3 * rng.standard_normal((rows, 2))
    y = {
        "classes": (X[:, 0] > 0.0).astype(int),
        "numbers": X[:, 0] + X[:, 1] + 300.0 * rng.standard_normal(rows),
        "counts": rng.poisson(np.exp(1e-3 * X[:, 0])).astype(float),
    }[kind]
    exposure = np.linspace(1.0, 2.0, rows) if kind == "counts" else None
    return raw_data.RawSet(raw_data.names(kind)[number - 1], kind, number, X, y, exposure)


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Run the benchmark on tiny sets with two peers, in this process."""

    def load(name, directory):
        kind = next(k for k in KINDS if name in raw_data.names(k))
        return tiny(kind, 1 + raw_data.names(kind).index(name))

    monkeypatch.setattr(raw_data, "load", load)
    for kind in KINDS:
        monkeypatch.setitem(raw_peers.PEERS, kind, dict(list(raw_peers.PEERS[kind].items())[:2]))

    def run(*arguments):
        where = ["--kept", tmp_path / "kept.jsonl", "--out", tmp_path / "out", "--workers", 1]
        done = run_script("benchmarks", "defaults", *where, *arguments)
        assert done.code == 0, done.err
        return done.out, done.err

    return run


def test_enough_sets_without_any_file():
    counts = {}
    for kind in KINDS:
        found = [raw_data.load(name) for name in raw_data.names(kind)]
        assert [s.number for s in found if s] == [n for n, s in enumerate(found, 1) if s]
        counts[kind] = sum(s is not None for s in found)
    assert all(counts[kind] >= n for kind, n in (("classes", 25), ("numbers", 10), ("counts", 5)))
    assert set(report.REASONS) <= set(raw_data.names())
    with pytest.raises(KeyError, match="unknown data set 'titanic'; known are breast_cancer"):
        raw_data.load("titanic")


@every_case("name", raw_data.names())
def test_sets_are_raw_finite_and_seeded(name):
    raw = raw_data.load(name)
    if raw is None:
        return  # in the directory of raw files
    assert 100 <= len(raw.X) == len(raw.y) <= 500
    assert np.isfinite(raw.X).all()
    assert raw_fits.digest(raw) == raw_fits.digest(raw_data.load(name))
    pairs = raw_fits.folds(raw)
    assert sorted(np.concatenate([test for _, test in pairs])) == list(range(len(raw.y)))
    for train, test in pairs:
        assert not set(train) & set(test)
        if raw.kind == "classes":
            assert set(raw.y[train]) == set(raw.y[test]) == set(range(raw.y.max() + 1))
    # As it comes: not one has been standardised.
    assert not np.allclose(raw.X.std(axis=0), 1.0, atol=1e-6)


@needs_data
def test_sets_of_the_directory():
    assert all(raw_data.load(name, DATA) is not None for name in raw_data.names())


def test_scores_are_those_of_scikit_learn():
    rng = np.random.default_rng(1)
    train, test = np.arange(20), np.arange(20, 40)
    raw = tiny()
    log_p = np.log(rng.dirichlet([1.0, 1.0], 20))
    found = raw_fits.score(raw, train, test, (log_p, None), None)
    assert found["loss"] == pytest.approx(log_loss(raw.y[test], np.exp(log_p)), rel=1e-12)
    assert found["error_rate"] == np.mean(log_p.argmax(axis=1) != raw.y[test])
    raw = tiny("counts")
    # A rate of 0 has a finite deviance, as of half an event.
    least = np.full(20, 0.5 / raw.exposure[train].sum())
    rate = rng.uniform(0.5, 2.0, 20)
    for given, counted in ((rate, rate), (np.zeros(20), least)):
        found = raw_fits.score(raw, train, test, (given, None), raw.exposure[test])
        expected = mean_poisson_deviance(raw.y[test], counted * raw.exposure[test])
        assert found["loss"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind != "classes")) for kind in KINDS]
)
def test_every_model_beats_a_constant(kind):
    raw = tiny(kind, rows=100)
    losses = {}
    for name in (raw_fits.OURS, *raw_peers.PEERS[kind]):
        record = raw_fits.run(raw_fits.Task(raw.name, "", 0, name, ""), raw)
        assert "error" not in record
        losses[name] = record["loss"]
    constant = losses.pop(raw_peers.BASELINE)
    assert max(losses.values()) < constant


@pytest.mark.slow
def test_what_is_done_is_kept(run, tmp_path, monkeypatch):
    names = ["wine", "xor", "season_6000"]
    out, err = run("--sets", *names)
    assert f"{3 * 3 * bench.FOLDS} fits, 0 are kept" in err
    assert "| all | for choosing | reported |" in out
    kept = (tmp_path / "kept.jsonl").read_bytes()
    # Killed in the middle of a line: that fit alone is done again.
    (tmp_path / "kept.jsonl").write_bytes(kept[:-20])
    _, err = run("--sets", *names)
    assert f"1 fits, {3 * 3 * bench.FOLDS - 1} are kept" in err
    # Another state of our code: our fits alone.
    monkeypatch.setattr(bench, "our_version", lambda: "another")
    _, err = run("--sets", *names)
    assert f"{3 * bench.FOLDS} fits, {3 * 2 * bench.FOLDS} are kept" in err


def test_a_failure_is_a_result(run, monkeypatch):
    def fails(*_):
        raise FloatingPointError("no fit")

    monkeypatch.setattr(raw_fits, "ours", fails)
    out, _ = run("--sets", "xor", "--no-peers")
    assert "xor: ours: FloatingPointError: no fit" in out


def test_report_names_the_lost_and_parts_the_halves(tmp_path):
    sets = [tiny(number=n) for n in (1, 2, 3)]
    losses = {1: 0.30, 2: 0.32, 3: 0.34}
    kept = []
    for raw in sets:
        for model, loss in (("ours", losses[raw.number]), ("logistic", 0.3), ("constant", 0.1)):
            for fold in range(2):
                record = {"set": raw.name, "fold": fold, "model": model, "rows": 20}
                kept.append({**record, "loss": loss + 0.1 * fold - 0.05, "error_rate": 0.25})
    results = report.summarise(sets, kept, "ours")
    assert [r.good for r in results] == [True, True, False]
    assert [r.best for r in results] == ["logistic"] * 3
    report.write(results, tmp_path)
    text = (tmp_path / "defaults.md").read_text()
    assert "| GPClassifier | 2 of 3 | 1 of 1 | 1 of 2 |" in text
    assert f"- **{sets[2].name}** (logistic, 1.13)" in text
    rows = list(csv.DictReader((tmp_path / "defaults.csv").read_text().splitlines()))
    assert len(rows) == 9
    got = {r["set"]: float(r["loss"]) for r in rows if r["model"] == "ours"}
    assert got == pytest.approx({raw.name: losses[raw.number] for raw in sets})
