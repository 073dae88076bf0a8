"""Distributions of observations to come, beside sums and integrals of their own densities."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from qpruntime import likelihoods
from qpruntime.forecasting.families import Scale
from qpruntime.forecasting.predictive import Ahead
from qpruntime.predictive.inversion import integer_quantiles
from qpruntime.predictive.mixtures import Mixture
from tests.tools.cases import every_case

MIXTURE = Mixture(
    np.array([[0.7, 1.9], [1.1, 1.5]]),
    np.array([[0.3, 0.05], [0.1, 0.4]]),
    np.array([0.4, 0.6]),
)
COUNTS = np.arange(400.0)
LEVELS = np.array([0.01, 0.2, 0.5, 0.9, 0.975])
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(80)


def ahead(name, unit, **parameters):
    own = [likelihoods.get(name, **{k: v * f for k, v in parameters.items()}) for f in (1.0, 0.7)]
    return Ahead(MIXTURE, own, unit)


def mixed(function):
    """Means over the linear predictor by Gauss's rule, for both rows."""
    found = 0.0
    for k, (m, v, w) in enumerate(zip(*MIXTURE, strict=True)):
        f = m[:, None] + np.sqrt(v)[:, None] * NODES
        found = found + w * (function(f, (1.0, 0.7)[k]) @ WEIGHTS) / np.sqrt(2.0 * np.pi)
    return found


def poisson(y):
    return mixed(lambda f, _: stats.poisson.pmf(y, np.exp(f)))


def dispersed(y):
    return mixed(lambda f, s: stats.nbinom.pmf(y, 2.0 * s, 2.0 * s / (2.0 * s + np.exp(f))))


def inflated(y):
    def given(f, s):
        rest = stats.nbinom.pmf(y, 2.0 * s, 2.0 * s / (2.0 * s + np.exp(f)))
        return (1.0 - 0.3 * s) * rest + 0.3 * s * (y == 0.0)

    return mixed(given)


def hurdle(y):
    def given(f, s):
        own = stats.nbinom(2.0 * s, 2.0 * s / (2.0 * s + np.exp(f)))
        return (1.0 - 0.3 * s) * own.pmf(y) / own.sf(0) if y else np.full(f.shape, 0.3 * s)

    return mixed(given)


@every_case(
    "name, parameters, mass",
    [
        ("poisson-exp", {}, poisson),
        ("negative-binomial", {"dispersion": 2.0}, dispersed),
        ("zero-inflated", {"dispersion": 2.0, "zeros": 0.3}, inflated),
        ("hurdle", {"dispersion": 2.0, "zeros": 0.3}, hurdle),
    ],
)
def test_counts_are_those_of_their_probabilities(name, parameters, mass):
    own = ahead(name, Scale(), **parameters)
    pmf = np.array([mass(y) for y in COUNTS])
    for y in (0.0, 3.0, 17.0):
        log_p = own.log_density(np.array([y, y]))
        np.testing.assert_allclose(log_p, np.log(pmf[int(y)]), rtol=1e-6)
    below = np.cumsum(pmf, axis=0)
    wanted = [[np.argmax(below[:, k] >= q) for q in LEVELS] for k in (0, 1)]
    np.testing.assert_array_equal(own.quantiles(LEVELS), wanted)
    np.testing.assert_allclose(own.mean(), COUNTS @ pmf, rtol=1e-5)
    # What is left out is left out of all.
    np.testing.assert_array_equal(own.only([1]).quantiles(LEVELS), own.quantiles(LEVELS)[1:])
    if "zeros" in parameters:
        return
    # Residuals are in deviations given the rate, of the first node: of a Poisson count its mean.
    mean, y = COUNTS @ pmf, np.array([9.0, 0.0])
    variance = mean + mean**2 / parameters.get("dispersion", np.inf)
    np.testing.assert_allclose(own.residuals(y), (y - mean) / np.sqrt(variance), rtol=1e-5)


