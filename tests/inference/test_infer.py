"""Evidence, gradient, posterior and predictions: dense algebra, brute force, GPy, long chains."""

import json
import math
import re
import warnings
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import log_ndtr, ndtr
from scipy.stats import multivariate_normal
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from qpruntime import ConvergenceWarning, infer, project
from qpruntime._pointers import SPLIT, Pointer
from qpruntime._special import log_ndtr as log_ndtr_kernel
from qpruntime.inference.dense.solver import DensePrior
from qpruntime.inference.fixed_point.convergence import Limits, warn_unsettled
from qpruntime.inference.fixed_point.iterate import iterate, settle
from qpruntime.inference.problem import Problem
from qpruntime.likelihoods.base import Likelihood
from qpruntime.likelihoods.responses import signs
from qpruntime.projection.projector import Projector
from tests.tools import oracle
from tests.tools.cases import every_case, refuses
from tests.tools.oracle import RBFData, unit_normal

METHODS = ["ep", "qp"]


def exact(K, y, method="ep", tol=1e-11, **options):
    return infer(K, y, method=method, table="exact", tol=tol, **options)


@every_case("y", [1, -1])
@every_case("method", METHODS)
@every_case(("mean", "variance"), [(0, 1), (-3, 100), (30, 1), (2, 1e8), (1, 1e-8)])
def test_one_point_is_exact(mean, variance, y, method):
    post = exact([[variance]], [y], method, tol=1e-6, mean=mean)
    log_z = log_ndtr(y * mean / math.sqrt(1.0 + variance))
    centre, std = project("probit", mean, math.sqrt(variance), y, method=method, table="exact")
    # The site is recovered by subtracting precisions that agree to sigma^2: 1e-16/1e-8 for it,
    # but its effect on the posterior is as much smaller.
    assert post.log_evidence == pytest.approx(log_z, rel=1e-12, abs=1e-14)
    assert post.loo()[0] == pytest.approx(log_z, rel=1e-12, abs=1e-14)
    assert post.mean[0] == pytest.approx(float(centre), rel=1e-12)
    assert post.variance[0] == pytest.approx(float(std) ** 2, rel=1e-12)


@pytest.mark.parametrize(("variance", "error"), [(1.0, 2e-4), (10.0, 1e-3), (1000.0, 2e-3)])
def test_two_points_by_brute_force(variance, error):
    K = variance * np.array([[1.0, 0.6], [0.6, 1.0]])
    y = np.array([1.0, -1.0])
    # The evidence of two probits is a quadrant of a normal: P(y1 g1 > 0, y2 g2 > 0).
    quadrant = math.log(multivariate_normal.cdf([0, 0], cov=np.outer(y, y) * K + np.eye(2)))
    # EP is an approximation: the error is its own, measured 1.7e-4, 8.7e-4 and 1.1e-3.
    assert exact(K, y).log_evidence == pytest.approx(quadrant, abs=error)


@every_case("method", METHODS)
@every_case("mean", [0.0, 0.8])
@every_case("scale", [1.0, 1e6])
def test_posterior_and_evidence_by_dense_algebra(toy, method, mean, scale):
    K, prior = scale * toy.K, np.full(len(toy.y), mean)
    prior[::2] *= -1.0
    post = exact(K, toy.y, method, tol=1e-9, mean=prior)
    covariance, centre = oracle.posterior(K, prior, *post.sites)
    # (I + K diag tau) has a condition of up to 1e6 at the larger scale.
    limit = 1e-12 if scale == 1.0 else 1e-8
    np.testing.assert_allclose(post.variance, np.diag(covariance), rtol=limit)
    np.testing.assert_allclose(post.mean, centre, rtol=limit, atol=limit * math.sqrt(scale))
    dense = oracle.evidence(K, toy.y, prior, *post.sites)
    assert post.log_evidence == pytest.approx(dense, rel=max(limit / 100, 1e-12))
    assert post.skipped == 0
    assert post.converged


