"""The study of p: its measures by hand, and one fold of it."""

from __future__ import annotations

import numpy as np
import pytest

from scripts.studies import powers as study
from tests.tools.script_modules import DATA, needs_data


def test_calibration_error_by_hand():
    # Two of four right at 0.95 (gap 0.9 of 2), one of two at 0.6, given as 0.4 and the other class.
    probability = np.array([0.95, 0.95, 0.05, 0.05, 0.4, 0.4])
    hit = np.array([True, False, False, True, False, True])
    expected = (abs(4 * 0.95 - 2) + abs(2 * 0.6 - 1)) / 6
    assert study.of_predicted(probability, hit) == pytest.approx(expected)
    assert study.of_predicted(np.ones(3), np.ones(3, dtype=bool)) == 0.0


@needs_data
def test_one_fold():
    lines = study.table("wine1", DATA, 1, 2, [2.0]).splitlines()
    assert lines[0] == "## wine1: 2 folds"
    ep, qp = (line.split("|")[1:-1] for line in lines[-2:])
    assert ep[0].strip() == "EP"
    assert qp[1].strip().endswith("(+0.00 ± 0.00)")
    assert len(ep) == len(qp) == lines[2].count("|") - 1
    # EP's standard deviations are larger.
    assert 1.0 < float(ep[-2]) < 1.1
