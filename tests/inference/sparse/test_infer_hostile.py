"""Sparse inference where nothing is nice: never NaN, never a crash, and mostly an answer."""

import warnings

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

from qpruntime import ConvergenceWarning, QPError, infer_sparse

LIKELIHOODS = [
    *("probit", "logistic", "heaviside", "poisson-exp", "poisson"),
    *("negative-binomial(dispersion=0.4)", "student-t(nu=4, scale=0.3)", "laplace(scale=0.5)"),
]


def problem(seed):
    """Arguments of a problem with widths, sizes, places and powers over many decades."""
    rng = np.random.default_rng(seed)
    n, m, d = int(rng.integers(1, 25)), int(rng.integers(1, 12)), int(rng.integers(1, 4))
    likelihood = LIKELIHOODS[seed % len(LIKELIHOODS)]
    scale = 10.0 ** rng.uniform(-3, 3) if rng.random() < 0.3 else 1.0
    X = scale * rng.standard_normal((n, d))
    if rng.random() < 0.3:
        X[rng.integers(n)] = X[0]
    Z = X[rng.integers(n, size=m)] if rng.random() < 0.5 else scale * rng.standard_normal((m, d))
    if rng.random() < 0.2:
        Z = Z.copy()
        Z[0] = 10.0 ** rng.uniform(0, 8)
    variance, length = 10.0 ** rng.uniform(-6, 10), 10.0 ** rng.uniform(-3, 3)
    if "poisson" in likelihood or "binomial" in likelihood:
        variance = min(variance, 1e3)
    shape = [RBF(length), Matern(length, nu=0.5), Matern(length, nu=2.5)][int(rng.integers(3))]
    kernel = ConstantKernel(variance, (1e-9, 1e12)) * shape
    if rng.random() < 0.3:
        kernel = kernel + WhiteKernel(10.0 ** rng.uniform(-6, 1))
    if "poisson" in likelihood or "binomial" in likelihood:
        y = rng.poisson(10.0 ** rng.uniform(-1, 3), n).astype(float)
    elif "(" in likelihood:
        y = rng.standard_normal(n) * 10.0 ** rng.uniform(-2, 3)
    else:
        y = rng.choice([-1.0, 1.0], n) if rng.random() < 0.8 else np.ones(n)
    options = {
        "likelihood": likelihood,
        "method": ("ep", "qp")[int(rng.integers(2))],
        "power": float(rng.choice([1.0, 0.5, 0.1, 0.9])),
        "mean": float(rng.normal()) if rng.random() < 0.5 else 0.0,
        "weights": rng.uniform(0.0, 3.0, n) if rng.random() < 0.2 else None,
        "n_jobs": 1,
    }
    return (kernel, X, y, Z), options


def outcome(seed):
    """Whether a problem settled; it raises, or everything that comes out is a number."""
    given, options = problem(seed)
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        try:
            kernel, X, y, Z = given
            post = infer_sparse(X, y, kernel, Z, **options)
        except QPError:
            return "refused"
        mean, variance = post.predict(np.vstack([given[1], given[3], given[1] * 1e3]))
        slopes = post._solution.engine.evaluate(0)
    assert np.isfinite(post.log_evidence), seed
    for values in (mean, variance, post.loo(), post.variance, slopes.by_theta, slopes.by_Z):
        assert np.isfinite(values).all(), seed
    assert (variance >= 0.0).all(), seed
    assert (post.variance > 0.0).all(), seed
    return "settled" if post.converged else "unsettled"


@pytest.mark.slow
def test_five_thousand():
    found = [outcome(seed) for seed in range(5000)]
    assert found.count("settled") > 4500
    assert found.count("refused") < 250