def test_prior_mean_is_a_shift_of_the_likelihood(toy):
    def split(f, y, theta):
        return log_ndtr_kernel(y * (f + theta[0])), 0.0

    shifted = Likelihood("shifted", "labels", Pointer(split, SPLIT), signs, theta=np.array([0.8]))
    for method in METHODS:
        moved = exact(toy.K, toy.y, method, tol=1e-9, mean=0.8)
        still = exact(toy.K, toy.y, method, tol=1e-9, likelihood=shifted)
        # The shifted one is integrated, not closed: about 1e-12 a site.
        assert moved.log_evidence == pytest.approx(still.log_evidence, rel=1e-10)
        np.testing.assert_allclose(moved.mean - 0.8, still.mean, rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(moved.variance, still.variance, rtol=1e-8)


KERNELS = {
    "plain": ConstantKernel(1.5) * RBF(1.2) + WhiteKernel(0.3),
    "two length-scales": ConstantKernel(2.0) * RBF([0.7, 4.0]),
    "vast": ConstantKernel(1e6) * RBF([2.0, 9.0]) + WhiteKernel(1e3),
    "tiny": ConstantKernel(1e-4) * RBF(0.5) + WhiteKernel(1e-2),
}


@every_case("name", KERNELS)
@every_case("mean", [0.0, 0.6])
def test_gradient_by_differences(name, mean, toy):
    kernel = KERNELS[name]

    def evidence(theta):
        K = kernel.clone_with_theta(theta)(toy.x)
        return exact(K, toy.y, tol=1e-12, mean=mean).log_evidence

    theta = kernel.theta
    K, dK = kernel(toy.x, eval_gradient=True)
    post = exact(K, toy.y, tol=1e-12, mean=mean)
    gradient = post.evidence_gradient(dK)
    assert gradient.shape == (kernel.n_dims,)
    # Fourth order: h^4/30 = 1e-11; the evidence, about 15, rounds to 1e-14/h.
    expected = oracle.slopes(evidence, theta, 4e-3)
    np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-10)
    assert post.evidence_gradient(dK[:, :, 1]) == pytest.approx(gradient[1], rel=1e-12)


TARGETS = {
    "probit": lambda f: np.sign(f),
    "logistic": lambda f: np.sign(f),
    "laplace": lambda f: f,
    "student-t": lambda f: f,
    "poisson-exp": lambda f: np.floor(np.exp(f)),
    "negative-binomial": lambda f: np.floor(np.exp(f)),
}


# Variance and length-scale; the points are 0.5 apart. At 1e8 and 10, where K is singular to 1e-10,
# its own rounding leaves 1e-4.
@every_case(("variance", "length"), [(1e-6, 1.0), (1.0, 1e-3), (1.0, 1e3), (1e5, 1.0), (1e10, 0.2)])
@every_case("name", TARGETS)
def test_gradient_by_differences_far_out(name, variance, length):
    x = np.linspace(-2.5, 2.5, 11)
    y = TARGETS[name](1.5 * np.sin(2.0 * x) + 0.3 * np.cos(17.0 * x) + 0.1)
    kernel = ConstantKernel(variance, (1e-12, 1e12)) * RBF(length, (1e-6, 1e6))

    def post_at(theta):
        K = kernel.clone_with_theta(theta)(x[:, None])
        return infer(K, y, name, "ep", tol=1e-10, max_sweeps=400)

    gradient = post_at(kernel.theta).evidence_gradient(kernel(x[:, None], eval_gradient=True)[1])
    # The evidence, up to 150 here, rounds to 1e-14 of itself or, by K, 1e-10: divided by h.
    expected = oracle.slopes(lambda theta: post_at(theta).log_evidence, kernel.theta, 4e-3)
    np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("method", METHODS)
def test_loo(toy, method):
    post = exact(toy.K, toy.y, method, tol=1e-9)
    for i in range(len(toy.y)):
        tau, nu = (np.where(np.arange(len(toy.y)) == i, 0.0, s) for s in post.sites)
        covariance, mean = oracle.posterior(toy.K, 0.0 * nu, tau, nu)
        log_p = log_ndtr(toy.y[i] * mean[i] / math.sqrt(1.0 + covariance[i, i]))
        assert post.loo()[i] == pytest.approx(log_p, rel=1e-10)
        keep = np.arange(len(toy.y)) != i
        rest = exact(toy.K[np.ix_(keep, keep)], toy.y[keep], method, tol=1e-9)
        m, v = rest.predict(toy.K[i, keep][None], toy.K[i, i])
        # Retraining moves the other sites: EP's own error, at most 0.03 here.
        retrained = log_ndtr(toy.y[i] * m[0] / math.sqrt(1.0 + v[0]))
        assert post.loo()[i] == pytest.approx(retrained, abs=0.06)


