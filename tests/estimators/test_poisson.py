"""GPPoissonRegressor: counts, exposures, dispersion."""

import math
import warnings

import numpy as np
import pytest
import sklearn
from scipy.integrate import quad
from scipy.optimize import check_grad
from scipy.stats import binom, norm, poisson
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import PoissonRegressor
from sklearn.metrics import mean_poisson_deviance, r2_score
from sklearn.model_selection import KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from qpruntime import (
    GPPoissonRegressor,
    GPRobustRegressor,
    InputError,
    NumericalError,
    Search,
    infer,
    open_table,
)
from qpruntime.estimators.poisson import Noise, _excess, asked
from qpruntime.learning.objective import KernelFamily, Objective
from qpruntime.projection.projector import Projector
from tablegen import build
from tests.tools.cases import every_case, refuses

FIXED = ConstantKernel(0.5, "fixed") * RBF(1.5, "fixed")
X = np.linspace(0.0, 6.0, 25)[:, None]
RATE = (1.5 + np.sin(X[:, 0])) ** 2
Y = np.random.default_rng(4).poisson(RATE)
NEW = np.array([[-0.5], [0.7], [3.1], [8.0]])


@pytest.mark.parametrize("method", ["ep", "qp"])
def test_fixed_kernel_is_plain_inference(method):
    model = GPPoissonRegressor(FIXED, method=method, table="exact", mean=1.3, tol=1e-11).fit(X, Y)
    assert model.optimum_ is None
    post = infer(FIXED(X), Y, "poisson", method, "exact", 1.3, tol=1e-11)
    expected = post.predict(FIXED(NEW, X), 0.5, mean=1.3)
    np.testing.assert_allclose(model.latent(NEW), expected, rtol=1e-9)
    np.testing.assert_allclose(model.predict(NEW), expected[0] ** 2 + expected[1], rtol=1e-9)


# Its neighbour is meant to be out of reach.
@pytest.mark.filterwarnings("ignore:the kernel relates no rows:qpruntime.ConvergenceWarning")
@pytest.mark.parametrize("exposure", [0.01, 1.0, 250.0])
def test_exposure_of_one_point_by_quadrature(exposure):
    # EP matches mean, variance and evidence of one observation exactly.
    mean, variance, y = 0.8, 0.3, 3

    def moment(power):
        def integrand(f):
            return (
                f**power * poisson.pmf(y, exposure * f * f) * norm.pdf(f, mean, np.sqrt(variance))
            )

        near = {"points": np.linspace(-0.5, 0.5, 11), "limit": 500}
        return quad(integrand, -4.0, 5.0, epsabs=0, epsrel=1e-12, **near)[0]

    Z = moment(0)
    kernel = ConstantKernel(variance, "fixed") * RBF(1.0, "fixed")
    model = GPPoissonRegressor(kernel, method="ep", mean=mean, tol=1e-12)
    # A second point, far off, that expects next to nothing and sees nothing.
    model.fit([[0.0], [1e3]], [y, 0], exposure=[exposure, 1e-14])
    got = [a[0] for a in model.latent([[0.0]])]
    assert got[0] == pytest.approx(moment(1) / Z, rel=1e-9)
    assert got[1] == pytest.approx(moment(2) / Z - (moment(1) / Z) ** 2, rel=1e-8)
    assert model.posterior_.log_evidence == pytest.approx(np.log(Z), rel=1e-9)


def test_intervals_are_the_quantiles_of_a_mixture():
    model = GPPoissonRegressor(FIXED).fit(X, Y)
    (mean, variance), exposure = model.latent(NEW), np.array([0.5, 1.0, 3.0, 20.0])
    # The trapezoid rule with steps of 0.02 is exact to rounding for entire functions beside e^-z^2.
    z = np.linspace(-9.0, 9.0, 901)
    f = mean[:, None] + np.sqrt(variance)[:, None] * z
    rates, weights = exposure[:, None] * f**2, norm.pdf(z) * (z[1] - z[0])
    cdf = poisson.cdf(np.arange(600)[:, None, None], rates) @ weights
    for level in (0.5, 0.9):
        ends = np.array([(cdf < q).sum(axis=0) for q in norm.cdf(norm.interval(level))]).T
        np.testing.assert_array_equal(model.predict_interval(NEW, level, exposure), ends)
    wanted = model.predict_quantiles(NEW, [0.05, 0.95])
    np.testing.assert_array_equal(model.predict_interval(NEW), wanted)
    refuses("level must be between 0 and 1, got 1", model.predict_interval, NEW, 1)


