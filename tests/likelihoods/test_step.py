"""The step likelihood: moments and sigma* against dense quadrature, and limits."""

import math

import numpy as np
import pytest

from qpruntime import NumericalError, infer, likelihoods, project
from qpruntime.likelihoods.responses import log_ratios
from qpruntime.projection.projector import Projector
from qpruntime.projection.site_kernel import project_many
from tests.tools.cases import refuses
from tests.tools.oracle import tilted


@pytest.mark.interpreted
def test_projections_of_random_steps():
    """Against panels that know nothing but the two heights; powers multiply their logarithm."""
    rng = np.random.default_rng(5)
    for method in ("ep", "qp"):
        projector = Projector("step", method)
        for _ in range(40):
            sigma = 10.0 ** rng.uniform(-1, 1)
            z, power = rng.normal() * 3.0, float(rng.choice([1.0, 0.3, 4.0]))
            y = rng.choice([-1.0, 1.0]) * (rng.exponential(2.0) + 0.5 * z * z * rng.integers(2))
            want = tilted(
                lambda f, y=y, p=power: np.where(y * f < 0, -p * abs(y), 0.0), z * sigma, sigma
            )
            powers = None if power == 1.0 else np.array([power])
            mu = np.array([z * sigma])
            got = project_many(projector.likelihood, projector.source, mu, sigma, y, None, powers)
            scale = math.sqrt(want[2])
            np.testing.assert_allclose(got.log_z, want[0], rtol=1e-11, atol=1e-12)
            np.testing.assert_allclose(got.mean, want[1], rtol=1e-11, atol=1e-11 * scale)
            np.testing.assert_allclose(got.std, scale if method == "ep" else want[3], rtol=1e-11)


@pytest.mark.interpreted
def test_limits():
    # y = 0 says nothing; an infinite y is the heaviside; far from the edge nothing happens.
    assert project("step", 0.7, 2.0, 0.0) == (0.7, pytest.approx(2.0, rel=1e-15))
    z = np.array([-1e4, -30.0, -2.0, 0.0, 3.0, 20.0])
    for sign in (1.0, -1.0):
        for method in ("ep", "qp"):
            step = project("step", 3.0 * z, 3.0, sign * np.inf, method=method)
            wall = project("heaviside", 3.0 * z, 3.0, sign, method=method)
            # The wall's sigma* comes from a table certified to 1e-9.
            np.testing.assert_allclose(step, wall, rtol=1e-9 if method == "qp" else 1e-13)
    mean, std = project("step", [1e200, -1e200, -1e9], 1.0, [2.0, 2.0, 1e3], method="qp")
    np.testing.assert_array_equal(mean, [1e200, -1e200, -1e9])
    np.testing.assert_allclose(std, 1.0, rtol=1e-14)
    # alpha -> -inf with equal masses on both sides: sigma*/sigma_EP = phi(0)/(1/2).
    alpha = -1e4
    right = -0.5 * alpha**2 - math.log(-alpha * math.sqrt(2 * math.pi))
    mean, std = project("step", alpha, 1.0, -right, method="qp")
    np.testing.assert_allclose(std / (0.5 * abs(alpha)), math.sqrt(2 / math.pi), rtol=1e-3)


def test_what_is_refused():
    refuses("0 says nothing", log_ratios, [1.0, np.nan])
    given = np.eye(2), [np.inf, 1.0], "step"
    refuses(".", infer, *given, method="vb", error=NumericalError)
    # Steps are no labels: a table of one height would answer for another.
    assert not likelihoods.get("step").mirror
