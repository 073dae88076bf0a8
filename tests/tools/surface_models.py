"""Likelihoods of a user's own, for the tests of tables of surfaces: 15 lines each, at most.

Each is made once: what a user hands over is compiled for every object anew, and kept nowhere.
"""

import math
from functools import cache

from qpruntime.likelihoods import Likelihood


def ordinal_log_prob(f, y, theta):
    """Three grades, with thresholds theta under logistic noise."""
    low, high = theta[0], theta[1]
    if y == 0.0:
        x = low - f
        return -math.log1p(math.exp(-x)) if x > 0.0 else x - math.log1p(math.exp(x))
    z = f - high if y == 2.0 else f - low
    p = -math.log1p(math.exp(-z)) if z > 0.0 else z - math.log1p(math.exp(z))
    if y == 2.0:
        return p
    z = high - f
    q = -math.log1p(math.exp(-z)) if z > 0.0 else z - math.log1p(math.exp(z))
    return p + q + math.log(-math.expm1(low - high))


def gumbel_log_prob(f, y, theta):
    """Skewed noise: y - f has a Gumbel distribution."""
    return (y - f) - math.exp(y - f)


@cache
def ordinal(low=-1.0, high=1.0):
    return Likelihood.from_log_prob(
        ordinal_log_prob,
        name="graded",
        theta={"low": low, "high": high},
        outcomes=[0, 1, 2],
        log_concave=True,
    )


@cache
def gumbel(location=True):
    return Likelihood.from_log_prob(
        gumbel_log_prob, name="gumbel", outcomes=(-1.0, 1.5), log_concave=True, location=location
    )


def at_the_observation(y, theta):
    return [y]


@cache
def marked():
    """`gumbel` with a landmark, which is called back in Python."""
    return Likelihood.from_log_prob(
        gumbel_log_prob,
        name="marked",
        outcomes=(-1.0, 1.5),
        log_concave=True,
        location=True,
        landmarks=at_the_observation,
    )


def cloglog_log_prob(f, y, theta):
    """Complementary log-log link, labels -1 and +1."""
    rate = math.exp(min(f, 700.0))
    if y < 0.0:
        return -rate
    return math.log(-math.expm1(-rate)) if rate > 1e-300 else f


@cache
def cloglog():
    return Likelihood.from_log_prob(
        cloglog_log_prob, name="cloglog", outcomes=[-1, 1], log_concave=True
    )