@pytest.mark.parametrize("method", METHODS)
def test_warm_start_and_damping(toy, method):
    cold = exact(toy.K, toy.y, method, tol=1e-10)
    warm = exact(toy.K, toy.y, method, tol=1e-10, sites=cold.sites)
    damped = exact(toy.K, toy.y, method, tol=1e-10, damping=0.5, max_sweeps=200)
    assert warm.n_sweeps <= 2 < cold.n_sweeps < damped.n_sweeps
    assert len(cold.history) == cold.n_sweeps
    assert cold.history[-1] < 1e-10 <= cold.history[-2]
    for other in (warm, damped):
        np.testing.assert_allclose(other.sites, cold.sites, rtol=1e-8)
        assert other.log_evidence == pytest.approx(cold.log_evidence, rel=1e-12)


def test_running_out_of_sweeps_warns(toy):
    with pytest.warns(ConvergenceWarning, match="not converged after 1 sweeps") as caught:
        post = infer(toy.K, toy.y, method="ep", max_sweeps=1)
    assert caught[0].filename == __file__
    assert not post.converged
    assert post.n_sweeps == len(post.history) == 1
    prior = np.diag(toy.K)
    step = np.abs(post.sites.tau) * prior + np.abs(post.sites.nu) * np.sqrt(prior)
    assert re.search(rf"most of all site {step.argmax()};", str(caught[0].message))
    # The paper's rule: root mean squared change of the site parameters, here from zero.
    plain = np.sqrt(max(np.mean(post.sites.tau**2), np.mean(post.sites.nu**2)))
    assert post.history[0] >= plain * (1.0 - 1e-15)  # summed in another order


def test_oscillating_sites_are_damped(monkeypatch):
    # Outliers that are as narrow as the kernel: plain sweeps never settle.
    x = np.linspace(0.0, 5.0, 12)
    K = 30.0 * np.exp(-2.0 * (x[:, None] - x) ** 2)
    y = 3.0 * np.random.default_rng(22).standard_t(1.0, 12)
    post = infer(K, y, "student-t", "ep")
    assert post.converged
    assert post.damped > 0
    monkeypatch.setattr("qpruntime.inference.fixed_point.schedules._SHORTENING", 1.0)
    with pytest.warns(ConvergenceWarning, match="not converged after 100 sweeps.*try damping=0.3"):
        plain = infer(K, y, "student-t", "ep")
    assert plain.damped == 0
    assert infer(K, y, "student-t", "ep", damping=0.3).converged


@pytest.mark.parametrize("mean_star", [0.0, 0.5])
def test_predict_by_dense_algebra(toy, mean_star):
    prior = np.linspace(-1.0, 1.0, len(toy.y))
    post = exact(toy.K, toy.y, "qp", mean=prior)
    new = np.random.default_rng(2).standard_normal((7, 2)) * 2.0
    K_star, tau = toy.kernel(new, toy.x), post.sites.tau
    mean, variance = post.predict(K_star, np.full(7, 2.0), mean=mean_star)
    joint = toy.K + np.diag(1.0 / tau)  # Rasmussen & Williams (3.60), (3.61)
    expected = mean_star + K_star @ np.linalg.solve(joint, post.sites.nu / tau - prior)
    np.testing.assert_allclose(mean, expected, rtol=1e-11, atol=1e-12)
    reduction = np.einsum("ij,ji->i", K_star, np.linalg.solve(joint, K_star.T))
    np.testing.assert_allclose(variance, 2.0 - reduction, rtol=1e-11)
    assert mean.shape == variance.shape == (7,)
    at_training = post.predict(toy.K, np.diag(toy.K), mean=prior)
    np.testing.assert_allclose(at_training, [post.mean, post.variance], rtol=1e-11, atol=1e-13)
    far = post.predict(np.zeros((1, len(toy.y))), 2.0, mean=0.0)
    np.testing.assert_array_equal(far, [[0.0], [2.0]])
    assert post.predict(np.zeros((0, len(toy.y))), np.zeros(0), mean=0.0)[0].shape == (0,)


