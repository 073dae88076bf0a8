"""EP and QP against stored runs of elliptical slice sampling; sites of negative precision."""

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from qpruntime import ConvergenceWarning, infer
from qpruntime.inference.dense.solver import DensePrior
from qpruntime.inference.fixed_point.convergence import Limits
from qpruntime.inference.fixed_point.iterate import iterate
from qpruntime.inference.problem import Problem
from qpruntime.projection.projector import Projector
from tests.tools import oracle
from tests.tools.cases import every_case

_FILE = oracle.REFERENCE / "mcmc.json"
STORED = {entry["case"]["name"]: entry for entry in json.loads(_FILE.read_text())["cases"]}


def covariance(case):
    kernel = ConstantKernel(case["variance"]) * RBF(case["length_scale"])
    return kernel(np.array(case["x"])[:, None])


def posterior(case, method, **options):
    given = covariance(case), case["y"], case["likelihood"], method, "exact", case["mean"]
    return infer(*given, tol=1e-9, **options)


@every_case("method", ["ep", "qp"])
@every_case("name", [n for n, e in STORED.items() if e["case"]["within"]])
def test_marginals(name, method):
    entry = STORED[name]
    assert max(entry["mean_error"]) < 0.01 * min(entry["variance"]) ** 0.5
    assert max(np.divide(entry["variance_error"], entry["variance"])) < 0.02
    post, variance = posterior(entry["case"], method), np.array(entry["variance"])
    assert (np.abs(post.mean - entry["mean"]) / np.sqrt(variance)).max() < 0.1
    assert np.abs(post.variance / variance - 1.0).max() < 0.15


@every_case("name", STORED)
def test_variances_are_not_too_large_and_those_of_qp_smaller(name):
    """What docs/bench-posterior.md says of the mean log ratio to the sampled variances."""
    entry = STORED[name]
    sampled = np.array(entry["variance"])
    error = max(np.divide(entry["variance_error"], sampled))
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        ep, qp = (posterior(entry["case"], method).variance for method in ("ep", "qp"))
    assert np.log(ep / sampled).mean() < error
    assert np.log(qp).mean() < np.log(ep).mean()


def test_problems_are_what_they_say():
    assert sum(e["case"]["likelihood"] == "poisson" for e in STORED.values()) >= 3
    assert posterior(STORED["steep"]["case"], "ep").n_negative > 0
    assert posterior(STORED["moderate"]["case"], "ep").n_negative == 0


@pytest.mark.parametrize("order", ["sequential", "random", "parallel"])
def test_held_sites_are_reported(order):
    with pytest.warns(ConvergenceWarning, match=r"1 of 10 site precisions are held at zero") as w:
        post = posterior(STORED["held"]["case"], "ep", order=order, random_state=0)
    assert w[0].filename == __file__
    assert (post.held, post.n_negative, post.status) == (1, 0, "held")
    assert not post.converged
    assert post.skipped > 0  # by the attempt without
    assert post.sites.tau.min() >= 0.0


def test_fixed_point_with_a_negative_site():
    case = STORED["steep"]["case"]
    post = posterior(case, "ep")
    oracle.check_fixed_point(post, lambda f, i: oracle.poisson(f, case["y"][i]), 1e-6)
    # Negative precisions that leave no posterior under a wider prior are forgotten.
    sites = posterior(case, "ep").sites
    sites.tau[sites.tau < 0.0] = -50.0
    np.testing.assert_allclose(posterior(case, "ep", sites=sites).mean, post.mean, rtol=1e-6)


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
        # A posterior of f is no wider than the counts allow.
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
