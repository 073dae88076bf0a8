"""Noise far narrower than the doubles around the observation are apart, or than the cavity."""

import math
import warnings
from functools import cache

import numpy as np
import pytest
from mpmath import mp
from scipy.special import ndtri

from qpruntime import ConvergenceWarning, infer, likelihoods, project
from qpruntime.likelihoods import Likelihood
from qpruntime.projection.projector import project_arrays
from tests.tools.cases import every_case

CAVITIES = [
    (place, sigma, y)
    for y in (0.3, -2.0, 1000.0)
    for sigma in (1e-6, 1e-3, 1.0, 1e5)
    for place in ("at y", "a scale off", "in the flank", "5 sigma below")
]


def cavity(place, sigma, y, scale):
    """Cavity mean; y - mean is a double for all of these but the last."""
    return {
        "at y": y,
        "a scale off": y + scale,
        "in the flank": y + 0.125 * sigma,
        "5 sigma below": y - 5.0 * sigma,
    }[place]


@cache
def half(mass):
    """I(F) df with F exponential, up to a mass: I(F) dF/F. Below -10 are 1e-21 of it."""
    ends = [-10.0, -3.0, float(ndtri(mass))]
    return float(mp.quad(lambda z: mp.npdf(z) ** 2 / mp.ncdf(z), ends))


def two_exponentials(d, sigma, scale):
    """(log Z, mean, std, sigma*) of Laplace noise at 0 and N(d, sigma^2), scale much less.

    Over a few scales the cavity is a line in the exponent, but for (scale/sigma)^2.
    """
    lean = d / sigma**2
    left, right = scale / (1.0 + scale * lean), scale / (1.0 - scale * lean)
    log_z = math.log((left + right) / (2.0 * scale * sigma)) - 0.5 * (d / sigma) ** 2
    log_z -= 0.5 * math.log(2.0 * math.pi)

    whole = left + right
    star = left * half(left / whole) + right * half(right / whole)
    return log_z, right - left, math.hypot(left, right), star


@pytest.mark.parametrize("scale", [1e-11, 1e-14, 1e-20])
def test_laplace_against_closed_form(scale):
    likelihood = likelihoods.get(f"laplace(scale={scale!r})")
    for place, sigma, y in CAVITIES[::5]:
        mu = cavity(place, sigma, y, scale)
        log_z, mean, std, star = two_exponentials(mu - y, sigma, scale)
        qp, ep = (project_arrays(likelihood, mu, sigma, y, method=m) for m in ("qp", "ep"))
        where = f"scale {scale}, {place}, sigma {sigma}, y {y}"
        limit = 1e-11 + 4.0 * (scale / sigma) ** 2
        assert qp.log_z == pytest.approx(log_z, rel=limit, abs=limit), where
        assert qp.mean == pytest.approx(y + mean, rel=4e-16, abs=0.0), where
        assert ep.std == pytest.approx(std, rel=limit, abs=0.0), where
        assert qp.std == pytest.approx(star, rel=limit, abs=0.0), where


@every_case("method", ["qp", "ep", "wp"])
@every_case("nu", [1.0, 4.0])
def test_student_t_is_the_same_in_other_units(method, nu):
    # A power of two: the numbers of both problems are the same but for their exponents.
    scale, options = 2.0**-35, {"p": 3.0} if method == "wp" else {}
    narrow, unit = (likelihoods.get(f"student-t(nu={nu},scale={s!r})") for s in (scale, 1.0))
    for place, sigma, y in CAVITIES[::5]:
        mu = cavity(place, sigma, y, scale)
        found = project(narrow, mu, sigma, y, method, **options)
        mean, std = project(unit, (mu - y) / scale, sigma / scale, 0.0, method, **options)
        where = f"{place}, sigma {sigma}, y {y}"
        assert found[1] == pytest.approx(scale * std, rel=1e-11, abs=0.0), where
        near = {"rel": 1e-15, "abs": 1e-12 * float(found[1])}
        assert found[0] == pytest.approx(y + scale * mean, **near), where


def test_mean_of_a_cavity_far_from_its_observation():
    # The observation pulls by sigma^2/scale, which what is left of y's digits must not blur.
    mean, _ = project("laplace", 0.3, 1e-8, 1000.0, "wp", p=2.0)
    assert mean == pytest.approx(0.3 + 1e-16, rel=1e-15, abs=0.0)


def test_a_users_own_density_of_a_location():
    claims = {"log_concave": True, "location": True, "landmarks": lambda y, theta: [y]}
    own = Likelihood.from_log_prob(
        lambda f, y, theta: -abs(f - y) / theta[0], name="pointed", theta={"scale": 1e-11}, **claims
    )
    given = "laplace(scale=1e-11)"
    for place, sigma, y in CAVITIES[::7]:
        mu = cavity(place, sigma, y, 1e-11)
        expected = project(given, mu, sigma, y)[1]
        np.testing.assert_allclose(project(own, mu, sigma, y)[1], expected, rtol=1e-11)


@every_case("name", ["laplace(scale=1e-11)", "student-t(nu=4,scale=4e-11)"])
@every_case("table", ["exact", None])
def test_inference(name, table):
    x = np.linspace(0.0, 3.0, 20)
    K = np.exp(-0.5 * (x[:, None] - x) ** 2) + 1e-2 * np.eye(20)
    y = 1000.0 + np.sin(x)
    # Cavities are the difference of precisions that agree to 22 digits.
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        qp = infer(K, y, name, "qp", mean=1000.0, table=table)
    # Of noise so small nothing is left but the observations.
    np.testing.assert_allclose(qp.mean, y, rtol=1e-14)
    assert (qp.variance > 0.0).all()
    assert (np.sqrt(qp.variance) < 1e-9).all()
