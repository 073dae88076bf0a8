"""`monotone=`: slopes observed beside values, against dense inference by formulas of its own."""

import json
import pickle

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.base import clone
from sklearn.dummy import DummyClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern

import qpruntime
from qpruntime import ConvergenceWarning, GPClassifier, InputError, infer
from qpruntime.kernels.derivative_covariance import DerivativeRows, covariance
from qpruntime.learning.inputs import Data, Inputs, Slopes
from qpruntime.learning.solvers import GivenSlopes, SlopeFamily, with_slopes
from qpruntime.projection.projector import Projector
from tests.tools import oracle
from tests.tools.cases import every_case, refuses
from tests.tools.oracle import slopes, tight

REFERENCE = json.loads((oracle.REFERENCE / "operators.json").read_text())
FIXED = ConstantKernel(2.0, "fixed") * RBF([0.9, 1.4], "fixed")


def drawn(seed=0, n=18):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, (n, 2))
    f = 1.5 * X[:, 0] + np.sin(2.0 * X[:, 1])
    return X, np.where(f + rng.normal(size=n) > 0.0, "yes", "no")


def by_hand(X, slopes):
    """Covariances of f at X and of its scaled slopes, of `FIXED`, each from the density itself."""
    lengths = np.array([0.9, 1.4])
    rows = [(x, None, 1.0) for x in X]
    rows += list(zip(slopes.where, slopes.feature, slopes.times, strict=True))
    K = np.empty((len(rows), len(rows)))
    for i, (x, d, a) in enumerate(rows):
        for j, (z, e, b) in enumerate(rows):
            step = (x - z) / lengths**2
            k = 2.0 * np.exp(-0.5 * np.sum((x - z) ** 2 / lengths**2))
            if d is not None and e is not None:
                k *= (d == e) / lengths[d] ** 2 - step[d] * step[e]
            elif e is not None:
                k *= step[e]
            elif d is not None:
                k *= -step[d]
            K[i, j] = a * b * k
    return K


@pytest.mark.parametrize("method", ["ep", "qp"])
def test_the_reference(method):
    """Means, variances and evidence of an independent prototype, by our covariance."""
    case = REFERENCE["monotone"]
    x, at = np.array(case["x"])[:, None], np.array(case["slopes_at"])[:, None]
    asked = DerivativeRows.both(x, at, np.zeros(len(at), dtype=int))
    K = covariance(ConstantKernel(case["v"]) * RBF(case["l"]), asked)
    K += case["jitter"] * np.eye(len(K))
    scale = np.concatenate([np.ones(len(x)), np.full(len(at), 1.0 / case["slope_scale"])])
    y = np.concatenate([case["y"], np.ones(len(at))])
    post = infer(K * np.outer(scale, scale), y, method=method, tol=1e-11, max_sweeps=400)
    known, few = case[method], slice(0, len(x))
    near = 1e-6 if method == "ep" else 1e-5  # the table shipped for the probit
    assert post.log_evidence == pytest.approx(known["log_evidence"], abs=near)
    np.testing.assert_allclose(post.mean[few], known["mean"][few], atol=near)
    np.testing.assert_allclose(post.variance[few], known["variance"][few], atol=near)


def test_by_dense_inference():
    """Latent values, probabilities and evidence of a fixed kernel, where slopes are two ways."""
    X, y = drawn()
    model = GPClassifier(FIXED, method="ep", tol=1e-9, monotone={0: 1, 1: -1}).fit(X, y)
    slopes = model.slopes_
    np.testing.assert_array_equal(slopes.where[:18], slopes.where[18:36])
    # The mean falls between these rows: slopes are seen there too, in the box that rows span.
    assert len(slopes.where) > 36
    assert ((X.min(axis=0) <= slopes.where) & (slopes.where <= X.max(axis=0))).all()
    K = by_hand(np.vstack([X, [[0.3, -0.2], [1.0, 1.0]]]), slopes)
    own = np.r_[0:18, 20 : len(K)]
    K[own[18:], own[18:]] *= 1.0 + 1e-8
    signs = np.concatenate([np.where(y == "yes", 1.0, -1.0), 1.0 - 2.0 * slopes.feature])
    post = infer(K[np.ix_(own, own)], signs, method="ep", tol=1e-10, max_sweeps=400)
    mean, variance = post.predict(K[18:20][:, own], np.diag(K)[18:20])
    ours = model.latent([[0.3, -0.2], [1.0, 1.0]])
    # K has eigenvalues of 1e-8 of its diagonal.
    np.testing.assert_allclose(ours[0], mean, atol=1e-5)
    np.testing.assert_allclose(ours[1], variance, atol=1e-5)
    assert model.log_marginal_likelihood_value_ == pytest.approx(post.log_evidence, abs=1e-5)
    told = model.predict_proba([[0.3, -0.2], [1.0, 1.0]])[:, 1]
    np.testing.assert_allclose(told, norm.cdf(mean / np.sqrt(1.0 + variance)), atol=1e-5)


