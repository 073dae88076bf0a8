"""A user's own class: Matérn 3/2 written anew is the one that is built in, wherever it is used."""

import math

import numpy as np
import pytest
from scipy.spatial.distance import cdist
from sklearn.gaussian_process import kernels as sk

from qpruntime import GPClassifier, infer_series, infer_sparse
from qpruntime.bayesopt.minimisers import Paths
from qpruntime.bayesopt.surrogate import Surrogate
from qpruntime.kernels import Factor, KernelParts, States, StateSpaceTerm, register
from qpruntime.kernels.cross_covariance import moves_inputs
from qpruntime.kernels.gradients import covariance_function
from qpruntime.kernels.state_space import NotMarkov, state_space
from tests.tools.cases import refuses

ROOT, C = math.sqrt(3.0), sk.ConstantKernel
RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 2))
Y = np.sign(np.sin(2.0 * X[:, 0]) + 0.3 * X[:, 1])
Z = X[:7] + 0.01


class Plain(sk.StationaryKernelMixin, sk.NormalizedKernelMixin, sk.Kernel):
    """Nobody knows it."""

    def __init__(self, length_scale=1.0, length_scale_bounds=(1e-5, 1e5)):
        self.length_scale, self.length_scale_bounds = length_scale, length_scale_bounds

    @property
    def hyperparameter_length_scale(self):
        size = np.size(self.length_scale)
        return sk.Hyperparameter("length_scale", "numeric", self.length_scale_bounds, size)

    def __call__(self, X, Y=None):
        scaled = [points / self.length_scale for points in (X, X if Y is None else Y)]
        return value(self, cdist(*scaled))


class Own(Plain):
    """The same, registered."""


def value(kernel, r):
    return (1.0 + ROOT * r) * np.exp(-ROOT * r)


def slope(kernel, r):
    return 3.0 * np.exp(-ROOT * r)


def states(kernel):
    law = States([[0.0, 1.0], [-1.0, -2.0]], np.eye(2))
    return Factor(law, ROOT / float(np.squeeze(kernel.length_scale)), "length_scale")


def frequencies(kernel, count, rng):
    return np.sqrt(3.0 / rng.chisquare(3.0, count))


PARTS = KernelParts(radial=value, slope=slope, state_space=states, frequencies=frequencies)
register(Own, PARTS)


def pairs(length=0.9):
    """The own kernel and the built-in one, in a sum."""
    return [C(2.0) * k + sk.WhiteKernel(0.05) for k in (Own(length), sk.Matern(length, nu=1.5))]


@pytest.mark.parametrize("length", [0.9, [0.7, 1.6]])
def test_gradients_of_dense_fits_and_of_inducing_points(length):
    """Without a gradient of its own, which scikit-learn would ask for."""
    M = RNG.standard_normal((60, 60))
    M += M.T
    found = []
    for kernel in pairs(length):
        covariance = covariance_function(kernel, X)
        K = covariance.at(kernel.theta)
        found.append((K, covariance.contract(M) / np.abs(M).sum()))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-13)
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=0.0, atol=1e-14)
    # Evidence, marginals, gradients by parameters and by Z: sums in the same order.
    found = []
    for kernel in pairs(length):
        post = infer_sparse(X, Y, kernel, Z, "probit", "ep", tol=1e-10)
        at = post._solution.engine.evaluate(0)
        found.append([post.log_evidence, *post.predict(X[:9]), at.by_theta, at.by_Z])
    for own, known in zip(*found, strict=True):
        np.testing.assert_allclose(own, known, rtol=1e-10, atol=1e-11)
    assert np.abs(found[0][-1]).max() > 0.1


def test_evidence_gradient_of_a_dense_fit():
    kernels = Own(1.0), sk.Matern(1.0, nu=1.5)
    models = [GPClassifier(C(1.0) * k, solver="dense").fit(X, Y) for k in kernels]
    own, known = (m.kernel_.theta for m in models)
    np.testing.assert_allclose(own, known, rtol=1e-6, atol=1e-6)


def test_series():
    """Steps by series beside those in closed form, from repeated times to long gaps."""
    t = np.sort(np.concatenate([RNG.uniform(0.0, 20.0, 50), [3.0, 3.0, 3.0 + 1e-7, 500.0]]))
    y = np.sign(np.sin(1.3 * t) + 0.2)
    for of in (lambda k: C(2.0) * k, lambda k: C(2.0) * k * sk.Matern(5.0, nu=0.5) + C(0.3)):
        found = []
        for kernel in (of(Own(0.9)), of(sk.Matern(0.9, nu=1.5))):
            post = infer_series(t, y, kernel, "probit", "ep", tol=1e-11)
            at = post.predict([-1.0, 3.3, 90.0])
            found.append([post.log_evidence, post.mean, post.variance, *at])
            found[-1].append(post.evidence_gradient())
        for own, known in zip(*found, strict=True):
            np.testing.assert_allclose(own, known, rtol=1e-8, atol=1e-9)


def test_paths():
    """Of the same random numbers the same functions."""
    own, known = (
        Paths(Surrogate(k, X[:9], Y[:9], 0.1), 3, np.random.default_rng(0), 40)
        for k in (C(2.0) * Own(0.5), C(2.0) * sk.Matern(0.5, nu=1.5))
    )
    np.testing.assert_allclose(own(Z), known(Z), rtol=1e-10)
    for one, other in zip(own.slope(Z[0], 1), known.slope(Z[0], 1), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10)


def test_what_is_not_told_is_not_known():
    assert moves_inputs(C(1.0) * Own(1.0))
    assert not moves_inputs(C(1.0) * Plain(1.0))
    refuses(r"Plain.*qpruntime\.kernels\.register", state_space, Plain(1.0), error=NotMarkov)

    class Turning(Plain):
        """Its second parameter is not named by its states."""

        def __init__(self, length_scale=1.0, length_scale_bounds=(1e-5, 1e5), turn=2.0):
            super().__init__(length_scale, length_scale_bounds)
            self.turn = turn

        @property
        def hyperparameter_turn(self):
            return sk.Hyperparameter("turn", "numeric", (0.1, 10.0))

    def turning(kernel):
        law = States([[-1.0, -kernel.turn], [kernel.turn, -1.0]], np.eye(2))
        return [StateSpaceTerm(2.0, (Factor(law, 1.0 / kernel.length_scale, "length_scale"),))]

    register(Turning, KernelParts(state_space=turning))
    t = np.linspace(0.0, 5.0, 20)
    post = infer_series(t, np.sign(np.sin(3.0 * t + 0.1)), Turning(2.0), "probit", "ep")
    refuses(r"how it depends on turn.*or fix it", post.evidence_gradient)
    refuses("parameter turn, of which parts have no slope", register, Turning, PARTS)


def test_what_is_refused():
    for kernel_class, parts, words in [
        (Own(1.0), PARTS, "must be a class derived"),
        (dict, PARTS, "must be a class derived"),
        (sk.RBF, PARTS, "RBF is built in"),
        (Own, value, "parts must be a KernelParts"),
        (sk.WhiteKernel, PARTS, "built in"),
        (Own, KernelParts(radial=value, slope=slope, slopes={"nu": value}), "no parameter nu"),
        (type("Bare", (sk.Kernel,), {}), PARTS, "scaled=False"),
    ]:
        refuses(words, register, kernel_class, parts)
    refuses("radial and no slope", KernelParts, radial=value)
    assert moves_inputs(Own(1.0))
