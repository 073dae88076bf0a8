"""Special functions against mpmath over their whole ranges, both sides of every branch point."""

import math

import mpmath as mp
import numpy as np
import pytest

from qpruntime._special import erfcx, log_ndtr, mills, ndtri_density, probit_series
from tests.tools.cases import every_case

pytestmark = pytest.mark.interpreted
EPS = np.finfo(float).eps


def around(*points):
    """Each point between its neighbours on both sides."""
    return [v for p in points for v in (np.nextafter(p, -np.inf), p, np.nextafter(p, np.inf))]


def relative(value, exact):
    """Relative error, computed in mpmath; 0 where both are 0."""
    return 0.0 if value == exact else float(abs((mp.mpf(value) - exact) / exact))


def cdf(x):
    return mp.erfc(-x / mp.sqrt(2)) / 2


@pytest.fixture(autouse=True)
def _digits():
    with mp.workdps(60):
        yield


@every_case(
    "x",
    [
        *(0.0, 5e-324, 1e-8, 0.3, 1.0, 2.5, 4.7, 5.4, 9.0, 27.0, 1e3, 1e7, 1e12),
        *around(0.46875, 4.0, 1e8),
    ],
)
def test_erfcx(x):
    if x < 25.0:
        exact = mp.exp(mp.mpf(x) ** 2) * mp.erfc(x)
    else:  # asymptotic series; the first term left out is below 1e-20 from x = 25 on
        t = 1 / (2 * mp.mpf(x) ** 2)
        exact = mp.fsum(mp.fac2(2 * n - 1) * (-t) ** n for n in range(12)) / (x * mp.sqrt(mp.pi))
    # Cody's rational forms are good to 6e-19; the rest is rounding of about 20 operations.
    assert relative(erfcx(x), exact) < 8 * EPS


@every_case("x", [-1e8, -1e3, -40.0, -5.0, -1.5, -0.3, 0.7, 5.0, 8.0, 37.0, *around(-1.0, 0.0)])
def test_log_ndtr(x):
    exact = mp.log1p(-cdf(-mp.mpf(x))) if x > 0 else mp.log(cdf(mp.mpf(x)))
    # The C library's erfc is good to a few ulp; x sqrt(1/2) rounds, and erfc has condition 2x^2.
    assert relative(log_ndtr(x), exact) < (8 + x * x * (x > 0)) * EPS


def test_limits():
    assert [log_ndtr(x) for x in (-1e160, 40.0, math.inf)] == [-math.inf, 0.0, 0.0]
    assert math.isnan(log_ndtr(math.nan))
    density, x = ndtri_density(5e-324)
    assert -38.6 < x < -38.4  # Phi(-38.47) = 5e-324
    assert 0.0 < density < 1e-320


@every_case("z", [-1e12, -1e3, -40.0, -6.0, -2.0, -0.1, 0.5, 3.0, 12.0, 37.0, *around(0.0)])
def test_mills(z):
    z_ = mp.mpf(z)
    exact = mp.npdf(z_) / cdf(z_)
    # exp(-z^2/2) has condition z^2 for z > 0; below that erfcx decides.
    assert relative(mills(z), exact) < (10 + z * z * (z > 0)) * EPS


@every_case(
    "z", [-1e8, -1e4, -100.0, -40.0, -8.0, -3.0, -1.0, 0.0, 1.0, 6.0, 30.0, *around(-5.0, -12.0)]
)
def test_probit_series(z):
    with mp.workdps(120):  # 1 - r (r + z) cancels 2 log10(z^2) digits
        z_ = mp.mpf(z)
        r = mp.npdf(z_) / cdf(z_)
        exact = r, r + z_, 1 - r * (r + z_)
        errors = [relative(a, b) for a, b in zip(probit_series(z), exact, strict=True)]
    # Above -5, r + z and 1 - r (r + z) each lose a factor z^2; for z > 0, exp(-z^2/2) does.
    # The fraction's truncation is worst just below -12: 4e-15.
    assert max(errors) < (20 if z <= -5.0 else 30 + 4 * z**4 * (z < 0) + z * z * (z > 0)) * EPS


def test_probit_series_is_monotone_across_its_branches():
    for point in (-5.0, -12.0):
        low, high = (probit_series(v) for v in around(point)[1:])
        # Same function on both sides: the jump is rounding (4 z^4 eps, above), not a step.
        np.testing.assert_allclose(low, high, rtol=4 * 5**4 * EPS)


@every_case(
    "p",
    [
        *(1e-300, 1e-40, 1e-15, 1e-6, 0.01, 0.2, 0.4, 0.49, 0.5),
        *around(0.075, math.exp(-25.0)),
        *(math.exp(-24.0), math.exp(-26.5)),
    ],
)
def test_ndtri_density(p):
    density, x = ndtri_density(p)
    start = mp.mpf(x)
    exact = mp.findroot(lambda t: mp.log(cdf(t)) - mp.log(mp.mpf(p)), start) if x else start
    # AS 241 is good to 1e-16 in x; phi(x) multiplies that by x^2, at most 1370.
    assert abs(mp.mpf(x) - exact) <= 8 * EPS * max(1, abs(exact))
    assert relative(density, mp.npdf(exact)) < (8 + 8 * float(exact) ** 2) * EPS
