"""Expected log likelihoods against a slow rule that knows nothing of them."""

import math

import numpy as np
import pytest
from scipy.special import gammaln, log_ndtr

from qpruntime import likelihoods
from tests.tools.cases import every_case
from tests.tools.conformance import expectation


def poisson(y):
    return lambda f: (2 * y * np.log(np.abs(f)) if y else 0.0) - f * f - gammaln(y + 1.0)


def negative_binomial(y):
    return lambda f: y * f - (y + 1.0) * np.logaddexp(0.0, f)  # dispersion 1


def binomial(k, n):
    constant = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
    return lambda f: constant + k * f - n * np.logaddexp(0.0, f)


SMOOTH = [(m, s) for m in (-20.0, -1.0, 0.0, 3.0, 60.0) for s in (0.05, 1.0, 2.9, 3.1, 40.0, 1e4)]
NEW = [
    (name, y, log_p, mean, std)
    for mean, std in SMOOTH
    for name, y, log_p in (
        [("logistic", y, lambda f, y=y: -np.logaddexp(0.0, -y * f)) for y in (-1.0, 1.0)]
        + [("negative-binomial", y, negative_binomial(y)) for y in (0.0, 1.0, 300.0)]
        + [("binomial", (k, n), binomial(k, n)) for k, n in ((0, 1), (3, 4), (20, 20), (1, 300))]
    )
]
NEW += [
    ("laplace", y, lambda f, y=y: -abs(y - f) - math.log(2.0), y + d * std, std)
    for y in (0.0, 0.7)
    for d in (0.0, -0.3, 4.0, 30.0)
    for std in (0.01, 1.0, 100.0)
]
NEW += [
    ("poisson-exp", y, lambda f, y=y: y * f - np.exp(f) - gammaln(y + 1.0), mean, std)
    for y in (0.0, 3.0, 100.0)
    for mean in (-4.0, 0.0, 5.0)
    for std in (0.1, 1.0, 3.0)
]
NEW += [
    ("step", y, lambda f, y=y: np.where(y * f < 0, -abs(y), 0.0), mean, std)
    for y in (0.3, -4.0, 700.0)
    for mean in (-6.0, 0.0, 0.2, 3.0)
    for std in (0.1, 1.0, 50.0)
]
CASES = (
    NEW
    + [
        ("probit", y, lambda f, y=y: log_ndtr(y * f), mean, std)
        for y in (-1.0, 1.0)
        for mean in (-60.0, -9.0, -1.0, 0.0, 0.4, 5.0)
        for std in (0.05, 0.9, 1.3, 1.31, 4.0, 30.0, 1e3, 1e6)
    ]
    + [
        ("poisson", y, poisson(y), mean, std)
        for y in (0.0, 1.0, 7.0, 300.0)
        for mean in (-3.0, 0.0, 0.2, 1.0, 16.0)
        for std in (0.1, 0.6, 3.0, 50.0)
    ]
)


@pytest.mark.interpreted
@every_case(("name", "y", "log_p", "mean", "std"), CASES)
def test_against_quadrature(name, y, log_p, mean, std):
    likelihood, number = likelihoods.get(name).observing(y)
    got = likelihood.expected(mean, std, float(number), likelihood.theta)
    wanted = expectation(log_p, mean, std, (y,) if name == "laplace" else ())
    # Stein's identities cancel log p at the mean, once over std and once over std^2.
    lost = 1e-14 * max(1.0, abs(wanted[0]))
    for value, reference, power in zip(got, wanted, (0, 1, 2), strict=True):
        assert value == pytest.approx(reference, rel=1e-9, abs=1e-11 + 30.0 * lost / std**power)


def test_where_series_meet():
    # E log f^2 changes its form at mean^2 = 80 variance.
    likelihood = likelihoods.get("poisson")
    below, above = (
        likelihood.expected(math.sqrt(80.0 * (1.0 + e)), 1.0, 5.0, likelihood.theta)
        for e in (-1e-13, 1e-13)
    )
    np.testing.assert_allclose(below, above, rtol=1e-12)
