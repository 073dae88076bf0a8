"""The quintic spline kernel against scipy's B-splines; `bilinear` is in test_table.py."""

import numpy as np
import pytest
from scipy.interpolate import BSpline

from qpruntime.projection.interpolation import (
    NARROW,
    REACH,
    ROWS,
    cavities,
    encode,
    encode_scaled,
    lookup,
    lookup_scaled,
    pack,
    pack_scaled,
    quintic,
    quintic_weights,
)
from qpruntime.table_format.metadata import Axis
from tests.tools.cases import every_case

pytestmark = pytest.mark.interpreted
EPS = np.finfo(float).eps


def knots(start, stop, cells):
    return start + (stop - start) / cells * np.arange(-5, cells + 6)


@every_case("t", [0.0, 5e-324, 0.1, 0.5, 0.97, 1.0 - EPS, 1.0])
def test_weights(t):
    basis = BSpline.basis_element(np.arange(7.0), extrapolate=False)
    expected = [np.nan_to_num(basis(t + 5.0 - k)) for k in range(6)]
    # Polynomials with coefficients up to 66/120: a few eps of the largest weight.
    np.testing.assert_allclose(quintic_weights(t), expected, atol=4 * EPS)
    assert sum(quintic_weights(t)) == pytest.approx(1.0, abs=4 * EPS)


@pytest.mark.parametrize("row", [0, 1])
def test_surface(row):
    values = np.random.default_rng(row).standard_normal((2, 7 + 5, 4 + 5))
    axes = np.array([-1.0, 2.5, 7 / 3.5, 0.0, 2.0, 4 / 2.0, 0.0])
    peer = BSpline(knots(0.0, 2.0, 4), values[row].T, 5)
    for u in (-1.0, -0.3, 0.0, 1.9999, 2.5):
        for v in (0.0, 0.2, 0.5, 1.7, 2.0):
            expected = BSpline(knots(-1.0, 2.5, 7), peer(v), 5)(u)
            # 36 products of order 1.
            assert quintic(values, axes, row, u, v) == pytest.approx(expected, abs=40 * EPS)


@pytest.mark.parametrize(
    ("beyond", "end"), [((-9.0, 1.0), (-1.0, 1.0)), ((np.inf, -1.0), (2.5, 0.0)), ((0, 3), (0, 2))]
)
def test_beyond_an_end_counts_as_the_end(beyond, end):
    values = np.random.default_rng(0).standard_normal((1, 12, 9))
    axes = np.array([-1.0, 2.5, 2.0, 0.0, 2.0, 2.0, 0.0])
    assert quintic(values, axes, 0, *beyond) == quintic(values, axes, 0, *end)


def test_curve():
    values = np.random.default_rng(3).standard_normal((1, 1, 6 + 5))
    axes = np.array([0.0, 1.0, 1.0, -1.5, 1.5, 2.0, 0.0])
    peer = BSpline(knots(-1.5, 1.5, 6), values[0, 0], 5)
    for v in (-1.5, -1.0, 0.123, 1.4999, 1.5):
        assert quintic(values, axes, 0, np.nan, v) == pytest.approx(float(peer(v)), abs=10 * EPS)


#: Five cells of x from 0 to 1, and four of e from 0 to 2, at scale 0.4 for 3 degrees of freedom.
SCALE, NU, CONSTANT = 0.4, 3.0, -1.7
X_AXIS, E_AXIS = Axis("x", 0.0, 1.0, 6), Axis("e", 0.0, 2.0, 5)


def frozen(*arrays):
    """Return read-only arrays, as tables have them."""
    for array in arrays:
        array.flags.writeable = False
    return arrays


def scaled_table(coefficients):
    """Return the values and axes of a table with these coefficients, shape (10, 9, 4)."""
    values = np.ascontiguousarray(coefficients.reshape(1, 10, 36))
    return frozen(values, pack_scaled(X_AXIS, E_AXIS, SCALE, NU, CONSTANT))


