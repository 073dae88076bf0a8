"""Variances without digits: what divides by them goes on, or says so in a typed error.

Where neighbours fix f under a vast prior its posterior variance is a difference of equal numbers,
and may come out as nothing, as less than nothing or subnormal: which of these depends on the
order in which the BLAS of a machine adds.
"""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from qpruntime.errors import NumericalError
from qpruntime.inference.corrections.ep_fixed_point import normal_of
from qpruntime.inference.dense.solver import DensePrior
from qpruntime.inference.fixed_point.convergence import Limits, Trace
from qpruntime.inference.fixed_point.iterate import Peaks, around, drawn, settle
from qpruntime.inference.parallel_updates import match
from qpruntime.inference.problem import Observed, Problem
from qpruntime.inference.sparse.passes import Block, cavities, propose
from qpruntime.inference.sparse.state import PowerProjector
from qpruntime.learning.objective import loo_slope
from qpruntime.projection.projector import Projector
from tests.tools.cases import every_case, refuses

# Nothing, less than nothing, subnormal, and what rounds to nothing when it is squared.
LOST = [0.0, -1e-12, 5e-324, 1e-170]


def counts(mean=1.5):
    """Counts with the square link, whose sites are free to be negative."""
    x = np.linspace(0.0, 2.0, 6)
    K = 2.0 * np.exp(-0.5 * (x[:, None] - x) ** 2) + 1e-8 * np.eye(6)
    y = np.array([4.0, 3.0, 0.0, 1.0, 5.0, 2.0])
    return Problem(DensePrior(K, np.full(6, mean)), y, Projector("poisson", "ep"))


@pytest.fixture(scope="module")
def settled():
    problem = counts()
    return problem, settle(problem)


def lost(end, variance):
    """The same end with a variance that has no digits at site 2."""
    found = end.variance.copy()
    found[2] = variance
    return replace(end, variance=found)


@every_case("variance", LOST)
def test_the_search_around_held_sites_goes_on(settled, variance):
    problem, end = settled
    found = list(around(problem, lost(end, variance), Limits(), Trace()))
    # Three starts of four end at least, as 1e170 is too strong for one; they end where the sound
    # variance leads, since there is one fixed point here.
    assert len(found) >= 3
    for other in found:
        assert other.status == "converged"
        # Both are settled to 1e-6 in posterior units, and a contraction of .9 may leave ten times.
        assert np.abs(other.factor.mean - end.factor.mean).max() < 1e-5


@every_case("variance", LOST)
def test_lost_variances_are_no_peak_or_one_that_is_known(settled, variance):
    problem, end = settled
    peaks = Peaks(problem)
    peaks.add(end)
    peaks.add(lost(end, variance))
    assert peaks.best is end


@every_case("variance", [5e-324, 1e-310, 1e-200])
def test_restarts_from_priors_too_narrow_for_a_precision(variance):
    K = np.full((3, 3), variance)  # singular too: draws take what has no Cholesky factor
    problem = Problem(DensePrior(K, np.ones(3)), np.array([1.0, 0.0, 2.0]), Projector("poisson"))
    rng = np.random.default_rng(0)
    for end in drawn(problem, Limits(), Trace(), rng):
        assert np.isfinite(end.factor.mean).all()


def test_draws_have_the_covariance_of_a_prior_without_a_cholesky_factor():
    # Rounding of the largest variance, 1e-16 of 1e10, is far above the jitter of the others.
    low = np.array([[1.0, 1.0 + 5e-7], [1.0 + 5e-7, 1.0]])  # eigenvalue -5e-7
    K = np.zeros((3, 3))
    K[0, 0], K[1:, 1:] = 1e10, low
    prior, rng = DensePrior(K, np.array([1.0, 2.0, 3.0])), np.random.default_rng(1)
    draws = np.array([prior.draw(rng) for _ in range(1000)]) - [1.0, 2.0, 3.0]
    scaled = draws.T @ draws / len(draws) / np.sqrt(np.outer(np.diag(K), np.diag(K)))
    # 1000 draws tell a variance to sqrt(2/1000) = .045; four of these.
    assert np.allclose(scaled, [[1, 0, 0], [0, 1, 1], [0, 1, 1]], atol=0.18)


@every_case("variance", [0.0, 5e-324])
def test_means_are_matched_where_there_is_a_variance(variance):
    mean, tau = np.array([0.3, 0.2]), np.array([0.5, 0.4])
    nu, d_tau, d_nu = np.array([0.1, 0.2]), np.array([0.1, 0.0]), np.array([0.2, 0.3])
    variances, kept = np.array([2.0, variance]), np.array([0.7, 1.0])
    match(1.0, (mean, variances, kept, np.zeros(2)), (tau, nu), (d_tau, d_nu))
    # The tilted mean is (m + v d_nu)/(1 + v d_tau) with 1 = kept + v tau written out.
    tilted = (0.3 + 2.0 * 0.2) / (0.7 + 2.0 * 0.6)
    assert nu[0] == pytest.approx(0.1 + (tilted - 0.3) / 2.0, rel=1e-14)
    assert np.isfinite(nu[1])


@every_case("variance", LOST)
def test_leave_one_out_slopes_are_exact_or_a_typed_error(settled, variance):
    problem, end = settled
    refuses(r"jitter|rescale", loo_slope, problem, lost(end, variance), error=NumericalError)


@every_case("variance", LOST[:2])
def test_corrections_start_from_variances(settled, variance):
    problem, end = settled

    class Cancelled:
        mean = end.factor.mean

        def covariance(self):
            return end.factor.covariance()

        def marginals(self):
            return lost(end, variance).variance, end.kept

    likelihood = problem.projector.likelihood
    observed = Observed(problem.prior.K, problem.y, problem.prior.mean, likelihood)
    refuses("site 2", normal_of, observed, end.sites, Cancelled(), error=NumericalError)


def test_sparse_rows_without_room_for_a_site_stay_as_they_are():
    # The first site takes exactly what r leaves of the prior, 1 + r tau = 0; the second is sound.
    tau, nu = np.array([-1.0, 0.5]), np.array([0.1, 0.2])
    block = Block(np.ones(2), None, None, tau, nu)
    at = cavities(block, np.full(2, 0.1), np.full(2, 0.5), np.ones(2), 1.0, 1.0)
    assert at.proper.tolist() == [False, True]
    rule = PowerProjector(Projector("probit", "ep"))
    expected = propose(rule, block, at)
    assert (expected.tau[0], expected.nu[0], expected.counts[2]) == (-1.0, 0.1, 1)
    narrow = at._replace(v=np.array([5e-324, at.v[1]]), proper=np.array([True, True]))
    found = propose(rule, block, narrow)
    assert (found.tau[0], found.nu[0], found.counts[2]) == (-1.0, 0.1, 1)
    # Moments of the probit (Rasmussen & Williams, 3.58) at the cavity of the second.
    T = 0.5 / 1.5
    kept = 1.0 - 0.5 * T
    m, v = (0.1 - 0.5 * 0.2 / 1.5) / kept, 0.5 / kept + 1.0
    z = m / np.sqrt(1.0 + v)
    ratio = norm.pdf(z) / norm.cdf(z)
    tilted = v - v * v * ratio * (z + ratio) / (1.0 + v)
    assert found.tau[1] == expected.tau[1] == pytest.approx(1.0 / tilted - 1.0 / v, rel=1e-13)
