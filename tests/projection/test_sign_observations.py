"""A likelihood beside signs: every row as it is alone, and what crosses processes."""

import pickle

import numpy as np
import pytest
from scipy.stats import norm, poisson

from qpruntime.likelihoods import get
from qpruntime.projection.projector import Projector, project_arrays
from qpruntime.projection.sign_observations import encoded, signed
from tests.tools.cases import every_case

MU = np.array([0.3, -1.0, 2.0, 50.0, -800.0, 0.1])
SIGMA = np.array([1.0, 2.0, 0.3, 1000.0, 1000.0, 0.2])
Y = np.array([1.0, 3.0, 1.0, -1.0, 1.0, -1.0])
SOME = np.arange(6) < 2


@every_case("name", ["poisson-exp", "student-t(nu=4, scale=0.3)"])
def test_rows_as_they_are_alone(name):
    """The very numbers of each likelihood, by EP and by the rule that QP integrates with."""
    own = get(name)
    for method in ("ep", "qp"):
        y = np.where(SOME, Y, encoded(Y))
        found = project_arrays(signed(own), MU, SIGMA, y, method, "exact")
        for likelihood, some in ((own, SOME), ("probit", ~SOME)):
            alone = project_arrays(likelihood, MU[some], SIGMA[some], Y[some], method, "exact")
            for ours, theirs in zip(found[:3], alone[:3], strict=True):
                # sigma* of signs has another rule where the likelihood has no frame.
                np.testing.assert_allclose(ours[some], theirs, rtol=1e-13)


def test_by_quadrature():
    f = np.linspace(-12.0, 12.0, 40_001)
    own = signed(get("poisson-exp"))
    for y, density in ((3.0, poisson.pmf(3, np.exp(f))), (-np.inf, norm.cdf(-f))):
        weight = density * norm.pdf(f, 0.4, 0.8)
        mass = np.trapezoid(weight, f)
        mean = np.trapezoid(weight * f, f) / mass
        std = np.sqrt(np.trapezoid(weight * (f - mean) ** 2, f) / mass)
        found = project_arrays(own, 0.4, 0.8, y, "ep")
        assert float(found.log_z) == pytest.approx(np.log(mass), abs=1e-9)
        assert float(found.mean) == pytest.approx(mean, abs=1e-9)
        assert float(found.std) == pytest.approx(std, abs=1e-9)


def test_other_parameters():
    own = signed(get("student-t(nu=4, scale=0.3)"))
    moved = own.with_parameters(scale=0.5)
    assert own.with_parameters(nu=4.0) is own
    assert (moved.spelt, moved.parameters["scale"]) == ("student-t(nu=4, scale=0.5)", 0.5)
    again = pickle.loads(pickle.dumps(moved))
    y = np.where(SOME, Y, encoded(Y))
    for one in (moved, again):
        found = project_arrays(one, MU, SIGMA, y, "ep")
        alone = project_arrays(moved.own, MU[:2], SIGMA[:2], Y[:2], "ep")
        np.testing.assert_array_equal(found.mean[:2], alone.mean)
    assert not Projector(own, "ep").likelihood.moves
