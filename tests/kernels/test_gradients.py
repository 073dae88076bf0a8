"""Contracted kernel gradients against scikit-learn's N x N x p arrays."""

import numpy as np
import pytest
from sklearn.gaussian_process import kernels as sk

from qpruntime.kernels import gradients
from qpruntime.kernels.registry import read
from tests.tools.cases import every_case
from tests.tools.oracle import slopes

X = np.random.default_rng(0).standard_normal((12, 3))
C, W = sk.ConstantKernel, sk.WhiteKernel


class Halved(sk.RBF):
    """A subclass that is not its parent."""

    def __call__(self, X, Y=None, eval_gradient=False):
        result = super().__call__(X, Y, eval_gradient)
        return tuple(0.5 * r for r in result) if eval_gradient else 0.5 * result


KERNELS = [
    sk.RBF(0.7),
    sk.RBF([0.5, 2.0, 9.0]),
    sk.RBF(0.7, "fixed"),
    C(2.0),
    C(2.0, "fixed") * sk.RBF(1.5),
    C(2.0) * sk.RBF(1.5, "fixed"),
    C(2.0) * sk.RBF([0.5, 2.0, 9.0]) + W(0.1),
    C(2.0) * sk.RBF(1.5) + W(0.1, "fixed"),
    (C(2.0) + sk.RBF(1.5)) * (C(0.5) * sk.RBF(3.0) + W(0.3)),
    C(2.0) * sk.RBF(1.5) * sk.RBF([3.0, 1.0, 2.0]),
    C(3.0) * sk.Matern(1.2, nu=1.5),
    sk.Matern([1.2, 0.5, 3.0], nu=2.5) + W(1e-3),
    C(2.0) * sk.RationalQuadratic(1.0, 0.7) + C(0.3) * sk.DotProduct(0.5),
    sk.ExpSineSquared(1.1, 2.0) * sk.RBF(2.0),
    sk.RBF(1.5) ** 3,
    (C(2.0) * sk.RBF(0.6)) ** 2 + W(0.1),
    C(2.0) * Halved(1.5),
    C(2.0) * sk.RBF(0.02),
    C(1e6) * sk.RBF(1e-3),
    C(1e-6) * sk.RBF(1e4),
]


@every_case("kernel", KERNELS)
def test_contract_gradient(kernel):
    M = np.random.default_rng(1).standard_normal((len(X), len(X)))
    M += M.T
    dK = kernel(X, eval_gradient=True)[1]
    expected = np.einsum("ij,ijk->k", M, dK)
    scale = np.einsum("ij,ijk->k", np.abs(M), np.abs(dK))
    got = gradients.contract_gradient(read(kernel), X, M)
    assert got.shape == (kernel.n_dims,)
    # 144 terms summed in another order; scikit-learn forms the distances differently.
    assert np.all(np.abs(got - expected) <= 1e-13 * scale)


ISOTROPIC = [
    sk.RBF(0.7),
    sk.RBF(0.7, "fixed"),
    C(2.0) * sk.RBF(1.5),
    C(2.0, "fixed") * sk.RBF(1.5),
    C(2.0) * sk.RBF(1.5, "fixed"),
    C(1e9) * sk.RBF(30.0),
    C(2.0) * sk.RBF([1.5]),
    # No distance is as far as this length-scale is short, nor any square as small.
    C(1e-6) * sk.RBF(1e-180, (1e-200, 1.0)),
]


@every_case("kernel", ISOTROPIC + KERNELS[1:2] + KERNELS[6:12])
def test_covariance_function(kernel):
    points = X[:, :1] if kernel == C(2.0) * sk.RBF([1.5]) else X
    function = gradients.covariance_function(kernel, points)
    assert isinstance(function, gradients.Isotropic) == (kernel in ISOTROPIC)
    M = np.random.default_rng(1).standard_normal((len(X), len(X)))
    M += M.T
    for theta in (kernel.theta, kernel.theta + 0.3):
        there = kernel.clone_with_theta(theta)
        # exp of a rounded argument: up to 30 where the kernel is 1e-13 of its peak.
        with np.errstate(all="ignore"):
            K = there(points)
            np.testing.assert_allclose(function.at(theta), K, rtol=1e-13, atol=1e-300)
            expected = gradients.contract_gradient(read(there), points, M)
        scale = np.abs(M).max() * np.abs(K).max() * M.size
        got = function.contract(M)
        assert got.shape == (kernel.n_dims,)
        assert np.isfinite(got).all()
        if np.isfinite(expected).all():
            assert np.all(np.abs(got - expected) <= 1e-14 * scale)


