"""Stages of automatic model selection as they are told, and the time a fit is expected to take."""

import logging
import math
import re

import numpy as np
import pytest
from sklearn.datasets import make_moons

from qpruntime import GPClassifier, _duration
from qpruntime.learning import progress
from qpruntime.learning.model_selection import budget, select
from qpruntime.learning.model_selection.budget import (
    OPERATIONS_PER_SECOND,
    Budget,
    Stage,
    StageReport,
)
from qpruntime.learning.progress import expect_selection

MOONS, SIDES = make_moons(90, noise=0.25, random_state=0)
PHASES = re.compile(r"stage (\d) of (\d)(?:, process (\d) of (\d))?, .* begins; \d+ s elapsed")


@pytest.fixture
def few_dense(monkeypatch):
    monkeypatch.setattr(select, "DENSE_ROW_LIMIT", 80)
    monkeypatch.setattr(select, "FIRST_INDUCING", 10)


def test_a_stage_is_told_with_the_time_that_the_budget_leaves(monkeypatch):
    clock, told = [7.0], []
    monkeypatch.setattr(budget.time, "perf_counter", lambda: clock[0])
    counted = Budget(1000.0, 5000)
    stages = StageReport(counted, lambda share, words: told.append((share, words)))
    stages.begin("stage 1 of 3, kernels")
    clock[0] += 50.0
    counted.spend(100.0 * OPERATIONS_PER_SECOND)
    stages.append(Stage(500, "Matérn 2.5", -0.25, counted.used))
    stages.append(Stage(500, "Matérn 0.5", math.nan, counted.used))
    stages.begin("stage 3 of 3, the end", 20.0 * OPERATIONS_PER_SECOND)
    counted.spend(1000.0 * OPERATIONS_PER_SECOND)
    stages.begin("beyond")
    kernels, times = "stage 1 of 3, kernels", "50 s elapsed, about 7:30 left at most"
    assert told == [
        (0.0, f"{kernels} begins; 0 s elapsed"),
        (0.1, f"{kernels}: Matérn 2.5 on 500 rows, log density -0.2500 a row; {times}"),
        (0.1, f"{kernels}: Matérn 0.5 on 500 rows; {times}"),
        (0.1, "stage 3 of 3, the end begins; 50 s elapsed, about 0:10 left at most"),
        (1.0, "beyond begins; 50 s elapsed"),
    ]
    assert [stage.candidate for stage in stages] == ["Matérn 2.5", "Matérn 0.5"]


def test_a_fit_with_inducing_points_tells_its_stages(few_dense, capsys):
    options = {"inducing": "judged", "random_state": 3}
    silent = GPClassifier(**options).fit(MOONS, SIDES)
    assert "stage" not in capsys.readouterr().err
    model = GPClassifier(verbose=1, **options).fit(MOONS, SIDES)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("stage")]
    phases = [PHASES.match(line) for line in lines]
    assert [m.group(1, 2) for m in phases if m] == [("1", "3"), ("2", "3"), ("3", "3")]
    assert [line.split(";")[0] for line in lines if " begins" in line] == [
        "stage 1 of 3, comparison of kernels on some of 90 rows begins",
        "stage 2 of 3, growth of inducing points begins",
        "stage 3 of 3, final fit of all 90 rows begins",
    ]
    ended = [line for line in lines if " begins" not in line]
    assert len(ended) == len(model.stages_) == len(silent.stages_)
    for line, stage in zip(ended, model.stages_, strict=True):
        assert f": {stage.candidate} on {stage.rows} rows" in line
        assert f"stage {2 if 'inducing' in stage.candidate else 1} of 3, " in line


@pytest.fixture
def speed(monkeypatch):
    """A machine that takes a second for a Cholesky factorisation of a thousand rows."""
    monkeypatch.setattr(_duration, "_SMALL", 10)
    monkeypatch.setattr(_duration, "_rate", lambda: 1e-9)
    monkeypatch.setattr(_duration, "_busy", lambda: 1.0)
    monkeypatch.setattr(_duration, "_BESIDE", 0)
    monkeypatch.setattr(_duration, "hands", lambda: 1)


def test_the_time_of_a_fit_is_its_share_of_the_budget(speed, monkeypatch):
    """A second for a third of 10^9 operations: 30 · 2 · 10^10 take 1800 s, from 8000 rows on."""
    told = []
    monkeypatch.setattr(progress, "announce", lambda *words: told.append(words))
    for n in (20_000, 8000, 4000, 1600):
        expect_selection(n, Budget(30.0, n).limit)
    expected = [f"a fit of N = {n} points" for n in (20_000, 8000, 4000, 1600)]
    assert [what for what, *_ in told] == expected
    seconds = [seconds for _, seconds, _ in told]
    np.testing.assert_allclose(seconds, [1800.0, 1800.0, 900.0, 360.0], rtol=1e-9)


def test_the_fit_announces_itself(speed, few_dense, caplog):
    # It uses 90 / 8000 of the budget, 20.25 s.
    with caplog.at_level(logging.WARNING, "qpruntime"):
        GPClassifier(inducing="judged", random_state=3).fit(MOONS, SIDES)
    told = [r.getMessage() for r in caplog.records if "a fit of N = 90 points" in r.getMessage()]
    wanted = ["qpruntime: a fit of N = 90 points will take about 20 s"]
    assert [text.split(";")[0] for text in told] == wanted
