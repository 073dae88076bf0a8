"""Whose marginals are those of |f|: likelihoods that declare it, whatever the observations are."""

import math

import numpy as np
import pytest

from qpruntime import infer
from qpruntime.likelihoods import Likelihood
from tests.tools.cases import every_case

K = np.array([[1.0, 0.5], [0.5, 1.0]])


@every_case(
    "likelihood, y",
    [
        ("binomial", [[1, 2], [3, 6]]),
        ("student-t(nu=4, scale=0.3)", [0.0, 0.0]),
        ("laplace", [0.0, 0.0]),
    ],
)
def test_observations_in_the_middle_are_no_unknown_sign(likelihood, y):
    """The log density is even for these y alone: means are 0, and intervals lie about 0."""
    post = infer(K, y, likelihood, "ep")
    found = post.marginals()
    assert not found.folded
    # Symmetric to rounding and to what EP leaves of its own symmetry.
    assert (np.abs(found.mean) <= 1e-6 * np.sqrt(found.variance)).all()
    low, high = found.interval().T
    assert low == pytest.approx(-high, rel=1e-5)
    # A new point may have any prior mean.
    assert not post.marginals(K[:1], [1.0], mean=3.0).folded


def test_own_densities_declare_it():
    """Two peaks at +-2: folded where the likelihood says so, and after a pickle."""

    def squares(f, y):
        return -0.5 * (f * f - y) ** 2

    options = {"name": "squares", "outcomes": None}
    y = [4.0, 4.2]
    K2 = 4.0 * np.array([[1.0, 0.9], [0.9, 1.0]])
    even = infer(K2, y, Likelihood.from_log_prob(squares, even=True, **options), "ep").marginals()
    assert even.folded
    f = np.linspace(1e-3, 6.0, 1200)
    joint = -0.5 * (f[:, None] ** 2 - y[0]) ** 2 - 0.5 * (f**2 - y[1]) ** 2
    parts = []
    for g in (f, -f):
        square = (f[:, None] ** 2 + g**2 - 1.8 * f[:, None] * g) / (2.0 * 4.0 * 0.19)
        parts.append(np.exp(joint - square))
    both = parts[0] + parts[1]
    p = both.sum(axis=1) / both.sum()
    mean = p @ f
    assert even.mean[0] == pytest.approx(mean, abs=0.02 * math.sqrt(p @ (f - mean) ** 2))
    assert not Likelihood.from_log_prob(squares, **options).even
