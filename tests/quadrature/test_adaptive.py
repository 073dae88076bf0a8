"""Adaptive quadrature of any log density, against closed forms and mpmath."""

from __future__ import annotations

import csv
import math

import numpy as np
import pytest
from mpmath import mp

import pieces
from cases import every_case
from oracle import REFERENCE
from qpruntime import NumericalError, project
from qpruntime.jit import LANDMARK, SPLIT, Pointer
from qpruntime.likelihoods.contract import Likelihood
from qpruntime.projection.projector import project_arrays


def _laplace(f, y, theta):
    return -abs(f - y) / theta[0], 0.0


def _peaks(f, y, theta):
    w = theta[0]
    a = -0.5 * ((f + 3.3) / w) ** 2
    b = -0.5 * ((f - 0.7) / w) ** 2 + 0.5
    c = -0.5 * ((f - 4.1) / w) ** 2 + 0.25
    top = max(a, b, c)
    return top + math.log(math.exp(a - top) + math.exp(b - top) + math.exp(c - top)), 0.0


def _step(f, y, theta):
    return (0.0 if f > y else -theta[0]), 0.0


def _slab(f, y, theta):
    return (0.0 if abs(f - y) < theta[0] else -math.inf), 0.0


def _bump(f, y, theta):
    return math.log(1.0 + math.exp(-0.5 * ((f - y) / theta[0]) ** 2)), 0.0


def laplace_pieces(mu, sigma, y, b):
    return [
        pieces.sloping(mu, sigma, 1 / mp.mpf(b), -mp.inf, y, -y / mp.mpf(b)),
        pieces.sloping(mu, sigma, -1 / mp.mpf(b), y, mp.inf, y / mp.mpf(b)),
    ]


def peaks_pieces(mu, sigma, y, w):
    centres = ((-3.3, 0.0), (0.7, 0.5), (4.1, 0.25))
    return [pieces.gaussian(mu, sigma, c, w, weight) for c, weight in centres]


def step_pieces(mu, sigma, y, drop):
    low = [] if drop == math.inf else [pieces.sloping(mu, sigma, 0, -mp.inf, y, -drop)]
    return [*low, pieces.sloping(mu, sigma, 0, y, mp.inf)]


def slab_pieces(mu, sigma, y, w):
    # The ends are where the doubles f have abs(f - y) < w.
    return [pieces.sloping(mu, sigma, 0, mp.mpf(y) - w, mp.mpf(y) + w)]


def bump_pieces(mu, sigma, y, w):
    return [
        pieces.sloping(mu, sigma, 0, -mp.inf, mp.inf),
        pieces.gaussian(mu, sigma, y, w),
    ]


def likelihood(split, *theta, landmarks=None):
    return Likelihood(
        split.__name__.strip("_"),
        "any",
        Pointer(split, SPLIT),
        lambda y: np.asarray(y, float),
        theta=np.array(theta),
        log_concave=False,
        landmarks=landmarks,
    )


# Likelihood, its pieces, parameter, cavity mean and deviation, y, relative error allowed.
CLOSED = [
    (_laplace, laplace_pieces, 1.0, 0.0, 1.0, 0.3, 1e-12),
    (_laplace, laplace_pieces, 1.0, 0.0, 1e6, 5.0, 1e-12),
    (_laplace, laplace_pieces, 0.01, -1e3, 10.0, 3.0, 1e-12),
    # A double f next to y = -2 misses a peak of width 1e-6 by 2e-10 of its width.
    (_laplace, laplace_pieces, 1e-6, 3.0, 1.0, -2.0, 1e-9),
    (_peaks, peaks_pieces, 0.1, 0.0, 3.0, 0.0, 1e-12),
    (_peaks, peaks_pieces, 1e-3, 0.0, 1e5, 0.0, 1e-11),
    (_step, step_pieces, math.inf, -10.0, 1.0, 0.3, 1e-12),
    (_step, step_pieces, math.inf, 0.0, 1e6, 0.3, 1e-12),
    (_step, step_pieces, 2.0, 0.5, 2.0, 0.3, 1e-12),
    (_step, step_pieces, 50.0, -8.0, 1.0, 0.3, 1e-12),
    # Two ends at doubles around 0.25 and 5 are known to 6e-17 and 9e-16.
    (_slab, slab_pieces, 1e-6, 10.0, 1.0, 0.25, 1e-9),
    (_slab, slab_pieces, 1.0, 0.0, 1e6, 5.0, 1e-12),
    (_bump, bump_pieces, 1e-6, 0.0, 1.0, 0.4, 1e-12),
    (_bump, bump_pieces, 0.01, 3e3, 1e3, 4.0, 1e-12),
]


def check(result, ep, expected, limit, sigma):
    log_z, mean, variance, star = expected
    assert result.log_z == pytest.approx(log_z, rel=limit, abs=limit)
    assert result.mean == pytest.approx(mean, rel=limit, abs=limit * math.sqrt(variance))
    assert ep.std == pytest.approx(math.sqrt(variance), rel=limit)
    assert result.std == pytest.approx(star, rel=limit)


