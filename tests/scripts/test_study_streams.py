"""The study of rows in parts, on few rows, and its table."""

from __future__ import annotations

import numpy as np
import pytest

from scripts import records
from scripts.benchmarks.data import drawn
from scripts.reports import sparse as report
from scripts.studies import streams as study


@pytest.fixture(autouse=True)
def few_new_points(monkeypatch):
    monkeypatch.setattr(drawn, "TEST", 50)


def test_few_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(study, "PARTS", {"labels-300": {"shuffled": (100,), "sorted": (300,)}})
    kept = study.Records(tmp_path / "study_streams.jsonl", "data order size sites")
    study.study("labels-300", kept)
    assert len(kept.records) == 4
    for key, found in kept.records.items():
        if key.size == 300:  # one part is all rows
            assert (found["evidence"], found["nll"], found["means"]) == (0.0, 0.0, 0.0)
            assert found["variances"] == [1.0, 1.0, 1.0]
        else:
            assert 0.0 < abs(found["evidence"]) < 1.0
            assert 0.0 < found["means"] < 0.5
    before = dict(kept.records)
    study.study("labels-300", kept)
    assert kept.records == before, "what is kept is not done again"
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    lines = report.drift().splitlines()
    assert len(lines) == 4
    assert "labels, 300 | shuffled, 100" in lines[2]


def test_sorted_parts_begin_with_a_sample(monkeypatch):
    taken = []

    class Post:
        def extend(self, X, y, sites):
            taken.append(X[:, 0])
            return self

    monkeypatch.setattr(study, "infer_sparse", lambda kernel, X, y, Z, **more: Post())
    given = study.problem("labels-300")
    study.in_parts(given, "sorted", 100, "own", None)
    later = np.concatenate(taken)
    np.testing.assert_array_equal(later, np.sort(given.X[100:, 0]))
