"""What `check` says of means and variances, beside sums over grids; marginals of |f|."""

import math
import re

import numpy as np
import pytest

from qpruntime import infer, likelihoods
from qpruntime.likelihoods import Likelihood
from tests.tools.cases import every_case


def summed(K, y, likelihood, prior):
    """Means and variances of two sites by sums over 1201^2 points."""
    own = likelihoods.get(likelihood)
    line = np.linspace(-9.0, 9.0, 1201)
    f = [prior + line * np.sqrt(K[i, i]) for i in (0, 1)]
    a, b = (own.log_prob(f[i], y[i]) for i in (0, 1))
    P = np.linalg.inv(K)
    one, two = f[0][:, None] - prior, f[1] - prior
    log_p = a[:, None] + b - 0.5 * (P[0, 0] * one**2 + P[1, 1] * two**2) - P[0, 1] * one * two
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    sides = [p.sum(axis=1), p.sum(axis=0)]
    mean = np.array([q @ x for q, x in zip(sides, f, strict=True)])
    return mean, np.array([q @ (x - m) ** 2 for q, x, m in zip(sides, f, mean, strict=True)])


def torn(scale, variance=5.09, correlation=-0.7):
    """Two sites that pull against their correlation, and noise of heavy tails."""
    K = variance * np.array([[1.0, correlation], [correlation, 1.0]])
    return K, np.array([4.0, 0.0]), f"student-t(nu=4, scale={scale})", -2.0


@every_case(
    "K, y, likelihood, prior",
    [
        *(torn(scale) for scale in (0.25, 0.3, 0.4, 0.7)),
        *(torn(0.3, 8.0, -0.5), torn(0.5, 12.0, -0.8)),
        (np.array([[4.0, 3.0], [3.0, 4.0]]), np.array([1.0, 1.0]), "probit", 0.0),
        (np.array([[30.0, 28.0], [28.0, 30.0]]), np.array([1.0, -1.0]), "probit", 0.0),
        (np.array([[2.0, 1.5], [1.5, 2.0]]), np.array([0.0, 3.0]), "poisson", 1.0),
    ],
)
def test_errors_of_two_sites_are_said(K, y, likelihood, prior):
    """What is said is not less than 1/1.5 of what EP, and what is corrected, is off by."""
    post = infer(K, y, likelihood, "ep", mean=prior)
    mean, variance = summed(K, y, likelihood, prior)
    said = " ".join(post.check())
    std = np.sqrt(variance)
    off = np.sqrt(np.mean(((post.mean - mean) / std) ** 2))
    number = re.search(r"means are off by about ([.\d]+)", said)
    assert off <= 1.5 * (float(number[1]) if number else 0.06)
    found = post._correcting.corrected._fact  # what "blend" warns of is no part of this
    # Of two sites it is exact but for its 27 knots: .012 where noise is narrow.
    assert np.abs((found.mean - mean) / std).max() < 0.015
    moved = post._correcting.corrected.found.V @ post._correcting.corrected.response.push
    left = np.sqrt(np.mean(((post.mean + moved - mean) / std) ** 2))
    if "sample it" not in said:
        number = re.search(r"but for up to ([-e.\d]+)", said)
        assert left <= 1.5 * (float(number[1]) if number else 0.06)


def test_a_correction_that_is_worse_is_not_praised():
    K, y, likelihood, prior = torn(0.3)
    check, again = (infer(K, y, likelihood, "ep", mean=prior).check() for _ in range(2))
    assert check == again  # chains have a seed
    assert any("short chains" in word for word in check)
    said = " ".join(check)
    assert "corrects them, but" not in said
    number = re.search(r"two estimates of the corrected ones differ by ([.\d]+)", said)
    # (.12, .62) standard deviations of the posterior, whose root mean square is .45.
    assert float(number[1]) == pytest.approx(0.45, abs=0.02)


def test_sampled_deviations():
    """Draws at sites and at new points have the spread of what they are drawn from.

    Sites that are independent have EP's variances, and what is new has the prior's.
    """
    n = 40
    post = infer(np.eye(n), np.ones(n), method="ep")
    found = post.marginals(correction="sample", steps=4000, random_state=5)
    # 40 sites of some hundred effective draws each: 1.5 % of a standard error.
    error = np.sqrt(2.0 / found.effective.sum())
    assert np.mean(np.log(found.variance / post.variance)) == pytest.approx(0.0, abs=4.0 * error)
    assert error < 0.01
    at = np.zeros((300, n)), np.full(300, 2.0)
    new = post.marginals(*at, correction="sample", steps=2000, random_state=6)
    # 300 points of 2000 draws.
    assert np.mean(np.log(new.variance / 2.0)) == pytest.approx(0.0, abs=0.01)
    # Squares of normal deviations have variance 2; 300 points leave 0.3 % of its square root.
    assert np.mean(new.spread**2 * new.effective) == pytest.approx(2.0, rel=0.015)
    # Smoothed densities have the variance of the draws.
    for one in (found, new):
        mean = one.expect(lambda f: f)
        spread = one.expect(lambda f, mean=mean: (f - mean[:, None]) ** 2)
        assert spread == pytest.approx(one.variance, rel=3e-3)


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
