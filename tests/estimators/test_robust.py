"""GPRobustRegressor: gradients by the noise, predictions by quadrature, outliers, manners."""

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from qpruntime import ConvergenceWarning, GPRobustRegressor, infer
from qpruntime.estimators.likelihood_parameters import robust_std
from qpruntime.learning import optimise
from qpruntime.learning.objective import KernelFamily, LeaveOneOutObjective, Objective
from qpruntime.likelihoods import get
from qpruntime.projection.projector import Projector
from tests.tools.cases import every_case, refuses
from tests.tools.oracle import slopes

FIXED = ConstantKernel(1.5, "fixed") * RBF(1.3, "fixed")
RNG = np.random.default_rng(8)
X = np.sort(RNG.uniform(0.0, 8.0, 40))[:, None]
CLEAN = 2.0 * np.sin(X[:, 0])
Y = CLEAN + 0.15 * RNG.standard_normal(40)
Y[[5, 17, 30]] += [6.0, -9.0, 4.0]
NEW = np.array([[0.5], [3.0], [5.5], [11.0]])


def objective_at(kind, method, names, theta, weights=None, n=40):
    kernel = ConstantKernel(1.0) * RBF(1.0)
    likelihood = get("student-t", nu=3.0, scale=0.4)
    family = KernelFamily(kernel, X[:n], np.zeros(n))
    function = kind(family, Y[:n], Projector(likelihood, method), 1e-9, 500, weights, names)
    function._slope = 0.0  # as tight as it gets
    return function(theta)


@every_case(
    ("kind", "method", "limit"),
    # Differences of the evidence carry its rounding, 1e-13, and the sites' tolerance.
    [(Objective, "ep", 1e-6), (LeaveOneOutObjective, "ep", 2e-5)],
)
@every_case("names", [("scale",), ("nu", "scale")])
def test_gradient_by_kernel_and_noise(kind, method, limit, names):
    theta = np.log([1.7, 1.2, 3.0, 0.3] if len(names) == 2 else [1.7, 1.2, 0.3])
    _, slope = objective_at(kind, method, names, theta)
    by_difference = slopes(lambda at: objective_at(kind, method, names, at)[0], theta)
    assert slope == pytest.approx(by_difference, rel=limit, abs=10 * limit)


