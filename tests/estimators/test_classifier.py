"""GPClassifier: labels, probabilities, optimisation, classes together, wrong labels, manners."""

import pickle
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, log_ndtr, ndtr
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import kernels as sk

from qpruntime import GPClassifier, Inducing, InputError, Search, TableError, infer, load
from qpruntime.estimators.classifier import coupled, coupling_of
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
    # The likelihood of a table is that of its name.
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
    kernel = sk.ConstantKernel(1.0, (1e-3, 1e5)) * sk.RBF([1.0, 1.0], (1e-2, 1e3))
    kernel += sk.WhiteKernel(0.1, "fixed")
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
        ([[0.0], [1.0]], np.array(["a", None]), "y has no label in row 1"),
        ([[0.0], [1.0]], np.array([None, "a"]), "y has no label in row 0"),
        ([[0.0], [1.0]], np.array(["a", 1], dtype=object), "of one type, got int and str"),
    ],
)
def test_refuses_data(x, y, words):
    refuses(words, GPClassifier().fit, x, y, error=ValueError)


COMPOUND = sk.CompoundKernel([sk.RBF(1.0), sk.RBF(2.0)])
SEVERAL = r"contains a CompoundKernel.* give one of its kernels"


@every_case(
    ("options", "words"),
    [
        ({"method": "mcmc"}, "method"),
        ({"likelihood": "logit"}, "likelihood"),
        ({"likelihood": "poisson"}, "likelihood"),
        ({"table": "no/file.h5"}, "no/file.h5"),
        ({"kernel": COMPOUND}, SEVERAL),
        ({"kernel": sk.ConstantKernel(1.0) * sk.CompoundKernel([sk.RBF(1.0)])}, SEVERAL),
        ({"kernel": sk.Exponentiation(COMPOUND, 2.0)}, SEVERAL),
    ],
)
def test_refuses_options(options, words, toy):
    error = TableError if "table" in options else InputError
    model = GPClassifier(**{"kernel": FIXED} | options)
    refuses(words, model.fit, toy.x, toy.y, error=error)


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


def said_by(p, codes):
    """Posteriors by which a row is of class c with these probabilities (N, K)."""
    true = codes[:, None] == np.arange(p.shape[1])
    columns = np.log(np.where(true, p, 1.0 - p)).T
    return [SimpleNamespace(loo=lambda i=slice(None), c=c: c[i]) for c in columns]


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
    # Right ones, and wrong ones of which double precision has left nothing: no warning either.
    p = np.array([[0.8, 0.3, 0.3]])  # gains less than two nats
    assert coupling_of(said_by(p, np.array([0])), np.array([0]), None) == 0.0
    p, codes = np.full((50, 3), 0.0), np.zeros(50, dtype=int)
    p[:, 0] = 1.0
    for certain in (p, p[:, ::-1]):
        with np.errstate(divide="ignore"):
            posteriors = said_by(certain, codes)
        assert 0.0 <= coupling_of(posteriors, codes, None) <= 1.0


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


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    some = np.random.default_rng(0).permutation(len(y))[:500]
    return X[some], y[some]


KERNEL = sk.ConstantKernel(9.0) * sk.RBF(25.0)


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
    again = load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict_proba(X[400:]), model.predict_proba(X[400:]))
    two = GPClassifier(kernel=KERNEL, optimize=False).fit(X[:20], y[:20] > 4)
    assert two.coupling_ == 0.0


RNG = np.random.default_rng(0)
X = RNG.uniform(-2.0, 2.0, (250, 2))
TRUE = X[:, 0] + 0.5 * np.sin(3.0 * X[:, 1]) > 0.0
WRONG = np.arange(250) % 8 == 0
Y = (TRUE ^ WRONG).astype(int)
# A larger variance has several fixed points, which warm starts tell apart.
NOISY_KERNEL = sk.ConstantKernel(16.0, "fixed") * sk.RBF(1.2, "fixed")
OPTIONS = {"method": "ep", "inducing": None}


def test_the_share_of_wrong_labels_is_learnt(tmp_path):
    model = GPClassifier(NOISY_KERNEL, likelihood="noisy-probit", **OPTIONS).fit(X, Y)
    flip = model.parameters_["flip"]
    # One label in eight is wrong; two standard errors of a share of 250 rows.
    assert abs(flip - 0.125) < 0.042
    best = model.log_marginal_likelihood_value_
    for factor in (0.96, 1.0, 1.04):
        spelt = f"noisy-probit(flip={factor * flip!r})"
        held = GPClassifier(NOISY_KERNEL, likelihood=spelt, **OPTIONS).fit(X, Y)
        assert held.parameters_["flip"] == pytest.approx(factor * flip, rel=1e-12)
        gap = best - held.log_marginal_likelihood_value_
        assert abs(gap) < 1e-6 if factor == 1.0 else gap > 1e-4
    mean, variance = model.latent(X[:20])
    wanted = flip + (1.0 - 2.0 * flip) * ndtr(mean / np.sqrt(1.0 + variance))
    np.testing.assert_allclose(model.predict_proba(X[:20])[:, 1], wanted, rtol=1e-10)
    model.save(tmp_path / "model")
    assert load(tmp_path / "model").parameters_ == model.parameters_
    assert GPClassifier(NOISY_KERNEL, **OPTIONS).fit(X[:30], Y[:30]).parameters_ == {}
    # With numbers beside the name, without optimisation, and of three classes.
    for likelihood, optimize in (("noisy-probit(flip=0.05)", True), ("noisy-probit", False)):
        options = OPTIONS | {"likelihood": likelihood, "optimize": optimize}
        assert GPClassifier(NOISY_KERNEL, **options).fit(X, Y).parameters_ == {"flip": 0.05}
    three = GPClassifier(NOISY_KERNEL, likelihood="noisy-probit", **OPTIONS)
    assert three.fit(X[:40], Y[:40] + (X[:40, 1] > 0.5)).parameters_ == {"flip": 0.05}
