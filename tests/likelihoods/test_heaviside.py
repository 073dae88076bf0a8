"""Heaviside: moments and sigma* of a truncated normal, from deep in its tail to no truncation."""

import math

import mpmath
import numpy as np
import pytest
from scipy.special import erfcx

from qpruntime import likelihoods, project
from qpruntime.projection.projector import project_arrays
from qpruntime.quadrature.sigma_star_kernels import OK, exact_point
from tests.tools.cases import every_case

EXPONENTIAL = 0.90319728556863  # sigma*/sigma_EP of an exponential density


def by_quadrature(mu, sigma, y, name="heaviside"):
    theta, _, has_frame, split, _, frame = likelihoods.get(name).functions()[:6]
    out = np.empty((1, 4))
    assert exact_point(split, frame, has_frame, mu, sigma, float(y), theta, out) == OK
    return out[0]


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
    # The frame changes at z = 8.5.
    below, above = (by_quadrature(z, 1.0, 1.0) for z in (8.5, math.nextafter(8.5, 9)))
    # The variance is second - first^2 around an anchor 6.5 sigma away.
    np.testing.assert_allclose(below[1:], above[1:], rtol=1e-13)


@pytest.mark.parametrize("z", [-1e8, -1e6, -3e3])
def test_far_tail_is_an_exponential(z):
    sigma = 2.5
    result = project_arrays("heaviside", z * sigma, sigma, 1, table="exact")
    with mpmath.workdps(60):
        x = -mpmath.mpf(z)
        r = mpmath.npdf(x) / (mpmath.erfc(x / mpmath.sqrt(2)) / 2)
        mean, variance = sigma * (r - x), sigma**2 * (1 - r * (r - x))
    assert float(result.mean) == pytest.approx(float(mean), rel=1e-14)
    expected = -0.5 * z * z + math.log(0.5 * erfcx(-z / math.sqrt(2)))
    assert float(result.log_z) == pytest.approx(expected, rel=1e-15)
    ep = project("heaviside", z * sigma, sigma, 1, method="ep")[1]
    assert float(ep) ** 2 == pytest.approx(float(variance), rel=1e-13)
    # The next term of the ratio is of order 1/z^2.
    assert float(result.std / ep) == pytest.approx(EXPONENTIAL, abs=1.0 / z**2 + 2e-14)


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