@pytest.mark.parametrize(("kind", "method"), [(Objective, "ep"), (LeaveOneOutObjective, "qp")])
def test_gradient_under_weights(kind, method):
    theta, weights = np.log([1.7, 1.2, 3.0, 0.3]), np.resize([0.4, 1.0, 0.0, 2.5], 20)

    value, slope = objective_at(kind, method, ("nu", "scale"), theta, weights, 20)
    kernel = ConstantKernel(1.7) * RBF(1.2)
    options = {"weights": weights, "tol": 1e-10, "max_sweeps": 1000}
    post = infer(kernel(X[:20]), Y[:20], "student-t(nu=3, scale=0.3)", method, **options)
    expected = post.log_evidence if kind is Objective else weights @ post.loo()
    assert -value == pytest.approx(expected, rel=1e-7)
    by_difference = slopes(
        lambda at: objective_at(kind, method, ("nu", "scale"), at, weights, 20)[0], theta
    )
    # What is integrated carries 1e-12 of rounding, and sites their tolerance.
    assert slope == pytest.approx(by_difference, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("count", [4, 5])
def test_whole_weights_normalise_as_repeated_rows(count):
    rng = np.random.default_rng(count)
    y, weights = rng.standard_normal(count), rng.integers(1, 4, count)
    repeated = np.repeat(y, weights)
    model = GPRobustRegressor(FIXED, method="ep", optimize=False)
    one = model.fit(X[:count], y, sample_weight=weights.astype(float))
    assert one._centre_ == pytest.approx(np.median(repeated), rel=1e-15)
    spread = 1.4826022185056018 * np.median(np.abs(repeated - np.median(repeated)))
    assert one._unit_ == pytest.approx(spread, rel=1e-14)
    # Where more than half the targets coincide, the standard deviation serves.
    y = np.array([1.0, 1.0, 1.0, 4.0])
    flat = model.fit(X[:4], y, sample_weight=[1.0, 2.0, 3.0, 2.0])
    assert flat._unit_ == pytest.approx(np.repeat(y, [1, 2, 3, 2]).std(), rel=1e-14)
    for size in (1e308, 1e-308):  # sums that overflow, squares that vanish
        assert robust_std(y, np.full(4, size)) == pytest.approx(y.std(), rel=1e-14)
        assert robust_std(np.arange(5.0), np.full(5, size)) == pytest.approx(1.4826022185056018)


def test_fixed_parameters_are_plain_inference():
    bounds = {"nu": "fixed", "scale": "fixed", "start": 0.3}
    options = {"noise_bounds": bounds, "normalize_y": False}
    model = GPRobustRegressor(FIXED, nu=3.0, method="ep", tol=1e-11, **options).fit(X, Y)
    assert model.optimum_ is None
    assert model.likelihood_ is get("student-t", nu=3, scale=0.3)
    post = infer(FIXED(X), Y, "student-t(nu=3, scale=0.3)", method="ep", tol=1e-11)
    mean, variance = post.predict(FIXED(NEW, X), 1.5)
    np.testing.assert_allclose(model.latent(NEW), [mean, variance], rtol=1e-8)
    got, std = model.predict(NEW, return_std=True)
    np.testing.assert_array_equal(got, model.predict(NEW))
    np.testing.assert_allclose(std**2, variance, rtol=1e-8)
    for i, y in enumerate([0.3, 4.0, -30.0, 0.0]):

        def joint(f, y=y, i=i):
            return stats.t.pdf(y - f, 3.0, scale=0.3) * stats.norm.pdf(f, mean[i], std[i])

        reach = [mean[i] - 12 * std[i], mean[i] + 12 * std[i]]
        density = quad(joint, *reach, points=[mean[i], y] if abs(y) < 5 else None, limit=500)[0]
        log_density = model.predict_log_density(NEW[[i]], [y])[0]
        assert log_density == pytest.approx(np.log(density), rel=1e-7)


@pytest.mark.interpreted
@every_case(("nu", "scale"), [(1.0, 0.5), (4.0, 0.1), (60.0, 2.0)])
def test_quantiles_undo_the_distribution(nu, scale):
    model = GPRobustRegressor(
        FIXED, nu=nu, noise_bounds={"start": scale}, method="ep", optimize=False
    ).fit(X, Y)
    levels = [0.01, 0.25, 0.5, 0.9]
    quantiles = model.predict_quantiles(NEW, levels)
    mean, variance = model.latent(NEW)
    for i, row in enumerate(quantiles):
        std = np.sqrt(variance[i])
        f = mean[i] + std * np.linspace(-9.0, 9.0, 4001)
        weight = stats.norm.pdf(f, mean[i], std) * (f[1] - f[0])
        below = [weight @ stats.t.cdf((y - f) / scale, nu) for y in row]
        np.testing.assert_allclose(below, levels, rtol=1e-8)
    np.testing.assert_array_equal(model.predict_quantiles(NEW, 0.9), quantiles[:, 3])
    ends = model.predict_quantiles(NEW, [0.1, 0.9])
    np.testing.assert_allclose(model.predict_interval(NEW, 0.8), ends, rtol=1e-12)
    np.testing.assert_allclose(quantiles[:, 2], mean, rtol=1e-12)


def test_outliers_lose_their_pull():
    robust = GPRobustRegressor().fit(X, Y)
    assert robust.converged_
    assert robust.posterior_.n_negative >= 3
    kernel = ConstantKernel(1.0) * RBF(1.0) + WhiteKernel(0.1)
    normal = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0).fit(X, Y)

    def rmse(model):
        return np.sqrt(np.mean((model.predict(X) - CLEAN) ** 2))

    assert rmse(robust) < 0.12
    assert rmse(robust) < 0.3 * rmse(normal)
    # The scale is that of the bulk: 0.15 over what the tails of nu = 4 add.
    assert 0.08 < robust.scale_ < 0.25
    assert robust.nu_ == 4.0
    # Learning nu raises the evidence.
    fixed = GPRobustRegressor(method="ep").fit(X, Y)
    free = GPRobustRegressor(method="ep", noise_bounds={"nu": (1.0, 100.0)}).fit(X, Y)
    assert free.optimum_.value > fixed.optimum_.value + 0.1
    assert 1.0 <= free.nu_ < 3.0
    assert free.optimum_.theta.size == 3 + 2


