"""Hyper-parameters of priors along an operator: the evidence's slope, on either side."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern

from qpruntime import infer
from qpruntime.inference.operator import functionals
from qpruntime.inference.operator.functionals import Functionals
from qpruntime.inference.operator.solver import LatentPrior
from qpruntime.inference.sites import Sites
from qpruntime.learning.objective import LeaveOneOutObjective, Objective
from qpruntime.learning.optimise import maximise
from qpruntime.learning.train_operator import OperatorFamily
from qpruntime.projection.projector import Projector
from tests.tools.cases import every_case
from tests.tools.oracle import slopes, tight

KERNELS = [
    ConstantKernel(1.5) * RBF([0.7, 4.0]),
    ConstantKernel(0.8) * Matern(1.1, nu=2.5) + ConstantKernel(0.3),
]


def drawn(rows):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(9, 2))
    A = rng.normal(size=(rows, 9)) * (rng.random((rows, 9)) < 0.4)
    A[:, 2] += 0.3
    return X, A, np.where(rng.random(rows) < 0.6, 1.0, -1.0), np.linspace(-0.4, 0.3, 9)


@every_case("kind", [np.asarray, sparse.csr_array])
@every_case("kernel", KERNELS)
@pytest.mark.parametrize(("rows", "latent"), [(14, False), (30, True), (30, False)])
def test_slope_of_the_evidence(rows, latent, kernel, kind):
    """By differences of the evidence of `infer` on A K A', which knows no operator."""
    X, A, y, mean = drawn(rows)
    family = OperatorFamily(kernel, X, mean, Functionals(kind(A), 9), latent)
    objective = tight(Objective(family, y, Projector("probit", "ep"), 1e-11, 300))

    def evidence(theta):
        K = A @ kernel.clone_with_theta(theta)(X) @ A.T
        post = infer(0.5 * (K + K.T), y, method="ep", mean=A @ mean, tol=1e-11, max_sweeps=300)
        return post.log_evidence

    for theta in (kernel.theta, kernel.theta + 0.4):
        value, gradient = objective(theta)
        assert value == pytest.approx(-evidence(theta), abs=1e-8)
        # Fourth order: 1e-11 of the fifth derivative.
        limit = 1e-6 * max(1.0, np.abs(gradient).max())
        assert -gradient == pytest.approx(slopes(evidence, theta, 4e-3), abs=limit)


@every_case("method", ["ep", "qp"])
def test_slope_of_the_left_out(method):
    """Both sides have one leave-one-out density, and one slope of it; differences on one."""
    X, A, y, mean = drawn(30)
    found = []
    for latent in (True, False):
        family = OperatorFamily(KERNELS[0], X, mean, Functionals(A, 9), latent)
        given = family, y, Projector("probit", method, "exact"), 1e-9, 300
        found.append(LeaveOneOutObjective(*given))
    theta = KERNELS[0].theta
    one, other = (objective(theta) for objective in found)
    assert one[0] == pytest.approx(other[0], abs=1e-8)
    np.testing.assert_allclose(one[1], other[1], atol=1e-6)
    assert one[1] == pytest.approx(slopes(lambda at: found[0](at)[0], theta), abs=2e-6)


def test_the_evidence_is_maximised():
    """The optimum is that of a search of another kind, on a grid."""
    X, A, y, mean = drawn(30)
    kernel = ConstantKernel(1.0, (1e-2, 1e3)) * RBF(1.0, "fixed")
    family = OperatorFamily(kernel, X, mean, Functionals(A, 9), True)
    best = maximise(family, y, Projector("probit", "ep"))[0]
    grid = best.theta[0] + np.array([-0.05, 0.0, 0.05])
    K = [A @ kernel.clone_with_theta(np.array([t]))(X) @ A.T for t in grid]
    low, top, high = (infer(k, y, method="ep", mean=A @ mean, tol=1e-10).log_evidence for k in K)
    assert best.value == pytest.approx(top, abs=1e-6)
    assert low < top
    assert high < top
    A = sparse.random_array((9000, 1000), density=0.002, rng=np.random.default_rng(0)).tocsr()
    assert functionals.FunctionalFeatures(Functionals(A, 1000), np.eye(1000)).many
    assert not functionals.FunctionalFeatures(Functionals(A[:900], 1000), np.eye(1000)).many


@every_case("copies", [0, 1])
def test_many_sparse_rows(monkeypatch, copies):
    """Variances and slopes entry by entry are those by rows; also where differences cancel."""
    x = np.random.default_rng(5).normal(size=9)
    x[8] = x[7] + (1e-6 if copies else 1.0)
    K = np.exp(-0.5 * (x[:, None] - x) ** 2) + 1e-13 * np.eye(9)
    pairs = [(i, j) for i in range(9) for j in range(9) if i != j]
    A = np.array([np.eye(9)[i] - np.eye(9)[j] for i, j in pairs])
    found = []
    for many in (False, True):
        monkeypatch.setattr(functionals.FunctionalFeatures, "many", many)
        prior = LatentPrior(Functionals(sparse.csr_array(A), 9), K, np.zeros(9))
        solved = prior.factor(Sites(np.linspace(0.2, 0.9, 72), np.linspace(-1, 1, 72)))
        found.append((prior.variance, *solved.marginals(), solved.slope()))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-8, atol=1e-10 * np.abs(one).max())
    exact = np.einsum("ij,jk,ik->i", A, K, A)
    np.testing.assert_allclose(found[1][0], exact, rtol=1e-3 if copies else 1e-12)