def test_exposure_scales_predictions():
    model = GPPoissonRegressor(FIXED).fit(X, Y, exposure=np.full(len(Y), 4.0))
    e = np.array([0.5, 1.0, 3.0, 20.0])
    mean, variance = model.latent(NEW)
    np.testing.assert_allclose(model.predict(NEW, exposure=e), e * (mean**2 + variance), rtol=1e-14)
    found = model.predict(NEW, exposure=2.0)
    np.testing.assert_allclose(found, 2.0 * model.predict(NEW), rtol=1e-14)
    y = np.arange(2000)
    for predictive in ("exact", "gamma"):
        table = np.exp(model.predict_log_pmf(NEW, np.tile(y, (4, 1)), e, predictive=predictive))
        np.testing.assert_allclose(table.sum(axis=1), 1.0, rtol=1e-11)
        np.testing.assert_allclose(table @ y, model.predict(NEW, exposure=e), rtol=1e-10)
        below = np.cumsum(table, axis=1)
        quantiles = model.predict_quantiles(NEW, [0.05, 0.5, 0.9], e, predictive=predictive)
        expected = [[np.argmax(row >= q) for q in (0.05, 0.5, 0.9)] for row in below]
        np.testing.assert_array_equal(quantiles, expected)
        one = model.predict_quantiles(NEW, 0.5, e, predictive=predictive)
        np.testing.assert_array_equal(one, quantiles[:, 1])
        picked = model.predict_log_pmf(NEW, [0, 3, 5, 7], e, predictive=predictive)
        np.testing.assert_allclose(np.exp(picked), table[range(4), [0, 3, 5, 7]], rtol=1e-12)
        same = model.predict_log_pmf(NEW, 3, e, predictive=predictive)
        np.testing.assert_allclose(np.exp(same), table[:, 3], rtol=1e-12)
    # The last table is the negative binomial's: its mode is the count predicted.
    np.testing.assert_array_equal(model.predict_count(NEW, e), table.argmax(axis=1))
    # Another unit of exposure: f^2 is a rate per unit.
    years = GPPoissonRegressor(FIXED, mean=1.0, tol=1e-10).fit(X, Y, 0.25)
    kernel = ConstantKernel(0.5 / 16.0, "fixed") * RBF(1.5, "fixed")
    quarters = GPPoissonRegressor(kernel, mean=0.25, tol=1e-10).fit(X, Y, 4.0)
    np.testing.assert_allclose(years.predict(NEW), 16.0 * quarters.predict(NEW), rtol=1e-8)


def test_default_mean_is_the_root_of_the_mean_rate():
    e = np.linspace(1.0, 3.0, len(Y))
    assert GPPoissonRegressor(FIXED).fit(X, Y).mean_ == pytest.approx(np.sqrt(Y.mean()))
    assert GPPoissonRegressor(FIXED).fit(X, Y, e).mean_ == pytest.approx(np.sqrt(Y.sum() / e.sum()))
    nothing = GPPoissonRegressor().fit(X, np.zeros(len(Y)))
    assert nothing.mean_ == pytest.approx(np.sqrt(0.5 / len(Y)))
    assert nothing.predict(NEW[:3]).max() < 0.2


