"""The benchmark of sparse fits: its judge against closed forms, its data, its words."""

import numpy as np
import pytest
from scipy.special import ndtr

from scripts.benchmarks.data import drawn as sets
from scripts.benchmarks.peers.elsewhere import judge
from scripts.reports import speed as report


def test_predictions_are_judged():
    """All means m and variances v: Phi(m/sqrt(1 + v)), whose labels are as often as it says."""
    mean, variance, y = np.full(1000, 1.2), np.full(1000, 0.44), np.ones(1000)
    p = ndtr(1.0)
    y[: round(1000 * (1.0 - p))] = -1.0
    nll, gap = judge(mean, variance, y)
    assert nll == pytest.approx(-(p * np.log(p) + (1.0 - p) * np.log1p(-p)), abs=1e-3)
    assert gap < 1e-3
    assert judge(mean, variance, -np.ones(1000))[1] == pytest.approx(p)


@pytest.mark.slow
def test_synthetic_labels_follow_a_function_of_variance_4():
    data = sets.synthetic(300)
    assert data.X.shape == (300, 5)
    assert set(np.unique(data.y)) == {-1.0, 1.0}
    rng = np.random.default_rng(1)
    f = np.array([sets.latent(np.zeros((1, 5)), rng)[0] for _ in range(300)])
    # A variance from 300 draws has a relative deviation of 0.08.
    assert f.var() == pytest.approx(4.0, rel=0.3)


def test_times_are_compared():
    ours = {"peer": "own", "path": [[1.0, 0.5, 0.1], [4.0, 0.3, 0.1]]}
    theirs = {"peer": "svgp", "path": [[10.0, 0.4, 0.2]]}
    text = report.peers([{"case": "synthetic-1000-20", **one} for one in (ours, theirs)])
    # Ours passes .4 after four seconds.
    assert "| synthetic, N = 1 000, M = 20 | SVGP | 0.4000 | 10 | 0.3000 | 4 | 0.40 |" in text
