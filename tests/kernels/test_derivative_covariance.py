"""Covariances of slopes of functions: differences of kernel values in mpmath, and in theta."""

import mpmath
import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

from qpruntime.kernels.derivative_covariance import (
    DerivativeRows,
    contract,
    covariance,
    diagonal,
    require_slopes,
)
from tests.tools.cases import every_case, refuses
from tests.tools.oracle import slopes

LENGTHS = [0.7, 1.9]
KERNELS = [
    RBF(0.8),
    ConstantKernel(1.7) * RBF(LENGTHS),
    ConstantKernel(0.4) + ConstantKernel(2.2) * Matern(LENGTHS, nu=2.5),
    ConstantKernel(2.2) * Matern(1.3, nu=2.5) + WhiteKernel(0.3),
    ConstantKernel(1.2) * Matern(0.9, "fixed", nu=2.5) + ConstantKernel(0.5, "fixed") * RBF(1.1),
]


def asked(seed=0, n=4, m=5):
    rng = np.random.default_rng(seed)
    points, where = rng.normal(size=(n, 2)), rng.normal(size=(m, 2))
    where[0], where[1] = points[0], where[2]  # rows at which slopes and values are both wanted
    return DerivativeRows.both(points, where, np.array([0, 1, 0, 1, 0]))


def exact(kernel):
    """k(x, z) of two points, in mpmath, without white noise."""

    def radial(shape, x, z):
        lengths = np.broadcast_to(shape.length_scale, (2,))
        apart = zip(x, z, lengths, strict=True)
        s = sum(((a - b) / mpmath.mpf(float(c))) ** 2 for a, b, c in apart)
        if isinstance(shape, Matern):
            u = mpmath.sqrt(5 * s)
            return (1 + u + u * u / 3) * mpmath.exp(-u)
        return mpmath.exp(-s / 2)

    def value(node, x, z):
        if hasattr(node, "k1"):
            one, two = value(node.k1, x, z), value(node.k2, x, z)
            return one + two if "Sum" in type(node).__name__ else one * two
        if isinstance(node, ConstantKernel):
            return mpmath.mpf(float(node.constant_value))
        return mpmath.mpf(0) if isinstance(node, WhiteKernel) else radial(node, x, z)

    return lambda x, z: value(kernel, x, z)


@every_case("kernel", KERNELS)
def test_against_differences(kernel):
    """Central differences of step 1e-10 in 60 digits: 1e-18 of the slopes; Matérn's, 1e-9."""
    one, other = asked(), asked(1)
    k, h = exact(kernel), mpmath.mpf("1e-10")
    found = covariance(kernel, one, other)
    with mpmath.workdps(60):

        def ends(points, feature, i):
            x = [mpmath.mpf(float(v)) for v in points[i]]
            if feature[i] < 0:
                return [(mpmath.mpf(1), x)]
            moved = []
            for sign in (1, -1):
                at = list(x)
                at[feature[i]] += sign * h
                moved.append((sign / (2 * h), at))
            return moved

        for i in range(9):
            for j in range(9):
                terms = [a * b * k(x, z) for a, x in ends(*one, i) for b, z in ends(*other, j)]
                assert found[i, j] == pytest.approx(float(sum(terms)), rel=1e-12, abs=1e-12)


@every_case("kernel", KERNELS)
def test_one_set_and_its_contraction(kernel):
    """Symmetric, positive semi-definite, values as the kernel has them; variances its diagonal."""
    own = asked()
    K = covariance(kernel, own)
    np.testing.assert_allclose(K, K.T, atol=1e-14)
    np.testing.assert_allclose(K[:4, :4], kernel(own.points[:4]), rtol=1e-13)
    np.testing.assert_allclose(diagonal(kernel, own), np.diag(K), rtol=1e-13)
    assert np.linalg.eigvalsh(K).min() > -1e-12
    noiseless = covariance(kernel, own, DerivativeRows(own.points + 0.0, own.feature))
    noise = 0.3 if "White" in repr(kernel) else 0.0
    np.testing.assert_allclose(np.diag(K - noiseless), noise * (own.feature < 0), atol=1e-14)
    # f and its own slope at one place are independent.
    assert abs(K[0, 4]) < 1e-14
    M = np.random.default_rng(2).normal(size=(9, 9))
    M += M.T
    found = contract(kernel, own, M)
    assert found.shape == kernel.theta.shape
    clone = kernel.clone_with_theta
    expected = slopes(lambda t: np.vdot(M, covariance(clone(t), own)), kernel.theta)
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-8)


@every_case(
    "kernel", [Matern(nu=1.5), RBF() * RBF(), RBF() + Matern(nu=0.5), ConstantKernel(1.0) ** 2]
)
def test_kernels_without(kernel):
    refuses("slopes of functions", require_slopes, kernel)
