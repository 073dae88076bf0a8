"""What is learnt of each function: units, posteriors of parameters and their slopes, and gains."""

from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

from qpruntime.bayesopt import Surrogate, condition, gains, surrogate
from qpruntime.bayesopt.acquisition import Awaited, gains_of
from qpruntime.bayesopt.history import Failing
from qpruntime.bayesopt.minimisers import Paths
from qpruntime.bayesopt.search import log_feasible
from qpruntime.bayesopt.surrogate import Models, units
from tests.tools.cases import every_case
from tests.tools.oracle import slopes

X = np.array([[0.1, 0.7], [0.25, 0.2], [0.5, 0.9], [0.8, 0.35], [0.95, 0.6]])
Y = np.array([0.3, -1.2, 0.8, 1.1, -0.7])
GIVEN = ConstantKernel(1.3) * RBF([0.4, 0.7]) + Matern(0.9, nu=1.5)


@every_case("shape", ["rbf", "matern", ""])
@every_case("noise", [None, 0.01])
def test_posteriors_of_parameters(shape, noise):
    """Differences against scikit-learn's marginal likelihood with the priors written out."""
    model = surrogate.given_kernel(GIVEN, noise)
    if shape:
        model = surrogate.default_kernel(2, noise, shape)
    rng = np.random.default_rng(0)
    n = len(model.kernel.theta)
    # Medians and standard deviations of logarithms, as the comments of surrogate.py have them.
    centre = np.log([1.0, *[0.3 * np.sqrt(2.0)] * 2, 1e-5])
    spread = np.array([1.0, 1.0, 1.0, 2.5])
    if not shape:
        centre, spread = np.append(model.kernel.theta, np.log(1e-5)), np.array([np.inf] * n + [2.5])
    k = len(model.centre)
    assert k == n + (noise is None)

    def oracle(p):
        lift = np.exp(p[n]) if noise is None else noise
        kernel = model.kernel.clone_with_theta(p[:n])
        # What every matrix is lifted by for its factor's sake, 1e-10, is seen in the tenth digit.
        machine = GaussianProcessRegressor(kernel, alpha=lift, optimizer=None).fit(X, Y)
        z = (p - centre[:k]) / spread[:k]
        return -machine.log_marginal_likelihood_value_ + 0.5 * z @ z

    loss = surrogate._Loss(model, X, Y)
    shift = None
    for _ in range(3):
        p = np.clip(model.centre + 0.5 * rng.standard_normal(k), *model.bounds.T)
        if noise is None:
            p[n] = np.log(0.05) + rng.standard_normal()
        value, slope = loss(p)
        gap = value - oracle(p)
        shift = gap if shift is None else shift
        assert gap == pytest.approx(shift, abs=1e-7)
        np.testing.assert_allclose(slope, slopes(oracle, p), rtol=1e-6, atol=1e-7)


def test_units_of_observations():
    assert units(np.array([1.0, 3.0]), False) == (2.0, 1.0)
    # A constraint keeps its zero; far from it and nearly constant, its size over 3 is the unit.
    assert units(np.array([-9.0, -8.0]), True) == (0.0, 3.0)
    assert units(np.array([-1.0, 1.0]), True) == (0.0, 1.0)
    assert units(np.zeros(0), True) == units(np.zeros(0), False) == (0.0, 1.0)
    assert units(np.full(3, 2.5), False) == (2.5, 2.5)
    assert units(np.zeros(3), True) == (0.0, 1.0)
    centre, spread = units(np.array([1e-200, 3e-200]), False)
    assert (centre, spread) == pytest.approx((2e-200, 1e-200), rel=1e-14)
    models = Models(1, [None, None], [0.04, None])
    assert models.model(0, 0.5).noise == pytest.approx(0.16, rel=1e-15)
    assert models.model(1, 0.5).noise is None