def test_targets_without_noise_are_followed_as_far_as_the_kernel_matrix_goes():
    X = np.random.default_rng(5).uniform(-3.0, 3.0, (30, 2))
    y = np.sin(X[:, 0]) + 0.2 * X[:, 1]
    narrow = {"scale": (1e-7, 1.0)}
    kernel = ConstantKernel(1.0, "fixed") * RBF(1.0, "fixed")
    model = GPRobustRegressor(kernel, noise_bounds=narrow).fit(X, y)
    assert model.scale_ < 1e-4
    assert np.abs(model.predict(X) - y).max() < 1e-6
    # The matrix of a smoother kernel is singular to rounding, which limits the change of the sites.
    kernel = ConstantKernel(1.0, "fixed") * RBF(1.95, "fixed")
    model = GPRobustRegressor(kernel, noise_bounds=narrow).fit(X, y)
    assert np.abs(model.predict(X) - y).max() < 1e-6


def test_a_search_that_ends_where_inference_fails_says_so(monkeypatch):
    minimize = optimise.minimize

    def ends_far_out(function, theta, **options):
        found = minimize(function, theta, **options)
        found.x, found.fun = theta - 5.0, found.fun + 2.0
        return found

    monkeypatch.setattr(optimise, "minimize", ends_far_out)
    message = "inference fails further on; .* narrow the bounds of scale"
    with pytest.warns(ConvergenceWarning, match=message):
        model = GPRobustRegressor(FIXED).fit(X, Y)
    # The best scale before that is kept.
    assert 0.05 < model.scale_ < 0.3
    assert not model.converged_


@every_case(
    ("options", "words"),
    [
        ({"method": "vb"}, "method must be one of"),
        ({"nu": 0.0}, "nu of likelihood"),
        ({"noise_bounds": {"start": -1.0}}, "scale must be positive and finite, got -1"),
        ({"noise_bounds": {"start": "wide"}}, "scale must be positive"),
        ({"noise_bounds": {"scale": (1.0, 2.0)}}, "scale is .* outside its noise_bounds 1 to 2"),
        ({"noise_bounds": {"scale": 3.0}}, "two positive numbers or 'fixed'"),
        ({"noise_bounds": {"scale": "free"}}, "two positive numbers or 'fixed'"),
        ({"noise_bounds": {"scale": ()}}, "two positive numbers or 'fixed'"),
        ({"noise_bounds": {"nu": (0.0, 3.0)}}, "bounds of nu must be two positive numbers"),
        ({"noise_bounds": {"nu": (5.0, 9.0)}}, "nu is 4, outside its noise_bounds 5 to 9"),
        ({"noise_bounds": (5.0, 9.0)}, 'a dict of "nu" and "scale"'),
        ({"noise_bounds": {"mu": "fixed"}}, 'a dict of "nu" and "scale"'),
        ({"optimize": "bound"}, "optimize must be"),
    ],
)
def test_refuses_options(options, words):
    refuses(words, GPRobustRegressor(FIXED, **options).fit, X, Y)


def test_refuses_data_and_takes_targets_without_spread():
    model = GPRobustRegressor(FIXED, method="ep", optimize=False).fit(X, Y)
    refuses(r"y must have 4 rows", model.predict_log_density, NEW, [1.0])
    for q in (0.0, 1.0, np.nan, [[0.5]]):
        refuses("strictly between 0 and 1", model.predict_quantiles, NEW, q)
    # More than half of the targets are equal: the median deviation is 0.
    model = GPRobustRegressor(method="ep", optimize=False).fit(X, np.where(Y > 1.0, 5.0, 0.0))
    assert np.isfinite(model.predict(NEW)).all()
