"""Poisson with the square link: moments and sigma* for one peak, two peaks and huge counts."""

import math

import mpmath
import numpy as np
import pytest
from scipy.special import gammaln

from qpruntime import likelihoods
from qpruntime.likelihoods.poisson_square import LARGEST_COUNT, by_recursion, by_sum
from qpruntime.projection.projector import project_arrays
from tests.likelihoods.test_heaviside import by_quadrature
from tests.tools.cases import every_case, refuses


def with_b(b, sigma):
    """Return the cavity mean for which the two parameters of sigma*/s are y and b."""
    return b * sigma * math.sqrt(1.0 + 2.0 * sigma * sigma)


@every_case(
    ("mu", "sigma", "y"),
    [(0.7, 0.4, 0), (1.0, 0.5, 1), (-3.0, 2.0, 5), (0.2, 5.0, 17), (4.0, 0.1, 60), (-9.0, 3.0, 90)],
)
def test_moments_by_confluent_hypergeometric_functions(mu, sigma, y):
    # Supplement C.2, equation 9 and the two derivatives, as printed.
    with mpmath.workdps(60):
        m, s2 = mpmath.mpf(mu), mpmath.mpf(sigma) ** 2
        a = 1 + 2 * s2
        alpha, h = 2 * s2 / a, m * m / a
        z = -h / (2 * s2)
        f0, f1, f2 = (mpmath.hyp1f1(k - y, mpmath.mpf(2 * k + 1) / 2, z) for k in range(3))
        z = alpha ** (y + mpmath.mpf(1) / 2) / mpmath.sqrt(2 * mpmath.pi * s2)
        z *= mpmath.gamma(y + mpmath.mpf(1) / 2) * f0 / mpmath.factorial(y) * mpmath.exp(-h)
        first = (y * f1 / (s2 * f0) - 1) * 2 * m / a
        second = (y * f1 / (s2 * f0) - 1) * 2 / a
        bracket = 2 * (1 - y) * f2 / (3 * f0) + 2 * y * (f1 / f0) ** 2
        second -= bracket * 2 * m * m * y / (s2 * a) ** 2
        log_z, mean, variance = mpmath.log(z), s2 * first + m, s2 * s2 * second + s2
    got = project_arrays("poisson", mu, sigma, y, method="ep")
    assert float(got.log_z) == pytest.approx(float(log_z), rel=1e-13)
    assert float(got.mean) == pytest.approx(float(mean), rel=1e-13)
    assert float(got.std) ** 2 == pytest.approx(float(variance), rel=1e-12)


@pytest.mark.interpreted
@every_case("y", [0.0, 1.0, 7.0, 50.0, 51.0, 300.0, 1e6])
@every_case("sigma", [1e-4, 0.8, 1e4])
def test_mean_zero_is_closed(y, sigma):
    # M_2y = (2y - 1)!!, and the variance is that of a chi distribution with 2y + 1 degrees.
    log_z, mean, variance = likelihoods.get("poisson").moments(0.0, sigma, y, np.zeros(0))
    s2 = sigma**2 / (1 + 2 * sigma**2)
    double_factorial = gammaln(2 * y + 1) - gammaln(y + 1) - y * math.log(2.0)
    expected = y * math.log(s2) + double_factorial - gammaln(y + 1) - 0.5 * math.log1p(2 * sigma**2)
    # gammaln of 1e6 is 1e7.
    assert log_z == pytest.approx(expected, rel=1e-13, abs=1e-15 * max(y * math.log(y + 1), 1.0))
    assert mean == 0.0
    assert variance == pytest.approx(s2 * (2 * y + 1), rel=1e-14)


@pytest.mark.interpreted
@every_case("y", [51.0, 200.0, 20000.0])
@every_case("b", [1e-12, 1e-3, 0.02, 0.3, 4.0, 300.0, 1e7])
def test_sum_equals_recursion(y, b):
    for sigma in (1e-4, 0.5, 3.0, 1e4):
        mu = with_b(b, sigma)
        long, short = by_recursion(mu, sigma, y), by_sum(mu, sigma, y)
        np.testing.assert_allclose(short[:2], long[:2], rtol=1e-14 * math.sqrt(y))
        # The recursion's variance is left over from terms y^2 times as large.
        assert short[2] == pytest.approx(long[2], rel=1e-15 * y * y if y < 1e3 else 1e-6)


