"""Functions that may only rise or fall: labels and counts, numbers and shares."""

import json
import pickle

import numpy as np
import pytest
from scipy.stats import nbinom, norm, poisson, t
from sklearn.base import clone
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern

import qpruntime
from qpruntime import (
    ConvergenceWarning,
    GPClassifier,
    GPPoissonRegressor,
    GPRobustRegressor,
    infer,
)
from qpruntime.kernels.derivative_covariance import DerivativeRows, covariance
from qpruntime.learning.inputs import Inputs
from qpruntime.learning.settings import Data, Slopes
from qpruntime.learning.solvers import GivenSlopes, SlopeFamily, with_slopes
from qpruntime.likelihoods import get
from qpruntime.projection.projector import Projector
from tests.tools import oracle
from tests.tools.cases import every_case, refuses
from tests.tools.oracle import slopes, tight

REFERENCE = json.loads((oracle.REFERENCE / "operators.json").read_text())
FIXED = ConstantKernel(2.0, "fixed") * RBF([0.9, 1.4], "fixed")


def drawn(kind="labels", n=18):
    """Rows of two features, and labels, numbers or counts."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, (n, 2))
    f = 1.5 * X[:, 0] + np.sin(2.0 * X[:, 1])
    if kind == "labels":
        return X, np.where(f + rng.normal(size=n) > 0.0, "yes", "no")
    if kind == "counts":
        return X, rng.poisson(np.exp(0.5 * f)).astype(float)
    return X, 0.5 * f + 0.3 * rng.standard_t(4.0, n)


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
    "kernel, likelihood",
    [
        (ConstantKernel(1.5) * RBF([0.8, 1.1]), "probit"),
        (ConstantKernel(0.7) + ConstantKernel(1.5) * Matern(0.9, nu=2.5), "probit"),
        (ConstantKernel(1.2) * RBF([0.9, 1.4]), get("student-t", nu=4.0, scale=0.4)),
    ],
)
def test_slope_of_the_evidence(kernel, likelihood):
    """By differences, also by the scale of noise.

    The evidence of labels is log Z of values and slopes less that of slopes, each by `infer`.
    """
    labels = likelihood == "probit"
    X, y = drawn("labels" if labels else "numbers", 9)
    y = np.where(y == "yes", 1.0, -1.0) if labels else y
    seen = Slopes(X[:4] + 0.1, np.array([0, 0, 1, 0]), np.full(4, 20.0))
    projector = Projector(likelihood, "ep")
    data = Data(Inputs(X), y, projector, np.zeros(9), own_signs=labels)
    data = with_slopes(data, seen, np.array([1.0, 1.0, -1.0, 1.0]))
    family = SlopeFamily(kernel, seen.asked(X), data.observed_prior, data.scale, labels)
    learnt, more = ((), []) if labels else (("scale",), [np.log(0.4)])
    objective = tight(GivenSlopes(family, data.y, projector, 1e-11, 300, None, learnt))
    theta = np.append(kernel.theta, more)
    value, gradient = objective(theta)
    by_difference = slopes(lambda at: objective(at)[0], theta, 4e-3)
    assert gradient == pytest.approx(by_difference, abs=2e-6)
    if labels:
        K, options = family.at(theta).covariance, {"method": "ep", "tol": 1e-11, "max_sweeps": 300}
        both = infer(K, data.y, **options).log_evidence
        alone = infer(K[9:, 9:], data.y[9:], **options).log_evidence
        assert value == pytest.approx(alone - both, abs=1e-8)


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


COUNTS = {"dispersion": np.inf}


@every_case(
    ("model", "options", "said"),
    [
        (GPClassifier, {"monotone": {"age": 1}}, "'age', which X does not have: X had no names"),
        (GPClassifier, {"monotone": {2: 1}}, "from 0 to 1"),
        (GPClassifier, {"monotone": {-1: 1}}, "from 0 to 1"),
        (GPClassifier, {"monotone": {True: 1}}, "from 0 to 1"),
        (GPClassifier, {"monotone": {0: 2}}, r"\+1 .* or -1"),
        (GPClassifier, {"monotone": {0: "up"}}, r"\+1 .* or -1"),
        (GPClassifier, {"monotone": [1, 0]}, "mapping"),
        (GPClassifier, {"kernel": Matern(nu=1.5)}, "times RBF or Matern"),
        (GPClassifier, {"inducing": 5}, "inducing=None"),
        (GPClassifier, {"solver": "markov"}, 'solver="dense"'),
        (GPClassifier, {"prior_mean": DummyClassifier()}, "prior_mean"),
        (GPPoissonRegressor, {"link": "square", "optimize": False}, 'use link="exp"'),
        (GPPoissonRegressor, COUNTS | {"correction": "blend"}, "correction=None"),
        (GPPoissonRegressor, COUNTS | {"optimize": "loo"}, 'leave out "loo"'),
        (GPPoissonRegressor, COUNTS | {"monotone": {3: 1}}, "from 0 to 1"),
        (GPPoissonRegressor, COUNTS | {"kernel": Matern(nu=1.5)}, "times RBF or Matern"),
        (GPRobustRegressor, {"inducing": 5}, "inducing=None"),
        (GPRobustRegressor, {"prior_mean": DummyRegressor()}, "prior_mean"),
    ],
)
def test_what_is_refused(model, options, said):
    kind = "labels" if model is GPClassifier else "counts"
    refuses(said, model(**{"monotone": {0: 1}} | options).fit, *drawn(kind))


def test_what_data_refuse():
    X, y = drawn()
    refuses("same in every row", GPClassifier(monotone={1: 1}).fit, X * [1.0, 0.0], y)
    refuses("two classes", GPClassifier(monotone={1: 1}).fit, X, np.arange(18) % 3)
    joint = GPClassifier(monotone={1: 1}, multi_class="joint")
    refuses("two classes", joint.fit, X, np.arange(18) % 3)
    # Rows that contradict are warned of.
    rng = np.random.default_rng(1)
    X = rng.uniform(-2.0, 2.0, (60, 1))
    y = 2.0 * X[:, 0] + 0.3 * rng.normal(size=60) > 0.0
    with pytest.warns(ConvergenceWarning, match="rows contradict monotone"):
        GPClassifier(ConstantKernel(4.0, "fixed") * RBF(0.02, "fixed"), monotone={0: -1}).fit(X, y)


KERNEL = ConstantKernel(0.8, "fixed") * RBF([0.9, 1.4], "fixed")
NUMBERS = {"normalize_y": False, "noise_bounds": {"scale": "fixed", "start": 0.3}}


def t_density(f, y):
    return t.pdf((y - f) / 0.3, 4.0) / 0.3


COUNTED = GPPoissonRegressor(KERNEL, method="ep", tol=1e-10, mean=0.2, dispersion=np.inf)
CASES = [
    ("numbers", GPRobustRegressor(KERNEL, method="ep", tol=1e-10, **NUMBERS), t_density),
    ("counts", COUNTED, lambda f, y: poisson.pmf(y, np.exp(f))),
    (
        "counts",
        clone(COUNTED).set_params(dispersion=3.0),
        lambda f, y: nbinom.pmf(y, 3.0, 3.0 / (3.0 + np.exp(f))),
    ),
]


@every_case(("name", "model", "density"), CASES)
def test_the_fixed_point(name, model, density):
    """Tilted moments, by sums, are the marginals'; evidence and means by dense algebra."""
    X, y = drawn(name)
    model = clone(model).set_params(monotone={0: 1, 1: -1}).fit(X, y)
    slopes, n, new = model.slopes_, len(X), np.array([[0.3, -0.2], [1.0, 1.0]])
    prior = 0.0 if name == "numbers" else 0.2
    signs = 1.0 - 2.0 * slopes.feature
    both = DerivativeRows.both(X, slopes.where, slopes.feature)
    K = covariance(KERNEL, both)
    K.flat[n * (len(K) + 1) :: len(K) + 1] *= 1.0 + 1e-8
    scale = np.concatenate([np.ones(n), slopes.times])
    K *= np.outer(scale, scale)
    mean_0 = np.concatenate([np.full(n, prior), np.zeros(len(signs))])
    tau, nu = model.posterior_.sites
    V = np.linalg.solve(np.eye(len(K)) + K * tau, K)
    m = mean_0 + V @ (nu - tau * mean_0)
    log_z = 0.0
    for i in range(len(K)):
        kept = 1.0 - tau[i] * V[i, i]
        v = V[i, i] / kept
        centre = (m[i] - nu[i] * V[i, i]) / kept
        f = centre + np.sqrt(v) * np.linspace(-14.0, 14.0, 20_001)
        seen = density(f, y[i]) if i < n else norm.cdf(signs[i - n] * f)
        weight = seen * norm.pdf(f, centre, np.sqrt(v)) * (f[1] - f[0])
        mass = weight.sum()
        tilted = weight @ f / mass
        assert tilted == pytest.approx(m[i], abs=1e-4 * np.sqrt(V[i, i]))
        assert weight @ (f - tilted) ** 2 / mass == pytest.approx(V[i, i], rel=2e-4)
        # The site under its cavity; log Z has the tilted mass in its place.
        precise, pull = tau[i] + 1.0 / v, nu[i] + centre / v
        log_z += np.log(mass) + 0.5 * np.log(v * precise)
        log_z -= 0.5 * (pull**2 / precise - centre**2 / v)
    rest = nu - tau * mean_0
    log_z += nu @ mean_0 - 0.5 * tau @ mean_0**2 + 0.5 * rest @ V @ rest
    log_z -= 0.5 * np.linalg.slogdet(np.eye(len(K)) + K * tau)[1]
    assert model.log_marginal_likelihood_value_ == pytest.approx(log_z, abs=2e-4)
    # New points, by the regression on what was observed.
    crossed = covariance(KERNEL, DerivativeRows.values(new), both) * scale
    weights = np.linalg.solve(np.eye(len(K)) + tau[:, None] * K, rest)
    np.testing.assert_allclose(model.latent(new)[0], prior + crossed @ weights, atol=1e-5)


def test_manners_of_numbers():
    X, y = drawn("counts")
    model = GPPoissonRegressor(KERNEL, monotone={0: 1}, dispersion=np.inf).fit(X, y)
    assert model.link_ == "exp"
    assert model.likelihood_ is get("poisson-exp")
    # Rows of weight 0 are none, and an exposure is a factor of the rate.
    more = np.vstack([X, X[:2] + 0.1]), np.append(y, [9.0, 9.0])
    weighed = clone(model).fit(*more, sample_weight=np.append(np.ones(18), [0.0, 0.0]))
    np.testing.assert_allclose(weighed.predict(X), model.predict(X), rtol=1e-12)
    exposed = clone(model).fit(X, y, exposure=np.full(18, 2.0))
    np.testing.assert_allclose(2.0 * exposed.predict(X), model.predict(X), rtol=1e-6)