RADIAL = [
    C(0.5) + C(2.0) * sk.Matern(1.2, nu=2.5),
    C(0.5) + C(2.0) * sk.RBF(1.2),
    C(0.5, "fixed") + C(2.0) * sk.Matern(1.2, nu=2.5),
    C(0.5) + C(2.0, "fixed") * sk.RBF(1.2),
    C(0.5) + C(2.0) * sk.Matern(1.2, "fixed", nu=2.5),
    C(0.5) + sk.Matern(1.2, nu=2.5),
    C(2.0) * sk.Matern(1.2, nu=2.5),
    sk.Matern(1.2, nu=2.5),
    C(1e6) + C(1e-3) * sk.Matern(1e-3, nu=2.5),
    C(1e-6) + C(1e6) * sk.RBF(1e3),
    C(0.5) + C(2.0) * sk.Matern([0.3, 2.0, 9.0], nu=2.5),
    C(0.5) + C(2.0) * sk.RBF([0.3, 2.0, 9.0]),
    C(2.0, "fixed") * sk.Matern([0.3, 2.0, 9.0], nu=2.5),
    C(0.5) + C(2.0) * sk.Matern([0.3, 2.0, 9.0], "fixed", nu=2.5),
    C(0.5) + C(2.0) * sk.Matern([0.3, 1e4, 1e8], (1e-3, 1e9), nu=2.5),
    C(0.5) + C(2.0) * sk.Matern(1.2, nu=1.5),
    C(0.5) + C(2.0) * sk.Matern([0.3, 2.0, 9.0], nu=1.5),
    C(0.5) + C(2.0) * sk.Matern(1.2, nu=0.5),
    C(0.5) + C(2.0) * sk.Matern([0.3, 2.0, 9.0], nu=0.5),
]


@every_case("kernel", RADIAL)
def test_radial(kernel):
    """Against scikit-learn, and central differences of its K; the last two points are one."""
    points = np.vstack([X, X[-1:]])
    function = gradients.covariance_function(kernel, points)
    several = np.size(_shape(kernel).length_scale) > 1
    assert type(function) is (gradients.RadialByFeature if several else gradients.Radial)
    M = np.random.default_rng(1).standard_normal((len(points), len(points)))
    M += M.T
    for theta in (kernel.theta, kernel.theta + 0.3, kernel.theta):
        there = kernel.clone_with_theta(theta)
        K = there(points)
        # exp of a rounded argument, as above; distances from a middle are rounded in other places.
        np.testing.assert_allclose(function.at(theta), K, rtol=1e-12, atol=1e-300)
        got = function.contract(M)
        expected = slopes(lambda t: np.vdot(M, kernel.clone_with_theta(t)(points)), theta, 1e-4)
        scale = np.abs(M * K).sum()
        np.testing.assert_allclose(got, expected, rtol=0.0, atol=1e-9 * scale)


def _shape(kernel):
    """What is left of a kernel without constants."""
    while hasattr(kernel, "k2"):
        kernel = kernel.k2
    return kernel


@pytest.mark.parametrize(
    "kernel",
    [C(1.0) + C(2.0) * sk.Matern(1.0, nu=0.7), C(1.0) + W(0.1), sk.RationalQuadratic(1.0, 0.7)],
)
def test_others_and_many_points_are_left_to_scikit_learn(kernel, monkeypatch):
    assert type(gradients.covariance_function(kernel, X)) is gradients.Covariance
    monkeypatch.setattr(gradients, "_KEPT", len(X) - 1)
    assert not isinstance(gradients.covariance_function(sk.RBF(1.0), X), gradients.Isotropic)
