"""GPPoissonRegressor with rates e^f: fits and predictions against quadrature, tables and draws."""

from functools import partial

import numpy as np
import pytest
from scipy.stats import lognorm
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from qpruntime import GPPoissonRegressor, NumericalError, infer
from tests.tools.cases import every_case, refuses

FIXED = ConstantKernel(0.8, "fixed") * RBF(1.5, "fixed")
RNG = np.random.default_rng(6)
X = np.linspace(0.0, 6.0, 30)[:, None]
EXPOSURE = RNG.uniform(0.5, 3.0, 30)
RATE = np.exp(1.0 + np.sin(X[:, 0]))
Y = RNG.poisson(EXPOSURE * RATE)
NEW = np.array([[-0.5], [0.7], [3.1], [8.0]])


@pytest.mark.parametrize("method", ["ep", "qp", "vb"])
def test_fixed_kernel_is_plain_inference(method):
    model = GPPoissonRegressor(FIXED, link="exp", method=method, mean=1.1, tol=1e-11)
    model.fit(X, Y, EXPOSURE)
    prior = 1.1 + np.log(EXPOSURE)
    post = infer(FIXED(X), Y, "poisson-exp", method, mean=prior, tol=1e-11)
    mean, variance = post.predict(FIXED(NEW, X), 0.8, mean=1.1)
    np.testing.assert_allclose(model.latent(NEW), (mean, variance), rtol=1e-8)
    rate = [lognorm(s, scale=np.exp(m)).mean() for m, s in zip(mean, variance**0.5, strict=True)]
    np.testing.assert_allclose(model.predict(NEW), rate, rtol=1e-8)


@pytest.mark.parametrize("predictive", ["exact", "gamma"])
def test_predictions_agree_with_the_pmf(predictive):
    model = GPPoissonRegressor(FIXED, link="exp").fit(X, Y, EXPOSURE)
    e = np.array([0.5, 1.0, 3.0, 0.2])
    mean, variance = model.latent(NEW)
    wanted = e * np.exp(mean + 0.5 * variance)
    np.testing.assert_allclose(model.predict(NEW, exposure=e), wanted, rtol=1e-13)
    y = np.arange(4000)
    table = np.exp(model.predict_log_pmf(NEW, np.tile(y, (4, 1)), e, predictive=predictive))
    np.testing.assert_allclose(table.sum(axis=1), 1.0, rtol=1e-10)
    np.testing.assert_allclose(table @ y, model.predict(NEW, exposure=e), rtol=1e-8)
    # Both have the rate's variance, e^2 exp(2 mean + variance) (e^variance - 1), and Poisson's.
    spread = model.predict(NEW, exposure=e) ** 2 * np.expm1(variance)
    second = table @ y**2 - (table @ y) ** 2
    np.testing.assert_allclose(second, model.predict(NEW, exposure=e) + spread, rtol=1e-6)
    found = model.predict_quantiles(NEW, [0.05, 0.5, 0.9], e, predictive=predictive)
    below = np.cumsum(table, axis=1)
    expected = [[np.argmax(row >= q) for q in (0.05, 0.5, 0.9)] for row in below]
    np.testing.assert_array_equal(found, expected)
    got = model.predict_quantiles(NEW, 0.5, e, predictive=predictive)
    np.testing.assert_array_equal(got, found[:, 1])
    if predictive == "exact":
        np.testing.assert_array_equal(model.predict_count(NEW, e), table.argmax(axis=1))


def test_default_mean_is_the_logarithm_of_the_mean_rate():
    model = GPPoissonRegressor(FIXED, link="exp").fit(X, Y, EXPOSURE)
    assert model.mean_ == pytest.approx(np.log(Y.sum() / EXPOSURE.sum()))
    nothing = GPPoissonRegressor(FIXED, link="exp").fit(X, np.zeros(30))
    assert nothing.mean_ == pytest.approx(np.log(0.5 / 30))
    # f = 0 is the rate 1, and nothing special
    assert GPPoissonRegressor(FIXED, link="exp", mean=0).fit(X, Y).mean_ == 0.0


@every_case("link", ["log", "identity", None, np.exp])
def test_refuses_links(link):
    words = r"link must be one of \('auto', 'square', 'exp'\)"
    refuses(words, GPPoissonRegressor(FIXED, link=link).fit, X, Y)


def test_what_double_precision_cannot_hold():
    # No data far from 0: the prior's own variance, which makes e^f what it likes.
    def model(variance):
        kernel = ConstantKernel(variance, "fixed") * RBF(1.0, "fixed")
        return GPPoissonRegressor(kernel, link="exp", mean=1.0).fit([[0.0], [0.5]], [3, 4])

    wide, (pair, zeros) = model(2000.0), ([[0.0], [99.0]], [[0.0], [0.0]])
    log_rate = r"point 1 has log rate .*beyond double precision"
    for words, call, given in (
        (log_rate, wide.predict, (pair,)),
        (log_rate, partial(wide.predict_quantiles, predictive="gamma"), (pair,)),
        ("beyond double", partial(wide.predict_log_pmf, predictive="gamma"), (pair, 1)),
        (r"point 1.*beyond 1000000.*exposure", wide.predict_quantiles, (pair,)),
        (r"point 1.*beyond 1000000.*exposure", wide.predict_count, (zeros, [1.0, 1e9])),
    ):
        refuses(words, call, *given, error=NumericalError)
    # Half of such counts are small all the same, and their mean is not. The median of the rate is
    # e, between those of gamma variables of shape 3 and 4, 2.67 and 3.67.
    far = model(400.0)
    assert far.predict_quantiles([[99.0]], 0.5) == [3]
    assert far.predict_count([[99.0]]) == [0]
    with pytest.warns(UserWarning, match="more than 1000 times the largest observed rate"):
        mean = far.predict([[99.0]])[0]
    assert mean == pytest.approx(np.exp(201.0), rel=1e-12)