@every_case(
    "kernel",
    [
        ConstantKernel(1.5) * RBF([0.8, 1.1]),
        ConstantKernel(0.7) + ConstantKernel(1.5) * Matern(0.9, nu=2.5),
    ],
)
def test_slope_of_the_evidence(kernel):
    """Log Z of values and slopes less that of slopes, each by `infer`; and its differences."""
    X, y = drawn(n=9)
    where, feature = X[:4] + 0.1, np.array([0, 0, 1, 0])
    seen = Slopes(where, feature, np.full(4, 20.0))
    data = Data(Inputs(X), np.where(y == "yes", 1.0, -1.0), Projector("probit", "ep"), np.zeros(9))
    data = with_slopes(data, seen, np.array([1.0, 1.0, -1.0, 1.0]))
    family = SlopeFamily(kernel, seen.asked(X), data.observed_prior, data.scale)
    objective = tight(GivenSlopes(family, data.y, data.projector, 1e-11, 300))

    def evidence(theta):
        K = family.at(theta).covariance
        options = {"method": "ep", "tol": 1e-11, "max_sweeps": 300}
        both = infer(K, data.y, **options).log_evidence
        return both - infer(K[9:, 9:], data.y[9:], **options).log_evidence

    value, gradient = objective(kernel.theta)
    assert value == pytest.approx(-evidence(kernel.theta), abs=1e-8)
    assert -gradient == pytest.approx(slopes(evidence, kernel.theta, 4e-3), abs=2e-6)


def test_it_rises():
    """A function that falls in places rises with it, on a grid; also of features by names."""
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(1)
    X = rng.uniform(-2.0, 2.0, (60, 2))
    y = 1.5 * np.tanh(1.5 * X[:, 0]) + np.sin(2.0 * X[:, 1]) + rng.normal(size=60) > 0.0
    frame = pandas.DataFrame({"age": 10.0 * X[:, 0], "b": X[:, 1]})
    grid = np.linspace(-1.8, 1.8, 25)

    def steps(model, unit):
        at = [np.column_stack([unit * grid, np.full(25, b)]) for b in np.linspace(-1.8, 1.8, 7)]
        if unit == 10.0:
            at = [pandas.DataFrame(one, columns=["age", "b"]) for one in at]
        return min(np.diff(model.latent(one)[0]).min() for one in at)

    plain, held = GPClassifier().fit(X, y), GPClassifier(monotone={0: 1}).fit(X, y)
    named = GPClassifier(monotone={"age": 1}).fit(frame, y)
    assert steps(plain, 1.0) < -0.02
    assert steps(held, 1.0) > 0.0
    assert steps(named, 10.0) > 0.0
    # Units of features change nothing: their slopes are measured in spreads.
    np.testing.assert_allclose(named.predict_proba(frame), held.predict_proba(X), atol=1e-4)
    falls = GPClassifier(monotone={0: -1}).fit(-X, y)
    # Places between the rows are not turned round with them.
    np.testing.assert_allclose(falls.predict_proba(-X), held.predict_proba(X), atol=0.02)


def test_rows_that_contradict():
    rng = np.random.default_rng(1)
    X = rng.uniform(-2.0, 2.0, (60, 1))
    y = 2.0 * X[:, 0] + 0.3 * rng.normal(size=60) > 0.0
    with pytest.warns(ConvergenceWarning, match="rows contradict monotone"):
        GPClassifier(ConstantKernel(4.0, "fixed") * RBF(0.02, "fixed"), monotone={0: -1}).fit(X, y)


def test_manners(tmp_path):
    X, y = drawn()
    model = GPClassifier(FIXED, monotone={0: 1}).fit(X, y)
    model.save(tmp_path / "model")
    for again in (
        pickle.loads(pickle.dumps(model)),
        qpruntime.load(tmp_path / "model"),
        clone(model).fit(X, y),
    ):
        np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    # Corrections see the same covariances.
    corrected = model.set_params(correction="blend").predict_proba(X)
    assert 0.0 < np.abs(corrected - again.predict_proba(X)).max() < 0.05
    assert GPClassifier(FIXED, monotone={}).fit(X, y).slopes_ is None


@every_case(
    ("options", "said"),
    [
        ({"monotone": {"age": 1}}, "'age', which X does not have: X had no names"),
        ({"monotone": {2: 1}}, "from 0 to 1"),
        ({"monotone": {-1: 1}}, "from 0 to 1"),
        ({"monotone": {True: 1}}, "from 0 to 1"),
        ({"monotone": {0: 2}}, r"\+1 .* or -1"),
        ({"monotone": {0: "up"}}, r"\+1 .* or -1"),
        ({"monotone": [1, 0]}, "mapping"),
        ({"monotone": {0: 1}, "kernel": Matern(nu=1.5)}, "times RBF or Matern"),
        ({"monotone": {0: 1}, "inducing": 5}, "inducing=None"),
        ({"monotone": {0: 1}, "solver": "markov"}, 'solver="dense"'),
        ({"monotone": {0: 1}, "prior_mean": DummyClassifier()}, "prior_mean"),
    ],
)
def test_what_is_refused(options, said):
    refuses(said, GPClassifier(**options).fit, *drawn())


def test_what_data_refuse():
    X, y = drawn()
    refuses("same in every row", GPClassifier(monotone={1: 1}).fit, X * [1.0, 0.0], y)
    refuses("two classes", GPClassifier(monotone={1: 1}).fit, X, np.arange(18) % 3)
    with pytest.raises(InputError, match="two classes"):
        GPClassifier(monotone={1: 1}, multi_class="joint").fit(X, np.arange(18) % 3)
