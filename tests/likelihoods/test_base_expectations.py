"""Expected log likelihoods against a slow rule that knows nothing of them."""

import math
from itertools import product

import numpy as np
import pytest

from qpruntime import likelihoods
from tests.tools.cases import every_case
from tests.tools.conformance import expectation

SMOOTH = (-20.0, -1.0, 0.0, 3.0, 60.0), (0.05, 1.0, 2.9, 3.1, 40.0, 1e4)
#: Observations, means and standard deviations of f.
PLACES = {
    "logistic": ((-1.0, 1.0), *SMOOTH),
    "negative-binomial": ((0.0, 1.0, 300.0), *SMOOTH),
    "binomial": (((0, 1), (3, 4), (20, 20), (1, 300)), *SMOOTH),
    "poisson-exp": ((0.0, 3.0, 100.0), (-4.0, 0.0, 5.0), (0.1, 1.0, 3.0)),
    "step": ((0.3, -4.0, 700.0), (-6.0, 0.0, 0.2, 3.0), (0.1, 1.0, 50.0)),
    "probit": (
        (-1.0, 1.0),
        (-60.0, -9.0, -1.0, 0.0, 0.4, 5.0),
        (0.05, 0.9, 1.3, 1.31, 4.0, 30.0, 1e3, 1e6),
    ),
    "poisson": ((0.0, 1.0, 7.0, 300.0), (-3.0, 0.0, 0.2, 1.0, 16.0), (0.1, 0.6, 3.0, 50.0)),
}
CASES = [(name, *case) for name, places in PLACES.items() for case in product(*places)]
CASES += [
    ("laplace", y, y + d * std, std)
    for y, d, std in product((0.0, 0.7), (0.0, -0.3, 4.0, 30.0), (0.01, 1.0, 100.0))
]


def check(name, y, mean, std):
    likelihood, number = likelihoods.get(name).observing(y)
    got = likelihood.expected(mean, std, float(number), likelihood.theta)
    marks = (y,) if name == "laplace" else ()
    wanted = expectation(lambda f: likelihoods.get(name).log_prob(f, y), mean, std, marks)
    # Stein's identities cancel log p at the mean, once over std and once over std^2.
    lost = 1e-14 * max(1.0, abs(wanted[0]))
    for value, reference, power in zip(got, wanted, (0, 1, 2), strict=True):
        assert value == pytest.approx(reference, rel=1e-9, abs=1e-11 + 30.0 * lost / std**power)


@pytest.mark.interpreted
@every_case(("name", "y", "mean", "std"), CASES[::5])
def test_against_quadrature(name, y, mean, std):
    """By the log density, which `test_registry` compares with another writing of it."""
    check(name, y, mean, std)


@pytest.mark.slow
@every_case(("name", "y", "mean", "std"), CASES)
def test_all_against_quadrature(name, y, mean, std):
    check(name, y, mean, std)


def test_where_series_meet():
    # E log f^2 changes its form at mean^2 = 80 variance.
    likelihood = likelihoods.get("poisson")
    below, above = (
        likelihood.expected(math.sqrt(80.0 * (1.0 + e)), 1.0, 5.0, likelihood.theta)
        for e in (-1e-13, 1e-13)
    )
    np.testing.assert_allclose(below, above, rtol=1e-12)
