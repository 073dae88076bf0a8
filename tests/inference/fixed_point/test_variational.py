"""The variational approximation: its bound is one, its maximum the maximum, its slope right."""

import itertools
import json

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import gammaln, log_ndtr
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from qpruntime import GPClassifier, GPPoissonRegressor, InputError, infer, project
from qpruntime.learning.objective import KernelFamily, Objective
from qpruntime.projection.projector import Projector
from tests.tools.cases import every_case
from tests.tools.oracle import REFERENCE, RBFData

GPY = json.loads((REFERENCE / "gpy_vb.json").read_text())
X = np.linspace(0.0, 3.0, 12)[:, None]
COUNTS = np.array([2.0, 0, 3, 1, 5, 4, 7, 3, 8, 9, 4, 6])
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(120)


def log_probit(f, y):
    return log_ndtr(y * f)


def log_poisson(f, y):
    with np.errstate(divide="ignore"):
        return np.where(y > 0, 2 * y * np.log(np.abs(f)), 0.0) - f * f - gammaln(y + 1.0)


def bound(K, y, prior, mean, S, log_p):
    """ELBO of N(mean, S) by dense algebra and Gauss-Hermite."""
    f = mean[:, None] + np.sqrt(np.diag(S))[:, None] * NODES
    expected = log_p(f, y[:, None]) @ WEIGHTS / np.sqrt(2 * np.pi)
    gap = mean - prior
    kl = np.trace(np.linalg.solve(K, S)) - len(y) + gap @ np.linalg.solve(K, gap)
    kl += np.linalg.slogdet(K)[1] - np.linalg.slogdet(S)[1]
    return expected.sum() - 0.5 * kl


def gaussian(K, post):
    return np.linalg.inv(np.linalg.inv(K) + np.diag(post.sites.tau))


@pytest.mark.parametrize("variance", [1.0, 30.0])
def test_bound_is_the_elbo_of_the_posterior(variance):
    data = RBFData(20, seed=5, variance=variance)
    K = data.K + 1e-6 * np.eye(20)
    post = infer(K, data.y, method="vb", tol=1e-9)
    S = gaussian(K, post)
    np.testing.assert_allclose(np.diag(S), post.variance, rtol=1e-6)
    direct = bound(K, data.y, np.zeros(20), post.mean, S, log_probit)
    # Gauss-Hermite itself is good to 1e-6 for variances of 30.
    assert post.log_evidence == pytest.approx(direct, abs=1e-5)


def test_nothing_near_is_better(toy):
    K = toy.K + 1e-6 * np.eye(24)
    post = infer(K, toy.y, method="vb", tol=1e-9)
    S, rng = gaussian(K, post), np.random.default_rng(0)
    best = bound(K, toy.y, np.zeros(24), post.mean, S, log_probit)
    half = np.linalg.cholesky(S)
    for scale in (1e-3, 1e-2, 0.1):
        for _ in range(10):
            mean = post.mean + scale * half @ rng.standard_normal(24)
            near = half @ (np.eye(24) + scale * np.tril(rng.standard_normal((24, 24)) / 5))
            assert bound(K, toy.y, np.zeros(24), mean, near @ near.T, log_probit) < best


@pytest.mark.parametrize("case", ["probit", "poisson"])
def test_a_general_optimiser_finds_the_same(case):
    x = np.array([0.0, 0.6, 1.5])
    K = 3.0 * np.exp(-0.5 * (x[:, None] - x) ** 2)
    y, prior, log_p = {
        "probit": (np.array([1.0, 1.0, -1.0]), 0.0, log_probit),
        "poisson": (np.array([16.0, 25.0, 20.0]), 4.0, log_poisson),
    }[case]
    post = infer(K, y, case, method="vb", mean=prior, tol=1e-9)

    def negative(parameters):
        half = np.zeros((3, 3))
        half[np.tril_indices(3)] = parameters[3:]
        return -bound(K, y, np.full(3, prior), parameters[:3], half @ half.T, log_p)

    start = np.concatenate([post.mean, np.linalg.cholesky(gaussian(K, post))[np.tril_indices(3)]])
    found = minimize(negative, start + 0.1, method="BFGS", options={"gtol": 1e-7})
    assert post.log_evidence == pytest.approx(-found.fun, abs=2e-6)
    np.testing.assert_allclose(post.mean, found.x[:3], atol=1e-3)


