"""GPRegressor: numbers, positive numbers, shares; with exposure."""

import math
from functools import partial

import numpy as np
import pytest
from scipy import stats
from sklearn.dummy import DummyRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.metrics import r2_score

from qpruntime import GPPoissonRegressor, GPRegressor, GPRobustRegressor, Likelihood, Search
from tests.tools.cases import every_case, refuses

RNG = np.random.default_rng(0)
X = RNG.uniform(0.0, 6.0, (60, 1))
F = np.sin(X[:, 0])
NOISY = 300.0 + 20.0 * F + 4.0 * RNG.standard_normal(60)
POSITIVE = RNG.gamma(8.0, np.exp(2.0 + F) / 8.0)
NEW = np.array([[0.5], [3.0], [9.0]])
# What is expected of f by sums over a standard normal variable.
Z = np.linspace(-12.0, 12.0, 20_001)
W = stats.norm.pdf(Z) / stats.norm.pdf(Z).sum()
KERNEL = ConstantKernel(1.0) * RBF(1.0)


def test_normal_noise_is_that_of_another_library_and_exact():
    """scikit-learn adds the noise to the kernel: the same evidence has the same optimum.

    Posterior, leave-one-out densities and evidence by dense algebra, at the same parameters.
    """
    y = NOISY - 300.0
    gaussian = GPRegressor(KERNEL, method="ep", normalize_y=False).fit(X, y)
    other = GaussianProcessRegressor(KERNEL + WhiteKernel(10.0), n_restarts_optimizer=2).fit(X, y)
    got = gaussian.log_marginal_likelihood_value_
    assert got == pytest.approx(other.log_marginal_likelihood_value_, abs=1e-5)
    scale = math.sqrt(other.kernel_.k2.noise_level)
    assert gaussian.parameters_["scale"] == pytest.approx(scale, rel=2e-3)
    mean, std = other.predict(NEW, return_std=True)
    found = gaussian.predict(NEW, return_std=True)
    np.testing.assert_allclose(found, (mean, std), rtol=5e-3, atol=5e-3)
    wanted = stats.norm(mean, std).ppf(np.array([0.05, 0.5, 0.95])[:, None]).T
    np.testing.assert_allclose(gaussian.predict_quantiles(NEW), wanted, rtol=5e-3, atol=2e-2)
    total = gaussian.kernel_(X) + gaussian.parameters_["scale"] ** 2 * np.eye(60)
    inverse = np.linalg.inv(total)
    evidence = stats.multivariate_normal(np.zeros(60), total).logpdf(y)
    assert gaussian.log_marginal_likelihood_value_ == pytest.approx(evidence, rel=1e-9)
    left = stats.norm(y - (inverse @ y) / np.diag(inverse), np.diag(inverse) ** -0.5).logpdf(y)
    np.testing.assert_allclose(gaussian.loo(), left, rtol=1e-7)
    K_star = gaussian.kernel_(NEW, X)
    covariance = gaussian.kernel_(NEW) - K_star @ inverse @ K_star.T
    mean, found = gaussian.latent(NEW, full_covariance=True)
    np.testing.assert_allclose(mean, K_star @ inverse @ y, rtol=1e-7)
    np.testing.assert_allclose(found, covariance, rtol=1e-6, atol=1e-9 * covariance.max())


@every_case("kind", [GPRegressor, GPRobustRegressor])
def test_a_shift_and_another_unit_change_nothing(kind):
    given = {"method": "ep", "optimize": Search(ftol=1e-12)}
    plain, moved = (kind(**given).fit(X, y) for y in (NOISY, 1e3 * NOISY - 5e4))
    np.testing.assert_allclose(moved.predict(NEW), 1e3 * plain.predict(NEW) - 5e4, rtol=1e-6)
    one, other = (getattr(m, "scale_", None) or m.parameters_["scale"] for m in (plain, moved))
    assert other == pytest.approx(1e3 * one, rel=1e-5)
    if kind is GPRegressor:
        np.testing.assert_allclose(moved.loo(), plain.loo() - math.log(1e3), rtol=1e-5)
    density = moved.predict_log_density(NEW, 1e3 * NOISY[:3] - 5e4)
    wanted = plain.predict_log_density(NEW, NOISY[:3]) - math.log(1e3)
    np.testing.assert_allclose(density, wanted, rtol=1e-5)


