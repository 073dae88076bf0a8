"""The kernel of ``kernel=None``: units, invariances, awkward features, and what is handed back."""

import warnings

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from sklearn.base import clone
from sklearn.datasets import make_classification, make_moons
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, Product, Sum
from sklearn.metrics import log_loss

import qpruntime as qp
from qpruntime.kernels.default import LogNormal
from qpruntime.learning.initialisation import default_start
from qpruntime.learning.scaling import Units, spreads
from tests.tools.cases import every_case, refuses

RNG = np.random.default_rng(0)
X, LABELS = make_moons(60, noise=0.25, random_state=0)
NEW = RNG.uniform(-1.5, 2.5, (25, 2))
COUNTS = RNG.poisson(np.exp(1.0 + np.sin(2.0 * X[:, 0])))
NUMBERS = np.sin(2.0 * X[:, 0]) + X[:, 1] + 0.1 * RNG.standard_t(3.0, len(X))

MODELS = [
    (qp.GPClassifier(), LABELS),
    (qp.GPClassifier(), np.where(X[:, 0] > 1.0, 2, LABELS)),
    (qp.GPPoissonRegressor(), COUNTS),
    (qp.GPPoissonRegressor(link="exp"), COUNTS),
    (qp.GPRobustRegressor(method="ep"), NUMBERS),
]
each_model = pytest.mark.parametrize(
    ("model", "y"),
    [pytest.param(*case, marks=[pytest.mark.slow] * (case == MODELS[-1])) for case in MODELS],
)


def latent(model, features, y, new):
    return np.concatenate([np.ravel(a) for a in model.fit(features, y).latent(new)])


# Multiples of 2^-20 stay what they are where a million is added.
EXACT, EXACT_NEW = (np.round(a * 2.0**20) / 2.0**20 for a in (X, NEW))


@each_model
def test_units_copies_and_constants_of_features_do_not_matter(model, y):
    plain = latent(model, EXACT, y, EXACT_NEW)
    for moved in (
        lambda a: a * [1e-6, 1.0],
        lambda a: a + np.array([0.0, 1e6]),
        lambda a: a * [1e-6, 1e6] + [0.0, 1e12],
        lambda a: a * [1e6, 1e-6] + [0.0, 1.0],
    ):
        got = latent(model, moved(EXACT), y, moved(EXACT_NEW))
        np.testing.assert_allclose(got, plain, rtol=1e-8, atol=1e-8)

    def copied(a):
        return np.column_stack([a, a, np.full(len(a), 7.0), np.zeros(len(a))])

    got = model.fit(copied(X), y).latent(copied(NEW))[0]
    # The same kernel at another length-scale, from another start: as near as the optimiser ends.
    np.testing.assert_allclose(got, model.fit(X, y).latent(NEW)[0], rtol=1e-2, atol=1e-2)


def test_constant_features_are_ignored_where_they_change():
    def padded(a, value):
        return np.column_stack([a, np.full(len(a), value)])

    model = qp.GPClassifier().fit(padded(X, 3.0), LABELS)
    assert np.array_equal(model.latent(padded(NEW, 3.0)), model.latent(padded(NEW, -1e9)))
    assert np.isinf(model.kernel_.k2.k2.length_scale[2])
    # An outlier in a feature does no harm.
    clean = qp.GPClassifier().fit(X, LABELS).predict_proba(NEW)
    wild = X.copy()
    wild[7, 0] = 1e9
    assert np.abs(qp.GPClassifier().fit(wild, LABELS).predict_proba(NEW) - clean).max() < 0.1
    assert spreads(wild)[1] == pytest.approx(spreads(X)[1], rel=0.05)