def evidence_by_quadrature(K, y, prior, log_p):
    """Log of the integral over one or two latent values, on a fine grid of the prior."""
    t = np.linspace(-9.0, 9.0, 1201)
    half = np.linalg.cholesky(K)
    if len(y) == 1:
        f, log_w = prior + half[0, 0] * t[None], -0.5 * t * t
    else:
        a, b = np.meshgrid(t, t)
        f = prior + half @ np.stack([a.ravel(), b.ravel()])
        log_w = -0.5 * (a.ravel() ** 2 + b.ravel() ** 2)
    log_w = log_w + len(y) * np.log((t[1] - t[0]) / np.sqrt(2 * np.pi))
    return np.logaddexp.reduce(log_w + sum(log_p(f[i], y[i]) for i in range(len(y))))


@every_case("variance", [0.3, 4.0, 400.0])
@every_case("y", [[1.0], [1.0, 1.0], [1.0, -1.0]])
def test_bound_is_below_the_evidence(variance, y):
    K = variance * np.array([[1.0, 0.7], [0.7, 1.0]])[: len(y), : len(y)]
    exact = evidence_by_quadrature(K, np.array(y), 0.0, log_probit)
    value = infer(K, y, method="vb").log_evidence
    assert exact - 0.5 * len(y) * np.log(1.0 + variance) - 0.1 < value < exact


@every_case("y", [[0], [3], [1, 8], [0, 40]])
@every_case("mean", [0.1, 1.5])
def test_bound_is_below_the_evidence_of_counts(y, mean):
    K = 2.0 * np.array([[1.0, 0.5], [0.5, 1.0]])[: len(y), : len(y)]
    post = infer(K, y, "poisson", method="vb", mean=mean, max_sweeps=400)
    exact = evidence_by_quadrature(K, np.array(y, float), mean, log_poisson)
    if sum(y) == 0:  # the likelihood is Gaussian, and nothing is lost
        assert post.log_evidence == pytest.approx(exact, abs=1e-7)
    else:
        # With a prior mean near 0 there is a second peak at -f, which one Gaussian leaves out.
        assert exact - 3.0 < post.log_evidence < exact


def annealed(K, y, seed, chains=300, steps=600):
    """Log evidence and its error: annealed importance sampling with elliptical slice moves."""
    rng = np.random.default_rng(seed)
    half, n = np.linalg.cholesky(K), len(y)
    f = half @ rng.standard_normal((n, chains))
    log_w, temperature = np.zeros(chains), np.linspace(0.0, 1.0, steps + 1) ** 3
    for before, now in itertools.pairwise(temperature):
        log_p = log_ndtr(y[:, None] * f).sum(0)
        log_w += (now - before) * log_p
        level = now * log_p - rng.exponential(size=chains)
        ellipse = half @ rng.standard_normal((n, chains))
        angle = rng.uniform(0.0, 2 * np.pi, chains)
        low, high = angle - 2 * np.pi, angle.copy()
        moving = np.ones(chains, bool)
        while moving.any():
            new = f * np.cos(angle) + ellipse * np.sin(angle)
            below = now * log_ndtr(y[:, None] * new).sum(0) < level
            f = np.where(moving & ~below, new, f)
            moving &= below
            low = np.where(moving & (angle < 0), angle, low)
            high = np.where(moving & (angle >= 0), angle, high)
            angle = np.where(moving, rng.uniform(low, high), angle)
    weight = np.exp(log_w - log_w.max())
    error = weight.std() / weight.mean() / np.sqrt(chains)
    return np.log(weight.mean()) + log_w.max(), error


def test_bound_is_below_the_sampled_evidence():
    data = RBFData(15, seed=2, variance=9.0)
    K = data.K + 1e-6 * np.eye(15)
    sampled, error = annealed(K, data.y, seed=0)
    assert error < 0.04
    value = infer(K, data.y, method="vb").log_evidence
    assert sampled - 1.0 < value < sampled - 3.0 * error
    assert infer(K, data.y, method="ep").log_evidence == pytest.approx(sampled, abs=4.0 * error)


