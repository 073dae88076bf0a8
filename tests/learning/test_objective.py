"""The objective of evidence maximisation: value and slope, and guessed sites."""

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

from qpruntime import infer, likelihoods
from qpruntime.inference.dense.solver import DensePrior
from qpruntime.inference.fixed_point.iterate import settle
from qpruntime.inference.problem import Problem
from qpruntime.inference.sites import Sites
from qpruntime.learning.objective import Extrapolation, KernelFamily, Objective
from qpruntime.learning.optimise import maximise
from qpruntime.projection.projector import Projector
from tests.tools.cases import every_case
from tests.tools.oracle import slopes, tight

KERNELS = [
    ConstantKernel(1.5) * RBF([0.7, 4.0]) + WhiteKernel(0.2),
    ConstantKernel(1e5) * RBF(2.0) + WhiteKernel(10.0),
    ConstantKernel(0.8) * Matern(1.1, nu=1.5),
]


# 24 sites that still change by 3e-4: the evidence is stationary in them, its slope is not.
@every_case(("settled", "of_value", "of_slope"), [(False, 1e-6, 1e-3), (True, 1e-9, 1e-6)])
@every_case("kernel", KERNELS)
@every_case("mean", [0.0, 0.5])
def test_value_and_gradient(kernel, mean, settled, of_value, of_slope, toy):
    family = KernelFamily(kernel, toy.x, np.full(len(toy.y), mean))
    objective = Objective(family, toy.y, Projector("probit", "ep"), 1e-11, 200)
    objective = tight(objective) if settled else objective

    def evidence(theta):
        K = kernel.clone_with_theta(theta)(toy.x)
        return infer(K, toy.y, method="ep", mean=mean, tol=1e-11).log_evidence

    # Asked at several places, so that carried-over sites are part of what is tested.
    for theta in (kernel.theta, kernel.theta + 0.5, kernel.theta - 0.01):
        value, gradient = objective(theta)
        assert value == pytest.approx(-evidence(theta), abs=of_value)
        limit = of_slope * np.abs(gradient).max()
        # Fourth order: 1e-11 of the fifth derivative.
        assert -gradient == pytest.approx(slopes(evidence, theta, 4e-3), abs=limit)


def test_first_step_stays_near(toy):
    kernel = ConstantKernel(1.0, (1e-6, 1e10)) * RBF(1.0, (1e-4, 1e5))
    X, y = np.tile(toy.x, (9, 1)), np.tile(toy.y, 9)
    X = X + 1e-3 * np.random.default_rng(0).standard_normal(X.shape)
    family = KernelFamily(kernel, X, np.zeros(len(y)))
    first, second = (Objective(family, y, Projector("probit", "ep"), 1e-6, 100) for _ in range(2))
    seen = []
    optimum, _ = maximise(
        first, kernel.theta, kernel.bounds, callback=lambda *evaluated: seen.append(evaluated)
    )
    slope = second(kernel.theta)[1]
    assert np.abs(slope).max() > 2.5  # a step of that length is what the optimiser would take
    assert np.abs(seen[1][0] - seen[0][0]).max() == pytest.approx(2.0)
    # The value is that of the evidence, not of what was scaled.
    assert optimum.value == pytest.approx(max(value for _, value in seen), rel=1e-8)
    assert optimum.n_evaluations == len(seen)
    assert type(optimum.value) is float


def smooth(theta):
    """Sites that bend with theta."""
    tau = np.exp([0.3 * theta[0], -theta[1], np.sin(0.5 * theta[0])])
    return Sites(tau, tau * [theta @ theta / 20, 0.2 * theta[1], -1.0])


def error(guess, true):
    logs = np.log(guess.tau / true.tau)
    return np.abs([logs, guess.nu / guess.tau - true.nu / true.tau]).max()


def test_a_guess_beats_the_last_sites_along_a_path():
    guesses = Extrapolation()
    path = [np.array([0.3 * i, 0.1 * i + 0.02 * i * i]) for i in range(8)]
    assert guesses.guess(path[0]) is None
    for theta in path[:-1]:
        guesses.learn(theta, smooth(theta))
    true = smooth(path[-1])
    assert error(guesses.guess(path[-1]), true) < 1e-2 * error(smooth(path[-2]), true)


def test_what_guesses_give_back_and_carry_over():
    guesses = Extrapolation()
    for theta in np.random.default_rng(0).normal(size=(5, 2)):
        guesses.learn(theta, smooth(theta))
        guesses.learn(theta, smooth(theta))
        assert error(guesses.guess(theta), smooth(theta)) < 1e-6
    # Sites without a logarithm.
    guesses = Extrapolation()
    guesses.learn(np.zeros(1), Sites(np.array([1.0, 0.0, 2.0]), np.array([1.0, 0.0, 2.0])))
    guesses.learn(np.ones(1), Sites(np.array([2.0, -0.5, 0.0]), np.array([2.0, 0.3, 0.0])))
    tau, nu = guesses.guess(np.array([2.0]))
    assert tau[0] > 2.0
    assert nu[0] == pytest.approx(tau[0])
    np.testing.assert_array_equal([*tau[1:], *nu[1:]], [-0.5, 0.0, 0.3, 0.0])
    # What is far is not believed.
    guesses = Extrapolation()
    for t in (0.0, 1e-3):
        guesses.learn(np.array([t]), Sites(np.exp(np.array([1e4 * t])), np.ones(1)))
    assert guesses.guess(np.array([1.0])).tau[0] == np.exp(10.0)
    guesses.forget()
    assert guesses.guess(np.zeros(1)) is None


def test_inference_starts_nearer_from_a_guess(toy):
    projector = Projector(likelihoods.get("probit"), "ep")
    guesses, last, first = Extrapolation(), None, []
    for level in np.linspace(0.0, 3.0, 8):
        theta = np.array([level, 0.3 * level])
        K = toy.kernel(toy.x, toy.x, np.exp(level), np.exp(0.3 * level))
        task = Problem(DensePrior(K, np.zeros(toy.y.size)), toy.y, projector)
        end = settle(task, order="parallel", sites=guesses.guess(theta))
        first.append(end.history[0] / settle(task, order="parallel", sites=last).history[0])
        guesses.learn(theta, end.sites)
        last = end.sites
    assert max(first[4:]) < 0.2  # 0.014 to 0.075
