"""Fixed points that exist are found, from nothing too; held sites and lost variances are none."""

import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import norm
from sklearn.datasets import load_wine

from qpruntime import ConvergenceWarning, infer
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
from tests.tools import oracle
from tests.tools.cases import every_case, refuses


def square_link(seed):
    """Counts of rate f^2 under a wide prior: f crosses zero, where the posterior has two peaks."""
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(0.0, 8.0, 25))
    K = 4.0 * np.exp(-0.5 * (x[:, None] - x) ** 2) + 1e-8 * np.eye(25)
    f = np.linalg.cholesky(K) @ rng.standard_normal(25)
    return K, rng.poisson((f + 1.5) ** 2)


def quiet(*args, **options):
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        return infer(*args, **options)


def change_from_scratch(K, y, mean, sites):
    """Change of one parallel EP update, by dense algebra and the oracle's quadrature.

    The largest, in units of the marginals; infinite if a cavity is improper.
    """
    S = np.linalg.solve(np.eye(len(y)) + K * sites.tau, K)
    variance = S.diagonal()
    m = mean + S @ (sites.nu - sites.tau * mean)
    precision = 1.0 / variance - sites.tau
    if precision.min() <= 0.0 or np.linalg.eigvals(np.eye(len(y)) + K * sites.tau).real.min() <= 0:
        return np.inf
    centre = (m / variance - sites.nu) / precision
    worst = 0.0
    for i, count in enumerate(y):
        _, tilted, square, _ = oracle.tilted(
            lambda f, count=count: oracle.poisson(f, count), centre[i], precision[i] ** -0.5
        )
        gap = abs(tilted - m[i]) / np.sqrt(variance[i])
        worst = max(worst, gap, abs(square / variance[i] - 1.0))
    return worst


# Found from the prior by damped parallel updates, and beside the held sites.
@every_case(("seed", "value"), [(27, -48.3809), (33, -62.5874), (68, -59.146)])
@every_case("order", ["sequential", "parallel"])
def test_fixed_points_that_exist_are_found(seed, value, order):
    K, y = square_link(seed)
    post = quiet(K, y, "poisson", "ep", "exact", 1.5, order=order)
    assert (post.status, post.converged, post.held) == ("converged", True, 0)
    assert post.n_negative > 0 or seed == 68
    assert post.log_evidence == pytest.approx(value, abs=1e-3)
    # tol is a root mean square over 25 sites; slow contraction multiplies it.
    assert change_from_scratch(K, y, 1.5, post.sites) < 1e-5


def test_the_highest_of_several_is_reported():
    K, y = square_link(27)
    words = r"2 fixed points found, .* -48\.38\d*, -48\.9"
    with pytest.warns(ConvergenceWarning, match=words) as w:
        post = infer(K, y, "poisson", "ep", "exact", 1.5)
    assert len(w) == 1
    assert w[0].filename == __file__
    assert post.fixed_points == pytest.approx((-48.3809, -48.9395), abs=1e-3)
    assert post.log_evidence == post.fixed_points[0]
    assert "2 fixed points found" in str(post)
    assert post.summary()["fixed_points"] == 2
    # QP ends at one or the other by the order; restarts find both.
    for order in ("sequential", "parallel"):
        options = {"n_restarts": 6, "order": order, "random_state": 0}
        post = quiet(K, y, "poisson", "qp", "exact", 1.5, **options)
        assert post.log_evidence == post.fixed_points[0] == pytest.approx(-48.3817, abs=1e-3)
        assert any(abs(value + 48.9399) < 1e-3 for value in post.fixed_points)


def test_share_of_fixed_points():
    # Every fourth of these was held before; what is called converged is a fixed point.
    seen = []
    for seed in range(0, 200, 8):
        K, y = square_link(seed)
        post = quiet(K, y, "poisson", "ep", "exact", 1.5)
        seen.append(post.status)
        if post.converged:
            assert change_from_scratch(K, y, 1.5, post.sites) < 1e-4
            assert post.fixed_points[0] == post.log_evidence
        else:
            assert post.held > 0
            assert post.sites.tau.min() >= 0.0
    assert seen.count("converged") >= 20
    assert "not converged" not in seen


def test_one_fixed_point_needs_no_search():
    K, _ = square_link(1)
    y = np.sign(np.arange(25.0) - 12.5)
    plain = infer(K, y, "probit", "ep")
    assert plain.fixed_points == (plain.log_evidence,)
    again = infer(K, y, "probit", "ep", n_restarts=5)
    assert again.n_sweeps == plain.n_sweeps
    np.testing.assert_array_equal(again.mean, plain.mean)
    refuses("n_restarts", infer, K, y, n_restarts=-1)


