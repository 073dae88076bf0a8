"""Predictive counts: pmf, quantiles and mode against quadrature, scipy, mpmath and sampling."""

import mpmath
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import gammaincc
from scipy.stats import lognorm, nbinom, ncx2, norm, poisson

from qpruntime import NumericalError
from qpruntime.likelihoods.poisson_square import LARGEST_COUNT
from qpruntime.predictive.counts import LINKS
from qpruntime.predictive.density import log_pmf, mode, quantiles
from tests.tools.cases import every_case, refuses
from tests.tools.oracle import unit_normal

# Latent mean and standard deviation: one peak, two, near zero, wide, narrow, large.
LATENT = [(1.3, 0.4), (0.1, 1.0), (-0.4, 0.2), (2.0, 5.0), (-3.0, 1e-3), (40.0, 2.0)]
Q = np.array([1e-6, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0 - 1e-6])


def one(mean, std):
    return np.array([mean]), np.array([std**2])


@pytest.mark.parametrize(("mean", "std"), LATENT[:3])
def test_exact_pmf_by_quadrature(mean, std):
    """E Poisson(y | f^2) by 100 Gauss-Hermite nodes, for standard deviations that these resolve."""
    y, (nodes, weights) = np.arange(9), unit_normal(100)
    wanted = poisson.pmf(y[:, None], (mean + std * nodes) ** 2) @ weights
    np.testing.assert_allclose(np.exp(log_pmf(*one(mean, std), y)), wanted, rtol=1e-10)


#: Likewise for rates e^f: typical, wide, narrow, large, next to nothing.
BOTH = [("square", *case) for case in LATENT]
BOTH += [("exp", *case) for case in ((1.3, 0.4), (0.1, 1.5), (2.0, 1e-3), (6.0, 0.3), (-8.0, 0.5))]


@pytest.mark.interpreted
@every_case(("link", "mean", "std"), BOTH)
def test_gamma_matches_two_moments_of_the_rate(link, mean, std):
    average, scale = LINKS[link].gamma(*one(mean, std))
    square = ncx2(1, (mean / std) ** 2, scale=std**2)
    rate = square if link == "square" else lognorm(std, scale=np.exp(mean))
    assert average[0] == pytest.approx(rate.mean(), rel=1e-12)
    assert LINKS[link].mean_rate(*one(mean, std))[0] == average[0]
    # scipy's variance of a narrow rate cancels less than this.
    assert average[0] * scale[0] == pytest.approx(rate.var(), rel=1e-9)


@every_case(
    ("mean", "variance", "y"),
    [
        *((m, s * s, y) for m, s in LATENT for y in (0, 1, 3, 50)),
        (30.0, 1e-12, 950),
        (900.0, 3.0, 800_000),
        (0.0, 1e-10, 3),
        (5.0, 1e-29, 20),
    ],
)
def test_negative_binomial_by_mpmath(mean, variance, y):
    with mpmath.workdps(60):
        m, v = mpmath.mpf(mean), mpmath.mpf(variance)
        rate, half = m * m + v, v * (2 * m * m + v)
        k, c = rate**2 / half / 2, 2 * half / rate
        expected = mpmath.loggamma(k + y) - mpmath.loggamma(k) - mpmath.loggamma(y + 1)
        expected += y * mpmath.log(c) - (k + y) * mpmath.log1p(c)
    got = log_pmf(np.array([mean]), np.array([variance]), y, "gamma")
    np.testing.assert_allclose(got, float(expected), rtol=1e-13, atol=1e-14)


@every_case("predictive", ["exact", "gamma"])
@every_case(("mean", "std"), LATENT)
def test_sums_to_one_with_the_right_mean(mean, std, predictive):
    y = np.arange(20_000)
    p = np.exp(log_pmf(*one(mean, std), y, predictive))
    assert p.sum() == pytest.approx(1.0, rel=1e-11)
    assert p @ y == pytest.approx(mean**2 + std**2, rel=1e-11)


@every_case(("link", "mean", "std"), BOTH)
def test_quantiles_of_the_exact_predictive(link, mean, std):
    rate = np.square if link == "square" else np.exp

    # P(Y <= y | f) = Q(y + 1, rate), the regularised incomplete gamma function.
    def below(y):
        return quad(
            lambda f: gammaincc(y + 1.0, rate(f)) * norm.pdf(f, mean, std),
            *(mean - 9.0 * std, mean + 9.0 * std),
            points=[mean - k * std for k in (-3, 0, 3)],
            epsabs=1e-12,
            limit=500,
        )[0]

    for level, count in zip(Q, quantiles(*one(mean, std), Q, link=link)[0], strict=True):
        assert count == 0 or below(count - 1) < level + 1e-10
        assert below(count) > level - 1e-10


@every_case(("mean", "std"), LATENT)
def test_quantiles_of_the_negative_binomial(mean, std):
    average, scale = LINKS["square"].gamma(*one(mean, std))
    expected = nbinom.ppf(Q, (average / scale)[:, None], 1.0 / (1.0 + scale[:, None]))
    np.testing.assert_array_equal(quantiles(*one(mean, std), Q, "gamma"), expected)


@pytest.mark.interpreted
@every_case(("link", "mean", "std"), BOTH)
def test_mode(link, mean, std):
    # Of the square link the most probable count of the negative binomial, not the exact one's.
    p = log_pmf(*one(mean, std), np.arange(5000), "gamma" if link == "square" else "exact", link)
    assert p[mode(*one(mean, std), link=link)[0]] == pytest.approx(p.max(), abs=1e-9)


def test_large_counts_and_a_latent_variance_lost_to_rounding():
    mean, std = np.array([900.0]), np.array([0.3])
    found = quantiles(mean, std**2, Q[1:-1])[0]
    normal = 900.0 + norm.ppf(Q[1:-1]) * np.hypot(0.3, 0.5)  # sqrt(Y) ~ N(f, 1/4)
    np.testing.assert_allclose(np.sqrt(found), normal, rtol=1e-6)
    # A latent variance is lost to rounding.
    for predictive in ("exact", "gamma"):
        p = np.exp(log_pmf(np.array([1.5]), np.zeros(1), np.arange(8), predictive))
        np.testing.assert_allclose(p, poisson.pmf(np.arange(8), 2.25), rtol=1e-12)
        found = quantiles(np.array([1.5]), np.zeros(1), Q, predictive)[0]
        np.testing.assert_array_equal(found, poisson.ppf(Q, 2.25))


@pytest.mark.parametrize("predictive", ["exact", "gamma"])
def test_quantiles_have_a_bound(predictive):
    words, given = rf"point 1.*beyond {LARGEST_COUNT}.*exposure", np.array([[1.0, 5.0], [1.0, 1e6]])
    refuses(words, quantiles, *given, Q, predictive, error=NumericalError)


def test_refuses():
    refuses(r"predictive must be one of.*'poisson'", log_pmf, *one(1.0, 1.0), 3, "poisson")
    refuses("counts must be", log_pmf, *one(1.0, 1.0), 0.5, "gamma")