@pytest.mark.interpreted
@every_case("y", [0, 1, 2, 9, 60, 1000])
def test_sigma_star_scales(y):
    for b in (0.0, 1e-6, 0.05, 0.7, 5.0, 60.0, 1e8):
        unit = by_quadrature(with_b(b, 1.0), 1.0, y, "poisson")[3] * math.sqrt(3.0)
        for sigma in (1e-6, 1e-3, 30.0, 1e8):
            s = sigma / math.sqrt(1.0 + 2.0 * sigma * sigma)
            star = by_quadrature(with_b(b, sigma), sigma, y, "poisson")[3]
            # Far from the likelihood's own peak y log f^2 is larger, and rounds more.
            assert star / s == pytest.approx(unit, rel=1e-13 + 2e-15 * y)


@pytest.mark.interpreted
@every_case("y", [0, 1, 2, 5, 20, 53, 54, 55, 200, 1000])
def test_moments_by_the_quadrature_of_sigma_star(y):
    # One peak or two, far apart or merged, over every frame; and Theorem 2.
    reach = 30.0 / math.sqrt(2.0 * y + 1.0)
    for b in np.concatenate([[0.0, 1e-3], np.linspace(0.05, 1.0, 12) * reach, [2 * reach, 99.0]]):
        mu = with_b(b, 0.6)
        log_z, mean, variance = likelihoods.get("poisson").moments(mu, 0.6, float(y), np.zeros(0))
        got = by_quadrature(mu, 0.6, y, "poisson")
        assert got[0] == pytest.approx(log_z, rel=1e-13, abs=1e-13)
        assert got[1] == pytest.approx(mean, rel=1e-12, abs=1e-13 * math.sqrt(variance))
        # Integrated as second moment less first squared, around 0.
        assert got[2] == pytest.approx(variance, rel=1e-12 + 1e-14 * y)
        assert got[3] <= math.sqrt(variance) * (1 + 1e-13)


@every_case("y", [1, 2, 6, 54, 500])
def test_frames_meet(y):
    # Where the second peak is dropped, exp(-46) of the first: drop = 46, solved for b.
    n = 2.0 * y
    low, high = 0.0, 100.0
    for _ in range(100):
        b = 0.5 * (low + high)
        drop = 0.5 * b * math.hypot(b, 2.0 * math.sqrt(n)) + 2.0 * n * math.asinh(0.5 * b / n**0.5)
        low, high = (b, high) if drop < 46.0 else (low, b)
    means = [with_b(b * f, 1.0) for f in (1.0 - 1e-9, 1.0 + 1e-9)]
    two, one = (by_quadrature(mu, 1.0, y, "poisson")[3] for mu in means)
    # b itself moves by 2e-9, and log sigma* by less than a tenth of that.
    assert two == pytest.approx(one, rel=3e-10)
    own = likelihoods.get("poisson")
    sides = [own.frame(mu, 1.0, float(y), np.zeros(0))[3] for mu in means]
    assert abs(sides[0]) >= 2.0
    assert sides[1] == 0.0


@pytest.mark.interpreted
def test_log_prob_at_zero():
    likelihood = likelihoods.get("poisson")
    np.testing.assert_array_equal(likelihood.log_prob(0.0, [0, 1, 50]), [0.0, -np.inf, -np.inf])
    # y = 16 is where log y! changes to its asymptotic series.
    y = np.arange(0.0, 30.0)
    f = 3.1
    expected = 2 * y * math.log(f) - f * f - gammaln(y + 1)
    np.testing.assert_allclose(likelihood.log_prob(f, y), expected, rtol=1e-14, atol=1e-14)
    # At its peak the likelihood is y^y e^-y/y!, which rounding of the parts must not spoil.
    with mpmath.workdps(40):
        peak = 1e6 * mpmath.log(1e6) - 1e6 - mpmath.loggamma(1e6 + 1)
    assert likelihood.log_prob(1e3, 1e6) == pytest.approx(float(peak), abs=1e-9)


@pytest.mark.interpreted
@every_case(
    ("wrong", "words"),
    [
        *((-1, "got -1"), (2.5, "got 2.5"), (math.nan, "got nan"), (math.inf, "got inf")),
        *((-math.inf, "got -inf"), (LARGEST_COUNT + 1, "up to 1000000 .*got 1000001")),
        *((1 + 2j, "complex"), ("3", "<U1"), (None, "got nan|other objects"), ([[]], "sequence")),
    ],
)
def test_no_counts(wrong, words):
    values = np.array([0, wrong], dtype=object) if wrong in (None, [[]]) else np.array([wrong])
    refuses(words, likelihoods.get("poisson").validate, values)