@every_case("away", [-3.0, -0.2, 0.7, 11.0])
def test_scaled_lookup_against_scipy(away):
    coefficients = np.random.default_rng(4).uniform(-0.5, 0.5, (10, 9, 4))
    values, axes = scaled_table(coefficients)
    mu, sigma = 0.3, 0.25
    y = mu + away * SCALE
    s2 = (sigma / SCALE) ** 2
    r2 = away**2 / (1.0 + s2)
    x, e = np.sqrt(r2 / (r2 + REACH**2)), 0.5 * np.log(1.0 + NARROW * s2)
    across = BSpline(knots(0.0, 1.0, 5), coefficients, 5)(x)
    log_z, shift, width, ratio = BSpline(knots(0.0, 2.0, 4), across, 5)(e)
    unit = s2 / (1.0 + s2) * (1.0 - x * x)
    std = sigma * np.exp(unit * width)
    expected = (
        CONSTANT + log_z - 2.0 * np.log(1.0 + r2 / NU),
        mu + unit * shift * (y - mu),
        std,
        std * np.exp(min(unit * ratio, 0.0)),
    )
    np.testing.assert_allclose(lookup_scaled(mu, sigma, y, values, axes), expected, rtol=1e-12)


def test_scaled_lookup_returns_what_was_encoded():
    """A spline whose coefficients are all equal is constant."""
    d, s = cavities(np.array([0.1, 0.6, 0.95]), np.array([1.9, 0.3, 1.0]))
    moments = np.array([[-1.0, 0.3, 0.8, 0.7], [2.0, -0.1, 0.1, 0.1], [-9.0, 0.5, 1.1, 1.05]])
    for row, stored in enumerate(encode_scaled(d, s, NU, moments)):
        values, axes = scaled_table(np.broadcast_to(stored, (10, 9, 4)).copy())
        found = lookup_scaled(2.0, SCALE * s[row], 2.0 + SCALE * d[row], values, axes)
        log_z, shift, std, star = moments[row]
        expected = log_z + CONSTANT, 2.0 + SCALE * shift, SCALE * std, SCALE * star
        np.testing.assert_allclose(found, expected, rtol=1e-12)
        # The mirror image: the same widths, and the opposite shift.
        mirrored = lookup_scaled(2.0, SCALE * s[row], 2.0 - SCALE * d[row], values, axes)
        np.testing.assert_allclose(mirrored, [expected[0], 4.0 - expected[1], *expected[2:]])


@every_case(
    ("mu", "sigma"), [(0.0, 3.0), (0.0, np.nan), (np.nan, 0.3), (np.inf, 0.3), (1e151, 0.3)]
)
def test_outside_of_a_scaled_table(mu, sigma):
    values, axes = scaled_table(np.zeros((10, 9, 4)))
    assert np.isfinite(lookup_scaled(0.0, 0.3, 1.0, values, axes)).all()
    assert np.isnan(lookup_scaled(mu, sigma, 1.0, values, axes)).all()


def test_surface_lookup_returns_what_was_encoded():
    mu, sigma = np.array([-2.0, 0.3]), np.array([0.5, 2.0])
    log_z, shift = np.array([-0.7, -30.0]), np.array([0.2, -1.1])
    variance, star = np.array([0.2, 2.25]), np.array([0.4, 1.5])
    for row, stored in enumerate(encode(log_z, shift, variance, star, sigma)):
        values = np.ascontiguousarray(np.broadcast_to(stored, (3, 12, 11, 4)).reshape(3, 12, 44))
        values[:2] = np.nan  # rows of other outcomes
        axes = pack([-3.0, 4.0, 1.0, -1.0, 0.5, 4.0, 0.0], ROWS, [-1.0, 0.5, 4.0])
        values, axes = frozen(values, axes)
        found = lookup(mu[row], sigma[row], 4.0, values, axes)
        expected = log_z[row], mu[row] + shift[row], variance[row] ** 0.5, star[row]
        np.testing.assert_allclose(found, expected, rtol=1e-13)
        assert np.isnan(lookup(mu[row], sigma[row], 2.0, values, axes)).all()
