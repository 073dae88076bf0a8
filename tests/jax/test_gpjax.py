"""The integrator for GPJax: certified expectations where its points would stand."""

from types import SimpleNamespace

import numpy as np
import pytest

import qpruntime

jax = pytest.importorskip("jax", reason="the extra jax is not installed")
gpjax = pytest.importorskip("gpjax", reason="the extra gpjax is not installed")

jax.config.update("jax_enable_x64", True)

from qpruntime.jax.gpjax import CertifiedIntegrator  # noqa: E402
from tests.tools.cases import refuses  # noqa: E402

MEAN = np.array([[0.3], [-2.0], [4.0], [0.5]])
VARIANCE = np.array([[1.0], [30.0], [0.01], [2.0]])


@pytest.mark.parametrize(
    ("likelihood", "y", "signs"),
    [
        ("probit", [1.0, 0.0, 1.0, 0.0], True),
        ("logistic", [1.0, 0.0, 1.0, 0.0], True),
        ("poisson-exp", [2.0, 0.0, 55.0, 1.0], False),
        ("student-t(nu=4, scale=0.1)", [0.5, -3.0, 4.1, 9.0], False),
    ],
)
def test_expectations_are_those_of_the_package(likelihood, y, signs):
    """Labels 0 and 1 of GPJax are -1 and +1 here; 1e-9 of what was compared with mpmath."""
    y = np.array(y)[:, None]
    ours = np.where(y > 0.0, 1.0, -1.0) if signs else y
    known = qpruntime.functions(likelihood).expected_log_prob(MEAN, np.sqrt(VARIANCE), ours)
    found = CertifiedIntegrator(likelihood)(None, y, MEAN, VARIANCE, None)
    assert found.shape == (4,)
    np.testing.assert_allclose(found, known[:, 0], rtol=1e-9, atol=1e-12)


def test_slopes_are_those_of_the_package():
    """Student's t a tenth as wide as q."""
    integrator = CertifiedIntegrator("student-t(nu=4, scale=0.1)")
    y, v = np.zeros((1, 1)), np.ones((1, 1))
    slope = jax.grad(lambda m: integrator(None, y, m[None, None], v, None)[0])(0.5)
    own = qpruntime.functions("student-t(nu=4, scale=0.1)")
    assert abs(slope - own.expected_log_prob(0.5, 1.0, 0.0, derivatives=True).d_mu) < 1e-8


def test_a_likelihood_of_gpjax_takes_it():
    own = gpjax.likelihoods.Bernoulli(integrator=CertifiedIntegrator("probit"))
    y = np.array([[1.0], [0.0], [1.0], [1.0]])
    found = own.expected_log_likelihood(y, MEAN, VARIANCE)
    signs = np.where(y > 0.0, 1.0, -1.0)
    known = qpruntime.functions("probit").expected_log_prob(MEAN, np.sqrt(VARIANCE), signs)
    np.testing.assert_allclose(np.ravel(found), known[:, 0], rtol=1e-9)
    given = None, np.zeros((2, 1)), np.zeros((2, 2)), np.ones((2, 2)), SimpleNamespace()
    refuses("one number a row", CertifiedIntegrator("probit").integrate, *given)
