"""GPClassifier: labels, probabilities, optimisation, and its manners as an estimator."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_ndtr, ndtr
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import kernels as sk

from qpruntime import GPClassifier, InputError, Search, TableError, infer
from tests.tools import oracle
from tests.tools.cases import every_case, refuses

FIXED = sk.ConstantKernel(2.0, "fixed") * sk.RBF(1.3, "fixed")
NEW = np.random.default_rng(9).standard_normal((15, 2)) * 2.0


@pytest.mark.parametrize("method", ["ep", "qp"])
def test_heaviside(toy, method):
    kernel = FIXED + sk.WhiteKernel(0.5, "fixed")
    model = GPClassifier(kernel, likelihood="heaviside", method=method, tol=1e-11)
    model.fit(toy.x, toy.y)
    post = infer(kernel(toy.x), toy.y, "heaviside", method=method, tol=1e-11)
    np.testing.assert_allclose(model.posterior_.mean, post.mean, rtol=1e-8)
    mean, variance = model.latent(NEW)
    p = ndtr(mean / np.sqrt(variance))
    np.testing.assert_allclose(model.predict_proba(NEW), np.stack([1.0 - p, p], 1), rtol=1e-12)
    np.testing.assert_allclose(model.decision_function(NEW), mean / np.sqrt(variance), rtol=1e-11)
    np.testing.assert_array_equal(model.predict(NEW), np.where(mean > 0.0, 1.0, -1.0))


def test_heaviside_with_noise_is_the_probit(toy):
    # A white kernel of variance 1 is the probit's noise: same evidence, same labels' odds.
    noisy = GPClassifier(FIXED + sk.WhiteKernel(1.0, "fixed"), likelihood="heaviside", method="ep")
    probit = GPClassifier(FIXED, method="ep", tol=1e-10)
    noisy.set_params(tol=1e-10).fit(toy.x, toy.y)
    probit.fit(toy.x, toy.y)
    assert noisy.posterior_.log_evidence == pytest.approx(probit.posterior_.log_evidence, rel=1e-9)
    expected = probit.decision_function(NEW)
    np.testing.assert_allclose(noisy.decision_function(NEW), expected, rtol=1e-6, atol=1e-8)


def test_likelihood_of_the_table(toy):
    model = GPClassifier(FIXED, likelihood=None, table="heaviside-compact").fit(toy.x, toy.y)
    named = GPClassifier(FIXED, likelihood="heaviside").fit(toy.x, toy.y)
    np.testing.assert_array_equal(model.predict_proba(NEW), named.predict_proba(NEW))


@pytest.mark.parametrize("method", ["ep", "qp"])
def test_fixed_kernel_is_plain_inference(toy, method):
    model = GPClassifier(FIXED, method=method, table="exact", tol=1e-11).fit(toy.x, toy.y)
    assert model.optimum_ is None
    assert model.kernel_ == FIXED
    post = infer(toy.K, toy.y, method=method, table="exact", tol=1e-11)
    mean, variance = post.predict(toy.kernel(NEW, toy.x), 2.0)
    # The kernel matrix itself is summed in another order.
    np.testing.assert_allclose(model.latent(NEW), [mean, variance], rtol=1e-9, atol=1e-12)
    p = ndtr(mean / np.sqrt(1.0 + variance))
    proba = model.predict_proba(NEW)
    np.testing.assert_allclose(proba, np.stack([1.0 - p, p], 1), rtol=1e-9)
    np.testing.assert_allclose(proba.sum(1), 1.0, rtol=1e-15)
    np.testing.assert_array_equal(model.predict(NEW), np.where(p > 0.5, 1.0, -1.0))


@every_case("labels", [["no", "yes"], [False, True], [0, 1], [-1, 1], [3.0, 7.0]])
def test_any_two_labels(labels, toy):
    labels = np.asarray(labels)
    model = GPClassifier(FIXED).fit(toy.x, labels[(toy.y > 0).astype(int)])
    reference = GPClassifier(FIXED).fit(toy.x, toy.y)
    np.testing.assert_array_equal(model.classes_, labels)
    np.testing.assert_array_equal(model.predict_proba(NEW), reference.predict_proba(NEW))
    predicted = model.predict(NEW)
    assert predicted.dtype == labels.dtype
    np.testing.assert_array_equal(predicted, labels[model.predict_proba(NEW).argmax(1)])


def test_log_probabilities_in_the_tails(toy, monkeypatch):
    model = GPClassifier(FIXED).fit(toy.x, toy.y)
    wanted = np.log(model.predict_proba(NEW))
    np.testing.assert_allclose(model.predict_log_proba(NEW), wanted, rtol=1e-13)
    far = np.array([-60.0, 0.0, 60.0]), np.zeros(3)
    monkeypatch.setattr(model, "_latent", lambda points: far)
    log_proba = model.predict_log_proba(NEW[:3])
    np.testing.assert_allclose(
        log_proba, np.stack([log_ndtr(-far[0]), log_ndtr(far[0])], 1), rtol=1e-13
    )
    np.testing.assert_allclose(model.decision_function(NEW[:3]), far[0], rtol=1e-13)
    assert log_proba.min() < -1800.0  # where a probability is 0


def test_evidence_is_maximised(toy):
    kernel = sk.ConstantKernel(1.0, (1e-3, 1e5)) * sk.RBF([1.0, 1.0], (1e-2, 1e3)) + sk.WhiteKernel(
        0.1, "fixed"
    )
    model = GPClassifier(kernel, optimize=Search(ftol=1e-13)).fit(toy.x, toy.y)

    def evidence(theta):
        K = kernel.clone_with_theta(theta)(toy.x)
        return infer(K, toy.y, method="ep", tol=1e-10).log_evidence

    optimum = model.optimum_
    assert optimum.success
    assert model.n_iter_ == optimum.n_iterations >= 1
    assert optimum.n_evaluations >= optimum.n_iterations
    np.testing.assert_allclose(model.kernel_.theta, optimum.theta, rtol=1e-14)  # log(exp())
    assert optimum.value == pytest.approx(evidence(optimum.theta), rel=1e-9)
    assert optimum.value > evidence(kernel.theta) + 0.1
    # An optimiser that sees no gradient ends in the same place.
    ends = {"xatol": 1e-4, "fatol": 1e-10, "maxiter": 1000}
    options = {"bounds": kernel.bounds, "method": "Nelder-Mead", "options": ends}
    peer = minimize(lambda t: -evidence(t), kernel.theta, **options)
    assert optimum.value == pytest.approx(-peer.fun, abs=1e-6)


@every_case(
    ("x", "y", "words"),
    [
        ([[0.0], [np.nan]], [0, 1], "NaN"),
        ([[0.0], [np.inf]], [0, 1], "infinity"),
        ([[0.0]], [1], "minimum of 2"),
        ([[0.0], [1.0]], [1, 1], "two classes or more, got one class"),
        ([[0.0], [1.0], [2.0]], [0, 1], "inconsistent numbers of samples"),
        ([[0.0], [1.0]], [0.5, 1.7], "continuous"),
        ([[0.0], [1.0]], [np.nan, 1.0], "NaN"),
        ([0.0, 1.0], [0, 1], "2D array"),
    ],
)
def test_refuses_data(x, y, words):
    refuses(words, GPClassifier().fit, x, y, error=ValueError)


@every_case(
    ("options", "error"),
    [
        ({"method": "mcmc"}, InputError),
        ({"likelihood": "logit"}, InputError),
        ({"likelihood": "poisson"}, InputError),
        ({"table": "no/file.h5"}, TableError),
    ],
)
def test_refuses_options(options, error, toy):
    with pytest.raises(error):
        GPClassifier(FIXED, **options).fit(toy.x, toy.y)


def test_refuses_before_and_after_fitting(toy):
    model = GPClassifier(FIXED)
    for method in ("predict", "predict_proba", "predict_log_proba", "decision_function", "latent"):
        with pytest.raises(NotFittedError):
            getattr(model, method)(NEW)
    model.fit(toy.x, toy.y)
    refuses("expecting 2 features", model.predict, [[0.0]], error=ValueError)
    words = "column 1 is missing in 1 rows and was in none of the fit"
    with pytest.warns(UserWarning, match=words):
        model.predict([[0.0, np.nan]])


@pytest.mark.parametrize(
    "kernel",
    [
        sk.CompoundKernel([sk.RBF(1.0), sk.RBF(2.0)]),
        sk.ConstantKernel(1.0) * sk.CompoundKernel([sk.RBF(1.0)]),
        sk.Exponentiation(sk.CompoundKernel([sk.RBF(1.0)]), 2.0),
    ],
)
def test_refuses_several_covariances(kernel, toy):
    with pytest.raises(InputError, match=r"contains a CompoundKernel.* give one of its kernels"):
        GPClassifier(kernel).fit(toy.x, toy.y)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        ("a", None, "y has no label in row 1"),
        (None, "a", "y has no label in row 0"),
        ("a", 1, "labels must be of one type, got int and str"),
    ],
)
def test_refuses_labels_of_several_types(first, second, words, toy):
    labels = np.array([first, second] * 20, dtype=object)[: len(toy.y)]
    refuses(words, GPClassifier(FIXED).fit, toy.x, labels)


def test_separable_data_far_out():
    # The evidence keeps rising with the variance: cavities go where no grid is.
    x = np.vstack([oracle.RBFData(15, 1).x * 0.3 - 3.0, oracle.RBFData(15, 2).x * 0.3 + 3.0])
    kernel = sk.ConstantKernel(1.0, (1e-6, 1e10)) * sk.RBF(1.0, (1e-4, 1e5))
    model = GPClassifier(kernel, table="exact").fit(x, np.repeat([0, 1], 15))
    assert model.kernel_.k1.constant_value > 1e3
    assert model.posterior_.converged
    np.testing.assert_array_equal(model.predict(x), np.repeat([0, 1], 15))
    assert model.predict_proba([[-3.0, -3.0]])[0, 0] > 0.99


# What 1e100 leaves of the kernel that is given.
@pytest.mark.filterwarnings("ignore:the kernel relates no rows:qpruntime.ConvergenceWarning")
@pytest.mark.parametrize("kernel", [None, sk.ConstantKernel() * sk.RBF([1.0, 1.0])])
def test_refuses_distances_beyond_double_precision(kernel, toy):
    X = toy.x
    refuses(r"squared distances .* StandardScaler", GPClassifier(kernel).fit, 1e200 * X, toy.y)
    model = GPClassifier(kernel, optimize=False).fit(1e100 * X, toy.y)
    refuses(r"squared distances .* beyond 1e\+150", model.predict, 1e200 * X)
