"""Counts that vary more than Poisson ones: found, learnt, predicted; and left alone where not."""

import math

import numpy as np
import pytest
from scipy.stats import binom, nbinom, norm, poisson
from sklearn.linear_model import PoissonRegressor
from sklearn.metrics import mean_poisson_deviance

from qpruntime import GPPoissonRegressor
from qpruntime.estimators.poisson import BOUNDS, Noise, _excess, noise_given
from qpruntime.predictive.counts import DispersedRate, dispersed_tail
from qpruntime.predictive.density import log_pmf, mode, quantiles
from tests.tools.cases import every_case, refuses
from tests.tools.oracle import unit_normal

Q = np.array([1e-6, 0.05, 0.5, 0.95, 1.0 - 1e-6])

# Mean and standard deviation of f, and dispersion: none is narrow, either is, both are; wide.
LATENT = [
    *((1.3, 0.4, 2.0), (-2.0, 1.0, 0.1), (3.0, 1e-3, 0.5), (4.0, 0.3, 1e4), (6.0, 0.01, 3e3)),
    (0.5, 3.0, 0.3),
]


def one(mean, std):
    return np.array([mean]), np.array([std**2])


def expected(function, mean, std):
    """E function(f) for f ~ N(mean, std^2), by 4001 nodes: ten times as dense as what is tested."""
    z = np.linspace(-9.0, 9.0, 4001)
    weights = norm.pdf(z)
    return function(mean + std * z) @ (weights / weights.sum())


def scipys(f, r):
    """Negative binomial of mean e^f; scipy's has a probability of success."""
    return nbinom(r, r / (r + np.exp(f)))


@every_case(("mean", "std", "r"), LATENT)
def test_distribution_by_quadrature(mean, std, r):
    rate = DispersedRate(*(np.array([v]) for v in (mean, std, r)))
    for y in (0.0, 2.0, 40.0, 900.0):
        for upper in (False, True):
            got = dispersed_tail(rate, np.array([y]), upper)[0]
            side = "sf" if upper else "cdf"
            wanted = expected(lambda f, s=side, y=y: getattr(scipys(f, r), s)(y), mean, std)
            # What incomplete beta functions are good for.
            assert got == pytest.approx(wanted, rel=1e-8, abs=1e-11)


@every_case(("mean", "std", "r"), LATENT[:5])
def test_quantiles_are_the_smallest_counts(mean, std, r):
    found = quantiles(*one(mean, std), Q, link="exp", dispersion=r)[0]
    for q, y in zip(Q, found, strict=True):
        # From the side that does not cancel.
        side, level = ("sf", 1.0 - q) if q > 0.5 else ("cdf", q)

        def tail(y, side=side):
            return expected(lambda f: getattr(scipys(f, r), side)(y), mean, std)

        sign = 1.0 if side == "cdf" else -1.0
        slack = 1e-9 * level
        assert sign * (tail(y) - level) > -slack
        assert y == 0 or sign * (tail(y - 1) - level) < slack


@every_case(("mean", "std", "r"), LATENT[:5])
def test_probabilities_and_mode(mean, std, r):
    y = np.arange(1000)
    log_p = log_pmf(*one(mean, std), y, link="exp", dispersion=r)
    for k in (0, 3, 60):
        # Of the likelihood's own quadrature, as of other likelihoods.
        wanted = expected(lambda f, k=k: scipys(f, r).pmf(k), mean, std)
        assert math.exp(log_p[k]) == pytest.approx(wanted, rel=1e-7)
    assert mode(*one(mean, std), link="exp", dispersion=r)[0] == log_p.argmax()


def test_gamma_predictive_has_the_moments():
    # Mean and variance of a negative binomial count of log-normal mean, in closed form.
    mean, std, r = LATENT[0]
    y = np.arange(3000)
    p = np.exp(log_pmf(*one(mean, std), y, "gamma", "exp", r))
    rate, square = math.exp(mean + 0.5 * std**2), math.exp(2.0 * mean + 2.0 * std**2)
    assert p @ y == pytest.approx(rate, rel=1e-10)
    assert p @ y**2 - (p @ y) ** 2 == pytest.approx(square - rate**2 + rate + square / r, rel=1e-10)


@pytest.fixture(scope="module")
def visits():
    """Counts of 240 people with 6 features, of which two matter, and a thousand to predict."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(1240, 6))
    rate = np.exp(1.2 + 0.4 * X[:, 0] - 0.3 * X[:, 1])
    return X, rng.poisson(rate * rng.gamma(1.5, 1.0 / 1.5, rate.size)), rate


@pytest.fixture(scope="module")
def default(visits):
    X, y, _ = visits
    return GPPoissonRegressor(method="ep").fit(X[:240], y[:240])


def test_the_default_is_as_good_as_a_line(visits, default):
    # Given that counts are Poisson it took their noise for a rough rate.
    X, y, _ = visits
    line = PoissonRegressor(alpha=0.0).fit(X[:240], y[:240])
    deviances = [mean_poisson_deviance(y[240:], m.predict(X[240:])) for m in (default, line)]
    assert deviances[0] < 1.02 * deviances[1]


def test_the_dispersion_is_found(visits, default):
    assert default.link_ == "exp"
    # 1.5 was drawn; a maximum likelihood estimate of 240 counts has a deviation of about .25.
    assert 0.9 < default.dispersion_ < 2.4
    assert default.likelihood_.parameters == {"dispersion": default.dispersion_}
    assert default.optimum_.theta[-1] == pytest.approx(math.log(default.dispersion_), abs=1e-12)


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
    assert noise_given(*arguments) == noise


@every_case(
    ("arguments", "words"),
    [
        (
            ("square", 2.0),
            "link 'square' has Poisson counts only, got dispersion=2: use link='exp'",
        ),
        (("exp", 0.0), "dispersion must be positive"),
        (("exp", -math.inf), "dispersion must be positive"),
        (("exp", "much"), "dispersion must be a positive number or 'auto', got 'much'"),
        (("exp", None), "dispersion must be a positive number or 'auto', got None"),
        (("exp", math.nan), "dispersion must be a positive number or 'auto', got nan"),
        (("exp", 1e10), "dispersion must be from 0.001 to 1e.09 or inf"),
    ],
)
def test_dispersions_that_are_none(arguments, words):
    refuses(words, noise_given, *arguments, False, False)


def test_large_dispersions_are_poisson():
    p = log_pmf(*one(1.0, 0.5), np.arange(30), link="exp", dispersion=BOUNDS[1])
    f, w = unit_normal(60)
    wanted = poisson.pmf(np.arange(30)[:, None], np.exp(1.0 + 0.5 * f)) @ w
    # The variance is larger by m/1e6, probabilities by some y^2 of that.
    np.testing.assert_allclose(np.exp(p), wanted, rtol=1e-3)


def few(seed, dispersion):
    """Fifty counts of mean e^1 to e^2, with noise of this dispersion."""
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


def test_few_poisson_rows_stay_poisson():
    assert all(
        GPPoissonRegressor(method="ep").fit(*few(seed, math.inf)).dispersion_ == math.inf
        for seed in range(6)
    )
