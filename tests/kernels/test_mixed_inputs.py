"""Kernels of some columns and of groups: values by loops, slopes by differences, manners."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern

from qpruntime.kernels import On, Same
from qpruntime.kernels.gradients import covariance_function
from tests.tools.cases import every_case, refuses
from tests.tools.oracle import slopes

KERNEL = ConstantKernel(1.3) * On(RBF([0.8, 1.4]), [2, 0]) + On(Same(), [1]) * On(Matern(2.0), [0])


def rows(n=7, seed=0):
    rng = np.random.default_rng(seed)
    return np.column_stack([rng.normal(size=n), rng.integers(0, 3, n), rng.normal(size=n)])


def test_values():
    X, Z = rows(), rows(4, 1)
    found = KERNEL(X, Z)
    for i, x in enumerate(X):
        for j, z in enumerate(Z):
            r = ((x[2] - z[2]) / 0.8) ** 2 + ((x[0] - z[0]) / 1.4) ** 2
            u = np.sqrt(3.0) * abs(x[0] - z[0]) / 2.0
            exact = 1.3 * np.exp(-0.5 * r) + (x[1] == z[1]) * (1.0 + u) * np.exp(-u)
            assert found[i, j] == pytest.approx(exact, rel=1e-12)
    np.testing.assert_allclose(KERNEL.diag(X), np.diag(KERNEL(X)), rtol=1e-14)


def test_slopes():
    """The gradient, and what is contracted with a matrix, by differences of fourth order."""
    X = rows()
    gradient, M = KERNEL(X, eval_gradient=True)[1], np.cov(rows(9, 3) @ rows(7, 4).T, rowvar=False)
    covariance = covariance_function(KERNEL, X)
    np.testing.assert_array_equal(covariance.at(KERNEL.theta), KERNEL(X))
    contracted = covariance.contract(M)
    expected = slopes(lambda theta: KERNEL.clone_with_theta(theta)(X), KERNEL.theta)
    np.testing.assert_allclose(np.moveaxis(gradient, -1, 0), expected, atol=1e-10)
    np.testing.assert_allclose(contracted, np.tensordot(expected, M, 2), rtol=1e-8)


def test_manners():
    again = clone(KERNEL)
    assert again == KERNEL
    assert again.clone_with_theta(again.theta + 1.0) != KERNEL
    kernel = On(RBF(2.0), [1]).set_params(kernel__length_scale=3.0)
    assert kernel.kernel.length_scale == 3.0
    assert repr(kernel) == "On(RBF(length_scale=3), [1])"
    assert On(RBF(), [0]) != On(RBF(), [1])
    assert (On(RBF(), [0]) == RBF()) is False
    assert Same().n_dims == 0
    assert Same().is_stationary()


@every_case("columns", [[3], [-1], [], [[0]], ["a"], 0, [0.5]])
def test_columns_that_there_are_not(columns):
    refuses("columns of On must be whole numbers from 0 to 2", On(RBF(), columns), rows())


def test_what_is_no_kernel():
    refuses("kernel", On("rbf", [0]), rows())
