"""Exposures on their way through scikit-learn: scores, cross-validation, pipelines, searches."""

import numpy as np
import pytest
import sklearn
from scipy.integrate import quad
from scipy.stats import norm
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.metrics import r2_score
from sklearn.model_selection import KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from qpruntime import GPPoissonRegressor, GPRobustRegressor, InputError, NumericalError
from tests.tools.cases import refuses

KERNEL = ConstantKernel(0.5, "fixed") * RBF(1.5, "fixed")
RNG = np.random.default_rng(13)
X = RNG.uniform(0.0, 6.0, (40, 1))
E = RNG.uniform(10.0, 200.0, 40)
Y = RNG.poisson(E * (1.0 + 0.5 * np.sin(X[:, 0])))
FOLDS = KFold(4, shuffle=True, random_state=0)


def by_hand():
    """R^2 of every fold, exposures handed over at every step."""
    found = []
    for train, test in FOLDS.split(X):
        mean, std = X[train].mean(0), X[train].std(0)
        model = GPPoissonRegressor(KERNEL)
        model.fit((X[train] - mean) / std, Y[train], exposure=E[train])
        found.append(r2_score(Y[test], E[test] * model.predict((X[test] - mean) / std)))
    return found


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.fixture
def model():
    return GPPoissonRegressor(KERNEL).fit(X, Y, exposure=E)


def test_score(model):
    truth = r2_score(Y, E * model.predict(X))
    assert model.score(X, Y, exposure=E) == pytest.approx(truth, rel=1e-14)
    assert truth > 0.8
    weights = RNG.uniform(0.1, 2.0, 40)
    weighed = r2_score(Y, E * model.predict(X), sample_weight=weights)
    assert model.score(X, Y, weights, E) == pytest.approx(weighed, rel=1e-14)
    # A rate per unit is a legitimate question.
    expected = r2_score(Y / E, model.predict(X))
    assert model.score(X, Y / E, exposure=1.0) == pytest.approx(expected, rel=1e-14)


def test_a_score_without_exposures_is_refused(model):
    refuses(r"exposure=.*set_score_request\(exposure=True\)", model.score, X, Y)
    refuses(r"shape \(40,\)", model.score, X, Y, exposure=E[:3])
    with pytest.raises(NotFittedError):
        GPPoissonRegressor().score(X, Y)
    plain = GPPoissonRegressor(KERNEL)
    for exposure in (None, 1.0, np.ones(40)):
        plain.fit(X, Y, exposure=exposure)
        assert plain.score(X, Y) == pytest.approx(r2_score(Y, plain.predict(X)), rel=1e-14)


def test_cross_validation_of_a_pipeline(routing):
    model = GPPoissonRegressor(KERNEL).set_fit_request(exposure=True)
    chain = make_pipeline(StandardScaler(), model.set_score_request(exposure=True))
    found = cross_val_score(chain, X, Y, cv=FOLDS, params={"exposure": E})
    np.testing.assert_allclose(found, by_hand(), rtol=1e-9)
    assert found.min() > 0.5


def test_predictions_of_a_pipeline(routing):
    model = GPPoissonRegressor(KERNEL).set_fit_request(exposure=True)
    model.set_predict_request(exposure=True, return_std=True)
    chain = make_pipeline(StandardScaler(), model).fit(X, Y, exposure=E)
    mean, std = chain.predict(X, exposure=E, return_std=True)
    np.testing.assert_allclose(mean, E * chain.predict(X), rtol=1e-13)
    assert std.shape == (40,)


def test_without_routing_it_is_loud():
    model = GPPoissonRegressor(KERNEL)
    with pytest.warns(UserWarning, match="model was fitted with exposure") as caught:
        found = cross_val_score(model, X, Y, cv=FOLDS, params={"exposure": E})
    assert np.isnan(found).all()
    assert len(caught) == 4
    with pytest.raises(InputError, match="enable_metadata_routing"):
        cross_val_score(model, X, Y, cv=FOLDS, params={"exposure": E}, error_score="raise")


def test_routing_that_was_not_asked_for(routing):
    model = GPPoissonRegressor(KERNEL)
    with pytest.raises(ValueError, match=r"exposure.*set_fit_request"):
        cross_val_score(model, X, Y, cv=FOLDS, params={"exposure": E})


@pytest.mark.parametrize("link", ["square", "exp"])
def test_standard_deviation_of_the_rate(link):
    model = GPPoissonRegressor(KERNEL, link=link).fit(X, Y, exposure=E)
    new, e = np.array([[0.5], [3.0], [9.0]]), np.array([1.0, 30.0, 0.2])
    mean, std = model.predict(new, return_std=True, exposure=e)
    np.testing.assert_array_equal(mean, model.predict(new, exposure=e))
    latent, variance = model.latent(new)
    for i, (m, s) in enumerate(zip(latent, np.sqrt(variance), strict=True)):

        def moment(power, m=m, s=s, e=e[i]):
            def integrand(f):
                rate = e * f * f if link == "square" else e * np.exp(f)
                return rate**power * norm.pdf(f, m, s)

            return quad(integrand, m - 12.0 * s, m + 14.0 * s, epsabs=0.0, epsrel=1e-12)[0]

        first = moment(1)
        assert mean[i] == pytest.approx(first, rel=1e-9)
        # The variance is a difference of moments: the quadrature's digits are lost in it.
        assert std[i] ** 2 == pytest.approx(moment(2) - first**2, rel=1e-6)


def test_arguments_of_predict(model):
    for wrong in (E, 1, "yes", None):
        refuses(r"return_std must be True or False.*exposure=", model.predict, X, wrong)
    refuses("return_std", GPRobustRegressor(KERNEL, optimize=False).fit(X, X[:, 0]).predict, X, 2.0)
    steep = GPPoissonRegressor(ConstantKernel(400.0, "fixed") * RBF(1.0, "fixed"), link="exp")
    steep.fit(X, Y)
    with pytest.raises(NumericalError, match="beyond double precision"):
        steep.predict([[100.0]], return_std=True)
