"""Tails and quantiles of counts with random rates: mpmath, and quadrature of scipy's laws."""

import math

import mpmath
import numpy as np
import pytest
from scipy.stats import nbinom, norm, poisson

from qpruntime._numba import INTERPRETED
from qpruntime.likelihoods.poisson_exp import LogNormalRate
from qpruntime.likelihoods.poisson_square import SquareRate
from qpruntime.predictive.counts import (
    DispersedRate,
    GammaRate,
    count_component,
    count_tail,
    dispersed_tail,
)
from qpruntime.predictive.density import log_pmf, mode, quantiles
from qpruntime.predictive.inversion import integer_quantiles
from tests.tools.cases import every_case
from tests.tools.oracle import unit_normal

# Parameters of the rate and a count: narrow and wide rates, both sides of where one changes into
# the other, tails, large counts.
NORMAL = {
    SquareRate: [(1.3, 0.4, 2), (0.0, 0.49, 0), (0.0, 0.51, 0), (2.0, 5.0, 30), (30.0, 0.51, 950)],
    LogNormalRate: [
        *((0.0, 1.0, 0), (0.0, 0.99, 0), (3.0, 0.2, 20), (3.0, 0.24, 20), (8.0, 2.0, 2000)),
        *((-20.0, 4.0, 0), (5.0, 0.05, 150), (1.0, 3.0, 5)),
    ],
}


def both(rate, y):
    return [count_tail(rate, y, upper) for upper in (False, True)]


def by_quadrature(rate, mean, std, y):
    """P(Y <= y) as an integral over f, cut where either factor has its width, and what is left."""
    mean, std, width = mpmath.mpf(mean), mpmath.mpf(std), 1.0 / mpmath.sqrt(y + 1.0)
    cuts = [mean + k * std for k in (-15, -9, -6, -4, -2, -1, 0, 1, 2, 4, 6, 9, 15)]
    if rate is SquareRate:
        link = lambda f: f * f  # noqa: E731
        steps = [sign * mpmath.sqrt(y + 1.0) + 0.7 * k for sign in (-1, 1) for k in range(-6, 7)]
    else:
        link = mpmath.exp
        steps = [mpmath.log(y + 1.0) + k * width for k in range(-12, 10)]
    cuts = sorted([*cuts, *(f for f in steps if cuts[0] < f < cuts[-1])])

    below = mpmath.quad(
        lambda f: (
            (mpmath.gammainc(y + 1, link(f), mpmath.inf) / mpmath.factorial(y))
            * mpmath.npdf(f, mean, std)
        ),
        cuts,
    )
    return below, 1 - below


@every_case(
    ("rate", "mean", "std", "y"), [(rate, *case) for rate in NORMAL for case in NORMAL[rate]]
)
def test_normal_latent_values(rate, mean, std, y):
    found = both(rate(np.array([mean]), np.array([std])), np.array([float(y)]))
    with mpmath.workdps(20):
        expected = [float(p) for p in by_quadrature(rate, mean, std, y)]
    # The trapezoid rule leaves 1e-17, the sums of a hundred terms their rounding; what is left
    # of 1 has 20 digits after the point.
    np.testing.assert_allclose(np.ravel(found), expected, rtol=1e-13, atol=5e-16)


@every_case(
    ("shape", "scale", "y"),
    [
        *((2.0, 3.0, 4), (0.3, 2.0, 0), (50.0, 1.0, 49), (50.0, 1.0, 50), (1e6, 1e-5, 12)),
        (1e20, 2e-19, 17),
    ],
)
def test_gamma_rates(shape, scale, y):
    found = both(GammaRate(np.array([shape]), np.array([scale])), np.array([float(y)]))
    with mpmath.workdps(60):
        k, c = mpmath.mpf(shape), mpmath.mpf(scale)
        pmf = lambda i: mpmath.exp(  # noqa: E731
            mpmath.loggamma(k + i)
            - mpmath.loggamma(k)
            - mpmath.loggamma(i + 1)
            + i * mpmath.log(c)
            - (k + i) * mpmath.log1p(c)
        )
        below = mpmath.fsum(pmf(i) for i in range(y + 1))
        expected = [float(below), float(1 - below)]
    np.testing.assert_allclose(np.ravel(found), expected, rtol=1e-13, atol=5e-16)


@pytest.mark.interpreted
def test_smallest_counts():
    def smallest_counts(rate, q, most):
        part = count_component(rate, count_tail, q, most)
        return integer_quantiles(part.cdf, part.low, part.high, q)

    rng = np.random.default_rng(3)
    n = 300 if INTERPRETED else 1000
    mean, std = rng.normal(1.0, 2.0, n), rng.uniform(0.01, 1.5, n)
    levels = np.array([1e-12, 0.01, 0.3, 0.5, 0.7, 0.99, 1.0 - 1e-12])
    which = rng.integers(levels.size, size=n)
    q = levels[which]
    for rate in (SquareRate(mean, std), LogNormalRate(mean, std), GammaRate(std, np.exp(mean))):
        y = smallest_counts(rate, levels, 10**9)[np.arange(n), which]
        for count, reached in ((y, True), (y - 1.0, False)):
            some = np.flatnonzero(count >= 0.0)
            below, above = both(rate[some], count[some])
            enough = np.where(q[some] <= 0.5, below >= q[some], above <= 1.0 - q[some])
            assert (enough == reached).all()
    # What is beyond the largest count is marked; mean rates from 1 to e^40.
    far = LogNormalRate(np.array([0.0, 20.0, 40.0]), np.ones(3))
    beyond = smallest_counts(far, np.array([0.5]), 1000)[:, 0] > 1000
    np.testing.assert_array_equal(beyond, [0, 1, 1])


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
def test_quantiles_are_the_smallest_counts_with_probabilities_and_mode(mean, std, r):
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
    y = np.arange(1000)
    log_p = log_pmf(*one(mean, std), y, link="exp", dispersion=r)
    for k in (0, 3, 60):
        # Of the likelihood's own quadrature, as of other likelihoods.
        wanted = expected(lambda f, k=k: scipys(f, r).pmf(k), mean, std)
        assert math.exp(log_p[k]) == pytest.approx(wanted, rel=1e-7)
    assert mode(*one(mean, std), link="exp", dispersion=r)[0] == log_p.argmax()


def test_gamma_predictive_has_the_moments_and_large_dispersions_are_poisson():
    # Mean and variance of a negative binomial count of log-normal mean, in closed form.
    mean, std, r = LATENT[0]
    y = np.arange(3000)
    p = np.exp(log_pmf(*one(mean, std), y, "gamma", "exp", r))
    rate, square = math.exp(mean + 0.5 * std**2), math.exp(2.0 * mean + 2.0 * std**2)
    assert p @ y == pytest.approx(rate, rel=1e-10)
    assert p @ y**2 - (p @ y) ** 2 == pytest.approx(square - rate**2 + rate + square / r, rel=1e-10)
    # Large dispersions are Poisson.
    p = log_pmf(*one(1.0, 0.5), np.arange(30), link="exp", dispersion=1e6)
    f, w = unit_normal(60)
    wanted = poisson.pmf(np.arange(30)[:, None], np.exp(1.0 + 0.5 * f)) @ w
    # The variance is larger by m/1e6, probabilities by some y^2 of that.
    np.testing.assert_allclose(np.exp(p), wanted, rtol=1e-3)
