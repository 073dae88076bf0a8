"""Joint distributions of the latent function, and draws of it, in every engine."""

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from qpruntime import GPClassifier, GPPoissonRegressor, GPRegressor, GPRobustRegressor
from tests.tools.cases import every_case, refuses

RNG = np.random.default_rng(3)
X = np.sort(RNG.uniform(0.0, 5.0, (40, 1)), axis=0)
F = np.sin(2.0 * X[:, 0])
REALS = F + 0.2 * RNG.standard_normal(40)
COUNTS = RNG.poisson(np.exp(1.0 + F))
NEW = np.array([[1.0], [0.2], [4.9], [7.0], [1.1]])
KERNEL = ConstantKernel(0.8, "fixed") * Matern(1.3, "fixed", nu=1.5)
FIXED = {"optimize": False, "method": "ep", "tol": 1e-10}
ENGINES = [{"solver": "dense"}, {"solver": "markov"}, {"inducing": X}]
CASES = [
    (GPRegressor(KERNEL + WhiteKernel(0.05, "fixed"), likelihood="gaussian", **FIXED), REALS),
    (GPRobustRegressor(KERNEL, noise_bounds={"start": 0.2}, **FIXED), REALS),
    (GPPoissonRegressor(KERNEL, link="exp", dispersion=np.inf, **FIXED), COUNTS),
    (GPClassifier(KERNEL, **FIXED), F > 0.0),
]


def by_algebra(model):
    """Covariance at new points from the sites, in units of the posterior."""
    kernel, tau = model.kernel_, model.posterior_.sites.tau
    K, K_star = kernel(X), kernel(NEW, X)
    return kernel(NEW) - K_star @ np.linalg.solve(np.eye(40) + tau[:, None] * K, (tau * K_star).T)


@every_case("options", ENGINES)
@every_case(("model", "y"), CASES)
def test_covariances_are_those_of_the_sites(model, y, options):
    if "inducing" in options and isinstance(model, GPRegressor):
        return  # inducing points have no white noise: it is a test of the others
    own = type(model)(**{**model.get_params(deep=False), **options}).fit(X, y)
    mean, covariance = own.latent(NEW, full_covariance=True)
    once, variance = own.latent(NEW)
    np.testing.assert_allclose(mean, once, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(np.diag(covariance), variance, rtol=1e-7)
    wanted = own.latent_units()[1] ** 2 * by_algebra(own)
    # Inducing inputs at all rows leave what jitter does.
    atol = 1e-6 if "inducing" in options else 1e-9
    np.testing.assert_allclose(covariance, wanted, atol=atol * np.abs(wanted).max())


@every_case("options", ENGINES)
def test_draws_have_mean_and_covariance(options):
    model = GPPoissonRegressor(KERNEL, link="exp", dispersion=np.inf, **FIXED, **options)
    model.fit(X, COUNTS)
    count = 4_000
    found = model.sample_latent(NEW, count, random_state=0)
    mean, covariance = model.latent(NEW, full_covariance=True)
    variance = np.diag(covariance)
    # Five standard errors of means and of covariances.
    assert np.all(np.abs(found.mean(axis=0) - mean) < 5.0 * np.sqrt(variance / count))
    error = np.sqrt((np.outer(variance, variance) + covariance**2) / count)
    assert np.all(np.abs(np.cov(found.T) - covariance) < 5.0 * error)
    np.testing.assert_array_equal(found, model.sample_latent(NEW, count, random_state=0))


def test_classes_have_a_process_each():
    labels = np.digitize(F, [-0.5, 0.5])
    model = GPClassifier(KERNEL, **FIXED).fit(X, labels)
    assert model.sample_latent(NEW, 7, 0).shape == (7, 5, 3)
    mean, covariance = model.latent(NEW, full_covariance=True)
    assert mean.shape == (5, 3)
    assert covariance.shape == (3, 5, 5)
    np.testing.assert_allclose(np.diagonal(covariance, 0, 1, 2).T, model.latent(NEW)[1], rtol=1e-9)
    model = GPClassifier(KERNEL, multi_class="joint", optimize=False, method="ep").fit(X, labels)
    refuses("has no joint draws", model.sample_latent, NEW)


def test_observations_have_the_quantiles_that_are_predicted():
    """Counts with exposure, reals and positive numbers: five standard errors of a share."""
    count = 20_000
    model = GPPoissonRegressor(KERNEL, link="exp", dispersion=3.0, **FIXED).fit(X, COUNTS)
    exposure = np.array([1.0, 2.0, 0.5, 1.0, 3.0])
    drawn = model.sample(NEW, count, 0, exposure)
    for k in (1, 4):
        below = np.broadcast_to(np.arange(k + 1), (5, k + 1))
        wanted = np.exp(model.predict_log_pmf(NEW, below, exposure)).sum(axis=1)
        np.testing.assert_allclose((drawn <= k).mean(axis=0), wanted, atol=0.018)
    robust = GPRobustRegressor(KERNEL, noise_bounds={"start": 0.2}, **FIXED).fit(X, REALS)
    gamma = GPRegressor(KERNEL, likelihood="gamma(shape=8)", **FIXED).fit(X, np.exp(REALS))
    for own in (robust, gamma):
        drawn = own.sample(NEW, count, 0)
        for level in (0.1, 0.7):
            share = (drawn <= own.predict_quantiles(NEW, level)).mean(axis=0)
            np.testing.assert_allclose(share, level, atol=0.018)
        np.testing.assert_array_equal(drawn, own.sample(NEW, count, 0))


def test_trials():
    trials = np.full(40, 12)
    successes = RNG.binomial(trials, 1.0 / (1.0 + np.exp(-2.0 * F)))
    pairs = np.column_stack([successes, trials])
    model = GPRegressor(KERNEL, likelihood="binomial", **FIXED).fit(X, pairs)
    seen = successes / trials
    rest = ((seen - model.predict(X)) ** 2).sum() / ((seen - seen.mean()) ** 2).sum()
    assert model.score(X, pairs) == pytest.approx(1.0 - rest, rel=1e-12)
    mean, variance = model.latent(NEW)
    z = np.linspace(-9.0, 9.0, 20_001)
    w = np.exp(-0.5 * z * z) / np.exp(-0.5 * z * z).sum()
    share = 1.0 / (1.0 + np.exp(-(mean[:, None] + np.sqrt(variance)[:, None] * z)))
    np.testing.assert_allclose(model.predict(NEW), share @ w, rtol=1e-9)
