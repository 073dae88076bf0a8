"""Covariances with inducing inputs against scikit-learn, their slopes against its differences."""

import numpy as np
from sklearn.gaussian_process import kernels as sk

from qpruntime.kernels.cross_covariance import (
    contract,
    contract_square,
    cross_covariance,
    diagonal,
    moves_inputs,
)
from qpruntime.kernels.radial_kernels import squared_distances
from tests.tools.cases import every_case
from tests.tools.oracle import slopes

C, W = sk.ConstantKernel, sk.WhiteKernel
SOUND = [
    sk.RBF(0.7),
    C(2.0) * sk.RBF([0.5, 2.0, 9.0]),
    C(2.0) * sk.RBF(1.5, "fixed") + W(0.1),
    C(1.5) + C(2.0) * sk.Matern([1.2, 0.5, 3.0], nu=2.5) + W(1e-3, "fixed"),
    C(3.0) * sk.Matern(1.2, nu=1.5),
    sk.Matern([1.2, 0.5, 3.0], nu=0.5),
    (C(2.0) + sk.RBF(1.5)) * (C(0.5) * sk.RBF(3.0) + W(0.3)),
    sk.RBF(1.5) * sk.Matern(2.0, nu=1.5) * C(3.0, "fixed"),
    C(1e10) * sk.RBF([1e3, 2e3, 5e2]),
    C(1e-10) * sk.Matern(1e3, nu=2.5),
    sk.RBF([1.0, np.inf, 2.0], "fixed") * C(2.0),
    C(2.0) * sk.RationalQuadratic(1.3, 0.7) + sk.RBF(1.0),
    sk.RationalQuadratic(1.3, 0.7, alpha_bounds="fixed"),
    sk.Matern(1.3, nu=1.2) + W(0.2),
    sk.Matern([1.2, 0.5, 3.0], nu=3.5),
    C(0.5) + C(0.7) * sk.ExpSineSquared(1.3, 90.0),
]
#: Parts whose slopes in Z are not known.
FOREIGN = [C(0.3) * sk.DotProduct(0.5), sk.RBF(1.5) ** 2]


def points(spread=1.0):
    """Rows, and inducing inputs: some are rows, two are equal, one is far from everything."""
    rng = np.random.default_rng(3)
    X, Z = spread * rng.standard_normal((40, 3)), spread * rng.standard_normal((6, 3))
    X[:2], Z[5], Z[4] = Z[:2], Z[0], 50.0 * spread
    return X, Z


def check(kernel, X, Z, step, tolerance, dtype=np.float64):
    rng = np.random.default_rng(4)
    H, rho = rng.standard_normal((len(X), len(Z))), rng.standard_normal(len(X))
    S = rng.standard_normal((len(Z), len(Z)))
    S += S.T

    def of(k, z):
        return np.vdot(H, k(X, z)) + rho @ k.diag(X)

    def square(k, z):
        return np.vdot(S, k(z, z.copy()))

    theta = kernel.theta
    K = kernel(X, Z)
    got = cross_covariance(kernel, X, Z, dtype)
    assert got.dtype == dtype
    assert np.abs(got - K).max() <= 4e-15 / 2.3e-16 * np.finfo(dtype).eps * np.abs(K).max()
    assert np.array_equal(diagonal(kernel, X), kernel.diag(X))
    for found, value in (
        (contract(kernel, X, Z, H.astype(dtype), rho), of),
        (contract_square(kernel, Z, S.astype(dtype)), square),
    ):
        by_theta = slopes(lambda t, v=value: v(kernel.clone_with_theta(t), Z), theta, 1e-3)
        by_z = slopes(lambda z, v=value: v(kernel, z), Z, step)
        scale = np.abs(K).max() + np.abs(value(kernel, Z))
        assert found[0].shape == theta.shape
        assert np.all(np.abs(found[0] - by_theta) <= tolerance * scale)
        if moves_inputs(kernel):
            # Where two z are equal, or a row is one, Matérn 1/2 has no slope.
            bent = [k for k in (0, 1, 5) if kernel.get_params().get("nu") == 0.5]
            error = np.delete(found[1] - by_z, bent, axis=0)
            assert np.all(np.abs(error) * step <= 1e-3 * tolerance * scale)
        else:
            assert not found[1].any()


@every_case("kernel", SOUND + FOREIGN)
def test_values_and_slopes(kernel):
    assert moves_inputs(kernel) == (kernel in SOUND)
    # Differences of 1e-4 in the foreign parts are right to 1e-8, the others to 1e-11.
    check(kernel, *points(), 1e-3, 3e-8)


@every_case("length", [1e-3, 1e3])
def test_extreme_units(length):
    """Data as wide as their length-scales, and a thousand times wider or narrower."""
    for spread in (length, 1.0):
        for shape in (sk.RBF(length), sk.Matern(length, nu=2.5), sk.Matern([length] * 3, nu=1.5)):
            check(C(2.0) * shape, *points(spread), 1e-3 * min(length, spread), 3e-8)


def test_float32_steers():
    """In float32 values are right to its rounding, slopes to a few of it."""
    X, Z = points()
    for kernel in SOUND[:5]:
        check(kernel, X, Z, 1e-3, 2e-5, np.float32)


def test_blocks_join():
    """More rows than a block holds: the same as all at once."""
    rng = np.random.default_rng(5)
    X, Z = rng.standard_normal((3000, 2)), rng.standard_normal((70, 2))
    H, rho = rng.standard_normal((3000, 70)), rng.standard_normal(3000)
    kernel = C(2.0) * sk.Matern([1.0, 2.0], nu=1.5)
    whole = contract(kernel, X, Z, H, rho)
    parts = [contract(kernel, X[i::3], Z, H[i::3], rho[i::3]) for i in range(3)]
    for k in (0, 1):
        # 2e5 terms added in another order.
        assert np.allclose(whole[k], parts[0][k] + parts[1][k] + parts[2][k], rtol=1e-10, atol=1e-9)
    assert np.abs(cross_covariance(kernel, X, Z) - kernel(X, Z)).max() < 1e-14


def test_squared_distances_of_points_that_are_close():
    """Against integers: points on a grid of 2^-20 about 2^30, whose distances are exact."""
    rng = np.random.default_rng(0)
    whole = [rng.integers(-9, 9, (n, 3)) for n in (7, 5)]
    x, z = (2.0**30 + steps * 2.0**-20 for steps in whole)
    exact = np.square(whole[0][:, None] - whole[1]).sum(axis=2) * 2.0**-40
    np.testing.assert_array_equal(squared_distances(x, z), exact)
    wide = squared_distances(np.asfortranarray(x * 1e160), z[:1])
    assert wide.shape == (7, 1)
    assert np.isinf(wide).all()
