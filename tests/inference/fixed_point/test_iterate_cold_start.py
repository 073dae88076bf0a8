"""Parallel order finds the fixed point from nothing, under priors as wide as fits end with."""

import numpy as np
import pytest
from sklearn.datasets import load_wine

from qpruntime import ConvergenceWarning, infer
from tests.tools.cases import every_case


@pytest.fixture(scope="module")
def wine():
    """Two classes of Wine, which are nearly separable: evidence widens the prior without end."""
    X, target = load_wine(return_X_y=True)
    X, target = X[target < 2], target[target < 2]
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    return np.sum((X[:, None] - X) ** 2, axis=-1), np.where(target > 0, 1.0, -1.0)


@every_case("deviation", [1.0, 30.0, 870.0, 1e4])
@every_case("scale", [3.0, 11.1])
def test_orders_agree(wine, deviation, scale):
    square, y = wine
    for labels in (y, np.where(np.random.default_rng(0).random(y.size) < 0.05, -y, y)):
        K = deviation**2 * np.exp(-0.5 * square / scale**2)
        for method in ("ep", "qp"):
            one, all_at_once = (
                infer(K, labels, method=method, order=o) for o in ("sequential", "parallel")
            )
            assert all_at_once.converged
            assert all_at_once.n_sweeps < 60
            np.testing.assert_allclose(all_at_once.log_evidence, one.log_evidence, rtol=1e-6)


@pytest.mark.parametrize("deviation", [30.0, 870.0, 1e4])
def test_labels_of_one_kind(wine, deviation):
    """All sites overshoot together: parallel order alone never settles from nothing."""
    square, y = wine
    K = deviation**2 * np.exp(-0.5 * square / 11.1**2)
    labels = np.ones(y.size)
    one = infer(K, labels)
    all_at_once = infer(K, labels, order="parallel")
    assert all_at_once.converged
    assert len(all_at_once.history) == all_at_once.n_sweeps <= 60
    np.testing.assert_allclose(all_at_once.log_evidence, one.log_evidence, rtol=1e-6)
    np.testing.assert_allclose(all_at_once.variance, one.variance, rtol=1e-4)
    with pytest.warns(ConvergenceWarning):
        assert infer(K, labels, order="parallel", max_sweeps=5).n_sweeps == 5
    with pytest.warns(ConvergenceWarning):
        assert infer(K, labels, order="parallel", max_sweeps=21).n_sweeps == 21
