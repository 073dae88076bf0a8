"""Scores and labels where probabilities are 1/2 to the last digit: sign and order of the mean."""

import math

import mpmath
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import expit, ndtri
from sklearn.datasets import load_digits
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.metrics import roc_auc_score

from qpruntime import GPClassifier, Likelihood, likelihoods
from qpruntime.predictive.distribution import log_probabilities, scores
from tests.tools.cases import every_case

TINY = np.array([-1e-5, -1e-8, -1e-20, -1e-200, 0.0, 1e-200, 1e-20, 1e-8, 1e-5])


def own(log_prob, name):
    return Likelihood.from_log_prob(log_prob, name=name, outcomes=[-1, 1])


#: The logistic density, as a user writes it.
MINE = own(lambda f, y: -np.logaddexp(0.0, -y * f), "my-logistic")


def at(mean, variance):
    return np.asarray(mean, dtype=float), np.full(np.shape(mean), float(variance))


def logistic_slope(variance):
    """Slope of the score at mean 0: E of the density of the logistic, over that of the normal."""
    std = math.sqrt(variance)

    def density(t):
        p = expit(std * t)
        return p * (1.0 - p) * math.exp(-0.5 * t * t)

    return quad(density, -12.0, 12.0, epsabs=0.0, epsrel=1e-11, limit=400)[0]


@every_case("variance", [1e-20, 1e-3, 1.0, 400.0])
@every_case("likelihood", [likelihoods.get("logistic"), MINE])
def test_logistic_of_tiny_means(likelihood, variance):
    found = scores(likelihood, *at(TINY, variance))
    # The line bends by 1e-6 at most, and the normalisers it is drawn through are right to 1e-11.
    np.testing.assert_allclose(found, TINY * logistic_slope(variance), rtol=3e-6, atol=0.0)


@every_case("name", ["probit", "heaviside"])
@every_case("variance", [1e-20, 1.0, 1e6])
def test_closed_forms(name, variance):
    mean = np.concatenate([TINY, [-1e150, -30.0, 0.3, 4.0, 1e9]])
    width = math.sqrt(variance + (name == "probit"))
    got = scores(likelihoods.get(name), *at(mean, variance))
    np.testing.assert_allclose(got, mean / width, rtol=1e-15)


def test_log_probabilities_of_the_probit():
    mean = np.array([-50.0, -6.0, -1.0, -1e-9, 0.7, 5.0, 9.0])
    minus, plus = log_probabilities(likelihoods.get("probit"), *at(mean, 0.44))
    for m, a, b in zip(mean, minus, plus, strict=True):
        z = mpmath.mpf(m) / mpmath.sqrt(mpmath.mpf(0.44) + 1)
        assert a == pytest.approx(float(mpmath.log(mpmath.ncdf(-z))), rel=1e-13)
        assert b == pytest.approx(float(mpmath.log(mpmath.ncdf(z))), rel=1e-13)


@every_case("likelihood", [likelihoods.get("logistic"), MINE])
def test_the_score_is_monotone_across_the_seam(likelihood):
    mean = np.concatenate([-np.geomspace(1e-2, 1e-9, 300), np.geomspace(1e-9, 1e-2, 300)])
    assert (np.diff(scores(likelihood, *at(mean, 0.3))) > 0.0).all()


def waves(f, y):
    # Of p(+1) = 1/2 + 0.4 sin 3f the mean is 1/2 + 0.4 exp(-9 variance/2) sin(3 mean).
    return math.log(0.5 + 0.4 * y * math.sin(3.0 * f))


def test_neither_monotone_nor_decided_by_the_sign_falling_shifted_and_flat():
    variance = 0.05
    mean = np.concatenate([TINY, [0.5, 1.0, 1.1, 2.0, 2.2, -0.7, -1.2, math.pi / 3.0 + 1e-5]])
    signal = 0.4 * math.exp(-4.5 * variance) * np.sin(3.0 * mean)
    found = scores(own(waves, "waves"), *at(mean, variance))
    np.testing.assert_array_equal(np.sign(found), np.sign(signal))
    # For |x| < 1e-4 the quantile of 1/2 + x is sqrt(2 pi) x to 1e-8.
    line = math.sqrt(2.0 * math.pi) * signal
    quantile = np.where(np.abs(signal) < 1e-4, line, ndtri(0.5 + signal))
    np.testing.assert_allclose(found, quantile, rtol=1e-5)
    found = scores(own(lambda f, y: -np.logaddexp(0.0, y * f), "falling"), *at(TINY, 1.0))
    np.testing.assert_allclose(found, -TINY * logistic_slope(1.0), rtol=3e-6)
    # Not odd: at mean 0 one class is ahead by a little, and a tiny mean does not turn that.
    found = scores(own(lambda f, y: -np.logaddexp(0.0, -y * (f + 4e-5)), "shifted"), *at(TINY, 1.0))
    np.testing.assert_allclose(found, (TINY + 4e-5) * logistic_slope(1.0), rtol=1e-5)
    assert (np.abs(scores(own(lambda f, y: math.log(0.5), "flat"), *at(TINY, 1.0))) < 1e-10).all()


def digits(*labels):
    X, y = load_digits(return_X_y=True)
    chosen = np.isin(y, labels)
    X, y = X[chosen], y[chosen]
    return X[::2], y[::2], X[1::2], y[1::2]


def probability_is_useless(model, X):
    return np.abs(model.predict_proba(X) - 1.0 / model.classes_.size).max() < 1e-12


@pytest.mark.filterwarnings("ignore:the kernel relates no rows:qpruntime.ConvergenceWarning")
@every_case("likelihood", ["probit", "logistic", "heaviside", MINE])
def test_raw_digits(likelihood):
    # Length-scale 1 on raw pixels: latent means are e^-100 and smaller, of the right sign.
    X, y, new, truth = digits(3, 8)
    model = GPClassifier(RBF(1.0), likelihood=likelihood, method="ep", optimize=False).fit(X, y)
    mean, _ = model.latent(new)
    assert probability_is_useless(model, new)
    assert 0.0 < np.abs(mean).max() < 1e-12
    score = model.decision_function(new)
    np.testing.assert_array_equal(np.sign(score), np.sign(mean))
    assert roc_auc_score(truth == 8, score) > 0.98
    assert model.score(new, truth) > 0.95
    np.testing.assert_array_equal(model.predict(new), np.where(mean > 0.0, 8, 3))


def test_several_classes_with_a_tiny_amplitude():
    X, y, new, truth = digits(0, 1, 2, 3)
    model = GPClassifier(ConstantKernel(1e-20) * RBF(20.0), method="ep", optimize=False)
    model.fit(X[:120], y[:120])
    assert probability_is_useless(model, new)
    assert model.score(new, truth) > 0.9
    score = model.decision_function(new)
    np.testing.assert_array_equal(model.predict(new), model.classes_[score.argmax(1)])
