"""Rows that come in parts: `partial_fit` against inference of all rows with the same parameters."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF

from qpruntime import GPClassifier, GPPoissonRegressor, GPRobustRegressor, Inducing, InputError
from tests.tools.cases import refuses

FIXED = {"optimize": False, "random_state": 0, "method": "ep", "tol": 1e-8}
KERNEL = 2.0 * RBF(1.0)


def data(rows=400):
    rng = np.random.default_rng(3)
    X = rng.uniform(-3.0, 3.0, (rows, 1))
    return X, np.sin(1.5 * X[:, 0]), rng


def in_parts(model, Z, X, y, **columns):
    """The model of two parts, and the model of all rows."""
    model.set_params(inducing=Inducing(Z, power=1.0))
    for some in (slice(None, len(X) // 2), slice(len(X) // 2, None)):
        model.partial_fit(X[some], y[some], **{k: v[some] for k, v in columns.items()})
    return model, clone(model).fit(X, y, **columns)


def test_parts_are_near_all_rows_at_once():
    """Sites of the first part are not updated: nearly nothing, where they are many."""
    X, f, rng = data()
    Z, new = np.linspace(-3.0, 3.0, 12)[:, None], np.linspace(-2.5, 2.5, 30)[:, None]
    labels = np.where(f + rng.standard_normal(len(f)) > 0.0, "yes", "no")
    exposure = rng.uniform(0.5, 2.0, len(f))
    cases = (
        (GPClassifier(KERNEL, **FIXED), labels, {}),
        (
            GPPoissonRegressor(KERNEL, link="exp", mean=0.0, **FIXED),
            rng.poisson(exposure * np.exp(f)),
            {"exposure": exposure},
        ),
        (
            GPPoissonRegressor(KERNEL, mean=2.0, **FIXED),
            rng.poisson(exposure * (2.0 + f) ** 2),
            {"exposure": exposure},
        ),
        (
            GPRobustRegressor(KERNEL, noise_bounds={"start": 0.3}, normalize_y=False, **FIXED),
            f + 0.3 * rng.standard_t(4.0, len(f)),
            {},
        ),
    )
    for model, y, columns in cases:
        parts, whole = in_parts(model, Z, X, y, **columns)
        (mean, variance), (true, width) = parts.latent(new), whole.latent(new)
        assert np.abs(mean - true).max() < 0.15 * np.sqrt(width).min()
        assert np.abs(np.log(variance / width)).max() < 0.1
        off = parts.log_marginal_likelihood_value_ - whole.log_marginal_likelihood_value_
        assert abs(off) < 0.5
        # And not what the first part alone says.
        half = clone(model).fit(X[:200], y[:200], **{k: v[:200] for k, v in columns.items()})
        assert np.abs(np.log(half.latent(new)[1] / width)).min() > 0.2


def test_what_cannot_be_added():
    X, f, _ = data(60)
    y = f > 0.0
    dense = GPClassifier(KERNEL, **FIXED).fit(X, y).set_params(inducing=5)
    refuses("clone", dense.partial_fit, X, y)
    model = GPClassifier(KERNEL, inducing=5, **FIXED).partial_fit(X, y.astype(int))
    before = model.latent(X)
    for bad, words in (
        ((X, np.where(y, 1, 7)), r"labels \[7\] are not among"),
        ((np.hstack([X, X]), y.astype(int)), "features"),
        ((X * np.nan, y.astype(int)), "NaN"),
    ):
        refuses(words, model.partial_fit, *bad, error=ValueError)
    np.testing.assert_array_equal(model.latent(X), before)
    counts = GPPoissonRegressor(KERNEL, inducing=5, **FIXED).fit(X, np.full(60, 3))
    for exposure in (-1.0, np.ones(3), 1e-310):
        with pytest.raises(InputError, match=r"exposure must|scale must be positive"):
            counts.partial_fit(X, np.full(60, 3), exposure=exposure)
    with pytest.raises(InputError, match="counts need theirs"):
        counts.partial_fit(X, np.full(60, 3), exposure=2.0).score(X, np.full(60, 3))
