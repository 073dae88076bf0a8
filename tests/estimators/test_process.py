"""`correction=` of the estimators: what they predict is what corrected marginals say."""

import pickle

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import poisson, t as student
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

import qpruntime as qp
from tests.tools.cases import refuses

X = np.linspace(0.0, 6.0, 24)[:, None]
NEW = np.array([[0.4], [3.1], [7.5]])
KERNEL = ConstantKernel(25.0) * RBF(1.0)
F = np.linspace(-60.0, 60.0, 24_001)


def grid(found):
    """Densities of marginals on a fine grid, as masses (T, 24001)."""
    return found.density(F[None]) * (F[1] - F[0])


def test_classifier():
    y = np.where(X[:, 0] > 2.5, "b", "a")
    plain = qp.GPClassifier(KERNEL, optimize=False).fit(X, y)
    model = clone(plain).set_params(correction="blend").fit(X, y)
    mass = grid(model.marginals(NEW))
    p = model.predict_proba(NEW)
    assert p[:, 1] == pytest.approx(mass @ ndtr(F), abs=2e-5)
    assert p.sum(axis=1) == pytest.approx(1.0, abs=1e-8)
    assert ndtr(model.decision_function(NEW)) == pytest.approx(p[:, 1], abs=1e-9)
    # Separable labels: the corrected function is further out, and known less well.
    far, near = model.latent(NEW), plain.latent(NEW)
    assert (far[1] > near[1]).all()
    ends = model.predict_interval(NEW, 0.9)
    # At the third point, beyond the data, the upper end rounds to 1.
    inside = (mass * ((ends[:, :1] < ndtr(F)) & (ndtr(F) < ends[:, 1:]))).sum(axis=1)
    assert inside[:2] == pytest.approx(0.9, abs=2e-3)
    assert (pickle.loads(pickle.dumps(model)).predict_proba(NEW) == p).all()
    three = qp.GPClassifier(KERNEL, optimize=False, correction="fact")
    three.fit(X, np.digitize(X[:, 0], [2.0, 4.0]))
    assert three.predict_proba(NEW).sum(axis=1) == pytest.approx(1.0, abs=1e-8)
    assert [type(one).__name__ for one in three.marginals(NEW)] == ["CorrectedMarginals"] * 3
    refuses("correction", clone(plain).set_params(correction="all").fit, X, y)


@pytest.mark.parametrize("link", ["square", "exp"])
def test_counts(link):
    rng = np.random.default_rng(0)
    kernel = ConstantKernel(1.0) * RBF(1.0)
    exposure = 0.5 + rng.random(24)
    y = rng.poisson(2.0 * exposure)
    model = qp.GPPoissonRegressor(kernel, optimize=False, link=link, correction="blend")
    model.fit(X, y, exposure=exposure)
    mass = grid(model.marginals(NEW))
    rate = 3.0 * (F * F if link == "square" else np.exp(np.minimum(F, 50.0)))
    mean, std = model.predict(NEW, return_std=True, exposure=3.0)
    assert mean == pytest.approx(mass @ rate, rel=1e-4)
    assert std == pytest.approx(np.sqrt(mass @ rate**2 - (mass @ rate) ** 2), rel=1e-3)
    assert np.exp(model.predict_log_pmf(NEW, [[0, 4, 11]] * 3, exposure=3.0)) == pytest.approx(
        np.column_stack([mass @ poisson.pmf(k, rate) for k in (0, 4, 11)]), rel=1e-4, abs=1e-9
    )
    found = model.predict_quantiles(NEW, [0.1, 0.9], exposure=3.0)
    for row, counts in zip(mass, found, strict=True):
        for level, count in zip([0.1, 0.9], counts, strict=True):
            assert row @ poisson.cdf(count - 1, rate) < level <= row @ poisson.cdf(count, rate)


def test_robust():
    rng = np.random.default_rng(1)
    y = np.sin(X[:, 0]) + 0.1 * rng.standard_t(3, 24)
    model = qp.GPRobustRegressor(correction="blend", optimize=False).fit(X, y)
    found = model.predict_quantiles(NEW, [0.05, 0.5, 0.95])
    h = 1e-4
    density = (model.predict_quantiles(NEW, 0.5 + h) - model.predict_quantiles(NEW, 0.5 - h)) / (
        2 * h
    )
    expected = 1.0 / density
    assert np.exp(model.predict_log_density(NEW, found[:, 1])) == pytest.approx(expected, rel=1e-3)
    marginals = model.marginals(NEW)
    z = (found[:, :1] - model._centre_) / model._unit_ - F
    below = student.cdf(z / model.likelihood_.parameters["scale"], model.nu_)
    assert (grid(marginals) * below).sum(axis=1) == pytest.approx(0.05, abs=1e-4)
    mean, std = model.predict(NEW, return_std=True)
    assert std == pytest.approx(np.sqrt(marginals.variance) * model._unit_, rel=1e-12)
    assert mean == pytest.approx(marginals.mean * model._unit_ + model._centre_, rel=1e-12)


def test_counts_of_unknown_sign():
    """Prior mean 0, square link: |f| by one of two mirrored peaks, and by chains in both."""
    y = np.random.default_rng(4).poisson((1.5 + np.sin(X[:, 0])) ** 2)
    kernel = ConstantKernel(4.0) * RBF(1.5)
    model = qp.GPPoissonRegressor(kernel, optimize=False, mean=0.0, method="ep")
    # Between the peaks EP has no fixed point.
    with (
        pytest.warns(UserWarning, match="mean=0"),
        pytest.warns(qp.ConvergenceWarning, match="held"),
    ):
        model.set_params(correction="blend").fit(X, y)
    rate, std = model.predict(NEW, return_std=True)
    pmf = model.predict_log_pmf(NEW, [0, 2, 1])
    mean, variance = model.latent(NEW)
    assert (mean > 0.0).all()
    assert rate == pytest.approx(mean**2 + variance, rel=1e-4)
    model.correction = "sample"
    found = model.marginals(NEW, "sample")
    assert found.folded
    assert found.rhat.max() < 1.05
    error = np.sqrt(found.variance / found.effective)
    assert (np.abs(found.mean - mean) < 0.05 * np.sqrt(variance) + 4.0 * error).all()
    chained, spread = model.predict(NEW, return_std=True)
    # Four standard errors of chains of some 400 effective draws.
    assert (np.abs(chained - rate) < 0.01 * rate + 4.0 * std / np.sqrt(found.effective)).all()
    assert spread == pytest.approx(std, rel=0.2)
    assert model.predict_log_pmf(NEW, [0, 2, 1]) == pytest.approx(pmf, abs=0.05)