def test_sign_of_the_mean_is_a_convention():
    up = GPPoissonRegressor(FIXED, mean=1.2, tol=1e-10).fit(X, Y)
    down = GPPoissonRegressor(FIXED, mean=-1.2, tol=1e-10).fit(X, Y)
    np.testing.assert_allclose(up.latent(NEW)[0], -down.latent(NEW)[0], rtol=1e-7)
    np.testing.assert_allclose(up.predict(NEW), down.predict(NEW), rtol=1e-7)
    # Mean zero warns and stays finite.
    with warnings.catch_warnings(record=True, action="always") as caught:
        model = GPPoissonRegressor(FIXED, mean=0).fit(X, Y)
    assert [w for w in caught if "sign" in str(w.message) and w.category is UserWarning]
    assert all(w.filename == __file__ for w in caught)
    mean, variance = model.latent(X)
    np.testing.assert_allclose(mean, 0.0, atol=1e-6)
    assert np.isfinite(variance).all()
    # All of the rate is in the variance.
    assert np.isfinite(model.predict(NEW)).all()


@every_case("exposed", [False, True])
@every_case("counts", [Y, [0] * 12 + [1, 0, 2, 0, 3, 5, 4, 9, 12, 17, 14, 22, 19]])
def test_gradient_of_the_evidence(exposed, counts):
    kernel = ConstantKernel(1.0) * RBF(1.0) + WhiteKernel(1e-2)
    scale = np.sqrt(np.linspace(0.3, 2.0, len(X))) if exposed else np.ones(len(X))
    objective = Objective(
        KernelFamily(kernel, X, 2.0 * scale, scale if exposed else None),
        np.array(counts, dtype=float),
        Projector("poisson", "ep"),
        1e-10,
        300,
    )
    objective._slope = 0.0  # as tight as it gets

    def value(theta):
        objective._slope = 0.0
        return objective(theta)[0]

    for theta in (kernel.theta, kernel.theta + np.array([0.4, 0.5, -0.3])):
        assert check_grad(value, lambda t: objective(t)[1], theta, epsilon=1e-5) < 2e-4


def test_evidence_is_maximised():
    kernel = ConstantKernel(1.0, (1e-3, 1e3)) * RBF(1.0, (1e-2, 1e2))
    e = np.linspace(0.5, 2.0, len(Y))
    counts = np.random.default_rng(5).poisson(RATE * e)
    model = GPPoissonRegressor(kernel, mean=1.5, optimize=Search(ftol=1e-13)).fit(X, counts, e)
    optimum = model.optimum_
    assert optimum.success
    assert kernel == ConstantKernel(1.0, (1e-3, 1e3)) * RBF(1.0, (1e-2, 1e2))  # not changed

    def evidence(theta):
        K = kernel.clone_with_theta(theta)(X) * np.sqrt(np.outer(e, e))
        return infer(K, counts, "poisson", "ep", mean=1.5 * np.sqrt(e), tol=1e-10).log_evidence

    assert optimum.value == pytest.approx(evidence(optimum.theta), rel=1e-8)
    for step in 0.03 * np.vstack([np.eye(2), -np.eye(2)]):
        assert evidence(optimum.theta + step) < optimum.value
    # The rate that made the counts; each of them alone would miss it by its root.
    assert np.mean((model.predict(X) - RATE) ** 2) < 0.3 * RATE.mean()


@pytest.mark.parametrize("method", ["ep", "qp"])
def test_leave_one_out_objective(method):
    e = np.linspace(0.5, 2.0, len(Y))
    options = {"method": method, "mean": 1.5, "tol": 1e-8}
    model = GPPoissonRegressor(optimize="loo", **options).fit(X, Y, e)
    other = GPPoissonRegressor(**options).fit(X, Y, e)
    assert model.posterior_.loo().sum() == pytest.approx(model.optimum_.value, rel=1e-6)
    assert model.posterior_.loo().sum() > other.posterior_.loo().sum()


@every_case("kind", [float, np.uint8, list])
def test_whole_numbers_of_any_type_are_counts(kind):
    found = GPPoissonRegressor(FIXED).fit(X, Y.tolist() if kind is list else Y.astype(kind))
    np.testing.assert_array_equal(
        found.predict(NEW), GPPoissonRegressor(FIXED).fit(X, Y).predict(NEW)
    )