@each_model
def test_the_kernel_reproduces_the_posterior(model, y):
    """Dense algebra in units of the features: `infer` with the covariance of ``kernel_``."""
    features = X * [1e3, 1e-4] + [1e4, 0.0]
    model.fit(features, y)
    kernels, posteriors = (
        a if isinstance(a, tuple) else (a,) for a in (model.kernel_, model.posterior_)
    )
    for kernel, posterior in zip(kernels, posteriors, strict=True):
        K = kernel(features)
        tau, nu = posterior.sites
        right = np.column_stack([K, getattr(model, "mean_", 0.0) + K @ nu])
        found = np.linalg.solve(np.eye(len(K)) + K * tau, right)
        # Squared distances are rounded at offsets of ten spreads, and solved with 1 + K tau.
        np.testing.assert_allclose(posterior.variance, np.diag(found[:, :-1]), rtol=1e-6)
        np.testing.assert_allclose(posterior.mean, found[:, -1], rtol=1e-6, atol=1e-8)


def test_the_kernel_is_scikit_learns_in_units_of_the_features():
    kernel = qp.GPClassifier().fit(X * [1e3, 1e-4], LABELS).kernel_
    assert type(kernel.k1) is ConstantKernel
    assert type(kernel.k2.k2) is Matern
    assert kernel.k2.k2.nu == 2.5
    ratio = kernel.k2.k2.length_scale / (X * [1e3, 1e-4]).std(axis=0)
    assert ratio == pytest.approx(ratio[0], rel=0.3)
    assert len(repr(kernel)) < 90
    low, high = kernel.bounds.T
    assert ((low <= kernel.theta) & (kernel.theta <= high)).all()


@every_case(
    ("column", "spread"),
    [
        (np.repeat([0.0, 1.0], [50, 50]), 1.0),
        (np.repeat([0.0, 1.0], [90, 10]), 1.0),
        (np.repeat([0.0, 1.0], [99, 1]), 1.0),
        (np.repeat([0.0, 3.0, 1e9], [80, 19, 1]), 3.0),
        (np.repeat([0.0, 3.0, 1e9], [97, 2, 1]), 3.0),
        (np.arange(1000.0), 979.0),
        (np.full(100, 0.1 + 0.2), 0.0),
        (np.full(100, 1e9) + 1e-7 * (np.arange(100) % 2), 0.0),
        (1e9 + np.repeat([0.0, 1.0], [50, 50]), 1.0),
        (1e-300 * np.repeat([0.0, 1.0], [50, 50]), 1e-300),
        (1e300 * np.repeat([0.0, 1.0], [50, 50]), 1e300),
        (np.array([0.0, 1.0]), 1.0),
        (np.array([5.0, 5.0]), 0.0),
        (np.array([5.0]), 0.0),
    ],
)
def test_spread_of_a_column(column, spread):
    """The range between the tails, here written out, over that of a uniform variable."""
    with np.errstate(all="raise", under="ignore"):
        middle, found = spreads(column[:, None])
    assert found[0] * np.sqrt(12.0) == pytest.approx(spread, rel=1e-12, abs=0.0)
    assert middle[0] in column


@every_case("n", [3, 9, 40, 200])
def test_weights_count_rows(n):
    rng = np.random.default_rng(n)
    sample, weights = rng.standard_normal((n, 2)), rng.integers(1, 4, n)
    got = spreads(sample, weights.astype(float))
    np.testing.assert_allclose(got, spreads(np.repeat(sample, weights, axis=0)), rtol=1e-13)


def test_separable_data_keep_the_amplitude_bounded():
    features, labels = make_classification(120, 5, class_sep=8.0, flip_y=0.0, random_state=1)
    model = qp.GPClassifier().fit(features[:60], labels[:60])
    assert 10.0 < model.kernel_.k2.k1.constant_value < 1e5
    assert model.optimum_.log_prior < 0.0
    # The same without a prior, which ends where the evidence is flat or at a bound.
    units = Units.of(features[:60])
    wide = ConstantKernel(1.0, (1e-6, 1e10))
    free = qp.GPClassifier(wide + wide * Matern(5.0**0.5, (1e-3, 1e4), nu=2.5))
    with warnings.catch_warnings(action="ignore", category=qp.ConvergenceWarning):
        free.fit(units.scaled(features[:60]), labels[:60])
    assert free.kernel_.k2.k1.constant_value > model.kernel_.k2.k1.constant_value
    proba = (model.predict_proba(features[60:]), free.predict_proba(units.scaled(features[60:])))
    losses = [log_loss(labels[60:], p) for p in proba]
    assert losses[0] < losses[1] + 0.01


