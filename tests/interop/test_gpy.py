"""Quantile propagation on an unmodified GPy: equal to `infer` on two data sets and on counts."""

import json
import sys
import warnings

import numpy as np
import pytest

from qpruntime import functions, infer
from tests.tools.oracle import REFERENCE


@pytest.fixture(scope="module")
def make_gpy():
    """The module that makes the reference values of GPy, with EP that says whether it settled."""
    with warnings.catch_warnings(action="ignore"):  # GPy's, on import
        pytest.importorskip("GPy", reason="the extra gpy is not installed")
        from tests.reference import make_gpy
    return make_gpy


def settled(make_gpy, x, y, kernel, likelihood):
    """Marginal means and variances by GPy's EP."""
    inference = make_gpy.BoundedEP(ep_mode="nested", epsilon=1e-18, max_iters=200)
    with warnings.catch_warnings(action="ignore"):
        model = make_gpy.GPy.core.GP(x, y, kernel, likelihood, inference_method=inference)
    assert inference.converged
    posterior = model.posterior
    return model, posterior.mean[:, 0], np.diag(posterior.covariance)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wine", "breast_cancer"])
@pytest.mark.parametrize("method", ["qp", "ep"])
def test_equal_to_infer(make_gpy, name, method):
    from qpruntime.interop.gpy import QuantileBernoulli

    data = json.loads((REFERENCE / "gpy_ep.json").read_text())[name]
    x, y = np.array(data["x"], float), np.array(data["y"], float)
    kernel = make_gpy.GPy.kern.RBF(x.shape[1], 10.0, 3.0)
    model, mean, variance = settled(
        make_gpy, x, (y[:, None] + 1.0) / 2.0, kernel, QuantileBernoulli(method)
    )
    post = infer(kernel.K(x), y, method=method, tol=1e-10)
    np.testing.assert_allclose(mean, post.mean, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(variance, post.variance, rtol=1e-6)
    other = infer(kernel.K(x), y, method="ep" if method == "qp" else "qp", tol=1e-10)
    assert np.abs(variance / other.variance - 1.0).max() > 1e-4
    probability = model.predict(x[:5])[0][:, 0]
    means, variances = post.predict(kernel.K(x[:5], x), kernel.Kdiag(x[:5]))
    want = np.exp(functions("probit").log_predictive(means, np.sqrt(variances), 1))
    np.testing.assert_allclose(probability, want, rtol=1e-6)


@pytest.mark.slow
def test_counts(make_gpy):
    from qpruntime.interop.gpy import QuantileLikelihood

    rng = np.random.default_rng(2)
    x = np.linspace(0.0, 3.0, 30)[:, None]
    y = rng.poisson(np.exp(1.0 + np.sin(2.0 * x[:, 0]))).astype(float)
    kernel = make_gpy.GPy.kern.RBF(1, 2.0, 0.7)
    own = QuantileLikelihood("poisson-exp")
    _, mean, variance = settled(make_gpy, x, y[:, None], kernel, own)
    post = infer(kernel.K(x), y, "poisson-exp", "qp", tol=1e-10)
    np.testing.assert_allclose(mean, post.mean, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(variance, post.variance, rtol=1e-6)
    density = own.log_predictive_density(y[:3], mean[:3], variance[:3])
    want = functions("poisson-exp").log_predictive(mean[:3], np.sqrt(variance[:3]), y[:3])
    np.testing.assert_array_equal(density, want)


def test_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "GPy", None)
    monkeypatch.delitem(sys.modules, "qpruntime.interop.gpy", raising=False)
    with pytest.raises(ImportError, match=r"need GPy: run pip install '\.\[gpy\]' in a checkout"):
        import qpruntime.interop.gpy  # noqa: F401