@every_case(
    ("y", "words"),
    [
        ([1, -1, 2], "got -1"),
        ([1, 0.5, 2], "got 0.5"),
        ([1, np.nan, 2], "NaN"),
        ([1, np.inf, 2], "infinity"),
        ([1, 2], "inconsistent"),
        (["a", "b", "c"], "y must be numbers, and there is text in it"),
        ([1, 2_000_000, 2], "1000000"),
    ],
)
def test_refuses_counts(y, words):
    refuses(words, GPPoissonRegressor(FIXED).fit, X[:3], y, error=ValueError)


@every_case(
    ("exposure", "words"),
    [
        ([1.0, 0.0, 1.0], r"positive and at most 1e\+100, got 0"),
        ([1.0, -2.0, 1.0], r"positive and at most 1e\+100, got -2"),
        ([1.0, np.nan, 1.0], r"positive and at most 1e\+100, got nan"),
        ([1.0, np.inf, 1.0], r"positive and at most 1e\+100, got inf"),
        ([1.0, 1.0], r"shape \(3,\).*got \(2,\)"),
        ([[1.0], [1.0], [1.0]], r"shape \(3,\).*got \(3, 1\)"),
        (-1.0, "positive"),
        ("long", "array of real numbers"),
    ],
)
def test_refuses_exposure(exposure, words):
    model = GPPoissonRegressor(FIXED)
    refuses(words, model.fit, X[:3], Y[:3], exposure)
    model.fit(X, Y)
    for method in (model.predict, model.predict_count, model.predict_quantiles):
        refuses(words, method, NEW[:3], exposure=exposure)
    refuses(words, model.predict_log_pmf, NEW[:3], 1, exposure)


def test_refuses_other_arguments():
    refuses("method", GPPoissonRegressor(FIXED, method="mcmc").fit, X, Y)
    for mean in (np.nan, np.inf, "1", [1.0, 2.0], True):
        model = GPPoissonRegressor(FIXED, mean=mean)
        refuses("mean must be a finite number or None", model.fit, X, Y)
    model = GPPoissonRegressor(FIXED).fit(X, Y)
    for q in (0.0, 1.0, -0.1, np.nan, [[0.5]]):
        refuses(r"strictly between 0 and 1|q is nan", model.predict_quantiles, NEW, q)
    refuses("predictive must be one of", model.predict_quantiles, NEW, predictive="normal")
    refuses("got -1", model.predict_log_pmf, NEW, [0, -1, 0, 0])
    for y in ([1, 2], [[1], [2]], np.zeros((4, 1, 1))):
        refuses("one row per point", model.predict_log_pmf, NEW, y)


def test_counts_beyond_the_table(tmp_path):
    path = tmp_path / "few.h5"
    axes = {"mu_range": (-3.0, 3.0), "mu_step": 0.1, "log10_sigma_range": (-1.0, 1.0)}
    build("poisson", path, method="direct", log10_sigma_step=0.1, counts=(0, 1), workers=1, **axes)
    command = r"holds 0 to 1; .*tablegen build --likelihood poisson --counts=0:2"
    for table in (path, open_table(path), open_table(path, outside="exact")):
        refuses(command, GPPoissonRegressor(FIXED, table=table).fit, X[:4], [0, 1, 2, 0])
        refuses(command, infer, FIXED(X[:2]), [0, 2], "poisson", table=table, mean=1.0)
    model = GPPoissonRegressor(FIXED, table=path).fit(X[:4], [0, 1, 1, 0])
    exact = GPPoissonRegressor(FIXED, table="exact").fit(X[:4], [0, 1, 1, 0])
    # A grid this coarse is good to a percent.
    np.testing.assert_allclose(model.predict(NEW), exact.predict(NEW), rtol=1e-2)
    assert model.posterior_.lookups.inside > 0