def test_coinciding_points_with_both_labels():
    # K of rank one. All but the last observation are one latent value: a 1-D integral.
    y = np.array([1.0, 1.0, -1.0, 1.0])
    post = exact(3.0 * np.ones((4, 4)), y)
    x, w = unit_normal(150)
    z = ndtr(math.sqrt(3.0) * x[:, None] * y).prod(axis=1) @ w
    np.testing.assert_allclose(post.mean, post.mean[0], rtol=1e-12)
    assert post.log_evidence == pytest.approx(math.log(z), abs=5e-3)  # EP's own error


def test_history_is_drawn(toy):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("Agg")
    post = infer(toy.K, toy.y, method="ep")
    axes = post.plot_history()
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), post.history)
    assert axes.get_yscale() == "log"
    assert post.plot_history(axes) is axes
    pyplot.close("all")


def test_sites_that_leave_no_cavity_are_not_said_to_change():
    problem = Problem(DensePrior(np.eye(2), np.zeros(2)), np.ones(2), Projector("probit", "ep"))
    end = replace(settle(problem), settled=False, kept=np.array([0.5, 0.0]))
    with pytest.warns(ConvergenceWarning, match=r"no cavity left in double precision.* site 1 "):
        warn_unsettled(end, 1e-6, 2)


CASES = [(name, i) for name in ("wine", "breast_cancer") for i in range(3)]


def compare(case, data):
    x, y, x_test = (np.array(data[k], dtype=float) for k in ("x", "y", "x_test"))
    variance, length = case["kernel_variance"], case["lengthscale"]
    K = RBFData.kernel(x, x, variance, length)
    post = infer(K, y, method="ep", tol=1e-10)
    dK = np.stack([K, -2.0 * K * np.log(K / variance)], axis=-1)  # in log variance, log length
    cross = RBFData.kernel(x_test, x, variance, length)
    test_mean, test_variance = post.predict(cross, np.full(len(x_test), variance))
    # GPy's own rounding at variance 1000: evidence 5e-13, the rest 1e-8 (see make_gpy.py).
    for name, value, limit in (
        ("log_evidence", post.log_evidence, 1e-11),
        ("gradient", post.evidence_gradient(dK), 1e-7),
        ("mean", post.mean, 3e-8),
        ("variance", post.variance, 3e-8),
        ("test_mean", test_mean, 3e-8),
        ("test_variance", test_variance, 3e-8),
        ("test_probability", ndtr(test_mean / np.sqrt(1.0 + test_variance)), 3e-8),
    ):
        np.testing.assert_allclose(value, case[name], rtol=limit, err_msg=name)


@every_case(("name", "i"), CASES)
def test_stored(name, i, gpy_values):
    compare(gpy_values[name]["cases"][i], gpy_values[name])


@pytest.mark.parametrize(("name", "i"), CASES[1::3])
def test_live(name, i, gpy_values):
    with warnings.catch_warnings(action="ignore"):  # GPy's, on import
        pytest.importorskip("GPy")
        from tests.reference import make_gpy

        case = gpy_values[name]["cases"][i]
        live = make_gpy.compute(name, case["kernel_variance"], case["lengthscale"])
    compare(live, gpy_values[name])


_FILE = oracle.REFERENCE / "mcmc.json"
STORED = {entry["case"]["name"]: entry for entry in json.loads(_FILE.read_text())["cases"]}


def covariance(case):
    kernel = ConstantKernel(case["variance"]) * RBF(case["length_scale"])
    return kernel(np.array(case["x"])[:, None])


def sampled_posterior(case, method, **options):
    given = covariance(case), case["y"], case["likelihood"], method, "exact", case["mean"]
    return infer(*given, tol=1e-9, **options)


@every_case("method", ["ep", "qp"])
@every_case("name", [n for n, e in STORED.items() if e["case"]["within"]])
def test_marginals(name, method):
    entry = STORED[name]
    assert max(entry["mean_error"]) < 0.01 * min(entry["variance"]) ** 0.5
    assert max(np.divide(entry["variance_error"], entry["variance"])) < 0.02
    post, variance = sampled_posterior(entry["case"], method), np.array(entry["variance"])
    assert (np.abs(post.mean - entry["mean"]) / np.sqrt(variance)).max() < 0.1
    assert np.abs(post.variance / variance - 1.0).max() < 0.15