@every_case(
    "name, parameters, scale",
    [
        ("gaussian", {"scale": 0.5}, Scale(3.0, 2.0, False, False)),
        ("gaussian", {"scale": 0.5}, Scale(0.2, 0.6, True, False)),
        ("student-t", {"nu": 4.0, "scale": 0.5}, Scale(3.0, 2.0, False, False)),
    ],
)
def test_reals_are_those_of_their_densities(name, parameters, scale):
    own = ahead(name, scale, **parameters).only([0])
    found = own.quantiles(LEVELS)[0]
    # Half-widths of the trapezoid rule at which nothing else is left.
    v = np.linspace(-12.0, 12.0, 6001)
    y = np.exp(v) if scale.log else 4.0 + 2.0 * np.sinh(v)
    slope = y if scale.log else 2.0 * np.cosh(v)
    some = Ahead(
        Mixture(*(np.repeat(own.mixture[k], y.size, axis=1) for k in (0, 1)), own.mixture.weights),
        own.likelihoods,
        scale,
    )
    mass = np.exp(some.log_density(y)) * slope * (v[1] - v[0])
    assert mass.sum() == pytest.approx(1.0, abs=1e-6)
    np.testing.assert_allclose(np.interp(found, y, np.cumsum(mass) - 0.5 * mass), LEVELS, atol=1e-5)
    assert own.mean()[0] == pytest.approx(mass @ y, rel=1e-4)


@every_case("centre, unit", [(3.0, 2.0), (-2.0, 0.4), (700.0, 300.0)])
def test_rounded_numbers_are_the_cells_of_normals(centre, unit):
    rounded = ahead("gaussian", Scale(centre, unit, False, False, True), scale=0.5)
    counts = np.arange(4000.0)

    def below(limit, row):
        return sum(
            w * stats.norm.cdf(limit, centre + unit * m[row], unit * np.sqrt(v[row] + s**2))
            for m, v, w, s in zip(*MIXTURE, (0.5, 0.35), strict=True)
        )

    for row in (0, 1):
        cdf = below(counts + 0.5, row)
        pmf = np.diff(cdf, prepend=0.0)
        every = Ahead(MIXTURE.at(np.full(counts.size, row)), rounded.likelihoods, rounded.scale)
        np.testing.assert_allclose(np.exp(every.log_density(counts)), pmf, atol=1e-13)
        wanted = [np.argmax(cdf >= q) for q in LEVELS]
        np.testing.assert_array_equal(rounded.quantiles(LEVELS)[row], wanted)
        assert rounded.mean()[row] == pytest.approx(counts @ pmf, rel=1e-5)
    assert rounded.discrete
    # Tails keep their digits.
    low, high = stats.norm.logsf([99.5, 100.5], 0.0, 2.0)
    far = low + np.log1p(-np.exp(high - low))
    narrow = Ahead(
        Mixture(np.zeros((1, 1)), np.full((1, 1), 3.75), np.ones(1)),
        [likelihoods.get("gaussian", scale=0.5)],
        Scale(0.0, 1.0, False, False, True),
    )
    assert narrow.log_density(np.array([100.0]))[0] == pytest.approx(far, rel=1e-10)


def test_rates_beyond_all_counts():
    """A band that widens without end has quantiles that are infinite; a rate of 0 has counts 0."""
    wide = Mixture(np.array([[2.0, -700.0]]), np.array([[400.0, 1.0]]), np.ones(1))
    found = Ahead(wide, [likelihoods.get("poisson-exp")], Scale()).quantiles(np.array([0.5, 0.99]))
    assert found.tolist() == [[7.0, np.inf], [0.0, 0.0]]


def test_searches_ask_once_and_end_right():
    asked = []
    rates = np.array([3.0, 4000.0])
    levels = np.linspace(0.005, 0.995, 100)

    def cdf(rows, y, upper):
        asked.append(len(y))
        return (stats.poisson.sf if upper else stats.poisson.cdf)(y, rates[rows])

    wanted = stats.poisson.ppf(levels, rates[:, None])
    low, high = np.full((2, 100), -1.0), np.full((2, 100), 8000.0)
    np.testing.assert_array_equal(integer_quantiles(cdf, low, high, levels), wanted)
    assert sum(asked) < 500  # 2 x 100 x 13 by bisections of their own
    mean, variance = np.array([[0.0], [5.0]]), np.array([[1.0], [0.01]])
    weights = np.array([0.3, 0.7])
    x = Mixture(mean, variance, weights).quantiles(levels)[0]
    mass = 0.3 * stats.norm.cdf(x) + 0.7 * stats.norm.cdf(x, 5.0, 0.1)
    np.testing.assert_allclose(mass, levels, atol=1e-9)


@every_case("log", [False, True])
def test_residuals_of_reals_are_in_deviations_of_the_noise(log):
    own = ahead("gaussian", Scale(3.0, 2.0, log, False), scale=0.5)
    z = np.array([1.0, 2.0])
    y = 3.0 + 2.0 * z
    found = own.residuals(np.exp(y) if log else y)
    mean = MIXTURE.weights @ MIXTURE.mean
    np.testing.assert_allclose(found, (z - mean) / 0.5, rtol=1e-12)
