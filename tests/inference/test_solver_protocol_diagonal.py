"""The contract of a solver, by a second one: independent sites, whose posteriors have closed forms.

For the probit likelihood Z = Phi(z) with z = y m/sqrt(1 + V), and the tilted moments are those of
Rasmussen & Williams, (3.58): EP is exact, and so is the mean of QP.
"""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import norm

from qpruntime import infer
from qpruntime.inference.dense.solution import summarise
from qpruntime.inference.fixed_point import variational
from qpruntime.inference.fixed_point.convergence import Limits
from qpruntime.inference.fixed_point.iterate import settle
from qpruntime.inference.problem import Problem
from qpruntime.learning.objective import OBJECTIVES
from qpruntime.learning.optimise import maximise
from qpruntime.projection.projector import Projector
from tests.tools.diagonal import DiagonalFamily, DiagonalPrior
from tests.tools.oracle import slopes

N = 40
RNG = np.random.default_rng(7)
VARIANCE, MEAN = 10.0 ** RNG.uniform(-2, 3, N), RNG.normal(0.0, 2.0, N)
Y = np.where(np.arange(N) % 3, 1.0, -1.0)


def moments(variance, mean, y):
    """log Z, mean and variance of the tilted densities."""
    z = y * mean / np.sqrt(1.0 + variance)
    ratio = np.exp(norm.logpdf(z) - norm.logcdf(z))
    centre = mean + y * variance * ratio / np.sqrt(1.0 + variance)
    return norm.logcdf(z), centre, variance - variance**2 * ratio * (z + ratio) / (1.0 + variance)


def test_the_variational_bound_and_damped_weighted_powers_agree_with_the_dense_solver():
    prior, K = DiagonalPrior(VARIANCE, MEAN), np.diag(VARIANCE)
    problem = Problem(prior, Y, Projector("logistic", "vb"))
    bound = summarise(problem, variational.settle(problem, tol=1e-9, max_sweeps=500))
    dense = infer(K, Y, "logistic", "vb", mean=MEAN, tol=1e-9, max_sweeps=500)
    assert bound.log_evidence == pytest.approx(dense.log_evidence, rel=1e-12)
    weights = RNG.integers(0, 3, N).astype(float)
    problem = Problem(prior, Y, Projector("logistic", "ep"), power=0.5, weights=weights)
    post = summarise(problem, settle(problem, Limits(1e-9, damping=0.7)))
    dense = infer(
        K, Y, "logistic", "ep", mean=MEAN, tol=1e-9, damping=0.7, power=0.5, weights=weights
    )
    assert post.log_evidence == pytest.approx(dense.log_evidence, rel=1e-10)
    np.testing.assert_allclose(post.mean, dense.mean, rtol=1e-7, atol=1e-7)


def test_fixed_points_of_a_likelihood_with_two_peaks_are_searched():
    counts = np.full(6, 9.0)
    problem = Problem(DiagonalPrior(np.full(6, 4.0), np.zeros(6)), counts, Projector("poisson"))
    post = summarise(problem, settle(problem, restarts=np.random.default_rng(2).spawn(3)))
    dense = infer(4.0 * np.eye(6), counts, "poisson", n_restarts=3, random_state=2)
    assert post.status == dense.status
    assert post.log_evidence == pytest.approx(dense.log_evidence, rel=1e-9)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_hyper_parameter_is_learnt(objective):
    """The evidence is sum log Z_i, and so is the leave-one-out density of independent sites."""
    profile = 10.0 ** RNG.uniform(-1, 1, N)
    y = np.where(RNG.random(N) < norm.cdf(MEAN / np.sqrt(1.0 + 3.0 * profile)), 1.0, -1.0)
    family, projector = DiagonalFamily(profile, MEAN), Projector("probit", "ep")

    def value(theta):
        return moments(np.exp(theta) * profile, MEAN, y)[0].sum()

    found, slope = OBJECTIVES[objective](family, y, projector, 1e-9, 200)(np.array([0.3]))
    assert -found == pytest.approx(value(0.3), rel=1e-10)
    assert -slope[0] == pytest.approx(float(slopes(value, 0.3)), rel=1e-7)
    best = minimize_scalar(lambda t: -value(t), bounds=family.bounds[0], method="bounded")
    optimum, _ = maximise(family, y, projector, objective=OBJECTIVES[objective])
    assert optimum.success
    assert optimum.value == pytest.approx(-best.fun, rel=1e-8)
    assert optimum.theta[0] == pytest.approx(best.x, abs=1e-3)
