"""Groups of rows that are left out: against the posterior of the other rows, by the same sites."""

import numpy as np
import pytest
from scipy.special import log_ndtr
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

from qpruntime import GPClassifier, GPRegressor, Inducing, InputError
from qpruntime.inference.leave_groups import leave_groups_out

SMOOTH = ConstantKernel(2.0) * RBF(1.0)


def rows(seed=0):
    """Return 80 rows at 40 places, of which ten have three rows, twenty two and ten one."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(40, 2))
    y = X[:, 0] + 0.7 * rng.normal(size=40) > 0.0
    codes = np.concatenate([np.arange(40), np.arange(30), np.arange(10)])
    return X[codes], y[codes], codes


def by_sites(K, posterior, codes, signs):
    tau, nu = posterior.sites
    found = np.empty(len(codes))
    for i, code in enumerate(codes):
        kept = codes != code
        inner = np.linalg.inv(K[np.ix_(kept, kept)] + np.diag(1.0 / tau[kept]))
        mean = K[i, kept] @ inner @ (nu[kept] / tau[kept])
        variance = K[i, i] - K[i, kept] @ inner @ K[kept, i]
        found[i] = log_ndtr(signs[i] * mean / np.sqrt(1.0 + variance))
    return found


@pytest.mark.parametrize("kernel", [SMOOTH, SMOOTH + WhiteKernel(0.3)])
@pytest.mark.parametrize("equal", [True, False])
def test_the_dense_engine_leaves_any_group_out(kernel, equal):
    X, y, codes = rows()
    if not equal:
        codes = np.sort(codes)  # rows after each other, which differ
    model = GPClassifier(kernel, optimize=False).fit(X, y)
    found = leave_groups_out(model.posterior_, codes, np.arange(len(y)), equal)
    known = by_sites(kernel(X), model.posterior_, codes, np.where(y, 1.0, -1.0))
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
        from qpruntime.inference.local.posterior import local_of

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
    dense, series = (
        GPRegressor(kernel, likelihood="gaussian", optimize=False, solver=solver).fit(t, y)
        for solver in ("dense", "markov")
    )
    found, known = (
        leave_groups_out(m.posterior_, codes, np.arange(100), True) for m in (series, dense)
    )
    np.testing.assert_allclose(found, known, rtol=1e-6)
    with pytest.raises(InputError, match="equal times only"):
        leave_groups_out(series.posterior_, np.sort(codes), np.arange(100), False)
