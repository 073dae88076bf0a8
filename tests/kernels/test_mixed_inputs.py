"""Kernels of some columns and of levels: values by loops, slopes by differences, manners."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

from qpruntime.inference.local.blocks import within
from qpruntime.inference.local.neighbours import metric
from qpruntime.kernels import Categories, On, Same
from qpruntime.kernels.cross_covariance import (
    contract,
    contract_square,
    cross_covariance,
    moves_inputs,
)
from qpruntime.kernels.default import each_column
from qpruntime.kernels.gradients import covariance_function
from qpruntime.learning.inducing_points import clusters, levels_of, units
from qpruntime.learning.initialisation import default_start
from qpruntime.learning.scaling import Units
from tests.tools.cases import every_case, refuses
from tests.tools.oracle import slopes

C = ConstantKernel
KERNELS = [
    Categories([1, 3], 0.7),
    C(0.5) + C(1.3) * (Categories([1, 3], [0.3, 0.9]) * On(Matern([0.8, 1.4], nu=2.5), [2, 0])),
    On(C(2.0) * RBF(0.7), [0]) * Categories([3], 0.4, "fixed") + Categories([1]) + WhiteKernel(0.2),
    On(Categories([0], 0.6) * On(RBF([1.1]), [1]), [3, 0]),
    C(1.3) * On(RBF([0.8, 1.4]), [2, 0]) + On(Same(), [1]) * On(Matern(2.0), [0]),
]


def rows(n=9, seed=0):
    rng = np.random.default_rng(seed)
    numbers = rng.normal(size=(n, 2))
    levels = rng.integers(0, 3, (n, 2))
    return np.column_stack([numbers[:, 0], levels[:, 0], numbers[:, 1], levels[:, 1]])


def test_values():
    X, Z = rows(), rows(4, 1)
    of_levels, of_columns = KERNELS[1](X, Z), KERNELS[-1](X, Z)
    for i, x in enumerate(X):
        for j, z in enumerate(Z):
            square = ((x[2] - z[2]) / 0.8) ** 2 + ((x[0] - z[0]) / 1.4) ** 2
            u, v = np.sqrt(5.0 * square), np.sqrt(3.0) * abs(x[0] - z[0]) / 2.0
            unlike = 0.3 * (x[1] != z[1]) + 0.9 * (x[3] != z[3])
            exact = 0.5 + 1.3 * (1.0 + u + u * u / 3.0) * np.exp(-u - unlike)
            assert of_levels[i, j] == pytest.approx(exact, rel=1e-12)
            exact = 1.3 * np.exp(-0.5 * square) + (x[1] == z[1]) * (1.0 + v) * np.exp(-v)
            assert of_columns[i, j] == pytest.approx(exact, rel=1e-12)
    for kernel in KERNELS:
        np.testing.assert_allclose(kernel.diag(X), np.diag(kernel(X)), rtol=1e-14)
    np.testing.assert_allclose(Categories([1], 0.5).similarity, [np.exp(-0.5)], rtol=1e-15)


@every_case("kernel", KERNELS)
def test_slopes_and_small_sets_of_rows(kernel):
    """scikit-learn's gradient, the contracted one, and those with inducing inputs."""
    X, Z, rng = rows(), rows(5, 2), np.random.default_rng(3)
    M, H, rho = rng.normal(size=(9, 9)), rng.normal(size=(9, 5)), rng.normal(size=9)
    M, S = M + M.T, np.cov(rng.normal(size=(5, 8)))
    gradient = kernel(X, eval_gradient=True)[1]
    theta = kernel.theta

    def at(theta):
        return kernel.clone_with_theta(theta)

    expected = slopes(lambda t: np.vdot(M, at(t)(X)), theta)
    np.testing.assert_allclose(np.tensordot(M, gradient, 2), expected, rtol=1e-8, atol=1e-9)
    covariance = covariance_function(kernel, X)
    np.testing.assert_allclose(covariance.at(theta), kernel(X), rtol=1e-14)
    np.testing.assert_allclose(covariance.contract(M), expected, rtol=1e-8, atol=1e-9)

    def crossed(k, z):
        return np.vdot(H, k(X, z)) + rho @ k.diag(X)

    assert moves_inputs(kernel) == ("Same" not in str(kernel))
    np.testing.assert_allclose(cross_covariance(kernel, X, Z), kernel(X, Z), rtol=1e-13)
    dtheta, dz = contract(kernel, X, Z, H, rho)
    by_theta = slopes(lambda t: crossed(at(t), Z), theta)
    np.testing.assert_allclose(dtheta, by_theta, rtol=1e-8, atol=1e-9)
    numbers = Z[:, [0, 2]]

    def moved(values):
        return np.column_stack([values[:, 0], Z[:, 1], values[:, 1], Z[:, 3]])

    known = moves_inputs(kernel)
    by_z = slopes(lambda v: crossed(kernel, moved(v)), numbers) if known else 0.0
    np.testing.assert_allclose(dz[:, [0, 2]], by_z, rtol=1e-8, atol=1e-9)
    np.testing.assert_array_equal(dz[:, [1, 3]], 0.0)
    square = contract_square(kernel, Z, S)[0]
    by_square = slopes(lambda t: np.vdot(S, cross_covariance(at(t), Z, Z)), theta)
    np.testing.assert_allclose(square, by_square, rtol=1e-8, atol=1e-9)
    # Small sets of rows.
    sets = np.stack([rows(4, seed) for seed in range(3)])
    lower = np.tril_indices(4)
    expected = [cross_covariance(kernel, some, some)[lower] for some in sets]
    np.testing.assert_allclose(within(kernel, sets), expected, rtol=1e-13)


