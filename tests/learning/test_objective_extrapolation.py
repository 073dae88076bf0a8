"""Guessed sites: near for smooth functions of theta, carried over where they have no log."""

import numpy as np
import pytest

from qpruntime import likelihoods
from qpruntime.inference.dense.solver import DensePrior
from qpruntime.inference.fixed_point.iterate import settle
from qpruntime.inference.problem import Problem
from qpruntime.inference.sites import Sites
from qpruntime.learning.objective import Extrapolation
from qpruntime.projection.projector import Projector


def smooth(theta):
    """Sites that bend with theta."""
    tau = np.exp([0.3 * theta[0], -theta[1], np.sin(0.5 * theta[0])])
    return Sites(tau, tau * [theta @ theta / 20, 0.2 * theta[1], -1.0])


def error(guess, true):
    return max(
        np.abs(np.log(guess.tau / true.tau)).max(),
        np.abs(guess.nu / guess.tau - true.nu / true.tau).max(),
    )


def test_a_guess_beats_the_last_sites_along_a_path():
    guesses = Extrapolation()
    path = [np.array([0.3 * i, 0.1 * i + 0.02 * i * i]) for i in range(8)]
    assert guesses.guess(path[0]) is None
    for theta in path[:-1]:
        guesses.learn(theta, smooth(theta))
    true = smooth(path[-1])
    assert error(guesses.guess(path[-1]), true) < 1e-2 * error(smooth(path[-2]), true)


def test_known_theta_give_back_their_sites():
    guesses = Extrapolation()
    for theta in np.random.default_rng(0).normal(size=(5, 2)):
        guesses.learn(theta, smooth(theta))
        guesses.learn(theta, smooth(theta))
        assert error(guesses.guess(theta), smooth(theta)) < 1e-6


def test_sites_without_a_log_are_carried_over():
    guesses = Extrapolation()
    guesses.learn(np.zeros(1), Sites(np.array([1.0, 0.0, 2.0]), np.array([1.0, 0.0, 2.0])))
    guesses.learn(np.ones(1), Sites(np.array([2.0, -0.5, 0.0]), np.array([2.0, 0.3, 0.0])))
    tau, nu = guesses.guess(np.array([2.0]))
    assert tau[0] > 2.0
    assert nu[0] == pytest.approx(tau[0])
    np.testing.assert_array_equal([*tau[1:], *nu[1:]], [-0.5, 0.0, 0.3, 0.0])


def test_far_extrapolation_is_not_believed():
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
