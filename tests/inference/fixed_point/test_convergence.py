"""When an iteration has come far enough: what changes are measured in, and against what."""

import numpy as np
from sklearn.gaussian_process.kernels import ConstantKernel, Matern

from qpruntime import infer_series


def test_rows_appended_settle_ten_times_further_than_the_tolerance():
    # Rows before the new ones are not swept again: what is left of a change there stays for good.
    rng = np.random.default_rng(0)
    t, y = np.arange(40.0), rng.poisson(3.0, 40)
    kernel, tol = ConstantKernel(4.0) * Matern(8.0, nu=1.5), 1e-3
    more, new = np.arange(40.0, 44.0), np.array([30.0, 0.0, 40.0, 12.0])
    found = infer_series(t, y, kernel, "poisson-exp", "ep", tol=tol).extend(more, new)
    assert found.converged
    assert found.history[-1] < 0.1 * tol
    exact = infer_series([*t, *more], [*y, *new], kernel, "poisson-exp", "ep", tol=1e-10)
    assert np.abs((found.mean - exact.mean) / np.sqrt(exact.variance)).max() < tol
