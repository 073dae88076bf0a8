"""Moments of `kinds` that are integrated, at their extremes, by mpmath at 40 digits."""

import mpmath as mp
import numpy as np
import pytest

from qpruntime import likelihoods
from qpruntime.projection.projector import Projector
from qpruntime.projection.site_kernel import project_many
from tests.tools.cases import every_case

pytestmark = pytest.mark.slow

mp.mp.dps = 40


def beta(f, y, precision):
    a = precision / (1 + mp.exp(-f))
    b = precision / (1 + mp.exp(f))
    log_p = mp.loggamma(precision) - mp.loggamma(a) - mp.loggamma(b)
    return log_p + (a - 1) * mp.log(y) + (b - 1) * mp.log(1 - y)


def negative(f, y, r):
    g = f - mp.log(r)
    constant = mp.loggamma(y + r) - mp.loggamma(y + 1) - mp.loggamma(r)
    return constant - r * mp.log(1 + mp.exp(g)) - y * mp.log(1 + mp.exp(-g))


def hurdle(f, y, r, zeros):
    seen = -mp.expm1(-r * mp.log1p(mp.exp(f) / r))
    return mp.log(1 - zeros) + negative(f, y, r) - mp.log(seen)


def inflated(f, y, r, zeros):
    return mp.log(zeros + (1 - zeros) * mp.exp(negative(f, y, r)))


def flipped(f, y, flip):
    return mp.log(flip + (1 - 2 * flip) * mp.ncdf(y * f))


def level(f, y, gap, below=mp.ncdf):
    edges = (-mp.inf, mp.mpf(0), gap, mp.inf)
    low, high = edges[int(y)] - f, edges[int(y) + 1] - f
    # Of the larger tails, which do not cancel.
    if low > 0:
        low, high = -high, -low
    return mp.log(below(high) - below(low))


def odds(f, y, gap):
    return level(f, y, gap, lambda x: 1 / (1 + mp.exp(-x)))


def weibull(f, y, scale):
    a, b = (mp.exp((mp.log(t) - f) / scale) for t in y)
    return mp.log(mp.exp(-a) - mp.exp(-b))


#: Spelling, the log density again with its parameters; observation, cavity, power.
CASES = [
    ("beta(precision=1e6)", beta, (1e6,), 0.3, (0.0, 1.0), 1.0),
    ("beta(precision=1e-3)", beta, (1e-3,), 0.01, (1.0, 2.0), 1.0),
    ("beta(precision=50)", beta, (50.0,), 1e-12, (-3.0, 4.0), 0.5),
    ("beta(precision=300)", beta, (300.0,), 0.5, (30.0, 1.2), 1.0),
    ("hurdle(dispersion=1e-3, zeros=0.5)", hurdle, (1e-3, 0.5), 2.0, (0.0, 6.0), 1.0),
    ("hurdle(dispersion=1e9, zeros=0.5)", hurdle, (1e9, 0.5), 1.0, (6.0, 2.0), 0.5),
    ("hurdle(dispersion=5, zeros=0.5)", hurdle, (5.0, 0.5), 40000.0, (0.0, 3.0), 1.0),
    ("hurdle(dispersion=5, zeros=0.5)", hurdle, (5.0, 0.5), 1.0, (-60.0, 30.0), 1.0),
    ("zero-inflated(dispersion=2, zeros=1e-6)", inflated, (2.0, 1e-6), 0.0, (9.0, 2.0), 0.5),
    ("noisy-probit(flip=1e-6)", flipped, (1e-6,), 1.0, (-9.0, 2.0), 0.5),
    ("noisy-probit(flip=0.01)", flipped, (0.01,), -1.0, (0.0, 20.0), 0.5),
    ("ordinal(gap_2=1e-5, gap_3=1e8)", level, (1e-5,), 1.0, (2.0, 3.0), 0.5),
    ("ordinal(gap_2=40, gap_3=1e8)", level, (40.0,), 1.0, (60.0, 2.0), 0.5),
    ("ordinal-logistic(gap_2=1e-5, gap_3=1e8)", odds, (1e-5,), 1.0, (2.0, 3.0), 1.0),
    ("ordinal-logistic(gap_2=40, gap_3=1e8)", odds, (40.0,), 1.0, (-900.0, 2.0), 1.0),
    ("ordinal-logistic(gap_2=1, gap_3=1e8)", odds, (1.0,), 1.0, (0.1, 0.7), 1.0),
    ("ordinal-logistic(gap_2=1, gap_3=1e8)", odds, (1.0,), 2.0, (-50.0, 16.0), 1.0),
    ("ordinal-logistic(gap_2=1, gap_3=1e8)", odds, (1.0,), 2.0, (5.0, 1e-4), 1.0),
    ("ordinal-logistic(gap_2=3, gap_3=1e8)", odds, (3.0,), 0.0, (2.0, 90.0), 1.0),
    ("ordinal-logistic(gap_2=0.1, gap_3=1e8)", odds, (0.1,), 1.0, (9.0, 2.0), 0.5),
    ("weibull(scale=0.01)", weibull, (0.01,), (1.0, 1.3), (0.0, 1.0), 0.5),
]


@every_case(("name", "log_p", "values", "y", "cavity", "power"), CASES)
def test_moments(name, log_p, values, y, cavity, power):
    own = likelihoods.get(name)
    powers = None if power == 1.0 else np.array([power])
    found = project_many(own, Projector(own, "ep").source, *cavity, np.array(y), None, powers)
    mean, std = found.mean.item(), found.std.item()
    mu, sigma = (mp.mpf(v) for v in cavity)
    exact = tuple(mp.mpf(v) for v in values)
    seen = tuple(mp.mpf(t) for t in y) if isinstance(y, tuple) else mp.mpf(y)
    top = power * log_p(mp.mpf(mean), seen, *exact) - ((mean - mu) / sigma) ** 2 / 2

    def density(f):
        e = power * log_p(f, seen, *exact) - ((f - mu) / sigma) ** 2 / 2 - top
        return mp.exp(e) if e > -200 else mp.mpf(0)

    # Panels of half a deviation about what was found, and further on the wider side.
    steps = [mp.mpf(k) / 2 for k in range(-28, 29)] + [16, 20, 26, 40, -16, -20, -26, -40]
    edges = sorted(mean + std * k for k in steps)
    rule = mp.quad(density, edges, method="gauss-legendre")
    first = mp.quad(lambda f: (f - mean) * density(f), edges, method="gauss-legendre") / rule
    second = mp.quad(lambda f: (f - mean) ** 2 * density(f), edges, method="gauss-legendre") / rule
    log_z = top + mp.log(rule / sigma) - mp.log(2 * mp.pi) / 2
    assert abs(log_z - found.log_z.item()) < 1e-10 * (1 + abs(log_z))
    assert abs(first) < 1e-10 * std
    assert abs(mp.sqrt(second - first**2) / std - 1) < 1e-10