def test_rare_classes_get_their_share():
    features, labels = make_classification(300, 4, weights=[0.95], flip_y=0.0, random_state=3)
    model = qp.GPClassifier().fit(features[:200], labels[:200])
    base = log_loss(labels[200:], np.full(100, labels.mean()))
    assert log_loss(labels[200:], model.predict_proba(features[200:])) < 0.8 * base
    # Far from all data the constant knows which class is rare.
    assert model.predict_proba(np.full((1, 4), 1e3))[0, 1] < 0.49


def test_start_and_prior_of_the_optimum_are_reported():
    model = qp.GPClassifier().fit(X, LABELS)
    optimum = model.optimum_
    start = default_start(Units.of(X))
    assert any(np.array_equal(optimum.start, theta) for theta in start.thetas)
    # The value is the evidence alone, as `infer` has it.
    K = model.kernel_(X)
    own = qp.infer(K, np.where(LABELS > 0, 1.0, -1.0), likelihood="probit", method="ep")
    assert optimum.value == pytest.approx(own.log_evidence, abs=1e-6)
    assert optimum.log_prior == pytest.approx(start.log_prior(optimum.theta)[0])
    assert optimum.score == optimum.value + optimum.log_prior
    # The prior is a density with its gradient.
    prior = LogNormal(np.array([0.5, 1.0, 0.0]), np.array([2.0, 3.0, np.inf]))
    theta = np.array([1.5, -2.0, 40.0, 7.0])
    value, slope = prior(theta)
    assert value == pytest.approx(-0.5 * (0.25 + 1.0))
    np.testing.assert_allclose(slope, approx_fprime(theta, lambda t: prior(t)[0], 1e-6), atol=1e-6)


ODD = {
    "one feature": X[:, :1],
    "more features than rows": np.random.default_rng(5).standard_normal((60, 75)),
    "integers": np.round(10.0 * X).astype(int),
    "booleans": X > 0.5,
    "float32": X.astype(np.float32),
    "tiny": X * 1e-300,
    "large": X * 1e149 / 3.0,
    "both": X * [1e-300, 1e148],
    "constant": np.ones((60, 3)),
    "repeated": np.repeat(X[:1], 60, axis=0),
}


@every_case("oddity", ODD)
@every_case(
    ("model", "y"),
    [
        *(MODELS[k] for k in (0, 2, 3)),
        (qp.GPRobustRegressor(method="ep", optimize=qp.Search(max_iter=5)), NUMBERS),
    ],
)
def test_odd_features(model, y, oddity):
    features = ODD[oddity]
    with warnings.catch_warnings(action="ignore", category=qp.ConvergenceWarning):
        model.fit(features, y)
    mean, variance = model.latent(features)
    assert np.isfinite(mean).all()
    assert (variance >= 0.0).all()


def test_constant_features_and_two_rows_are_warned_of():
    words = r"tells no rows apart.* check that features vary"
    with pytest.warns(qp.ConvergenceWarning, match=words):
        qp.GPClassifier().fit(np.ones((20, 2)), np.arange(20) % 2)
    with pytest.warns(qp.ConvergenceWarning, match="relates no rows to each other"):
        model = qp.GPClassifier().fit([[1.0, 5.0], [2.0, 5.0]], [0, 1])
    assert model.predict([[1.0, 5.0], [2.0, 5.0]]).tolist() == [0, 1]


