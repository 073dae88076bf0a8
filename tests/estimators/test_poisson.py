"""GPPoissonRegressor: exposure, prior mean, optimisation, predictions and manners."""

import warnings

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import check_grad
from scipy.stats import norm, poisson
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from qpruntime import GPPoissonRegressor, Search, infer, open_table
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
        return quad(
            lambda f: (
                f**power * poisson.pmf(y, exposure * f * f) * norm.pdf(f, mean, np.sqrt(variance))
            ),
            -4.0,
            5.0,
            points=np.linspace(-0.5, 0.5, 11),
            epsabs=0,
            epsrel=1e-12,
            limit=500,
        )[0]

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


def test_mean_zero_warns_and_stays_finite():
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


@pytest.mark.parametrize("counts", [Y.astype(float), Y.tolist(), Y.astype(np.uint8)], ids=type)
def test_whole_numbers_of_any_type_are_counts(counts):
    model = GPPoissonRegressor(FIXED).fit(X, counts)
    np.testing.assert_array_equal(
        model.predict(NEW), GPPoissonRegressor(FIXED).fit(X, Y).predict(NEW)
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


@every_case("mean", [np.nan, np.inf, "1", [1.0, 2.0], True])
def test_refuses_mean(mean):
    refuses("mean must be a finite number or None", GPPoissonRegressor(FIXED, mean=mean).fit, X, Y)


def test_refuses_other_arguments():
    refuses("method", GPPoissonRegressor(FIXED, method="mcmc").fit, X, Y)
    model = GPPoissonRegressor(FIXED).fit(X, Y)
    for q in (0.0, 1.0, -0.1, np.nan, [[0.5]]):
        refuses(r"strictly between 0 and 1|q is nan", model.predict_quantiles, NEW, q)
    refuses("predictive must be one of", model.predict_quantiles, NEW, predictive="normal")
    refuses("got -1", model.predict_log_pmf, NEW, [0, -1, 0, 0])
    for y in ([1, 2], [[1], [2]], np.zeros((4, 1, 1))):
        refuses("one row per point", model.predict_log_pmf, NEW, y)


def test_counts_beyond_the_table(tmp_path):
    path = tmp_path / "few.h5"
    build(
        "poisson",
        path,
        method="direct",
        mu_range=(-3.0, 3.0),
        mu_step=0.1,
        log10_sigma_range=(-1.0, 1.0),
        log10_sigma_step=0.1,
        counts=(0, 1),
        workers=1,
    )
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


def test_weights_of_next_to_nothing_leave_the_prior():
    model = GPPoissonRegressor(FIXED, mean=1.3).fit(X, Y, sample_weight=np.full(25, 1e-9))
    np.testing.assert_allclose(model.latent(NEW), [[1.3] * 4, [0.5] * 4], rtol=1e-6)