def test_whole_weights_are_repeated_looks():
    # The likelihood of y events in exposure E, squared, is that of 2 y in 2 E but for a constant.
    weights, ones = np.where(np.arange(25) % 3 == 0, 2.0, 1.0), np.ones(25)
    options = {"link": "exp", "tol": 1e-11}
    one = GPPoissonRegressor(FIXED, **options).fit(X, Y, sample_weight=weights)
    two = GPPoissonRegressor(FIXED, **options).fit(X, weights * Y, exposure=weights * ones)
    assert one.mean_ == pytest.approx(two.mean_, rel=1e-14)
    np.testing.assert_allclose(one.latent(NEW), two.latent(NEW), rtol=1e-8)
    # Weights of next to nothing leave the prior.
    model = GPPoissonRegressor(FIXED, mean=1.3).fit(X, Y, sample_weight=np.full(25, 1e-9))
    np.testing.assert_allclose(model.latent(NEW), [[1.3] * 4, [0.5] * 4], rtol=1e-6)


RNG = np.random.default_rng(13)
LINE = RNG.uniform(0.0, 6.0, (40, 1))
E = RNG.uniform(10.0, 200.0, 40)
EVENTS = RNG.poisson(E * (1.0 + 0.5 * np.sin(LINE[:, 0])))
FOLDS = KFold(4, shuffle=True, random_state=0)


def by_hand():
    """R^2 of every fold, exposures handed over at every step."""
    found = []
    for train, test in FOLDS.split(LINE):
        mean, std = LINE[train].mean(0), LINE[train].std(0)
        model = GPPoissonRegressor(FIXED)
        model.fit((LINE[train] - mean) / std, EVENTS[train], exposure=E[train])
        found.append(r2_score(EVENTS[test], E[test] * model.predict((LINE[test] - mean) / std)))
    return found


@pytest.fixture
def model():
    return GPPoissonRegressor(FIXED).fit(LINE, EVENTS, exposure=E)


def test_score(model):
    truth = r2_score(EVENTS, E * model.predict(LINE))
    assert model.score(LINE, EVENTS, exposure=E) == pytest.approx(truth, rel=1e-14)
    assert truth > 0.8
    weights = RNG.uniform(0.1, 2.0, 40)
    weighed = r2_score(EVENTS, E * model.predict(LINE), sample_weight=weights)
    assert model.score(LINE, EVENTS, weights, E) == pytest.approx(weighed, rel=1e-14)
    expected = r2_score(EVENTS / E, model.predict(LINE))
    assert model.score(LINE, EVENTS / E, exposure=1.0) == pytest.approx(expected, rel=1e-14)
    refuses(r"exposure=.*set_score_request\(exposure=True\)", model.score, LINE, EVENTS)
    refuses(r"shape \(40,\)", model.score, LINE, EVENTS, exposure=E[:3])
    with pytest.raises(NotFittedError):
        GPPoissonRegressor().score(LINE, EVENTS)
    plain = GPPoissonRegressor(FIXED)
    for exposure in (None, 1.0, np.ones(40)):
        plain.fit(LINE, EVENTS, exposure=exposure)
        truth = r2_score(EVENTS, plain.predict(LINE))
        assert plain.score(LINE, EVENTS) == pytest.approx(truth, rel=1e-14)


@sklearn.config_context(enable_metadata_routing=True)
def test_exposures_of_a_pipeline():
    model = GPPoissonRegressor(FIXED).set_fit_request(exposure=True)
    chain = make_pipeline(StandardScaler(), model.set_score_request(exposure=True))
    given = {"cv": FOLDS, "params": {"exposure": E}}
    found = cross_val_score(chain, LINE, EVENTS, **given)
    np.testing.assert_allclose(found, by_hand(), rtol=1e-9)
    assert found.min() > 0.5
    model.set_predict_request(exposure=True, return_std=True)
    chain.fit(LINE, EVENTS, exposure=E)
    mean, std = chain.predict(LINE, exposure=E, return_std=True)
    np.testing.assert_allclose(mean, E * chain.predict(LINE), rtol=1e-13)
    assert std.shape == (40,)
    with pytest.raises(ValueError, match=r"exposure.*set_fit_request"):
        cross_val_score(GPPoissonRegressor(FIXED), LINE, EVENTS, **given)