@pytest.mark.parametrize("name", ["wine", "breast_cancer"])
def test_reaches_at_least_the_bound_of_gpy(name, gpy_values):
    x, y = (np.array(gpy_values[name][k], dtype=float) for k in ("x", "y"))
    for case in GPY[name]:
        K = RBFData.kernel(x, x, case["kernel_variance"], case["lengthscale"])
        value = infer(K, y, method="vb").log_evidence
        assert value >= case["exact"] - 1e-8
        if case["kernel_variance"] <= 10.0:
            assert value == pytest.approx(case["exact"], abs=1e-3)
        # At variance 1000 theirs stops short of the maximum, by 0.03 and by 4.9.


@pytest.mark.parametrize("theta", [(0.0, 0.0), (3.0, 0.5), (7.0, 1.0)])
def test_gradient_of_the_probit_bound(theta, toy):
    kernel = ConstantKernel() * RBF()
    projector = Projector("probit", "vb")
    objective = Objective(KernelFamily(kernel, toy.x, np.zeros(24)), toy.y, projector, 1e-9, 400)
    _, gradient = objective(np.array(theta))

    def value(t):
        K = kernel.clone_with_theta(t)(toy.x)
        return infer(K, toy.y, method="vb", tol=1e-9, max_sweeps=400).log_evidence

    check_gradient(value, np.array(theta), -gradient)


def test_gradient_of_the_poisson_bound():
    kernel = ConstantKernel(0.5) * RBF(0.8)
    projector = Projector("poisson", "vb")
    objective = Objective(KernelFamily(kernel, X, np.full(12, 1.5)), COUNTS, projector, 1e-9, 400)
    _, gradient = objective(kernel.theta)

    def value(t):
        K = kernel.clone_with_theta(t)(X)
        post = infer(K, COUNTS, "poisson", method="vb", mean=1.5, tol=1e-9, max_sweeps=400)
        return post.log_evidence

    check_gradient(value, kernel.theta, -gradient)


def check_gradient(value, theta, gradient, h=1e-3):
    for i, step in enumerate(h * np.eye(len(theta))):
        near, far = (value(theta + k * step) - value(theta - k * step) for k in (1, 2))
        assert gradient[i] == pytest.approx((8 * near - far) / (12 * h), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("variance", [1e-3, 1.0, 1e4])
def test_settles_and_says_so(variance):
    data = RBFData(40, seed=1, variance=variance)
    post = infer(data.K, data.y, method="vb", max_sweeps=300)
    assert post.converged
    assert post.history[-1] < 1e-6
    assert (post.sites.tau >= 0.0).all()
    # Started where it ended, it stays.
    again = infer(data.K, data.y, method="vb", sites=post.sites)
    assert again.n_sweeps <= 2
    np.testing.assert_allclose(again.mean, post.mean, rtol=1e-4, atol=1e-6)


def test_estimators_maximise_their_bound():
    data = RBFData(30, seed=4)
    kernel = ConstantKernel(1.0, (1e-5, 1e8)) * RBF(1.0, (1e-3, 1e3))
    model = GPClassifier(kernel, method="vb").fit(data.x, data.y)
    best = model.posterior_.log_evidence
    assert best == pytest.approx(model.optimum_.value, abs=1e-6)
    for step in ([0.05, 0.0], [-0.05, 0.0], [0.0, 0.05], [0.0, -0.05]):
        K = model.kernel_.clone_with_theta(model.kernel_.theta + step)(data.x)
        assert infer(K, data.y, method="vb").log_evidence < best
    counts = GPPoissonRegressor(kernel, method="vb", mean=1.5).fit(X, COUNTS)
    best = counts.posterior_.log_evidence
    assert best == pytest.approx(counts.optimum_.value, abs=1e-6)
    for step in ([0.05, 0.0], [-0.05, 0.0], [0.0, 0.05], [0.0, -0.05]):
        K = counts.kernel_.clone_with_theta(counts.kernel_.theta + step)(X)
        assert infer(K, COUNTS, "poisson", method="vb", mean=1.5).log_evidence < best


def test_refusals(toy):
    with pytest.raises(InputError, match=r"heaviside.*expected"):
        infer(toy.K, toy.y, "heaviside", method="vb")
    with pytest.raises(InputError, match=r"\('ep', 'qp', 'wp'\), got 'vb'"):
        project("probit", 0.0, 1.0, 1, method="vb")
    with pytest.raises(InputError, match="maximises its bound"):
        GPClassifier(method="vb", optimize="loo").fit(toy.x, toy.y)