@every_case("kernel, sizes", [(None, [2 + 20, 3]), ("auto", [2 + 20, 3, 3])])
def test_features_get_their_own_length_scales_where_that_pays(kernel, sizes):
    """The default kernel's, and those of the shape that "auto" took."""
    rng = np.random.default_rng(6)
    features = rng.standard_normal((150, 20))  # of which two decide
    labels = (features[:, 0] * features[:, 1] > 0.0).astype(int)
    model = qp.GPClassifier(kernel).fit(features[:100], labels[:100])
    lengths = model.kernel_.k2.k2.length_scale
    assert lengths[:2].max() < 0.5 * lengths[2:].min()
    assert [optimum.theta.size for optimum in model.optima_] == sizes
    assert model.optimum_.value > model.optima_[1].value + 19.0
    assert log_loss(labels[100:], model.predict_proba(features[100:])) < 0.5


def test_features_that_are_alike_keep_one_length_scale():
    rng = np.random.default_rng(7)
    features = rng.standard_normal((100, 6))
    labels = features.sum(axis=1) + rng.logistic(size=100) > 0.0
    model = qp.GPClassifier().fit(features, labels)
    assert len(model.optima_) == 1
    assert model.optimum_.theta.size == 3


@pytest.mark.slow
def test_auto_takes_the_better_of_two_shapes():
    rng = np.random.default_rng(9)
    features = rng.uniform(0.0, 1e4, (70, 1))
    smooth = np.exp(np.sin(features[:, 0] / 800.0))
    model = qp.GPRobustRegressor("auto", method="ep")
    model.fit(features, smooth + 0.02 * rng.normal(size=70))
    assert type(model.kernel_.k2.k2) is RBF
    assert len(model.optima_) == 2
    assert model.optima_[0].score > model.optima_[1].score
    rough = np.cumsum(rng.normal(size=70))[np.argsort(np.argsort(features[:, 0]))]
    model = qp.GPRobustRegressor("auto", method="ep").fit(features, rough)
    assert type(model.kernel_.k2.k2) is Matern


@every_case("kernel", ["rbf", "AUTO", 3.0, ["auto"]])
def test_other_words_are_refused(kernel):
    refuses("kernel must be None, 'auto' or one of sklearn", qp.GPClassifier(kernel).fit, X, LABELS)


# --- Linear part of ordered levels and times


def test_the_linear_part_is_linear_and_has_the_prior_of_slopes():
    """Functions of the part differ from lines by hundredths, and have slopes of variance .1/d."""
    d, scale = 3, 2.0
    start = default_start(Units(np.zeros(d), np.ones(d)), scale, linear=True)
    part = start.kernel.k1.k2
    assert isinstance(part, Product)
    assert start.by_feature == d
    rng = np.random.default_rng(0)
    Z = rng.standard_normal((400, d))
    weights, vectors = np.linalg.eigh(part(Z))
    f = vectors * np.sqrt(np.maximum(weights, 0.0)) @ rng.standard_normal((400, 200))
    design = np.column_stack([np.ones(400), Z])
    coefficients = np.linalg.lstsq(design, f, rcond=None)[0]
    assert np.median((f - design @ coefficients).std(axis=0) / f.std(axis=0)) < 0.15
    # Exactly, the variance of a derivative of the part is variance / length-scale**2.
    slope = part.k1.constant_value / part.k2.length_scale**2
    assert slope == pytest.approx(0.1 * scale**2 / d, rel=1e-9)
    assert coefficients[1:].var() == pytest.approx(slope, rel=0.15)
    priors = dict(zip(start.kernel.theta, start.log_prior.deviation, strict=True))
    assert list(priors.values()) == [4.0, 1.0, 2.0, 0.5]
    np.testing.assert_allclose(start.kernel.theta, start.log_prior.mean)


