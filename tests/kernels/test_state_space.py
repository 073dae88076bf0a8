"""States of kernels against their covariance functions, and steps against matrix exponentials."""

import math

import numpy as np
import pytest
from scipy.linalg import expm, solve_continuous_lyapunov
from sklearn.gaussian_process import kernels as sk

from qpruntime.kernels import Factor, States
from qpruntime.kernels.state_space import state_space
from qpruntime.kernels.stationary import MATERN_5_STATES as FIVE
from qpruntime.kernels.transition_kernels import fill, general_step, laws
from tests.tools.cases import every_case, refuses

C = sk.ConstantKernel
STEPS = [1e-6, 1e-3, 0.04, 0.7, 3.0, 20.0]
KERNELS = [
    sk.Matern(1.3, nu=0.5),
    2.0 * sk.Matern(1.3, nu=1.5),
    sk.Matern(1.3, nu=2.5) + C(0.3),
    C(0.5) * sk.ExpSineSquared(1.3, 1.9),
    sk.Matern(6.0, nu=1.5) * sk.ExpSineSquared(1.3, 1.9)
    + sk.Matern(0.3, nu=0.5) * sk.Matern(2.0, nu=2.5),
    sk.Matern(1.3, nu=1.5) ** 2,
    C(2.0) * sk.DotProduct(0.7),
    C(3.0),
]


def moved(space, step, begin=0.0):
    chain = space.arrays(begin)
    d = space.dimension
    A, Q = np.zeros((2, d, d))
    fill(step, chain, A, Q, np.zeros((9, d + 3, d + 3)))
    return A, Q, chain[6], chain[5]


@every_case("kernel", KERNELS)
def test_covariances(kernel):
    """f now and after a step; the Fourier series of a period leave 1e-10 out."""
    space = state_space(kernel)
    begin = 0.4
    for step in STEPS:
        A, Q, P, heads = moved(space, step, begin)
        K = kernel(np.array([[begin], [begin + step]]))
        near = 1e-12 * np.abs(K).max() + 3.0 * space.error
        assert heads @ A @ P @ heads == pytest.approx(K[1, 0], abs=near)
        assert heads @ (A @ P @ A.T + Q) @ heads == pytest.approx(K[1, 1], abs=near)


def test_white_noise_and_places_of_parameters():
    product = C(2.0, "fixed") * sk.Matern(1.3, nu=1.5) * sk.WhiteKernel(0.5)
    space = state_space(product + sk.Matern(nu=2.5))
    assert space.noise == 1.0
    assert (space.n_theta, space.terms[0].factors[0].theta) == (3, 2)
    assert space.noises[0].slopes == ((1, 1.0),)


def oscillator(damping, turn):
    """A damped turn: d/dt (x, y) = [[-damping, -turn], [turn, -damping]] (x, y) + noise."""
    return States([[-damping, -turn], [turn, -damping]], np.eye(2))


def mixed(law):
    """The same f, its other states mixed."""
    T = expm(np.diag([0.2, 0.1], -1))
    T[0] = [1.0, 0.0, 0.0]
    return States(T @ law.generator @ np.linalg.inv(T), T @ law.stationary @ T.T)


LAWS = [
    oscillator(0.3, 2.0),
    oscillator(0.0, 1.0),
    States([[-1.0]], [[1.0]]),
    States(FIVE.generator, FIVE.stationary),
    mixed(FIVE),
]


@every_case("law", LAWS)
def test_steps_of_any_law(law):
    """Against scipy's exponential, also of the block matrix whose corner is the noise's."""
    d, F = law.size, law.generator
    for x in STEPS:
        A, Q, P = np.zeros((3, d, d))
        assert general_step(laws([LAWS[0], law]), 1, x, A, Q, P) == d
        np.testing.assert_allclose(A, expm(F * x), rtol=0.0, atol=1e-13 * max(1.0, x))
        np.testing.assert_array_equal(P, law.stationary)
        block = np.block([[-F, law.noise], [np.zeros((d, d)), F.T]])
        if x < 5.0:  # beyond, the exponential of -F x cancels
            want = expm(F.T * x).T @ expm(block * x)[:d, d:]
            np.testing.assert_allclose(Q, want, rtol=1e-9, atol=1e-13 * np.abs(P).max())
        np.testing.assert_allclose(A @ P @ A.T + Q, P, atol=1e-13 * np.abs(P).max() * max(1.0, x))


def test_any_law_is_the_closed_form():
    """Matérn 5/2 by series; over short steps its noise is x^5, which nothing may swamp."""
    closed = state_space(sk.Matern(1.0, nu=2.5))
    rate = math.sqrt(5.0)
    for x in STEPS:
        A, Q, P = np.zeros((3, 3, 3))
        general_step(laws([States(FIVE.generator, FIVE.stationary)]), 0, rate * x, A, Q, P)
        own = moved(closed, x)
        np.testing.assert_allclose(A, own[0], rtol=0.0, atol=1e-14)
        # Entries that are 0 at the end are rounded; over short steps nothing is.
        np.testing.assert_allclose(Q, own[1], rtol=1e-11, atol=0.0 if x < 0.1 else 1e-15)


def test_approximations_keep_their_covariance():
    """As filters of white noise, by scipy's Lyapunov equation."""
    for error, size in ((3e-3, 4), (2e-4, 6), (2e-5, 8)):
        space = state_space(sk.RBF(0.8), error)
        (factor,) = space.terms[0].factors
        F, P = factor.states.generator, factor.states.stationary
        noise = np.zeros((size, size))
        noise[-1, -1] = factor.states.noise[-1, -1]
        assert np.count_nonzero(factor.states.noise) == 1
        np.testing.assert_allclose(solve_continuous_lyapunov(F, -noise), P, rtol=1e-9, atol=1e-9)
        for step in STEPS:
            A, _, start, heads = moved(space, step)
            want = math.exp(-0.5 * (step / 0.8) ** 2)
            assert heads @ A @ start @ heads == pytest.approx(want, abs=error)


def test_laws_that_are_none():
    for F, P, words in [
        ([[1.0]], [[1.0]], "no covariance that this generator keeps"),
        ([[-1.0, 0.0]], [[1.0]], "square and of one size"),
        ([[-1.0]], [[2.0]], r"must be 1, got 2: divide by it"),
        ([[0.0, 1.0], [-1.0, -2.0]], [[1.0, 0.3], [0.0, 1.0]], "symmetric"),
        ([[0.0, 1.0], [-1.0, -2.0]], [[1.0, 0.0], [0.0, 9.0]], "negative eigenvalues"),
    ]:
        refuses(words, States, F, P)
    assert Factor(oscillator(0.3, 2.0), 2.0).forgets == pytest.approx(0.6, rel=1e-14)
