"""Heaviside: moments and sigma* of a truncated normal, from deep in its tail to no truncation."""

import math

import mpmath
import numpy as np
import pytest
from scipy.special import erfcx
from scipy.stats import truncnorm

from qpruntime import InputError, likelihoods, project
from qpruntime.projection.projector import project_arrays
from qpruntime.quadrature.sigma_star_kernels import OK, exact_point
from tests.tools.cases import every_case

EXPONENTIAL = 0.90319728556863  # sigma*/sigma_EP of an exponential density


def by_quadrature(mu, sigma, y):
    theta, _, has_frame, split, _, frame = likelihoods.get("heaviside").functions()[:6]
    out = np.empty((1, 4))
    assert exact_point(split, frame, has_frame, mu, sigma, y, theta, out) == OK
    return out[0]


@pytest.mark.interpreted
def test_moments_against_reference(reference):
    r = reference("heaviside")
    z = r.y * r.mu / r.sigma
    assert z.min() <= -1e4
    assert z.max() >= 40.0
    got = project_arrays("heaviside", r.mu, r.sigma, r.y, method="ep")
    # 1 - r (r + z) loses two digits around z = -5, where the continued fraction takes over.
    np.testing.assert_allclose(got.log_z, r.log_z, rtol=1e-12, atol=1e-300)
    np.testing.assert_allclose(got.mean, r.mean, rtol=1e-13)
    np.testing.assert_allclose(got.std**2, r.variance, rtol=1e-12)


@pytest.mark.interpreted
def test_quadrature_has_the_same_moments(reference):
    r = reference("heaviside")
    rows = [by_quadrature(*point) for point in zip(r.mu, r.sigma, r.y, strict=True)]
    log_z, mean, variance, star = np.transpose(rows)
    # The closed forms play no part here. log Z = log(1 - tiny) is absolute.
    np.testing.assert_allclose(log_z, r.log_z, rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(mean, r.mean, rtol=3e-14)
    np.testing.assert_allclose(variance, r.variance, rtol=1e-12)
    # Measured 1.0e-15.
    np.testing.assert_allclose(star, r.sigma_star, rtol=1e-14)


@pytest.mark.interpreted
@every_case("z", [-4.9, -1.0, 0.0, 2.0, 7.0])
@every_case("y", [1.0, -1.0])
def test_moments_by_scipy(z, y):
    mu, sigma = 3.0 * y * z, 3.0
    # In the coordinate y f every label is +1: a normal cut off below 0.
    mean, variance = truncnorm(-z, np.inf, loc=3.0 * z, scale=3.0).stats("mv")
    got = project_arrays("heaviside", mu, sigma, y, method="ep")
    # scipy's own variance cancels: nine digits are left at z = -5, three at -30.
    assert y * float(got.mean) == pytest.approx(float(mean), rel=1e-9)
    assert float(got.std) ** 2 == pytest.approx(float(variance), rel=1e-9)


@pytest.mark.parametrize("z", [-1e8, -1e6, -3e3])
def test_far_tail_is_an_exponential(z):
    sigma = 2.5
    result = project_arrays("heaviside", z * sigma, sigma, 1, table="exact")
    with mpmath.workdps(60):
        x = -mpmath.mpf(z)
        r = mpmath.npdf(x) / (mpmath.erfc(x / mpmath.sqrt(2)) / 2)
        mean, variance = sigma * (r - x), sigma**2 * (1 - r * (r - x))
    assert float(result.mean) == pytest.approx(float(mean), rel=1e-14)
    assert float(result.log_z) == pytest.approx(
        -0.5 * z * z + math.log(0.5 * erfcx(-z / math.sqrt(2))), rel=1e-15
    )
    ep = project("heaviside", z * sigma, sigma, 1, method="ep")[1]
    assert float(ep) ** 2 == pytest.approx(float(variance), rel=1e-13)
    # The next term of the ratio is of order 1/z^2.
    assert float(result.std / ep) == pytest.approx(EXPONENTIAL, abs=1.0 / z**2 + 2e-14)


@every_case("z", [-2.0, 1.5, 8.4])
def test_sigma_star_by_mpmath(z):
    # F in closed form, in 30 digits, and tanh-sinh instead of the trapezoid rule.
    with mpmath.workdps(30):
        total = mpmath.ncdf(z)

        def integrand(f):
            upper = mpmath.ncdf(z - f) / total
            p = min(upper, 1 - upper)
            return mpmath.npdf(mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * p)) if p > 1e-25 else 0

        centre = max(z, 0.5)
        parts = [0, centre / 8, centre / 2, centre, centre + 2, centre + 5, centre + 10.5]
        star = mpmath.quad(integrand, parts, maxdegree=7)
    # 1e-25 of mass in the tail is left out.
    assert by_quadrature(z, 1.0, 1.0)[3] == pytest.approx(float(star), rel=1e-13)


@pytest.mark.interpreted
def test_whole_line_and_edge_frames_meet():
    # The frame changes at z = 8.5.
    below, above = (by_quadrature(z, 1.0, 1.0) for z in (8.5, math.nextafter(8.5, 9)))
    # The variance is second - first^2 around an anchor 6.5 sigma away.
    np.testing.assert_allclose(below[1:], above[1:], rtol=1e-13)


@pytest.mark.interpreted
@every_case("scale", [1e-6, 1e-3, 40.0, 1e8])
@every_case("y", [1, -1])
def test_sigma_star_scales(scale, y):
    z = np.array([-1e4, -30.0, -3.0, -0.5, 0.0, 0.5, 3.0, 8.0, 30.0])
    mean, std = project("heaviside", y * z * scale, scale, y, table="exact")
    unit_mean, unit_std = project("heaviside", z, 1.0, 1, table="exact")
    np.testing.assert_allclose(std, scale * unit_std, rtol=1e-14)
    # y mu/sigma is rounded again: relative to z, which the mean in the far tail is 1e-8 of.
    np.testing.assert_allclose(mean, y * scale * unit_mean, rtol=1e-12)
    assert np.all(np.diff(unit_std) > 0.0)
    # Theorem 2, and no tilted normal has a smaller ratio than the exponential.
    ep = project("heaviside", z, 1.0, 1, method="ep")[1]
    assert np.all((unit_std <= ep) & (unit_std / ep > 0.9031972))


@pytest.mark.interpreted
def test_probit_of_a_wide_cavity_is_heaviside():
    sigma = 1e8
    for z in (-2.0, 0.0, 1.0):
        probit, step = (
            project(n, z * sigma, sigma, 1, table="exact") for n in ("probit", "heaviside")
        )
        # They differ by the likelihood's own width, 1/sigma^2 relative to the variance and
        # 1/sigma in its smooth edge.
        np.testing.assert_allclose(probit, step, rtol=1e-8)


@pytest.mark.interpreted
def test_contract():
    likelihood = likelihoods.get("heaviside")
    assert likelihood.mirror
    assert likelihood.log_concave
    np.testing.assert_array_equal(likelihood.log_prob([-2.0, -1e-9, 1e-9, 2.0], 1)[2:], 0.0)
    assert likelihood.log_prob(-1e-9, 1) == -np.inf
    assert likelihood.log_prob(-1e-9, -1) == 0.0
    with pytest.raises(InputError, match="got 0: "):
        likelihood.validate([1, 0, -1])
