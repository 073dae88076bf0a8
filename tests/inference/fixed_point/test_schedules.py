"""The sweep with delayed updates against the plain loop, above and below its block sizes."""

import numpy as np
import pytest

from qpruntime import ConvergenceWarning, infer, likelihoods, project
from qpruntime.inference.dense.solver import DenseSolved
from qpruntime.inference.fixed_point.iterate import ORDERS
from qpruntime.inference.site_kernels import cavity
from tests.tools import oracle
from tests.tools.cases import every_case

SIZES = [1, 5, 63, 64, 65, 129, 300]


def ep(mu, sigma, y):
    _, mean, variance = oracle.probit_moments(mu, sigma, y)
    return mean, np.sqrt(variance)


def qp(mu, sigma, y):
    return ep(mu, sigma, y)[0], float(project("probit", mu, sigma, y, table="exact")[1])


def sites_after(sweeps, K, y, **options):
    with pytest.warns(ConvergenceWarning):
        post = infer(K, y, max_sweeps=sweeps, tol=1e-300, table="exact", **options)
    assert post.n_sweeps == sweeps
    return post.sites


def compare(n, project_one, sweeps, mean, **options):
    data = oracle.RBFData(n, seed=n)
    prior = np.broadcast_to(mean, n)
    tau, nu = np.zeros(n), np.zeros(n)
    for _ in range(sweeps):
        damping = options.get("damping", 1.0)
        tau, nu = oracle.sweep(data.K, data.y, prior, tau, nu, project_one, damping)
    got = sites_after(sweeps, data.K, data.y, mean=mean, **options)
    # tau = 1/std^2 - cavity precision cancels; the scale of its error is the largest site.
    np.testing.assert_allclose(got.tau, tau, rtol=1e-12, atol=1e-12 * np.abs(tau).max())
    np.testing.assert_allclose(got.nu, nu, rtol=1e-12, atol=1e-12 * np.abs(nu).max())


@pytest.mark.parametrize(
    "n", [pytest.param(n, marks=[pytest.mark.interpreted] * (n < 100)) for n in SIZES]
)
@pytest.mark.parametrize(("method", "one"), [("ep", ep), ("qp", qp)])
def test_first_sweep(n, method, one):
    compare(n, one, 1, 0.0, method=method)


@pytest.mark.interpreted
@every_case("n", [2, 67])
@every_case(("damping", "mean"), [(1.0, -0.4), (0.5, 0.3), (0.01, 0.0)])
def test_later_sweeps(n, damping, mean):
    compare(n, ep, 3, mean, method="ep", damping=damping)


def test_every_update_from_scratch():
    # The plain loop itself, against inverting anew after every site.
    data = oracle.RBFData(7, seed=0)
    zero = np.zeros(7)
    tau, nu = zero.copy(), zero.copy()
    for i in range(7):
        covariance, m = oracle.posterior(data.K, zero, tau, nu)
        mean, std = ep(m[i], covariance[i, i] ** 0.5, data.y[i])
        tau[i] = std**-2 - 1.0 / covariance[i, i]
        nu[i] = mean / std**2 - m[i] / covariance[i, i]
    loop = oracle.sweep(data.K, data.y, zero, zero, zero, ep)
    np.testing.assert_allclose(loop, [tau, nu], rtol=1e-12)
    np.testing.assert_allclose(sites_after(1, data.K, data.y, method="ep"), loop, rtol=1e-12)


@pytest.mark.interpreted
def test_extreme_variances():
    # One site sees a cavity a million times wider than the other; both stay proper.
    K = np.array([[1e6, 0.3], [0.3, 1e-6]])  # correlation 0.3
    sites = sites_after(1, K, [1.0, -1.0], method="qp")
    expected = oracle.sweep(K, np.array([1.0, -1.0]), np.zeros(2), np.zeros(2), np.zeros(2), qp)
    # The second precision is 1/1e-6 of its cavity's: 6 digits are lost in either writing.
    np.testing.assert_allclose(sites, expected, rtol=1e-9)


@pytest.mark.interpreted
@pytest.mark.parametrize(("method", "one"), [("ep", ep), ("qp", qp)])
def test_parallel_step(method, one):
    data = oracle.RBFData(9, seed=1)
    sites = sites_after(1, data.K, data.y, method=method, order="parallel")
    # From the prior every cavity is the prior marginal.
    mean, std = np.transpose([one(0.0, np.sqrt(2.0), y) for y in data.y])
    np.testing.assert_allclose(sites, [std**-2 - 0.5, mean / std**2], rtol=1e-13)