@every_case("name", STORED)
def test_variances_are_not_too_large_and_those_of_qp_smaller(name):
    """What docs/bench-sampled_posterior.md says of the mean log ratio to the sampled variances."""
    assert sum(e["case"]["likelihood"] == "poisson" for e in STORED.values()) >= 3
    entry = STORED[name]
    sampled = np.array(entry["variance"])
    error = max(np.divide(entry["variance_error"], sampled))
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        ep, qp = (sampled_posterior(entry["case"], method).variance for method in ("ep", "qp"))
    assert np.log(ep / sampled).mean() < error
    assert np.log(qp).mean() < np.log(ep).mean()


@pytest.mark.parametrize("order", ["sequential", "random", "parallel"])
def test_held_sites_are_reported(order):
    with pytest.warns(ConvergenceWarning, match=r"1 of 10 site precisions are held at zero") as w:
        post = sampled_posterior(STORED["held"]["case"], "ep", order=order, random_state=0)
    assert w[0].filename == __file__
    assert (post.held, post.n_negative, post.status) == (1, 0, "held")
    assert not post.converged
    assert post.skipped > 0  # by the attempt without
    assert post.sites.tau.min() >= 0.0


def test_fixed_point_with_a_negative_site():
    case = STORED["steep"]["case"]
    post = sampled_posterior(case, "ep")
    assert post.n_negative > 0
    assert sampled_posterior(STORED["moderate"]["case"], "ep").n_negative == 0
    oracle.check_fixed_point(post, lambda f, i: oracle.poisson(f, case["y"][i]), 1e-6)
    # Negative precisions that leave no sampled_posterior under a wider prior are forgotten.
    sites = post.sites
    sites.tau[sites.tau < 0.0] = -50.0
    np.testing.assert_allclose(
        sampled_posterior(case, "ep", sites=sites).mean, post.mean, rtol=1e-6
    )


def test_never_without_a_result():
    """Problems drawn from wide priors, where zeros are crossed all the time."""
    rng = np.random.default_rng(3)
    held = 0
    for k in range(30):
        method = ("ep", "qp")[k % 2]
        n, mean = int(rng.integers(2, 25)), float(rng.choice([0.0, 0.1, 1.0, 2.0]))
        x = np.sort(rng.uniform(0.0, 10.0, n))[:, None]
        K = (ConstantKernel(10.0 ** rng.uniform(-1, 2)) * RBF(10.0 ** rng.uniform(-0.7, 0.7)))(x)
        f = mean + np.linalg.cholesky(K + 1e-8 * K[0, 0] * np.eye(n)) @ rng.standard_normal(n)
        y = rng.poisson(f**2)
        with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
            post = infer(K, y, "poisson", method, "exact", mean)
        assert np.isfinite([post.log_evidence, *post.mean, *post.variance, *post.loo()]).all()
        assert np.all(post.variance > 0.0)
        # A sampled_posterior of f is no wider than the counts allow.
        assert np.all(post.variance + post.mean**2 < 20.0 * (y.max() + 1.0) + K[0, 0])
        held += post.held > 0
    assert held > 5  # the last resort is among them


def test_bounded_problem_keeps_precisions_nonnegative():
    case = STORED["steep"]["case"]
    y = np.array(case["y"], dtype=float)
    prior = DensePrior(covariance(case), np.full(y.size, case["mean"]))
    free = Problem(prior, y, Projector("poisson", "ep"))
    bounded = replace(free, bounded=True)
    limits = Limits(1e-6, 100, 1.0)
    assert iterate(free, limits).sites.tau.min() < 0.0
    for order in ("sequential", "parallel"):
        end = iterate(bounded, limits, order=order)
        assert end.settled
        assert end.sites.tau.min() >= 0.0


TWELVE = RBFData(12, seed=5)


