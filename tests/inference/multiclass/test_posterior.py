"""Probabilities of all classes of rows left out, and the exponent that estimators learn of them."""

import numpy as np
import pytest
from scipy.linalg import block_diag
from scipy.special import logsumexp
from sklearn.gaussian_process.kernels import RBF

from qpruntime import GPClassifier, infer_classes, infer_sparse_classes
from qpruntime.estimators import joint_classifier
from qpruntime.estimators.joint_classifier import exponent_of, exponents, tempered
from qpruntime.inference.multiclass.posterior import left_out_log_proba
from qpruntime.inference.multiclass.probability_kernels import log_probabilities
from tests.inference.multiclass.test_infer import drawn
from tests.tools.cases import every_case


@every_case(("C", "near"), [(3, 1e-8), (5, 2e-3)])
def test_the_own_class_is_that_of_the_posterior(C, near):
    """Which has it by another way, row by row and for that class alone, and not scaled."""
    K, labels = drawn(C, 24, C, 4.0)
    post = infer_classes(K, labels, "ep", n_classes=C, tol=1e-10)
    rows = np.arange(24)
    found = left_out_log_proba(post, rows)
    np.testing.assert_allclose(logsumexp(found, axis=1), 0.0, atol=1e-12)
    np.testing.assert_allclose(found[rows, labels], post.loo(), atol=near)
    np.testing.assert_allclose(left_out_log_proba(post, rows[5:9]), found[5:9], atol=1e-12)


@every_case("copies", [1, 2])
def test_by_sites_of_the_other_rows(copies):
    """Latent values at a row under the sites of others, or of those that are no copies of it."""
    C, i = 4, 3
    K, labels = drawn(C, 9, C, 4.0)
    K, labels, codes = np.tile(K, (copies, copies)), np.tile(labels, copies), np.arange(9)
    n, codes = len(labels), np.tile(codes, copies)
    post = infer_classes(K, labels, "ep", n_classes=C, tol=1e-11)
    # Values of all classes at all rows, then u of each row; sites along u + f_own - f_j.
    prior = block_diag(np.kron(np.eye(C), K), np.eye(n))
    along, sites = [], []
    for row in np.flatnonzero(codes != i):
        for j in np.delete(np.arange(C), labels[row]):
            a = np.zeros((C + 1) * n)
            a[labels[row] * n + row], a[j * n + row], a[C * n + row] = 1.0, -1.0, 1.0
            along.append(a)
            sites.append((post.sites.tau[row, j], post.sites.nu[row, j]))
    A, (tau, nu) = np.array(along), np.transpose(sites)
    gain = prior @ A.T @ np.linalg.inv(A @ prior @ A.T + np.diag(1.0 / tau))
    some = np.arange(C) * n + i
    V = (prior - gain @ A @ prior)[np.ix_(some, some)]
    known = log_probabilities((gain @ (nu / tau))[some][None], V[None])
    groups = [codes] if copies > 1 else []
    np.testing.assert_allclose(left_out_log_proba(post, np.array([i]), *groups), known, atol=1e-7)


def test_by_inducing_points():
    rng = np.random.default_rng(0)
    X, labels, kernel = rng.normal(size=(30, 2)), np.arange(30) % 3, 4.0 * RBF(1.0)
    dense = infer_classes(kernel(X), labels, "ep", tol=1e-10)
    points = infer_sparse_classes(X, labels, kernel, X, "ep", tol=1e-10, jitter=1e-13)
    some = np.array([0, 7, 20])
    known = left_out_log_proba(dense, some)
    np.testing.assert_allclose(left_out_log_proba(points, some), known, atol=1e-6)


def test_the_exponent(monkeypatch):
    """That of labels drawn with probabilities to a power; nearer to 1 where rows are few."""
    rng = np.random.default_rng(0)
    log_p = np.log(rng.dirichlet(np.full(6, 0.8), 1000))
    monkeypatch.setattr(joint_classifier, "left_out_log_proba", lambda said, rows, _: said[rows])
    for a in (0.6, 1.0, 2.5):
        p = np.exp(tempered(log_p, a))
        np.testing.assert_allclose(p.sum(axis=1), 1.0, rtol=1e-12)
        np.testing.assert_allclose(p[:, 1] / p[:, 0], np.exp(log_p[:, 1] - log_p[:, 0]) ** a)
        codes = np.array([rng.choice(6, p=row) for row in p])
        found, best = exponent_of(log_p, codes), exponents(log_p, codes)[0]
        # Within a standard error of the best there are nearer ones.
        assert best == pytest.approx(a, rel=0.08)
        assert min(1.0, best) <= found <= max(1.0, best)
        assert found == pytest.approx(a, rel=0.2)
        assert abs(np.log(exponent_of(log_p[:5], codes[:5]))) <= abs(np.log(found)) + 1e-9
    lacking = log_p.copy()
    lacking[3] = np.nan
    assert exponent_of(lacking, codes) == pytest.approx(found, rel=0.05)
    assert exponent_of(np.full((4, 6), np.nan), codes[:4]) == 1.0


def test_of_a_fit():
    """Predictions are those of the posterior to that power; digits gain by it."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    y = (X[:, 0] > 0.0).astype(int) + (X[:, 1] > 0.0)
    model = GPClassifier(9.0 * RBF(3.0), optimize=False, multi_class="joint").fit(X, y)
    assert model.exponent_ == exponent_of(model.posterior_, y)
    new = rng.normal(size=(5, 2))
    plain = model.posterior_.predict_log_proba(model.kernel_(new, X), model.kernel_.diag(new))
    expected = tempered(plain, model.exponent_)
    np.testing.assert_allclose(model.predict_log_proba(new), expected, atol=1e-12)
    model.exponent_ = 1.0
    np.testing.assert_allclose(model.predict_log_proba(new), plain, atol=1e-12)
    assert GPClassifier().fit(X, y > 0).exponent_ == 1.0