def test_nearness_of_levels_and_inducing_inputs_at_levels():
    """exp(-w) is exp(-r^2/2) of the distance that says which rows are near."""
    scale = metric(Categories([1], 0.7) * On(RBF([2.0, 4.0]), [2, 0]), 4)
    np.testing.assert_allclose(scale, [0.25, np.sqrt(1.4), 0.5, 0.0], rtol=1e-14)
    # A level not seen is like none of the others.
    row = Categories([0], 0.7)([[5.0]], [[0.0], [1.0], [2.0], [5.0]])[0]
    np.testing.assert_allclose(row, [np.exp(-0.7)] * 3 + [1.0], rtol=1e-15)
    # Centres have levels of rows; of two far groups one each, and numbers in between.
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=200), np.repeat([2.0, 7.0], 100), rng.normal(size=200)])
    kernel = Categories([1], 8.0) * On(RBF([1.0, 3.0]), [0, 2])
    assert levels_of(kernel) == {1: pytest.approx(16.0, rel=1e-12)}
    measured = units(kernel, X.std(axis=0))
    np.testing.assert_allclose(measured[[0, 2]], [1.0, 3.0])
    Z = clusters(X, 12, np.random.default_rng(1), measured, levels_of(kernel))
    assert Z.shape == (12, 3)
    assert set(Z[:, 1]) == {2.0, 7.0}
    assert len(np.unique(Z, axis=0)) == 12
    assert np.abs(Z[:, [0, 2]]).max() < np.abs(X[:, [0, 2]]).max()
    only = clusters(X[:, [1]], 12, np.random.default_rng(1), np.ones(1), {0: 16.0})
    np.testing.assert_array_equal(only, [[2.0], [7.0]])


def test_default_kernel_of_a_table():
    """Numbers in units of their spread, levels as they are, in the columns of users at the end."""
    X = rows(60)
    X[:, 3] = 4.0  # one level tells nothing
    own = Units.of(X, levels=(1, 3))
    assert own.numbers_and_levels == ([0, 2], [1])
    np.testing.assert_array_equal(own.scaled(X)[:, 1], X[:, 1])
    begin = default_start(own)
    assert begin.by_feature == 3
    single = begin.refined(begin.thetas[0])
    Z = own.scaled(X)
    np.testing.assert_allclose(single.kernel(Z), begin.kernel(Z), rtol=1e-12)
    assert single.kernel.n_dims == 5
    for kernel in (begin.kernel, single.kernel):
        np.testing.assert_allclose(own.kernel_of_features(kernel)(X), kernel(Z), rtol=1e-12)
    apart = np.column_stack([X[:, 0], np.arange(60.0)])
    assert Units.of(apart, levels=(1,)).numbers_and_levels == ([0], [])
    assert default_start(Units.of(X[:, [1]], levels=(0,))).kernel.n_dims == 3
    assert each_column(RBF(1.0), 1.0) is None


def test_manners():
    kernel = KERNELS[1]
    again = clone(kernel)
    assert again == kernel
    assert again.clone_with_theta(again.theta + 1.0) != kernel
    part = On(RBF(2.0), [1]).set_params(kernel__length_scale=3.0)
    assert part.kernel.length_scale == 3.0
    assert repr(part) == "On(RBF(length_scale=3), [1])"
    assert On(RBF(), [0]) != On(RBF(), [1])
    assert (On(RBF(), [0]) == RBF()) is False
    assert Same().n_dims == 0
    assert Same().is_stationary()
    assert repr(Categories([1], 0.5)) == "Categories([1], dissimilarity=0.5)"
    assert Categories([1]).is_stationary()
    np.testing.assert_array_equal(Categories([1]).diag(rows()), 1.0)
    assert Categories([1], 0.3, "fixed").n_dims == 0
    assert Categories([1], 0.3, "fixed")(rows(), eval_gradient=True)[1].shape == (9, 9, 0)


@every_case("columns", [[4], [-1], [], [[0]], 0, [0.5]])
def test_columns_that_there_are_not(columns):
    refuses("Categories", Categories(columns), rows())
    refuses("columns of On must be whole numbers from 0 to 3", On(RBF(), columns), rows())


def test_other_columns_that_are_refused():
    refuses(r"are names, \['city'\]: fit an estimator", Categories(["city"]), rows())
    refuses("columns of On must be whole numbers", On(RBF(), ["city"]), rows())
    refuses("kernel", On("rbf", [0]), rows())
    several = Categories([1, 3], [0.1, 0.2, 0.3])
    refuses("must be one number, or 2 for as many columns", several, rows())
