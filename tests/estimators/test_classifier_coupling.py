"""Probabilities of several classes: what the processes of the others say, and how far it counts."""

import pickle

import numpy as np
import pytest
from scipy.special import expit, ndtr
from sklearn.datasets import load_digits
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

import qpruntime
from qpruntime import GPClassifier, Inducing
from qpruntime.estimators.classifier import coupled, coupling_of


class Said:
    """A posterior of which only leave-one-out densities are asked."""

    def __init__(self, log_densities):
        self._all = log_densities

    def loo(self, rows=None):
        return self._all if rows is None else self._all[rows]


def said_by(p, codes):
    """Posteriors by which a row is of class c with these probabilities (N, K)."""
    true = codes[:, None] == np.arange(p.shape[1])
    return [Said(column) for column in np.log(np.where(true, p, 1.0 - p)).T]


def test_between_scaling_and_exactly_one():
    p = np.array([[0.7, 0.2, 0.3], [1e-30, 1e-20, 1e-25], [0.5, 0.5, 0.5]])
    scaled = np.exp(coupled(np.log1p(-p), np.log(p), 0.0))
    np.testing.assert_allclose(scaled, p / p.sum(axis=1, keepdims=True), rtol=1e-13)
    # Exactly one of three independent statements, by counting.
    one = [[p[r, c] * np.prod(np.delete(1.0 - p[r], c)) for c in range(3)] for r in range(3)]
    exactly = np.exp(coupled(np.log1p(-p), np.log(p), 1.0))
    np.testing.assert_allclose(exactly, one / np.sum(one, axis=1, keepdims=True), rtol=1e-13)


def test_what_generated_the_labels_is_found():
    """Labels drawn by p/(1 - p)^b give b back: 4000 rows, to .1."""
    rng = np.random.default_rng(0)
    p = expit(2.0 * rng.normal(size=(4000, 5)) - 1.0)
    for b in (0.0, 0.5, 1.0):
        probabilities = np.exp(coupled(np.log1p(-p), np.log(p), b))
        codes = (rng.random((4000, 1)) > probabilities.cumsum(axis=1)).sum(axis=1)
        assert abs(coupling_of(said_by(p, codes), codes, None) - b) < 0.1


def test_it_is_the_least_within_one_standard_error():
    """Weighted log probabilities less 2 b, by plain arithmetic."""
    rng = np.random.default_rng(1)
    p = expit(2.0 * rng.normal(size=(300, 4)) - 1.0)
    shares = (p / (1.0 - p) ** 0.6).cumsum(axis=1)
    codes = (rng.random((300, 1)) * shares[:, -1:] > shares).sum(axis=1)
    weights = rng.integers(0, 3, 300).astype(float)
    grid = np.arange(51) / 50.0
    odds = p[None] / (1.0 - p[None]) ** grid[:, None, None]
    logs = weights * np.log((odds / odds.sum(axis=2, keepdims=True))[:, np.arange(300), codes])
    gain = logs.sum(axis=1) - 2.0 * grid
    best = int(np.argmax(gain))
    error = [np.sqrt(300 * np.var(logs[best] - one)) for one in logs]
    expected = next(b for b, g, e in zip(grid, gain, error, strict=True) if g >= gain[best] - e)
    assert 0.1 < expected < grid[best] < 0.95
    assert coupling_of(said_by(p, codes), codes, weights) == expected


def test_few_rows_say_little():
    """One row that gains less than two nats leaves probabilities as they were."""
    p = np.array([[0.8, 0.3, 0.3]])
    assert coupling_of(said_by(p, np.array([0])), np.array([0]), None) == 0.0


def test_certain_statements_stay_finite():
    """Right ones, and wrong ones of which double precision has left nothing: no warning either."""
    p, codes = np.full((50, 3), 0.0), np.zeros(50, dtype=int)
    p[:, 0] = 1.0
    for certain in (p, p[:, ::-1]):
        with np.errstate(divide="ignore"):
            posteriors = said_by(certain, codes)
        assert 0.0 <= coupling_of(posteriors, codes, None) <= 1.0


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    some = np.random.default_rng(0).permutation(len(y))[:500]
    return X[some], y[some]


KERNEL = ConstantKernel(9.0) * RBF(25.0)


def test_digits_are_not_underconfident(digits):
    """The top class has closer to its share of rows than where all is scaled to sum to 1."""
    X, y = digits
    model = GPClassifier(kernel=KERNEL, optimize=False).fit(X[:300], y[:300])
    p = model.predict_proba(X[300:])
    right = (model.predict(X[300:]) == y[300:]).mean()
    assert model.coupling_ > 0.5
    np.testing.assert_array_equal(model.classes_[p.argmax(axis=1)], model.predict(X[300:]))
    plain = pickle.loads(pickle.dumps(model))
    plain.coupling_ = 0.0
    scaled = plain.predict_proba(X[300:])
    assert right - scaled.max(axis=1).mean() > 2.0 * abs(right - p.max(axis=1).mean())
    single = np.array([one.predict(KERNEL(X[300:], X[:300]), 9.0) for one in model.posterior_])
    alone = ndtr(single[:, 0] / np.sqrt(1.0 + single[:, 1])).T
    np.testing.assert_allclose(scaled, alone / alone.sum(axis=1, keepdims=True), rtol=1e-9)
    loss = [-np.log(q[np.arange(200), y[300:]]).mean() for q in (p, scaled)]
    assert loss[0] < 0.85 * loss[1]


def test_with_inducing_points_in_parts_and_saved(digits, tmp_path):
    X, y = digits
    model = GPClassifier(kernel=KERNEL, optimize=False, inducing=Inducing(40), random_state=0)
    model.partial_fit(X[:250], y[:250])
    found = model.coupling_
    assert 0.0 < found <= 1.0
    model.partial_fit(X[250:400], y[250:400])
    assert model.coupling_ == found
    model.save(tmp_path / "model")
    again = qpruntime.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(X[400:]), model.predict_proba(X[400:]))


def test_two_classes_have_none():
    X = np.linspace(-1.0, 1.0, 20)[:, None]
    assert GPClassifier(kernel=KERNEL, optimize=False).fit(X, X[:, 0] > 0.0).coupling_ == 0.0
