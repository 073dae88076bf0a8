"""Tails and quantiles of counts with random rates against mpmath, in both ways to integrate."""

import mpmath
import numpy as np
import pytest

from qpruntime._numba import INTERPRETED
from qpruntime.likelihoods.poisson_exp import LogNormalRate
from qpruntime.likelihoods.poisson_square import SquareRate
from qpruntime.predictive.counts import GammaRate, count_component, count_tail
from qpruntime.predictive.inversion import integer_quantiles
from tests.tools.cases import every_case

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