def ordered(n=90, seed=1):
    """Features of very different units, one of them rare, and levels that rise along a line."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.normal(5e3, 1e2, n), rng.random(n) < 0.15, rng.normal(0, 1e-3, n)])
    return X, (X[:, 0] - 5e3) / 1e2 + 2.0 * X[:, 1], rng


@pytest.mark.parametrize("model", [qp.GPOrdinal(), qp.GPSurvival()])
def test_the_linear_part_takes_features_of_any_units(model):
    X, f, rng = ordered()
    observed = np.exp(f + 0.3 * rng.normal(size=90))
    y = np.digitize(observed, [0.5, 2.0]) if isinstance(model, qp.GPOrdinal) else observed
    units = [1e3, 1.0, 1.0], [1e6, 0.0, 0.0]
    models = [clone(model).fit(features, y) for features in (X, X * units[0] + units[1])]
    new = X[:20] + np.array([0.0, 0.0, 1e-4])
    pairs = zip(models, (new, new * units[0] + units[1]), strict=True)
    latents = [np.concatenate(each.latent(points)) for each, points in pairs]
    np.testing.assert_allclose(*latents, atol=1e-5)
    kernel = models[0].kernel_
    K = kernel(X)  # in units of the features
    deviations = np.maximum(X.std(axis=0), 0.0)
    scaled = kernel.k1.k2.k2.length_scale / (10.0 * np.sqrt(3.0))
    # Tails of a hundredth on either side are moved into the range that is left.
    np.testing.assert_allclose(scaled, deviations, rtol=0.1)
    assert np.linalg.eigvalsh(K)[0] > -1e-6 * K.max()


def test_a_line_of_levels_goes_on_beyond_the_rows():
    """A Matérn kernel alone returns to the mean; a proportional-odds model goes on."""
    X, f, rng = ordered(200)
    y = np.digitize(f + 0.7 * rng.normal(size=200), [-1.0, 0.0, 1.0])
    beyond = np.array([[5.45e3, 0.0, 0.0], [4.55e3, 0.0, 0.0]])
    line = qp.GPOrdinal().fit(X, y)
    matern = qp.GPOrdinal(ConstantKernel() + ConstantKernel() * Matern([1e2, 0.5, 1e-3])).fit(X, y)
    p = line.predict_proba(beyond)
    assert p[0, 3] > 0.97
    assert p[1, 0] > 0.97
    assert matern.predict_proba(beyond)[0, 3] < p[0, 3]
    # Narrow priors of both parts would cost levels far from linear their confidence.
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, (300, 3))
    y = np.digitize(np.abs(X[:, 0]), [0.3, 0.6])
    model = qp.GPOrdinal().fit(X[:200], y[:200])
    assert not isinstance(model.kernel_.k1, Sum)
    assert model.optima_[-1].log_prior < -4.0
    assert -model.predict_log_density(X[200:], y[200:]).mean() < 0.2
    X, f, rng = ordered(60)
    y = np.digitize(f + 0.7 * rng.normal(size=60), [-0.5, 0.5])
    line = qp.GPOrdinal().fit(X, y)
    assert isinstance(line.kernel_.k1, Sum)
    assert line.optimum_.log_prior > -4.0


def test_standard_deviations_of_columns():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=1000), rng.random(1000) < 0.3, rng.random(1000) < 1e-2])
    X[0, 0] = 1e6  # an outlier does not set the unit
    X[:, 2] = 0.0
    X[0, 2] = 1.0  # one row of its kind
    _, spread = spreads(X, None, True)
    inner = np.clip(X[:, 0], *np.sort(X[:, 0])[[10, -11]])
    assert spread[0] == pytest.approx(inner.std(), rel=1e-2)
    assert spread[1] == pytest.approx(X[:, 1].std(), rel=1e-12)
    assert spread[2] == pytest.approx(0.5 / np.sqrt(12.0), rel=1e-12)
    doubled = spreads(np.repeat(X, 2, axis=0), None, True)[1]
    np.testing.assert_allclose(spreads(X, np.full(1000, 2.0), True)[1], doubled, rtol=1e-9)
