"""Quadrature nodes around a Student-t observation: against numpy's panels and the adaptive rule."""

import math

import numpy as np
import pytest
from scipy import stats

from qpruntime import likelihoods
from qpruntime.quadrature.adaptive_kernels import location_rule
from qpruntime.quadrature.sigma_star_kernels import OK, Raised, exact_run, raised_point
from tests.tools.cases import every_case
from tests.tools.oracle import tilted


def by_frame(mu, sigma, y, parameters, power=1.0):
    """Return log Z, mean, variance and sigma* over nodes around y, None if there are none."""
    likelihood = likelihoods.get("student-t", **parameters)
    theta, _, _, split, _, addresses = likelihood.functions(powers=True)
    frame = likelihood.frame if power == 1.0 else likelihood.powers.frame
    given = () if power == 1.0 else (power,)
    if math.isnan(frame(mu, sigma, y, theta, *given)[1]):
        return None
    out = np.empty((1, 4))
    if power == 1.0:
        assert exact_run(split, addresses, True, np.array([mu]), sigma, y, theta, out) == OK
    else:
        assert raised_point(Raised(split, power, y, theta), addresses, False, mu, sigma, out) == OK
    return out[0]


def drawn(count, seed, largest=0.0):
    """Cavities, observations and parameters: narrow and wide noise, one peak and two.

    Observations are at most one width of the density, or so many of them.
    """
    rng = np.random.default_rng(seed)
    for _ in range(count):
        sigma, ratio = 10.0 ** rng.uniform(-3.0, 3.0), 10.0 ** rng.uniform(-3.0, 3.0)
        place = float(rng.normal()) + largest * float(rng.uniform(-1.0, 1.0))
        y = place * min(ratio, 1.0) * sigma
        mu = y + float(rng.choice([-1.0, 1.0])) * 10.0 ** rng.uniform(-2.0, 3.5) * sigma
        yield mu, sigma, y, {"nu": 10.0 ** rng.uniform(-1.0, 6.0), "scale": ratio * sigma}


@every_case(("seed", "largest", "error"), [(1, 0.0, 1.0), (2, 0.0, 1.0), (3, 6e4, 100.0)])
def test_nodes_around_an_observation(seed, largest, error):
    """Far from 0, f - y has fewer digits: `error` is by how much errors grow."""
    cases, framed = list(drawn(60, seed, largest)), 0
    for mu, sigma, y, parameters in cases:
        found = by_frame(mu, sigma, y, parameters)
        if found is None:
            continue
        framed += 1
        theta, _, _, split, _, addresses = likelihoods.get("student-t", **parameters).functions()
        rule = location_rule(split, addresses.landmark, 1.0, mu, sigma, y, theta)
        # sigma* differs by 1e-14 at most, in 8000 cases. In log Z and the variance large
        # parts may cancel; they come from closed moments elsewhere.
        np.testing.assert_allclose(found[3], rule[4], rtol=1e-13 * error)
        np.testing.assert_allclose(found[1], rule[2], rtol=0.0, atol=1e-12 * error * sigma)
        np.testing.assert_allclose(found[2], rule[3], rtol=2e-11)
        np.testing.assert_allclose(found[0], rule[1], rtol=1e-12, atol=1e-11)
    assert framed > len(cases) / (4 if largest else 2)


@pytest.mark.interpreted
@every_case("power", [1.0, 0.4, 3.0])
@every_case(
    ("mu", "nu", "scale"),
    [(0.3, 4.0, 1.0), (2.0, 4.0, 0.1), (-6.0, 2.0, 0.3), (9.0, 0.3, 0.01), (0.9, 1e4, 0.2)],
)
def test_nodes_against_panels(mu, nu, scale, power):
    y, noise = 0.05 * scale, stats.t(nu, 0.0, scale)
    found = by_frame(mu, 1.0, y, {"nu": nu, "scale": scale}, power)
    if nu * power < 0.5 and power < 1.0:
        assert found is None  # the power has too few degrees of freedom
        return
    want = tilted(lambda f: power * noise.logpdf(y - f), mu, 1.0, [y])
    np.testing.assert_allclose(found, want, rtol=1e-11, atol=1e-11)


def test_deep_valleys_and_distant_observations_have_no_frame():
    steep, far = {"nu": 1e3, "scale": 0.01}, {"nu": 4.0, "scale": 1.0}
    assert by_frame(5.0, 1.0, 0.0, steep) is None
    assert by_frame(1e5, 1.0, 1e5 + 1.0, far) is None
    assert by_frame(1.0, 1.0, 2.0, far) is not None