@every_case(("split", "closed", "theta", "mu", "sigma", "y", "limit"), CLOSED)
def test_closed_forms(split, closed, theta, mu, sigma, y, limit):
    with mp.workdps(pieces.DIGITS):
        expected = pieces.solve(closed(mu, sigma, y, theta))
    qp, ep = (
        project_arrays(likelihood(split, theta), mu, sigma, y, method=m) for m in ("qp", "ep")
    )
    check(qp, ep, expected, limit, sigma)


def _landmark(y, theta, k):
    return 1234.5678 + k if k < 2 else math.nan


def _needles(f, y, theta):
    a, b = (f - 1234.5678) / 1e-7, (f - 1235.5678) / 1e-7
    top = -0.5 * min(a * a, b * b)
    return top + math.log(math.exp(-0.5 * a * a - top) + math.exp(-0.5 * b * b - top)), 0.0


def _block(f, y, theta):
    return (0.0 if abs(f - 1234.5678) < 1e-7 else -math.inf), 0.0


def test_landmarks_are_looked_at():
    mu, sigma = 1235.0, 3.0
    with mp.workdps(pieces.DIGITS):
        peaks = [pieces.gaussian(mu, sigma, c, 1e-7) for c in (1234.5678, 1235.5678)]
        expected = pieces.solve(peaks)
    marks = Pointer(_landmark, LANDMARK)
    found = likelihood(_needles, landmarks=marks)
    qp, ep = (project_arrays(found, mu, sigma, 0.0, method=m) for m in ("qp", "ep"))
    # A double f next to 1235 misses a peak of width 1e-7 by 1e-6 of its width.
    check(qp, ep, expected, 1e-6, sigma)
    found = likelihood(_block, landmarks=marks)
    assert project(found, mu, sigma, 0.0)[1] == pytest.approx(
        2e-7 / math.sqrt(4.0 * math.pi), rel=1e-5
    )
    with pytest.raises(NumericalError, match="no finite mass"):
        project(likelihood(_block), mu, sigma, 0.0)


def _undefined_beyond(f, y, theta):
    return (math.nan if f > theta[0] else 0.0), 0.0


def _undefined_between(f, y, theta):
    return (math.nan if 0.3 < f < 0.4 else 0.0), 0.0


def _flat(f, y, theta):
    # Exactly undoes the cavity N(0, 1).
    return 0.5 * f * f, 0.0


def _infinite(f, y, theta):
    return math.inf, 0.0


def _oscillating(f, y, theta):
    return math.cos(1e5 * f), 0.0


@every_case(
    ("split", "theta", "words"),
    [
        (_undefined_beyond, 2.0, "is not a number"),
        (_undefined_between, 0.0, "is not a number"),
        (_flat, 0.0, "does not decay"),
        (_infinite, 0.0, "no finite mass|does not decay"),
        (_oscillating, 0.0, "varies too fast"),
    ],
)
def test_what_cannot_be_integrated(split, theta, words):
    cavity = r"the cavity N\(0, 1\^2\) and y = 0\.5"
    with pytest.raises(NumericalError, match=rf"{split.__name__[1:]} ({words}).* for {cavity}"):
        project(likelihood(split, theta), 0.0, 1.0, 0.5)


def test_undefined_where_there_is_no_mass():
    # As exp(f)/(1 + exp(f)) is beyond f = 709.
    mean, std = project(likelihood(_undefined_beyond, 30.0), 0.0, 1.0, 0.5)
    assert mean == pytest.approx(0.0, abs=1e-14)
    assert std == pytest.approx(1.0, rel=1e-14)


def _student(f, y, theta):
    nu, scale = theta
    return -0.5 * (nu + 1.0) * math.log1p(((f - y) / scale) ** 2 / nu), 0.0


def _logistic(f, y, theta):
    x = y * f
    return (-math.log1p(math.exp(-x)) if x > 0.0 else x - math.log1p(math.exp(x))), 0.0


def _exponential(f, y, theta):
    g = f - math.log(y)
    return y * (g - math.expm1(g)), 0.0


def _cusp(f, y, theta):
    return -math.sqrt(abs(f - y)), 0.0


def rows():
    path = REFERENCE / "adaptive.csv"
    with path.open(newline="") as file:
        return [(r[0], *map(float, r[1:])) for r in list(csv.reader(file))[1:]]


@every_case("row", rows())
def test_reference(row):
    name, a, b, mu, sigma, y, *expected = row
    split = {
        "student": _student,
        "logistic": _logistic,
        "exponential": _exponential,
        "cusp": _cusp,
    }[name]
    qp, ep = (project_arrays(likelihood(split, a, b), mu, sigma, y, method=m) for m in ("qp", "ep"))
    # f - log y with y = 1e9 is known to 4e-15, a deviation is 3e-5.
    check(qp, ep, expected, 1e-9 if y == 1e9 else 1e-12, sigma)
