"""The variational approximation: its bound is one, its maximum the maximum, its slope right."""

import json

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_ndtr
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from qpruntime import GPClassifier, GPPoissonRegressor, infer, project
from qpruntime.learning.objective import KernelFamily, Objective
from qpruntime.projection.projector import Projector
from tests.tools.cases import every_case, refuses
from tests.tools.oracle import REFERENCE, RBFData, poisson as log_poisson, slopes, unit_normal

GPY = json.loads((REFERENCE / "gpy_vb.json").read_text())
X = np.linspace(0.0, 3.0, 12)[:, None]
COUNTS = np.array([2.0, 0, 3, 1, 5, 4, 7, 3, 8, 9, 4, 6])
NODES, WEIGHTS = unit_normal(120)


def log_probit(f, y):
    return log_ndtr(y * f)


def bound(K, y, prior, mean, S, log_p):
    """ELBO of N(mean, S) by dense algebra and Gauss-Hermite."""
    expected = log_p(mean[:, None] + np.sqrt(np.diag(S))[:, None] * NODES, y[:, None]) @ WEIGHTS
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
        z = np.reshape(np.meshgrid(t, t), (2, -1))
        f, log_w = prior + half @ z, -0.5 * (z**2).sum(axis=0)
    log_w = log_w + len(y) * np.log((t[1] - t[0]) / np.sqrt(2 * np.pi))
    return np.logaddexp.reduce(log_w + sum(log_p(f[i], y[i]) for i in range(len(y))))


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


TOY = RBFData(24, seed=3)


@every_case(
    "likelihood, x, y, mean, theta",
    [
        *(("probit", TOY.x, TOY.y, 0.0, np.array(theta)) for theta in ((0, 0), (3, 0.5), (7, 1))),
        ("poisson", X, COUNTS, 1.5, np.log([0.5, 0.8])),
    ],
)
def test_gradient_of_the_bound(likelihood, x, y, mean, theta):
    kernel = ConstantKernel() * RBF()
    family = KernelFamily(kernel, x, np.full(len(y), mean))
    _, gradient = Objective(family, y, Projector(likelihood, "vb"), 1e-9, 400)(theta)

    def value(t):
        given = {"method": "vb", "mean": mean, "tol": 1e-9, "max_sweeps": 400}
        return infer(kernel.clone_with_theta(t)(x), y, likelihood, **given).log_evidence

    np.testing.assert_allclose(-gradient, slopes(value, theta), rtol=1e-4, atol=1e-5)


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
    for model, x, y, options in (
        (GPClassifier(kernel, method="vb"), data.x, data.y, {}),
        (GPPoissonRegressor(kernel, method="vb", mean=1.5), X, COUNTS, {"mean": 1.5}),
    ):
        best = model.fit(x, y).posterior_.log_evidence
        assert best == pytest.approx(model.optimum_.value, abs=1e-6)
        likelihood = "poisson" if options else "probit"
        for step in ([0.05, 0.0], [-0.05, 0.0], [0.0, 0.05], [0.0, -0.05]):
            K = model.kernel_.clone_with_theta(model.kernel_.theta + step)(x)
            assert infer(K, y, likelihood, method="vb", **options).log_evidence < best


def test_refusals(toy):
    refuses(r"heaviside.*expected", infer, toy.K, toy.y, "heaviside", method="vb")
    refuses(r"\('ep', 'qp', 'wp'\), got 'vb'", project, "probit", 0.0, 1.0, 1, method="vb")
    refuses("maximises its bound", GPClassifier(method="vb", optimize="loo").fit, toy.x, toy.y)
