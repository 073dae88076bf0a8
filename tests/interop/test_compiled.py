"""Functions for loops that users compile: equal to the methods, and refusals."""

import math

import numba
import numpy as np
import pytest

from qpruntime import Likelihood, functions
from qpruntime.interop.compiled import NAMES
from tests.tools.cases import every_case


@pytest.mark.slow
@every_case("name", ["probit", "heaviside"])
def test_a_compiled_loop_has_the_numbers_of_the_method(name):
    """To the last digits: sums may be fused in one and not in the other."""
    rng = np.random.default_rng(3)
    mu, sigma = 4.0 * rng.standard_normal(300), 10.0 ** rng.uniform(-3.0, 3.0, 300)
    y, found = rng.choice([-1.0, 1.0], 300), np.empty(300)
    own = functions(name)
    kernel = own.kernel("sigma_star")

    @numba.njit
    def loop(mu, sigma, y, found):
        for i in range(mu.size):
            found[i] = kernel(mu[i], sigma[i], y[i])

    loop(mu, sigma, y, found)
    np.testing.assert_allclose(found, own.sigma_star(mu, sigma, y), rtol=1e-15, atol=0.0)


@pytest.mark.slow
def test_counts_without_a_row_are_integrated():
    kernel = functions("poisson").kernel("sigma_star")
    for mu, y in ((0.2, 4), (0.2, 0), (0.0, 600), (90.0, 600)):
        want = functions("poisson").sigma_star(mu, 1.0, y)
        assert kernel(mu, 1.0, y) == pytest.approx(float(want), rel=1e-14)


@pytest.mark.slow
@every_case("name", NAMES)
def test_every_function_of_student_t(name):
    own = functions("student-t")
    expected = getattr(own, name)(0.3, 0.8, 1.0)
    np.testing.assert_allclose(own.kernel(name)(0.3, 0.8, 1.0), expected, rtol=1e-14)


@pytest.mark.slow
def test_own_log_densities_and_failures():
    own = functions(Likelihood.from_log_prob(lambda f, y: -abs(f - y), name="own-kernel"))
    for name in ("log_partition", "expected_log_prob"):
        want = getattr(own, name)(0.3, 0.8, 1.0)
        assert own.kernel(name)(0.3, 0.8, 1.0) == pytest.approx(float(want), rel=1e-12)
    growing = functions(Likelihood.from_log_prob(lambda f, y: f * f, name="growing-kernel"))
    assert math.isnan(growing.kernel("sigma_star")(0.0, 1.0, 0.0))
