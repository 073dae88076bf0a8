"""Adaptive quadrature of any log density, against closed forms and mpmath."""

import csv
import math

import numpy as np
import pytest
from mpmath import mp

from qpruntime import NumericalError, project
from qpruntime._pointers import LANDMARK, SPLIT, Pointer
from qpruntime.likelihoods.base import Likelihood
from qpruntime.projection.projector import project_arrays
from tests.tools import pieces
from tests.tools.cases import every_case, refuses
from tests.tools.oracle import REFERENCE


def _peaks(f, y, theta):
    w = theta[0]
    a = -0.5 * ((f + 3.3) / w) ** 2
    b = -0.5 * ((f - 0.7) / w) ** 2 + 0.5
    c = -0.5 * ((f - 4.1) / w) ** 2 + 0.25
    top = max(a, b, c)
    return top + math.log(math.exp(a - top) + math.exp(b - top) + math.exp(c - top)), 0.0


def _logistic(f, y, theta):
    x = y * f
    return (-math.log1p(math.exp(-x)) if x > 0.0 else x - math.log1p(math.exp(x))), 0.0


def _student(f, y, theta):
    return -0.5 * (theta[0] + 1.0) * math.log1p(((f - y) / theta[1]) ** 2 / theta[0]), 0.0


def _needles(f, y, theta):
    a, b = (f - 1234.5678) / 1e-7, (f - 1235.5678) / 1e-7
    top = -0.5 * min(a * a, b * b)
    return top + math.log(math.exp(-0.5 * a * a - top) + math.exp(-0.5 * b * b - top)), 0.0


#: log p(y|f) and nothing: those of `pieces`, those of adaptive.csv, and what has odd places.
SPLITS = {
    "laplace": lambda f, y, theta: (-abs(f - y) / theta[0], 0.0),
    "peaks": _peaks,
    "step": lambda f, y, theta: (0.0 if f > y else -theta[0], 0.0),
    "slab": lambda f, y, theta: (0.0 if abs(f - y) < theta[0] else -math.inf, 0.0),
    "bump": lambda f, y, theta: (math.log1p(math.exp(-0.5 * ((f - y) / theta[0]) ** 2)), 0.0),
    "student": _student,
    "logistic": _logistic,
    "exponential": lambda f, y, theta: (y * (f - math.log(y) - math.expm1(f - math.log(y))), 0.0),
    "cusp": lambda f, y, theta: (-math.sqrt(abs(f - y)), 0.0),
    "needles": _needles,
    "block": lambda f, y, theta: (0.0 if abs(f - 1234.5678) < 1e-7 else -math.inf, 0.0),
    "undefined_beyond": lambda f, y, theta: (math.nan if f > theta[0] else 0.0, 0.0),
    "undefined_between": lambda f, y, theta: (math.nan if 0.3 < f < 0.4 else 0.0, 0.0),
    "flat": lambda f, y, theta: (0.5 * f * f, 0.0),  # exactly undoes the cavity N(0, 1)
    "infinite": lambda f, y, theta: (math.inf, 0.0),
    "oscillating": lambda f, y, theta: (math.cos(1e5 * f), 0.0),
}


def likelihood(name, *theta, landmarks=None):
    return Likelihood(
        *(name, "any", Pointer(SPLITS[name], SPLIT), lambda y: np.asarray(y, float)),
        **{"theta": np.array(theta), "log_concave": False, "landmarks": landmarks},
    )


#: Relative errors allowed where they are not 1e-12: (likelihood, parameter, sigma).
LIMITS = {
    # A double f next to y = -2 misses a peak of width 1e-6 by 2e-10 of its width.
    ("laplace", 1e-6, 1.0): 1e-9,
    ("peaks", 1e-3, 1e5): 1e-11,
    # Two ends at doubles around 0.25 are known to 6e-17.
    ("slab", 1e-6, 1.0): 1e-9,
}


