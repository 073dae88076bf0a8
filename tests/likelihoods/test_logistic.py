"""Logistic labels and binomial pairs end to end: fixed points, the classifier, what is refused."""

import pickle

import numpy as np
import pytest
from scipy.special import expit, log_expit, ndtri
from scipy.stats import norm
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from qpruntime import GPClassifier, infer, likelihoods
from tests.tools.cases import every_case, refuses
from tests.tools.oracle import check_fixed_point

FIXED = ConstantKernel(2.0, "fixed") * RBF(1.3, "fixed")
NEW = np.random.default_rng(9).standard_normal((15, 2)) * 2.0


@every_case("order", ["sequential", "parallel"])
@every_case("method", ["ep", "qp"])
def test_fixed_point(toy, method, order):
    post = infer(toy.K, toy.y, "logistic", method=method, order=order, tol=1e-11)
    assert post.converged
    check_fixed_point(post, lambda f, i: log_expit(toy.y[i] * f), 1e-9, method)


@pytest.mark.parametrize("method", ["ep", "qp", "vb"])
def test_classifier(toy, method):
    model = GPClassifier(FIXED, likelihood="logistic", method=method, tol=1e-10).fit(toy.x, toy.y)
    mean, variance = model.latent(NEW)
    proba = model.predict_proba(NEW)
    np.testing.assert_allclose(proba.sum(axis=1), 1.0, rtol=1e-12)
    f = mean[:, None] + np.sqrt(variance)[:, None] * np.linspace(-10.0, 10.0, 4001)
    weight = norm.pdf(np.linspace(-10.0, 10.0, 4001)) * 0.005
    np.testing.assert_allclose(proba[:, 1], expit(f) @ weight, rtol=1e-9)
    np.testing.assert_array_equal(model.predict(NEW), np.where(mean > 0.0, 1.0, -1.0))
    low, high = model.predict_interval(NEW, 0.8).T
    reach = ndtri(0.9) * np.sqrt(variance)
    np.testing.assert_allclose([low, high], [expit(mean - reach), expit(mean + reach)], rtol=1e-12)


def test_intervals_need_a_rising_link(toy):
    model = GPClassifier(FIXED, likelihood="heaviside").fit(toy.x, toy.y)
    refuses("predict_interval needs two classes and one of", model.predict_interval, NEW)


@every_case("name", ["student-t", "laplace", "poisson-exp", "binomial"])
def test_other_likelihoods_are_refused(toy, name):
    refuses("not one of two classes", GPClassifier(FIXED, likelihood=name).fit, toy.x, toy.y)


@pytest.mark.parametrize("method", ["ep", "qp", "vb"])
def test_one_trial_is_a_label(toy, method):
    """Binomial data in pairs: those of one trial are logistic labels."""
    pairs = np.column_stack([toy.y > 0.0, np.ones(24)])
    ours = infer(toy.K, pairs, "binomial", method=method, tol=1e-10)
    labels = infer(toy.K, toy.y, "logistic", method=method, tol=1e-10)
    assert ours.log_evidence == pytest.approx(labels.log_evidence, rel=1e-10)
    np.testing.assert_allclose(ours.mean, labels.mean, rtol=1e-7, atol=1e-9)
    own = ours._solution.observed().likelihood
    again = pickle.loads(pickle.dumps(own))
    assert again.split is likelihoods.get("binomial").split
    np.testing.assert_array_equal(again.theta, own.theta)


@every_case(
    ("y", "words"),
    [
        ([[3, 2], [0, 1]], "got 3 of 2; the columns are successes and trials"),
        ([[0, 0], [0, 1]], "got 0 of 0"),
        ([[0.5, 1], [0, 1]], "successes must be whole numbers"),
        ([[0, 2**26], [0, 1]], "trials must be whole numbers from 0 to 67108863"),
        ([0, 1], r"got 0 of 1|y must have shape|pairs"),
        ([1.0, 0.0, 1.0], r"y of shape \(N, 2\), got shape \(3,\)"),
        ([["a", 1], ["b", 1]], "must be whole numbers"),
    ],
)
def test_refuses_pairs(y, words):
    refuses(words, infer, np.eye(2), y, "binomial")
