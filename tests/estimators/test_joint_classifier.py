"""`GPClassifier(multi_class="joint")`: fits, predictions, refusals, and what did not change."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm
from sklearn.base import clone
from sklearn.dummy import DummyClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern

import qpruntime as qp
from qpruntime.estimators import joint_classifier
from qpruntime.estimators.joint_classifier import given_latent
from qpruntime.inference.multiclass.linalg import Layout
from qpruntime.learning.objective import Objective
from qpruntime.learning.solvers import JointFamily
from qpruntime.projection.projector import Projector
from tests.tools.cases import every_case, refuses
from tests.tools.oracle import slopes, tight

KERNEL = ConstantKernel(4.0) * RBF(1.0)


def drawn(seed, n=30, C=3):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3.0, 3.0, (n, 2))
    K = 9.0 * RBF(1.2)(X) + 1e-8 * np.eye(n)
    f = np.linalg.cholesky(K) @ rng.normal(size=(n, C))
    y = np.argmax(f + 0.5 * rng.normal(size=(n, C)), axis=1)
    y[:C] = np.arange(C)
    return X, y


X, Y = drawn(0)
NEW = np.random.default_rng(9).uniform(-3.0, 3.0, (7, 2))


def fitted(**options):
    return qp.GPClassifier(KERNEL, **{"multi_class": "joint"} | options).fit(
        X, np.array(list("abc"))[Y]
    )


def test_a_fit_is_infer_classes_at_its_kernel():
    """Predictions, evidence, a top of it, and latent values under the learnt kernel."""
    model = fitted(method="ep")
    K, K_star = model.kernel_(X), model.kernel_(NEW, X)
    post = qp.infer_classes(K, Y, "ep", tol=1e-9)
    assert abs(model.log_marginal_likelihood_value_ - post.log_evidence) < 1e-7
    log_p = post.predict_log_proba(K_star, model.kernel_.diag(NEW))
    np.testing.assert_allclose(model.predict_log_proba(NEW), log_p, rtol=0, atol=1e-5)
    np.testing.assert_allclose(model.predict_proba(NEW).sum(axis=1), 1.0, atol=1e-14)
    mean, covariance = post.predict(K_star, model.kernel_.diag(NEW))
    latent = model.latent(NEW)
    np.testing.assert_allclose(latent[0], mean, rtol=0, atol=1e-5)
    diagonal = np.diagonal(covariance, axis1=1, axis2=2)
    np.testing.assert_allclose(latent[1], diagonal, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(model.predict(NEW), np.array(list("abc"))[log_p.argmax(axis=1)])
    np.testing.assert_array_equal(model.decision_function(NEW), model.predict_log_proba(NEW))
    assert model.engine_ == "dense"
    assert model.optimum_.success
    found = model.marginals(NEW)
    assert len(found) == 3
    wanted = post.marginals(K_star, model.kernel_.diag(NEW))
    np.testing.assert_allclose(found[2].mean, wanted[2].mean, rtol=0, atol=1e-4)
    for step in 0.02 * np.vstack([np.eye(2), -np.eye(2)]):
        K = model.kernel_.clone_with_theta(model.kernel_.theta + step)(X)
        assert qp.infer_classes(K, Y, "ep").log_evidence < post.log_evidence - 1e-6
    # Intervals are quantiles of the latent normal: beside draws of another seed.
    found, p = model.predict_interval(NEW, 0.8), model.predict_proba(NEW)
    assert found.shape == (7, 3, 2)
    assert (found[..., 0] <= p).all()
    assert (p <= found[..., 1]).all()
    np.testing.assert_array_equal(model.predict_interval(NEW, 0.8), found)
    mean, covariance = joint_classifier.JointClasses(model).latent(NEW)
    rng = np.random.default_rng(5)
    for t in range(len(NEW)):
        draws = given_latent(rng.multivariate_normal(mean[t], covariance[t], 20_000))
        low, high = np.quantile(draws, [0.1, 0.9], axis=0)
        np.testing.assert_allclose(found[t, :, 0], np.minimum(low, p[t]), rtol=0, atol=0.06)
        np.testing.assert_allclose(found[t, :, 1], np.maximum(high, p[t]), rtol=0, atol=0.06)
        # The mean of the draws is the prediction, by another way than its own.
        np.testing.assert_allclose(draws.mean(axis=0), p[t], rtol=0, atol=0.012)


def test_slopes_by_parameters_are_those_of_differences():
    """One kernel for all classes, with a length-scale for each feature."""
    kernel = ConstantKernel(0.5) + ConstantKernel(4.0) * Matern([1.0, 1.4], nu=2.5)
    layout = Layout(Y, 3)
    family = JointFamily(kernel, X, layout)
    ep, y = Projector("probit", "ep", None, None), np.ones(layout.sites)
    theta = family.theta + 0.1 * np.sin(np.arange(family.theta.size))

    def at(theta):
        return tight(Objective(family, y, ep, 1e-11, 400))(theta)

    by_difference = slopes(lambda theta: at(theta)[0], theta)
    assert at(theta)[1] == pytest.approx(by_difference, abs=1e-6)


def test_two_classes_ignore_both():
    y = Y > 0
    plain = qp.GPClassifier(KERNEL).fit(X, y)
    other = qp.GPClassifier(KERNEL, multi_class="joint", solver="dense")
    other.fit(X, y)
    np.testing.assert_array_equal(other.predict_proba(NEW), plain.predict_proba(NEW))
    assert clone(other).set_params(correction="blend").fit(X, y).predict_proba(NEW).shape == (7, 2)


def test_probabilities_by_ratios_of_evidences():
    """Beside evidences of all rows and one more, by another call; they differ from the others."""
    model = fitted(method="qp", optimize=False)
    plain = model.predict_proba(NEW[:2])
    model.set_params(correction="ratio")
    found = model.predict_log_proba(NEW[:2])
    for t in range(2):
        rows = np.vstack([X, NEW[t]])
        values = [
            qp.infer_classes(KERNEL(rows), np.append(Y, c), "ep", n_classes=3, tol=1e-8)
            .corrected_evidence()
            .value
            for c in range(3)
        ]
        known = values - np.logaddexp.reduce(values)
        np.testing.assert_allclose(found[t], known, rtol=0, atol=1e-6)
    assert 1e-5 < np.abs(np.exp(found) - plain).max() < 0.05


def test_probabilities_given_latent_values():
    f = np.array([[0.3, -0.5, 1.1], [40.0, 0.0, 39.0], [0.0, 0.0, 0.0]])
    found = given_latent(f)

    def density(z, row, c):
        return norm.pdf(z - row[c]) * norm.cdf(z - np.delete(row, c)).prod()

    def one(row, c):
        reach = row.max() + np.array([-9.0, 9.0])
        return quad(density, *reach, args=(row, c), epsabs=1e-12)[0]

    known = [[one(row, c) for c in range(3)] for row in f]
    np.testing.assert_allclose(found, known, rtol=0, atol=1e-7)
    np.testing.assert_allclose(given_latent(np.zeros((1, 10))), 0.1, rtol=0, atol=1e-9)


def test_a_failed_fit_leaves_the_model_as_it_was(monkeypatch):
    model = fitted()
    known, names = model.predict_proba(NEW), sorted(vars(model))

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(joint_classifier, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X[:, :1], Y + 5)
    monkeypatch.undo()
    refuses("repeat a row", model.fit, X[:, :1], Y + 5, sample_weight=np.linspace(0.5, 2.0, 30))
    np.testing.assert_array_equal(model.predict_proba(NEW), known)
    assert sorted(vars(model)) == names


@every_case(
    "options, words",
    [
        ({"method": "vb"}, 'method=\'vb\': use "qp" or "ep"'),
        ({"likelihood": "logistic"}, "takes the probit only, got likelihood='logistic'"),
        ({"optimize": "loo"}, 'use optimize="evidence"'),
        ({"inducing": "judged"}, 'use inducing="auto", or a number'),
        ({"inducing": "variance"}, "give a number, inducing=100"),
        ({"inducing": qp.Inducing(5, power=1.0)}, r"power of inducing=Inducing\(5, power=1.0\)"),
        ({"inducing": 5, "correction": "ratio"}, "use inducing=None"),
        ({"inducing": np.zeros((3, 5))}, "columns"),
        ({"solver": "markov"}, 'use solver="auto"'),
        ({"solver": qp.Series(1e-3, required=False)}, 'use solver="auto"'),
        ({"prior_mean": DummyClassifier()}, "use prior_mean=None"),
        ({"monotone": {0: 1}}, "join classes, or leave it out"),
        ({"correction": "blend"}, 'use correction="ratio" for few points'),
        ({"multi_class": "one_vs_one"}, "multi_class must be one of"),
        ({"multi_class": "one_vs_rest", "correction": "ratio"}, "correction must be one of"),
    ],
)
def test_what_does_not_go_with_it(options, words):
    refuses(words, qp.GPClassifier(**{"multi_class": "joint"} | options).fit, X, Y)


def test_parts_ratios_of_many_sites_and_what_memory_does_not_hold_are_refused(monkeypatch):
    monkeypatch.setattr(joint_classifier, "CORRECTED", 50)
    refuses(r"at most 50 sites, and N \(C - 1\) = 60", fitted, correction="ratio")
    sparse = qp.GPClassifier(multi_class="joint", inducing=5)
    refuses("is fitted to all rows at once", sparse.partial_fit, X, Y)
    alone = qp.GPClassifier(multi_class="joint")
    refuses("inducing points", lambda: alone.partial_fit(X, Y))
    many = np.linspace(0.0, 1.0, 90_000)[:, None]
    labels = np.arange(90_000) % 3
    words = r'N = 90000 rows of 3 classes takes .*"one_vs_rest"'
    refuses(words, qp.GPClassifier(multi_class="joint", inducing=None).fit, many, labels)
    K = np.broadcast_to(1.0, (90_000, 90_000))
    refuses("3 classes jointly with N = 90000 takes", qp.infer_classes, K, labels)


def test_inducing_points(tmp_path):
    """Where all rows induce it is the dense model, in whatever units; few points are near it."""
    given = {"kernel": ConstantKernel(4.0) * RBF(50.0), "optimize": False}
    for options in ({"optimize": False}, given):
        dense = qp.GPClassifier(**{"multi_class": "joint", "method": "ep"} | options)
        dense.fit(X * 50.0, Y)
        model = clone(dense).set_params(inducing=X * 50.0).fit(X * 50.0, Y)
        assert (dense.engine_, model.engine_) == ("dense", "inducing")
        known = dense.predict_log_proba(NEW * 50.0)
        np.testing.assert_allclose(model.predict_log_proba(NEW * 50.0), known, atol=1e-5)
        expected = dense.predict_interval(NEW * 50.0)
        np.testing.assert_allclose(model.predict_interval(NEW * 50.0), expected, atol=1e-5)
        got = model.log_marginal_likelihood_value_
        assert got == pytest.approx(dense.log_marginal_likelihood_value_, abs=1e-4)
    few = qp.GPClassifier(multi_class="joint", inducing=12, optimize=False, random_state=0)
    few.fit(X, Y)
    assert few.inducing_points_.shape == (12, 2)
    few.save(tmp_path / "few")
    for again in (clone(few).fit(X, Y), qp.load(tmp_path / "few")):
        np.testing.assert_array_equal(again.predict_proba(NEW), few.predict_proba(NEW))
    post = qp.infer_sparse_classes(X, Y, few.kernel_, few.inducing_points_, tol=1e-8)
    np.testing.assert_allclose(few.predict_log_proba(NEW), post.predict_log_proba(NEW), atol=1e-5)
    refuses("fit it with inducing=None", few.marginals, NEW)


def test_many_rows_have_points(monkeypatch):
    monkeypatch.setattr(joint_classifier, "DENSE_ROW_LIMIT", 29)
    monkeypatch.setattr(joint_classifier, "_WORK", 3.0 * 21.0**3)
    monkeypatch.setattr(joint_classifier, "_FEWEST", 9)
    monkeypatch.setattr(joint_classifier, "_TOGETHER", 30)
    model = fitted(inducing="auto", random_state=0)
    assert (model.engine_, model.inducing_points_.shape) == ("inducing", (10, 2))
    # Labels of a class that the rows which the kernel is learnt from may lack.
    assert model.predict_proba(NEW).shape == (7, 3)
    assert fitted(inducing=None).engine_ == "dense"