@every_case("order", ["sequential", "parallel"])
def test_sites_that_stand_still_are_not_visited_again(order):
    # One observation near zero between large ones: no cavity is left beside it. All others had
    # settled to 1e-13, and were visited for the one: 281 and 340.
    found = quiet(*square_link(6), "poisson", "ep", "exact", 1.5, order=order)
    assert found.held > 0
    assert (found.status, found.converged, found.fixed_points) == ("held", False, ())
    assert found.n_sweeps < 150


@pytest.fixture(scope="module")
def wine():
    """Two classes of Wine, which are nearly separable: evidence widens the prior without end."""
    X, target = load_wine(return_X_y=True)
    X, target = X[target < 2], target[target < 2]
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    return np.sum((X[:, None] - X) ** 2, axis=-1), np.where(target > 0, 1.0, -1.0)


@every_case("deviation", [1.0, 30.0, 870.0, 1e4])
@every_case("scale", [3.0, 11.1])
def test_orders_agree(wine, deviation, scale):
    square, y = wine
    for labels in (y, np.where(np.random.default_rng(0).random(y.size) < 0.05, -y, y)):
        K = deviation**2 * np.exp(-0.5 * square / scale**2)
        for method in ("ep", "qp"):
            one, all_at_once = (
                infer(K, labels, method=method, order=o) for o in ("sequential", "parallel")
            )
            assert all_at_once.converged
            assert all_at_once.n_sweeps < 60
            np.testing.assert_allclose(all_at_once.log_evidence, one.log_evidence, rtol=1e-6)


@pytest.mark.parametrize("deviation", [30.0, 870.0, 1e4])
def test_labels_of_one_kind(wine, deviation):
    """All sites overshoot together: parallel order alone never settles from nothing."""
    square, y = wine
    K = deviation**2 * np.exp(-0.5 * square / 11.1**2)
    labels = np.ones(y.size)
    one = infer(K, labels)
    all_at_once = infer(K, labels, order="parallel")
    assert all_at_once.converged
    assert len(all_at_once.history) == all_at_once.n_sweeps <= 60
    np.testing.assert_allclose(all_at_once.log_evidence, one.log_evidence, rtol=1e-6)
    np.testing.assert_allclose(all_at_once.variance, one.variance, rtol=1e-4)
    for most in (5, 21):
        with pytest.warns(ConvergenceWarning):
            assert infer(K, labels, order="parallel", max_sweeps=most).n_sweeps == most


# Nothing, less than nothing, subnormal, and what rounds to nothing when it is squared.
LOST = [0.0, -1e-12, 5e-324, 1e-170]


@pytest.fixture(scope="module")
def settled():
    """Counts with the square link, whose sites are free to be negative."""
    x = np.linspace(0.0, 2.0, 6)
    K = 2.0 * np.exp(-0.5 * (x[:, None] - x) ** 2) + 1e-8 * np.eye(6)
    y = np.array([4.0, 3.0, 0.0, 1.0, 5.0, 2.0])
    problem = Problem(DensePrior(K, np.full(6, 1.5)), y, Projector("poisson", "ep"))
    return problem, settle(problem)


def lost(end, variance):
    """The same end with a variance that has no digits at site 2."""
    found = end.variance.copy()
    found[2] = variance
    return replace(end, variance=found)


@every_case("variance", LOST)
def test_lost_variances_end_no_search_and_are_no_peak_or_slope(settled, variance):
    problem, end = settled
    found = list(around(problem, lost(end, variance), Limits(), Trace()))
    # Three starts of four end at least, as 1e170 is too strong for one; they end where the sound
    # variance leads, since there is one fixed point here.
    assert len(found) >= 3
    for other in found:
        assert other.status == "converged"
        # Both are settled to 1e-6 in posterior units, and a contraction of .9 may leave ten times.
        assert np.abs(other.factor.mean - end.factor.mean).max() < 1e-5
    # Nor is the end with a lost variance a peak, or it is the one that is known.
    peaks = Peaks(problem)
    peaks.add(end)
    peaks.add(lost(end, variance))
    assert peaks.best is end
    refuses(r"jitter|rescale", loo_slope, problem, lost(end, variance), error=NumericalError)


@every_case("variance", [5e-324, 1e-310, 1e-200])
def test_restarts_from_priors_too_narrow_for_a_precision(variance):
    K = np.full((3, 3), variance)  # singular too: draws take what has no Cholesky factor
    problem = Problem(DensePrior(K, np.ones(3)), np.array([1.0, 0.0, 2.0]), Projector("poisson"))
    for end in drawn(problem, Limits(), Trace(), np.random.default_rng(0)):
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


@every_case("variance", LOST[:2])
def test_corrections_start_from_variances(settled, variance):
    problem, end = settled
    cancelled = SimpleNamespace(
        mean=end.factor.mean,
        covariance=end.factor.covariance,
        marginals=lambda: (lost(end, variance).variance, end.kept),
    )
    likelihood = problem.projector.likelihood
    observed = Observed(problem.prior.K, problem.y, problem.prior.mean, likelihood)
    refuses("site 2", normal_of, observed, end.sites, cancelled, error=NumericalError)


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
