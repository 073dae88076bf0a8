"""Densities across cliffs: their mass, distribution functions, quantiles, and probabilities."""

import math

import numpy as np
import pytest
from scipy.special import log_ndtr, ndtr, ndtri

from qpruntime import infer
from qpruntime.inference.corrections import density_grid
from tests.tools.cases import every_case

X = np.linspace(0.0, 1.0, 12)
SHAPE = np.exp(-5.0 * (X[:, None] - X) ** 2) + 1e-6 * np.eye(12)
LABELS = np.where(X < 0.5, -1.0, 1.0)
COUNTS = np.arange(12.0) % 4
LEVELS = [0.001, 0.05, 0.5, 0.95, 0.999]
NODES, WEIGHTS = np.polynomial.legendre.leggauss(12)


@every_case(
    "likelihood, y",
    [("probit", LABELS), ("logistic", LABELS), ("heaviside", LABELS), ("poisson-exp", COUNTS)],
)
@every_case("v", [1e-8, 1.0, 1e5, 1e7, 1e12])
def test_masses_under_any_prior(likelihood, y, v):
    found = infer(v * SHAPE, y, likelihood, "ep").marginals()
    # Masses between points (T, G - 1), by Gauss's rule between each two.
    points = found.densities.points
    step = np.diff(points)
    at = points[:, :-1, None] + step[..., None] * 0.5 * (NODES + 1.0)
    masses = (found.density(at.reshape(12, -1)).reshape(at.shape) @ WEIGHTS) * 0.5 * step
    assert np.isfinite(masses).all()
    below = found.cdf(points)
    # Between even points masses are those of a cubic: 2e-8 of a normal, 5e-8 at worst.
    assert np.abs(np.cumsum(masses, axis=1) - below[:, 1:]).max() < 1e-7
    assert masses.sum(axis=1) == pytest.approx(1.0, abs=1e-7)
    assert found.cdf(found.quantile(LEVELS)) == pytest.approx(np.tile(LEVELS, (12, 1)), abs=1e-12)
    if y is LABELS:
        both = np.exp(found.log_probability([[1.0, -1.0]] * 12))
        assert both.sum(axis=1) == pytest.approx(1.0, abs=1e-12)


def test_one_label_under_a_wide_prior():
    """Phi(f) N(0, v) in closed form: median, density and probability of a site and beside it."""
    for v in (1e4, 1e8, 1e12):
        K = np.array([[v]])
        post = infer(K, [1.0], method="ep")
        found = post.marginals(correction="fact")
        s = math.sqrt(v)
        f = np.array([-3.0, -1.0, 0.0, 0.7, 2.0, 0.3 * s, s, 3.0 * s])
        true = math.log(2.0) + log_ndtr(f) - 0.5 * (f / s) ** 2 - 0.5 * math.log(2.0 * math.pi * v)
        # Between points the log density is a cubic, or straight: 2 % where it bends most.
        assert found.log_density(f[None])[0] == pytest.approx(true, abs=0.03)
        # 3.5e-5 measured, of the 401 points.
        mean = s * math.sqrt(2.0 * v / math.pi / (1.0 + v))
        assert found.mean[0] == pytest.approx(mean, rel=7e-5)
        # P(f < 0 | y) = 1/2 - atan(s)/pi.
        assert found.cdf(0.0)[0] == pytest.approx(0.5 - math.atan(s) / math.pi, rel=2e-4)
        # P(y* = -1, y = 1) = 1/4 - asin(rho)/2 pi, of a new point of correlation .6.
        new = post.marginals(0.6 * K, [v], correction="fact")
        p = 2.0 * (0.25 - math.asin(0.6 * v / (1.0 + v)) / (2.0 * math.pi))
        assert math.exp(new.log_probability([-1.0])[0]) == pytest.approx(p, rel=2e-4)


def test_a_cliff_on_even_points_is_no_peak():
    """Logs that fall by 1e8 between two points: no value above both ends, and known masses."""
    x = np.linspace(-1.0, 1.0, 41)[None]
    found = density_grid.normalised(x, np.where(x < -1e-9, -1e8 * x**2, 0.0))
    at = np.linspace(-1.0, 1.0, 4001)[None]
    out = np.empty(at.shape)
    density_grid.log_density_many(found.points, found.logs, at, out)
    assert np.exp(out).max() <= 1.0 + 1e-6
    mean, variance, _ = density_grid.moments(found)
    assert mean[0] == pytest.approx(0.5, abs=1e-5)  # even on [0, 1]
    # In the outermost intervals squares are straight: 2.1e-5 of 41 points.
    assert variance[0] == pytest.approx(1.0 / 12.0, abs=2.5e-5)
    below, quantiles = np.empty((1, 1)), np.empty((1, 1))
    density_grid.cdf_many(*found[:3], np.array([[0.25]]), below)
    density_grid.quantile_many(*found[:3], np.array([0.25]), quantiles)
    assert (below[0, 0], quantiles[0, 0]) == pytest.approx((0.25, 0.25), abs=1e-6)


def test_a_normal_on_even_points():
    """Moments, quantiles and densities of a normal on 81 points, as smooth ones were before."""
    x = np.linspace(-8.0, 8.0, 81)[None]
    found = density_grid.normalised(3.0 + 2.0 * x, -0.5 * x**2)
    mean, variance, skewness = density_grid.moments(found)
    assert (mean[0], variance[0], skewness[0]) == pytest.approx((3.0, 4.0, 0.0), abs=2e-5)
    levels = np.array([1e-6, 0.05, 0.5, 0.9])
    out = np.empty((1, 4))
    density_grid.quantile_many(*found[:3], levels, out)
    assert out[0] == pytest.approx(3.0 + 2.0 * ndtri(levels), abs=1e-5)
    density_grid.cdf_many(*found[:3], np.array([[-20.0, 1.3, 3.0, 30.0]]), out)
    assert out[0] == pytest.approx([0.0, ndtr(-0.85), 0.5, 1.0], abs=1e-6)
    assert found.weights.sum() == pytest.approx(1.0, abs=1e-13)