def test_without_routing_it_is_loud():
    model = GPPoissonRegressor(FIXED)
    with pytest.warns(UserWarning, match="model was fitted with exposure") as caught:
        found = cross_val_score(model, LINE, EVENTS, cv=FOLDS, params={"exposure": E})
    assert np.isnan(found).all()
    assert len(caught) == 4
    with pytest.raises(InputError, match="enable_metadata_routing"):
        cross_val_score(model, LINE, EVENTS, cv=FOLDS, params={"exposure": E}, error_score="raise")


@pytest.mark.parametrize("link", ["square", "exp"])
def test_standard_deviation_of_the_rate(link):
    model = GPPoissonRegressor(FIXED, link=link).fit(LINE, EVENTS, exposure=E)
    new, e = np.array([[0.5], [3.0], [9.0]]), np.array([1.0, 30.0, 0.2])
    mean, std = model.predict(new, return_std=True, exposure=e)
    np.testing.assert_array_equal(mean, model.predict(new, exposure=e))
    latent, variance = model.latent(new)
    for i, (m, s) in enumerate(zip(latent, np.sqrt(variance), strict=True)):

        def moment(power, m=m, s=s, e=e[i]):
            def integrand(f):
                rate = e * f * f if link == "square" else e * np.exp(f)
                return rate**power * norm.pdf(f, m, s)

            return quad(integrand, m - 12.0 * s, m + 14.0 * s, epsabs=0.0, epsrel=1e-12)[0]

        first = moment(1)
        assert mean[i] == pytest.approx(first, rel=1e-9)
        # The variance is a difference of moments: the quadrature's digits are lost in it.
        assert std[i] ** 2 == pytest.approx(moment(2) - first**2, rel=1e-6)


def test_arguments_of_predict(model):
    for wrong in (E, 1, "yes", None):
        refuses(r"return_std must be True or False.*exposure=", model.predict, LINE, wrong)
    robust = GPRobustRegressor(FIXED, optimize=False).fit(LINE, LINE[:, 0])
    refuses("return_std", robust.predict, LINE, 2.0)
    steep = GPPoissonRegressor(ConstantKernel(400.0, "fixed") * RBF(1.0, "fixed"), link="exp")
    steep.fit(LINE, EVENTS)
    with pytest.raises(NumericalError, match="beyond double precision"):
        steep.predict([[100.0]], return_std=True)