def test_predictions_are_integrals_over_f():
    """Densities, moments and quantiles; the evidence is highest where the shape was learnt."""
    gamma = GPRegressor(KERNEL, likelihood="gamma", method="ep").fit(X, POSITIVE)
    mean, variance = gamma.latent(NEW)
    shape = gamma.parameters_["shape"]
    first, std = gamma.predict(NEW, return_std=True)
    levels = np.array([1e-4, 0.3, 0.975])
    found = gamma.predict_quantiles(NEW, levels)
    density = gamma.predict_log_density(NEW, [4.0, 9.0, 2.0])
    for i, y in enumerate((4.0, 9.0, 2.0)):
        rate = np.exp(mean[i] + math.sqrt(variance[i]) * Z)
        given = stats.gamma(shape, scale=rate / shape)
        assert density[i] == pytest.approx(math.log(W @ given.pdf(y)), abs=1e-9)
        assert first[i] == pytest.approx(W @ rate, rel=1e-9)
        second = W @ (rate**2 * (1.0 + 1.0 / shape))
        assert std[i] == pytest.approx(math.sqrt(second - (W @ rate) ** 2), rel=1e-7)
        for level, at in zip(levels, found[i], strict=True):
            assert W @ given.cdf(at) == pytest.approx(level, rel=1e-7)
    best = gamma.log_marginal_likelihood_value_
    assert 5.0 < shape < 14.0
    for factor in (0.97, 1.03):
        spelt = f"gamma(shape={factor * shape!r})"
        fixed = GPRegressor(gamma.kernel_, likelihood=spelt, optimize=False, method="ep")
        assert fixed.fit(X, POSITIVE).log_marginal_likelihood_value_ < best + 1e-7


def test_a_density_of_ones_own_is_learnt():
    """The exponential distribution, written by hand, is the gamma distribution of shape 1."""
    own = Likelihood.from_log_prob(
        lambda f, y, theta: -f - y * math.exp(-f), name="waiting", outcomes=(0.0, math.inf),
        log_concave=True,
    )  # fmt: skip
    kernel = ConstantKernel(0.5, "fixed") * RBF(1.5, "fixed")
    few = slice(0, 20)
    mine = GPRegressor(kernel, likelihood=own, method="ep", optimize=False)
    mine.fit(X[few], POSITIVE[few])
    there = GPRegressor(kernel, likelihood="gamma(shape=1)", method="ep", optimize=False)
    there.fit(X[few], POSITIVE[few])
    # The prior means begin at different places and are found to 1e-3.
    assert mine.mean_ == pytest.approx(there.mean_, abs=1e-3)
    np.testing.assert_allclose(mine.predict(NEW), there.predict(NEW), rtol=1e-3)
    found, wanted = (model.predict_quantiles(NEW[:1], [0.1, 0.9]) for model in (mine, there))
    np.testing.assert_allclose(found, wanted, rtol=1e-3)


@pytest.mark.slow
def test_light_tails_of_ones_own_have_intervals():
    """Normal noise, written by hand: an observation is normal with both variances."""
    own = Likelihood.from_log_prob(
        lambda f, y, theta: -0.5 * ((y - f) / 0.3) ** 2 - math.log(0.3 * math.sqrt(2.0 * math.pi)),
        name="normal", outcomes=(-math.inf, math.inf), log_concave=True,
    )  # fmt: skip
    few = slice(0, 20)
    model = GPRegressor(RBF(1.5, "fixed"), likelihood=own, method="ep", optimize=False)
    model.fit(X[few], F[few])
    mean, variance = model.latent(NEW[:2])
    expected = mean[:, None] + np.sqrt(variance + 0.09)[:, None] * stats.norm.ppf([[0.05, 0.95]])
    np.testing.assert_allclose(model.predict_interval(NEW[:2]), expected, rtol=1e-4)


def test_corrected_marginals():
    """By the density of f on its grid: quantiles have their probability, moments are the sums."""
    few = slice(0, 25)
    model = GPRegressor(KERNEL, likelihood="gamma(shape=2)", optimize=False, correction="blend")
    model.fit(X[few], POSITIVE[few])
    f = model.marginals(NEW)
    found = model.predict_quantiles(NEW, [0.1, 0.8])
    mean, std = model.predict(NEW, return_std=True)
    np.testing.assert_allclose(mean, f.expect(np.exp), rtol=1e-10)
    second = f.expect(lambda f: 1.5 * np.exp(2.0 * f))
    np.testing.assert_allclose(std**2, second - mean**2, rtol=1e-8)
    for at, level in zip(found.T, (0.1, 0.8), strict=True):
        np.testing.assert_allclose(f.expect(partial(_below, at)), level, rtol=1e-9)


def _below(y, f):
    return stats.gamma(2.0, scale=np.exp(f) / 2.0).cdf(y[:, None])