def stored(name):
    with (REFERENCE / name).open(newline="") as file:
        return [(r[0], *map(float, r[1:])) for r in list(csv.reader(file))[1:]]


def check(result, ep, expected, limit, sigma):
    log_z, mean, variance, star = expected
    assert result.log_z == pytest.approx(log_z, rel=limit, abs=limit)
    assert result.mean == pytest.approx(mean, rel=limit, abs=limit * math.sqrt(variance))
    assert ep.std == pytest.approx(math.sqrt(variance), rel=limit)
    assert result.std == pytest.approx(star, rel=limit)


@every_case("row", stored("pieces.csv"))
def test_closed_forms(row):
    name, theta, mu, sigma, y, *expected = row
    found = likelihood(name, theta)
    qp, ep = (project_arrays(found, mu, sigma, y, method=m) for m in ("qp", "ep"))
    check(qp, ep, expected, LIMITS.get((name, theta, sigma), 1e-12), sigma)


@pytest.mark.parametrize(
    "rows", [slice(-1, None), pytest.param(slice(None, -1), marks=pytest.mark.slow)]
)
def test_stored_closed_forms_are_those_of_mpmath(rows):
    assert [row[:5] for row in stored("pieces.csv")] == pieces.CASES
    for case, row in zip(pieces.CASES[rows], stored("pieces.csv")[rows], strict=True):
        np.testing.assert_allclose(row[5:], pieces.reference(*case), rtol=1e-14)


def test_landmarks_are_looked_at():
    mu, sigma = 1235.0, 3.0
    with mp.workdps(pieces.DIGITS):
        peaks = [pieces.gaussian(mu, sigma, c, 1e-7) for c in (1234.5678, 1235.5678)]
        expected = pieces.solve(peaks)
    marks = Pointer(lambda y, theta, k: 1234.5678 + k if k < 2 else math.nan, LANDMARK)
    found = likelihood("needles", landmarks=marks)
    qp, ep = (project_arrays(found, mu, sigma, 0.0, method=m) for m in ("qp", "ep"))
    # A double f next to 1235 misses a peak of width 1e-7 by 1e-6 of its width.
    check(qp, ep, expected, 1e-6, sigma)
    found = likelihood("block", landmarks=marks)
    wanted = 2e-7 / math.sqrt(4.0 * math.pi)
    assert project(found, mu, sigma, 0.0)[1] == pytest.approx(wanted, rel=1e-5)
    refuses("no finite mass", project, likelihood("block"), mu, sigma, 0.0, error=NumericalError)


@every_case(
    ("name", "theta", "words"),
    [
        ("undefined_beyond", 2.0, "is not a number"),
        ("undefined_between", 0.0, "is not a number"),
        ("flat", 0.0, "does not decay"),
        ("infinite", 0.0, "no finite mass|does not decay"),
        ("oscillating", 0.0, "varies too fast"),
    ],
)
def test_what_cannot_be_integrated(name, theta, words):
    cavity = r"the cavity N\(0, 1\^2\) and y = 0\.5"
    words = rf"{name} ({words}).* for {cavity}"
    refuses(words, project, likelihood(name, theta), 0.0, 1.0, 0.5, error=NumericalError)


def test_undefined_where_there_is_no_mass():
    # As exp(f)/(1 + exp(f)) is beyond f = 709.
    mean, std = project(likelihood("undefined_beyond", 30.0), 0.0, 1.0, 0.5)
    assert mean == pytest.approx(0.0, abs=1e-14)
    assert std == pytest.approx(1.0, rel=1e-14)


@every_case("row", stored("adaptive.csv"))
def test_reference(row):
    name, a, b, mu, sigma, y, *expected = row
    own = likelihood(name, a, b)
    qp, ep = (project_arrays(own, mu, sigma, y, method=m) for m in ("qp", "ep"))
    # f - log y with y = 1e9 is known to 4e-15, a deviation is 3e-5.
    check(qp, ep, expected, 1e-9 if y == 1e9 else 1e-12, sigma)
