"""Groups of rows that are left out: against the posterior of the other rows, by the same sites."""

import numpy as np
import pytest
from scipy.special import log_ndtr
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

from qpruntime import GPClassifier, GPRegressor, Inducing
from qpruntime.inference.leave_groups import leave_groups_out
from qpruntime.inference.local.posterior import local_of
from tests.tools.cases import refuses

SMOOTH = ConstantKernel(2.0) * RBF(1.0)


def rows(seed=0):
    """Return 80 rows at 40 places, of which ten have three rows, twenty two and ten one."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(40, 2))
    y = X[:, 0] + 0.7 * rng.normal(size=40) > 0.0
    codes = np.concatenate([np.arange(40), np.arange(30), np.arange(10)])
    return X[codes], y[codes], codes


@pytest.mark.parametrize("kernel", [SMOOTH, SMOOTH + WhiteKernel(0.3)])
@pytest.mark.parametrize("equal", [True, False])
def test_the_dense_engine_leaves_any_group_out(kernel, equal):
    X, y, codes = rows()
    if not equal:
        codes = np.sort(codes)  # rows after each other, which differ
    model = GPClassifier(kernel, optimize=False).fit(X, y)
    found = leave_groups_out(model.posterior_, codes, np.arange(len(y)), equal)
    K, (tau, nu), known = kernel(X), model.posterior_.sites, np.empty(len(y))
    for i, code in enumerate(codes):
        kept = codes != code
        inner = np.linalg.inv(K[np.ix_(kept, kept)] + np.diag(1.0 / tau[kept]))
        mean = K[i, kept] @ inner @ (nu[kept] / tau[kept])
        variance = K[i, i] - K[i, kept] @ inner @ K[kept, i]
        known[i] = log_ndtr((1.0 if y[i] else -1.0) * mean / np.sqrt(1.0 + variance))
    np.testing.assert_allclose(found, known, rtol=1e-6)
    assert np.abs(found - model.posterior_.loo()).max() > 0.02


@pytest.mark.parametrize("nearest", [0, 10])
def test_inducing_points_leave_them_out(nearest):
    """Inducing points at all rows say what the dense engine does; nearest rows change little."""
    X, y, codes = rows()
    dense = GPClassifier(SMOOTH, optimize=False).fit(X, y)
    known = leave_groups_out(dense.posterior_, codes, np.arange(len(y)), True)
    model = GPClassifier(SMOOTH, optimize=False, inducing=Inducing(X[:40], power=1.0)).fit(X, y)
    posterior = model.posterior_
    if nearest:
        posterior = local_of(posterior, X, nearest)
    found = leave_groups_out(posterior, codes, np.arange(len(y)), True)
    np.testing.assert_allclose(found, known, rtol=1e-5)
    assert np.abs(found - posterior.loo(np.arange(len(y)))).max() > 0.05
    some = np.array([3, 50, 43, 39])
    np.testing.assert_allclose(leave_groups_out(posterior, codes, some, True), found[some])


def test_a_series_leaves_equal_times_out():
    rng = np.random.default_rng(4)
    t = np.tile(np.sort(rng.uniform(0.0, 10.0, 50)), 2)[:, None]
    y = np.sin(t[:, 0]) + 0.3 * rng.normal(size=100)
    codes, kernel = np.tile(np.arange(50), 2), ConstantKernel(1.0) * Matern(1.0, nu=1.5)
    options, rows = {"likelihood": "gaussian", "optimize": False}, np.arange(100)
    dense, series = (
        GPRegressor(kernel, solver=solver, **options).fit(t, y).posterior_
        for solver in ("dense", "markov")
    )
    found, known = (leave_groups_out(post, codes, rows, True) for post in (series, dense))
    np.testing.assert_allclose(found, known, rtol=1e-6)
    refuses("equal times only", leave_groups_out, series, np.sort(codes), rows, False)