def test_zeros_of_a_hurdle_say_nothing_of_the_rate():
    """The share of zeros is learnt, and f is as without those rows; quantiles are sums over f."""
    own = np.random.default_rng(3)
    y = np.where(own.uniform(size=60) < 0.4, 0.0, 1.0 + own.poisson(3.0 * np.exp(F)))
    fixed = {"dispersion": "fixed"}
    options = {"likelihood": "hurdle(dispersion=4)", "method": "ep", "parameter_bounds": fixed}
    model = GPRegressor(KERNEL, **options).fit(X, y)
    assert model.parameters_["zeros"] == pytest.approx(np.mean(y == 0.0), rel=1e-4)
    options |= {"parameter_bounds": fixed | {"zeros": "fixed"}, "optimize": False}
    rows = y > 0.0
    whole = GPRegressor(model.kernel_, **options).fit(X, y)
    alone = GPRegressor(model.kernel_, **options).fit(X[rows], y[rows])
    # Begun from the observations by a search that ends within 1e-3.
    np.testing.assert_allclose(alone.latent(NEW), whole.latent(NEW), rtol=1e-4)
    mean, variance = model.latent(NEW)
    zeros = model.parameters_["zeros"]
    for i, (low, high) in enumerate(model.predict_interval(NEW, 0.9)):
        rate = np.exp(mean[i] + math.sqrt(variance[i]) * Z)
        given = stats.nbinom(4.0, 4.0 / (4.0 + rate))

        def below(k, given=given):
            return zeros + (1.0 - zeros) * (W @ ((given.cdf(k) - given.pmf(0)) / given.sf(0)))

        assert low == 0.0
        assert below(high - 1.0) < 0.95 <= below(high)
        whole = W @ (rate / given.sf(0)) * (1.0 - zeros)
        assert model.predict(NEW)[i] == pytest.approx(whole, rel=1e-8)
        found = model.predict_log_density(NEW[[i]], [3.0])[0]
        assert np.exp(found) == pytest.approx(below(3.0) - below(2.0), rel=1e-8)


E = RNG.uniform(1.0, 60.0, 60)
RATE = np.exp(0.4 + F)
COUNTS = RNG.poisson(E * RATE * RNG.gamma(4.0, 0.25, 60)).astype(float)
AWAY = np.array([2.0, 0.5, 300.0])
FIXED = {"kernel": ConstantKernel(0.7, "fixed") * RBF(1.3, "fixed"), "method": "ep"}
FIXED["optimize"] = False


def test_exposures_are_those_of_the_estimator_of_counts():
    model = GPRegressor(likelihood="negative-binomial(dispersion=4)", **FIXED)
    model.fit(X, COUNTS, exposure=E)
    other = GPPoissonRegressor(link="exp", dispersion=4.0, mean=model.mean_, **FIXED)
    other.fit(X, COUNTS, exposure=E)
    np.testing.assert_allclose(model.latent(NEW), other.latent(NEW), rtol=1e-8)
    for exposure in (None, 7.0, AWAY):
        found = model.predict(NEW, exposure=exposure)
        np.testing.assert_allclose(found, other.predict(NEW, exposure=exposure), rtol=1e-8)
        found = model.predict_quantiles(NEW, [0.1, 0.9], exposure=exposure)
        wanted = other.predict_quantiles(NEW, [0.1, 0.9], exposure=exposure)
        np.testing.assert_array_equal(found, wanted)
    y = np.array([3.0, 0.0, 800.0])
    found = model.predict_log_density(NEW, y, exposure=AWAY)
    np.testing.assert_allclose(found, other.predict_log_pmf(NEW, y, exposure=AWAY), rtol=1e-8)
    expected = r2_score(COUNTS, E * model.predict(X))
    assert model.score(X, COUNTS, exposure=E) == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(model.loo(), other.posterior_.loo(), rtol=1e-6)
    drawn = model.sample(NEW, 4000, random_state=0, exposure=AWAY)
    below = (drawn <= model.predict_quantiles(NEW, 0.5, exposure=AWAY)).mean(axis=0)
    # Of counts the median has at least half: five standard errors.
    assert (below > 0.5 - 5.0 * math.sqrt(0.25 / 4000)).all()
    assert drawn[:, 2].mean() > 50.0 * drawn[:, 1].mean()
    refuses("exposure", model.predict_log_density, NEW, y)
    refuses("exposure", model.score, X, COUNTS)


def test_an_exposure_for_all_is_a_shift_of_the_mean():
    """The prior mean is found again, in units of the exposure."""
    plain = GPRegressor(likelihood="gamma", **FIXED).fit(X, RATE)
    scaled = GPRegressor(likelihood="gamma", **FIXED).fit(X, 50.0 * RATE, exposure=50.0)
    # The search for the mean ends within 1e-3.
    np.testing.assert_allclose(scaled.predict(NEW), plain.predict(NEW), rtol=2e-3)
    np.testing.assert_allclose(scaled.predict(NEW, exposure=50.0), 50.0 * scaled.predict(NEW))
    weights = np.where(np.arange(60) < 40, 1.0, 0.0)
    some = GPRegressor(likelihood="gamma", **FIXED).fit(X, E * RATE, weights, exposure=E)
    again = GPRegressor(likelihood="gamma", **FIXED)
    again.fit(X[:40], (E * RATE)[:40], exposure=E[:40])
    np.testing.assert_allclose(some.predict(NEW), again.predict(NEW), rtol=1e-12)