@pytest.mark.interpreted
@every_case("order", ["sequential", "parallel"])
@every_case(("power", "heavy"), [(1.0, 2.5), (0.5, 1.0), (0.3, 0.4)])
def test_fixed_point_of_power_ep(order, power, heavy):
    weights = np.where(np.arange(12) % 3 == 0, heavy, 1.0)
    post = infer(
        TWELVE.K, TWELVE.y, method="ep", power=power, weights=weights, order=order, tol=1e-11
    )
    assert post.converged
    # The tilted moments are the marginal's: that is the fixed point.
    log_z, centre, precision = oracle.check_fixed_point(
        post, lambda f, i: weights[i] * log_ndtr(TWELVE.y[i] * f), 1e-9, power=power
    )
    tau, nu = post.sites
    S = np.linalg.inv(np.linalg.inv(TWELVE.K) + np.diag(tau))
    mean = S @ nu
    np.testing.assert_allclose(post.mean, mean, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(post.variance, S.diagonal(), rtol=1e-8)
    # The site's normaliser to the power: Z over that of the Gaussian product.
    gauss = -0.5 * np.log1p(power * tau / precision) + 0.5 * mean**2 / post.variance
    gauss -= 0.5 * centre**2 * precision
    log_evidence = np.sum(log_z - gauss) / power
    sign, log_det = np.linalg.slogdet(np.eye(12) + TWELVE.K * tau)
    log_evidence += 0.5 * nu @ mean - 0.5 * log_det
    assert sign == 1.0
    assert post.log_evidence == pytest.approx(log_evidence, rel=1e-9)


@pytest.mark.interpreted
@every_case("method", ["ep", "qp"])
@every_case("order", ["sequential", "parallel"])
def test_weight_zero_drops_the_observation(method, order):
    keep = np.arange(12) % 4 != 1
    options = {"method": method, "order": order, "tol": 1e-11}
    dropped = infer(TWELVE.K, TWELVE.y, weights=keep.astype(float), **options)
    without = infer(TWELVE.K[np.ix_(keep, keep)], TWELVE.y[keep], **options)
    np.testing.assert_array_equal(dropped.sites.tau[~keep], 0.0)
    np.testing.assert_allclose(dropped.sites.tau[keep], without.sites.tau, rtol=1e-8, atol=1e-11)
    assert dropped.log_evidence == pytest.approx(without.log_evidence, rel=1e-10)
    # What is left out is predicted by the others.
    mean, variance = without.predict(TWELVE.K[np.ix_(~keep, keep)], TWELVE.K.diagonal()[~keep])
    expected = log_ndtr(TWELVE.y[~keep] * mean / np.sqrt(1.0 + variance))
    np.testing.assert_allclose(dropped.loo()[~keep], expected, rtol=1e-8)


def test_powers_of_a_likelihood_with_two_peaks():
    # Counts with the square link: not log-concave, and powers of it have no closed moments.
    y, weights = np.arange(12) % 4, np.where(np.arange(12) % 3 == 0, 2.5, 1.0)
    post = infer(TWELVE.K, y, "poisson", "ep", mean=1.0, weights=weights, power=0.7, tol=1e-10)
    assert post.converged
    oracle.check_fixed_point(
        post, lambda f, i: weights[i] * oracle.poisson(f, y[i]), 1e-8, power=0.7
    )


@pytest.mark.parametrize("name", ["probit", "poisson-exp"])
def test_power_to_zero_is_the_variational_gaussian(name):
    # T. Minka, Divergence measures and message passing (2005): KL(q||p) is the limit. VB maximises
    # its bound by other formulas altogether; what a power leaves is proportional to it.
    y = TWELVE.y if name == "probit" else np.arange(12) % 4
    bound = infer(TWELVE.K, y, name, "vb", tol=1e-8)
    post = infer(TWELVE.K, y, name, "ep", power=1e-5, tol=1e-8, max_sweeps=300)
    assert post.log_evidence == pytest.approx(bound.log_evidence, abs=2e-6)
    np.testing.assert_allclose(post.mean, bound.mean, atol=2e-6)
    np.testing.assert_allclose(post.variance, bound.variance, rtol=1e-5)


@every_case(
    ("options", "words"),
    [
        ({"power": 0.0}, r"power must be in \(0, 1\]"),
        ({"power": 1.5}, "power must be in"),
        ({"weights": [1.0]}, r"weights must have shape \(12,\)"),
        ({"weights": [-1.0] * 12}, "must not be negative, got -1"),
        ({"weights": [np.nan] * 12}, r"weights\[0\] is nan"),
        ({"weights": [2.0] * 12, "method": "vb"}, "vb"),
    ],
)
def test_powers_and_weights_that_are_refused(options, words):
    refuses(words, infer, TWELVE.K, TWELVE.y, **options)