def test_the_dispersion_is_found_and_the_default_is_as_good_as_a_line():
    """Counts of 240 people with 6 features, of which two matter, and a thousand to predict."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(1240, 6))
    rate = np.exp(1.2 + 0.4 * X[:, 0] - 0.3 * X[:, 1])
    y = rng.poisson(rate * rng.gamma(1.5, 1.0 / 1.5, rate.size))
    default = GPPoissonRegressor(method="ep").fit(X[:240], y[:240])
    assert default.link_ == "exp"
    # 1.5 was drawn; a maximum likelihood estimate of 240 counts has a deviation of about .25.
    assert 0.9 < default.dispersion_ < 2.4
    assert default.likelihood_.parameters == {"dispersion": default.dispersion_}
    assert default.optimum_.theta[-1] == pytest.approx(math.log(default.dispersion_), abs=1e-12)
    # Given that counts are Poisson it took their noise for a rough rate.
    line = PoissonRegressor(alpha=0.0).fit(X[:240], y[:240])
    deviances = [mean_poisson_deviance(y[240:], m.predict(X[240:])) for m in (default, line)]
    assert deviances[0] < 1.02 * deviances[1]


def test_neighbours_tell():
    rng, x = np.random.default_rng(8), np.zeros((4000, 1))
    exposure = rng.uniform(0.5, 4.0, 4000)
    counts = rng.poisson(5.0 * exposure).astype(float)
    calm = [
        _excess(x[:400], *(v[k : k + 400] for v in (counts, exposure)), rng)
        for k in range(0, 4000, 400)
    ]
    # Deviations of the rows' own, of which some are in several pairs: 3 of 500 rows, 2.4 of 400.
    assert calm.count(None) >= 9
    wild = rng.poisson(5.0 * exposure * rng.gamma(2.0, 0.5, 4000)).astype(float)
    found = _excess(x, wild, exposure, rng)
    # From 400 pairs; the square of a sum of two counts is more than that of their mean rate.
    assert 1.0 < found < 5.0
    # One row, no counts, a single event: nothing to see.
    for y in ([3.0], [0.0, 0.0], [0.0, 1.0, 0.0]):
        assert _excess(np.zeros((len(y), 1)), np.array(y), np.ones(len(y)), rng) is None


def test_one_pair_against_its_binomial_moments():
    """Given their sum one of two counts is binomial: its moments by summing over all of them."""
    rng, share = np.random.default_rng(0), 0.25
    for total in range(5, 40):
        one = np.arange(total + 1.0)
        p = binom.pmf(one, total, share)
        square = (one - p @ one) ** 2
        beyond = square - p @ square
        # Two rows of the 500 that have to differ by three deviations.
        odd = beyond > 3.0 * 2.0 / 500.0 * math.sqrt(p @ beyond**2)
        assert 0 < odd.sum() < total
        for y, is_odd, more in zip(one, odd, beyond, strict=True):
            found = _excess(np.zeros((2, 1)), np.array([y, total - y]), np.array([1.0, 3.0]), rng)
            assert (found is not None) == is_odd
            # y_1 - (y_1 + y_2)/4 has 3 m_1/4 - m_2/4 of the two rates, each m a gamma variable of
            # variance m^2/r: for rates of total/4 and 3 total/4 that is 2 (3 total/16)^2/r.
            if is_odd:
                assert found == pytest.approx(2.0 * (3.0 * total / 16.0) ** 2 / more, rel=1e-12)


@every_case(
    ("arguments", "noise"),
    [
        (("auto", "auto", False, False), None),
        (("exp", "auto", False, True), None),
        (("auto", "auto", True, False), Noise("square")),
        (("auto", "auto", False, True), Noise("square")),
        (("exp", "auto", True, False), Noise("exp")),
        (("square", "auto", False, False), Noise("square")),
        (("auto", math.inf, False, False), Noise("square")),
        (("exp", math.inf, False, False), Noise("exp")),
        (("auto", 2, False, False), Noise("exp", 2.0)),
    ],
)
def test_what_is_asked_for(arguments, noise):
    assert asked(*arguments) == noise


@every_case(
    ("arguments", "words"),
    [
        (("square", 2.0), "Poisson counts only, got dispersion=2: use link='exp'"),
        (("exp", 0.0), "dispersion must be positive"),
        (("exp", -math.inf), "dispersion must be positive"),
        (("exp", "much"), "dispersion must be a positive number or 'auto', got 'much'"),
        (("exp", None), "dispersion must be a positive number or 'auto', got None"),
        (("exp", math.nan), "dispersion must be a positive number or 'auto', got nan"),
        (("exp", 1e10), "dispersion must be from 0.001 to 1e.09 or inf"),
    ],
)
def test_dispersions_that_are_none(arguments, words):
    refuses(words, asked, *arguments, False, False)


def few(seed, dispersion):
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(0.0, 6.0, 50))[:, None]
    mean = np.exp(1.5 + np.sin(x[:, 0]))
    noise = 1.0 if dispersion == math.inf else rng.gamma(dispersion, 1.0 / dispersion, 50)
    return x, rng.poisson(mean * noise)


# Neighbours of these differ by less than three deviations.
@every_case("seed", [0, 4, 6, 9, 18, 22, 33])
def test_few_rows_are_judged_by_their_evidence(seed):
    x, y = few(seed, 5.0)
    found = GPPoissonRegressor(method="ep").fit(x, y)
    kinds = [
        GPPoissonRegressor(method="ep", link="exp", dispersion=r).fit(x, y) for r in (5.0, math.inf)
    ]
    dispersed, plain = (model.log_marginal_likelihood_value_ for model in kinds)
    assert (found.dispersion_ < math.inf) == (dispersed > plain + 3.0)


@every_case("seed", range(6))
def test_few_poisson_rows_stay_poisson(seed):
    found = GPPoissonRegressor(method="ep").fit(*few(seed, math.inf))
    assert found.dispersion_ == math.inf
