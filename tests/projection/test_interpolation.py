"""The quintic spline kernel against scipy's B-splines; `bilinear` is in test_table_lookup.py."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.interpolate import BSpline

from qpruntime.projection.interpolation import quintic, quintic_weights
from tests.tools.cases import every_case

pytestmark = pytest.mark.interpreted
EPS = np.finfo(float).eps


def knots(start, stop, cells):
    step = (stop - start) / cells
    return start + step * np.arange(-5, cells + 6)


@every_case("t", [0.0, 5e-324, 0.1, 0.5, 0.97, 1.0 - EPS, 1.0])
def test_weights(t):
    basis = BSpline.basis_element(np.arange(7.0), extrapolate=False)
    expected = [np.nan_to_num(basis(t + 5.0 - k)) for k in range(6)]
    # Polynomials with coefficients up to 66/120: a few eps of the largest weight.
    np.testing.assert_allclose(quintic_weights(t), expected, atol=4 * EPS)
    assert sum(quintic_weights(t)) == pytest.approx(1.0, abs=4 * EPS)


@pytest.mark.parametrize("row", [0, 1])
def test_surface(row):
    rng = np.random.default_rng(row)
    values = rng.standard_normal((2, 7 + 5, 4 + 5))
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