@every_case("correction", [None, "fact"])
def test_corrected_predictions_take_exposures_and_trials(correction):
    options = FIXED | {"correction": correction}
    model = GPRegressor(likelihood="hurdle", **options)
    model.fit(X[:15], COUNTS[:15], exposure=E[:15])
    both = [
        np.concatenate([[m], model.predict_quantiles(NEW[[i]], exposure=e).reshape(-1)])
        for i, e in enumerate(AWAY)
        for m in model.predict(NEW[[i]], exposure=e)
    ]
    found = np.column_stack(
        [model.predict(NEW, exposure=AWAY), model.predict_quantiles(NEW, exposure=AWAY)]
    )
    np.testing.assert_allclose(found, both, rtol=1e-9)
    assert found[2, 3] > 50.0 * found[1, 3]


def test_quantiles_of_trials_are_sums_over_f():
    trials = RNG.integers(1, 40, 60)
    y = np.column_stack([RNG.binomial(trials, RATE / (1.0 + RATE)), trials])
    model = GPRegressor(likelihood="binomial", **FIXED).fit(X, y)
    mean, variance = model.latent(NEW)
    ahead = np.array([1.0, 12.0, 3000.0])
    found = model.predict_quantiles(NEW, [0.05, 0.5, 0.95], trials=ahead)
    first, std = model.predict(NEW, return_std=True, trials=ahead)
    np.testing.assert_allclose(first, ahead * model.predict(NEW), rtol=1e-12)
    for i, n in enumerate(ahead):
        p = 1.0 / (1.0 + np.exp(-mean[i] - math.sqrt(variance[i]) * Z))
        for level, at in zip((0.05, 0.5, 0.95), found[i], strict=True):
            assert W @ stats.binom(n, p).cdf(at) >= level - 1e-12
            assert at == 0.0 or W @ stats.binom(n, p).cdf(at - 1.0) < level
        second = n * (W @ (p * (1.0 - p))) + n * n * (W @ p**2 - (W @ p) ** 2)
        assert std[i] == pytest.approx(math.sqrt(second), rel=1e-8)
    drawn = model.sample(NEW, 3000, random_state=1, trials=ahead)
    assert (np.abs(drawn.mean(axis=0) - first) < 5.0 * std / math.sqrt(3000)).all()
    model = GPRegressor(likelihood="gamma", **FIXED).fit(X, RATE)
    refuses("not for 'gamma'", model.predict_quantiles, NEW, trials=3)
    model = GPRegressor(likelihood="binomial", **FIXED).fit(X, PAIRS)
    for trials in (0, 2.5, np.ones(7), np.nan):
        refuses("trials", model.predict, NEW, trials=trials)


GAMMA = {"likelihood": "gamma"}
PAIRS = np.column_stack([RATE > 1.0, np.ones(60)])


@every_case(
    ("options", "y", "given", "words"),
    [
        ({"likelihood": "probit"}, F, {}, "no numbers y.*GPClassifier"),
        ({"likelihood": 3}, F, {}, "must be a name or a Likelihood"),
        (GAMMA, -POSITIVE, {}, "positive"),
        ({"parameter_bounds": {"shape": (1.0, 2.0)}}, F, {}, "by parameters of 'gaussian'.*scale"),
        (GAMMA | {"parameter_bounds": {"shape": (3.0, 4.0)}}, POSITIVE, {}, "outside"),
        (GAMMA | {"parameter_bounds": {"shape": 3.0}}, POSITIVE, {}, "two positive"),
        (GAMMA | {"prior_mean": DummyRegressor()}, POSITIVE, {}, "of y = f . noise"),
        ({"likelihood": "gaussian"}, F, {"exposure": 2.0}, "multiplies a mean"),
        ({"likelihood": "binomial"}, PAIRS, {"exposure": 2.0}, "trials"),
        ({"likelihood": "poisson"}, COUNTS, {"exposure": 2.0}, "GPPoissonRegressor"),
        (GAMMA, RATE, {"exposure": 0.0}, "positive"),
        (GAMMA, RATE, {"exposure": np.ones(3)}, "shape"),
    ],
)
def test_refusals(options, y, given, words):
    refuses(words, GPRegressor(**options).fit, X, y, **given)