@every_case("method", ["ep", "qp"])
@every_case("scale", [1.0, 1e4])
def test_orders_share_their_fixed_point(method, scale):
    data = oracle.RBFData(70, seed=1)
    options = {"method": method, "table": "exact", "tol": 1e-10, "max_sweeps": 500}
    posts = [
        infer(scale * data.K, data.y, order=order, random_state=seed, **options)
        for order, seed in [("sequential", None), ("random", 0), ("random", 0), ("parallel", None)]
    ]
    for post in posts[1:]:
        # Each stops within 1e-10 of it, times the reciprocal of its rate: up to 1e-8.
        np.testing.assert_allclose(post.mean, posts[0].mean, rtol=1e-6, atol=1e-8 * scale**0.5)
        np.testing.assert_allclose(post.variance, posts[0].variance, rtol=1e-7)
        assert post.log_evidence == pytest.approx(posts[0].log_evidence, rel=1e-9)
    np.testing.assert_array_equal(posts[1].sites, posts[2].sites)  # one seed, one answer
    other = infer(scale * data.K, data.y, order="random", random_state=1, **options)
    assert np.any(other.sites.tau != posts[1].sites.tau)


@every_case("method", ["ep", "qp"])
@every_case("name", likelihoods.names())
def test_orders_share_their_fixed_point_for_every_likelihood(name, method):
    # Square-link counts under a wide prior have several, and orders may find another: not here.
    data, rng = oracle.RBFData(15, seed=2), np.random.default_rng(3)
    y = data.y
    if "poisson" in name or "negative" in name:
        y = rng.poisson(4.0, 15)
    elif name == "binomial":
        y = np.column_stack([rng.binomial(7, 0.4, 15), np.full(15, 7)])
    elif name in ("student-t", "laplace"):
        y = 2.0 + rng.standard_normal(15)
    options = {"method": method, "mean": 2.0, "tol": 1e-9, "max_sweeps": 500, "random_state": 0}
    posts = [infer(0.5 * data.K, y, name, order=order, **options) for order in ORDERS]
    for post in posts:
        assert post.converged
        np.testing.assert_allclose(post.mean, posts[0].mean, rtol=1e-6)
        np.testing.assert_allclose(post.variance, posts[0].variance, rtol=1e-6)
        assert post.log_evidence == pytest.approx(posts[0].log_evidence, rel=1e-8)


@pytest.mark.interpreted
def test_no_cavity():
    # Arguments: 1 - tau variance, variance, mean, nu - tau mean.
    assert cavity(-0.25, 0.5, 1.0, 0.0) == (0.0, 0.0)
    assert cavity(0.0, 0.5, 1.0, 0.0) == (0.0, 0.0)
    assert cavity(0.5, 0.5, 1.0, -0.5) == (1.5, 1.0)
    # A site so strong that 1 - tau variance is 0 by subtraction: every order takes the cavity from
    # the factorisation, and comes back from there.
    for order in ORDERS:
        moved = infer([[1.0]], [1], method="ep", sites=([1e18], [0.0]), order=order)
        assert moved.converged
        assert moved.skipped == 0
        assert moved.log_evidence == pytest.approx(np.log(0.5), rel=1e-9)


def test_orders_agree_on_the_sign_of_a_square_root():
    # f^2 = 3 has two roots, and so many fixed points; the prior mean is on one side.
    x = np.linspace(-1.0, 1.0, 8)
    K = 4.0 * np.exp(-0.5 * (x[:, None] - x) ** 2 / 3.5**2)
    posts = [infer(K, np.full(8, 3), "poisson", "ep", mean=1.5, order=order) for order in ORDERS]
    for post in posts:
        assert post.converged
        assert post.mean.min() > 1.0
        assert post.log_evidence == pytest.approx(posts[0].log_evidence, abs=1e-6)


def test_parallel_order_ends_in_sweeps_where_it_circles():
    # Opposite labels close together: left to itself it was still circling after 100 iterations.
    rng = np.random.default_rng(12)
    n = int(rng.integers(4, 20))
    x = np.sort(rng.uniform(0.0, 5.0, n))
    height = 10.0 ** rng.uniform(-1.0, 2.0)
    K = height * np.exp(-0.5 * (x[:, None] - x) ** 2 / rng.uniform(0.3, 1.5) ** 2)
    y = rng.choice([-1.0, 1.0], n)
    posts = [infer(K, y, "heaviside", "ep", order=order) for order in ("sequential", "parallel")]
    assert posts[0].converged
    assert posts[1].converged
    assert posts[1].n_sweeps > 20
    assert posts[1].log_evidence == pytest.approx(posts[0].log_evidence, abs=1e-6)


@pytest.mark.parametrize("order", ["sequential", "parallel"])
def test_every_sweep_is_in_the_history(order, monkeypatch):
    # Precisions turn negative, all is begun again with them held at zero: both runs count.
    rng = np.random.default_rng(12)
    X = rng.standard_normal((12, 2))
    K = np.exp(-0.5 * ((X[:, None] - X) ** 2).sum(-1))
    done = []
    for name in ("sweep", "propose"):
        task = getattr(DenseSolved, name)
        monkeypatch.setattr(DenseSolved, name, lambda *args, t=task: done.append(1) or t(*args))
    with pytest.warns(ConvergenceWarning, match="held at zero"):
        post = infer(K, rng.poisson(3.0, 12), "poisson", "ep", max_sweeps=50, order=order)
    assert post.held > 0
    # What fails while it is taken has changed nothing to report.
    assert post.n_sweeps == len(post.history) == len(done) > 2