def test_what_is_pending_is_imagined_with_noise():
    """Normals that are 1 show the standard deviation of what is drawn."""
    ones = SimpleNamespace(standard_normal=np.ones)
    kernel = RBF(0.3)
    known = [Surrogate(kernel, X, Y, 0.04), Surrogate(kernel, X, Y, 0.0)]
    awaited = Awaited(np.array([[0.3, 0.3], [0.6, 0.1]]), [{0, 1}, {1}])
    objective, constraint = awaited.imagined(known, np.array([[1.0, 2.0], [3.0, 4.0]]), ones)
    np.testing.assert_array_equal(objective.y, [*Y, 1.0 + 0.2])
    np.testing.assert_array_equal(objective.X, [*X, [0.3, 0.3]])
    np.testing.assert_array_equal(constraint.y, [*Y, 3.0, 4.0])
    # A path draws the noise of the data, after its frequencies: its weights are known.
    draws = mock.Mock()
    frequencies = np.random.default_rng(0).standard_normal
    draws.side_effect = lambda shape: (np.ones if draws.call_count > 1 else frequencies)(shape)
    path = Paths(known[0], 1, SimpleNamespace(standard_normal=draws), 50)
    K = kernel(X) + 0.04 * np.eye(5)
    want = np.linalg.solve(K, Y[:, None] - path.prior(X) - 0.2)
    np.testing.assert_allclose(path.weights, want, rtol=1e-9)


def test_gains_are_halves_of_log_ratios():
    """By both ways, from variances before and after; alone, together, and for a price."""
    known = [Surrogate(RBF(0.3), X, Y, 0.04), Surrogate(RBF(0.4), X[:3], Y[:3], 0.01)]
    posts = [condition(known, star) for star in ([0.3, 0.4], [0.7, 0.2])]
    at = np.array([[0.4, 0.4], [0.9, 0.1]])
    noise = np.array([[0.04], [0.01]])
    before = np.array([s.predict(at)[1] for s in known]) + noise
    after = [post.predict(at)[1] + noise for post in posts]
    want = 0.5 * np.log(before) - 0.25 * (np.log(after[0]) + np.log(after[1]))
    np.testing.assert_allclose(gains(known, posts, at), want, rtol=1e-9)
    np.testing.assert_allclose(gains_of(posts, at), want, rtol=1e-9)
    plain = Failing([], [None, None])
    np.testing.assert_array_equal(plain.expected([known], want, at, apart=True), want)
    np.testing.assert_allclose(plain.expected([known], want, at, apart=False)[0], want.sum(axis=0))


def test_probabilities_that_constraints_hold_and_noise_of_a_kernel():
    """Two constraints whose means are 1 and 2 of their standard deviations."""
    kernel, at = RBF(0.3), np.array([[9.0, 9.0]])
    far = [Surrogate(kernel, X, Y), *(Surrogate(kernel, X, Y, mean=m) for m in (1.0, 2.0))]
    found = np.exp(log_feasible(far, at))[0]
    # Phi(1) Phi(2), from tables.
    assert found == pytest.approx(0.8413447461 * 0.9772498681, rel=1e-9)
    noisy = Surrogate(RBF(0.3) + WhiteKernel(0.25), X, Y, 0.5)
    assert (noisy.noise, noisy.scale) == pytest.approx((0.75, 1.0), rel=1e-14)


def test_slices_are_of_the_posterior():
    """Of a known kernel only the noise is drawn: mean and deviation against its density."""
    model = surrogate.given_kernel(RBF(0.5, "fixed"), None)
    start = surrogate.most_probable(model, X, Y, [model.centre])
    loss = surrogate._Loss(model, X, Y)
    grid = np.linspace(*model.bounds[0], 401)[:, None]
    density = np.exp(-np.array([loss(p)[0] for p in grid]) + loss(start)[0])
    density /= density.sum()
    mean = density @ grid[:, 0]
    sd = np.sqrt(density @ (grid[:, 0] - mean) ** 2)
    draws = surrogate.slice_samples(model, X, Y, start, 800, np.random.default_rng(0))
    # 800 nearly independent draws: .035 and .025 standard deviations, thrice that and some more.
    assert np.mean(draws) == pytest.approx(mean, abs=0.15 * sd)
    assert np.std(draws) == pytest.approx(sd, rel=0.12)
