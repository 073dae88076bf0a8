"""`components`: parts of additive latent functions, against the Gaussian algebra of the sites."""

import numpy as np
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

from qpruntime import GPClassifier, GPPoissonRegressor, GPRobustRegressor
from qpruntime.kernels import On, Same
from tests.tools.cases import every_case, refuses

PARTS = [
    ConstantKernel(1.4, "fixed") * On(RBF(0.9, "fixed"), [0]),
    ConstantKernel(0.6, "fixed") * On(Matern(1.7, "fixed", nu=2.5), [1]),
    ConstantKernel(0.5, "fixed") * On(Same(), [2]),
]
KERNEL = PARTS[0] + PARTS[1] + PARTS[2]


def drawn(n=40):
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=(n, 2)), rng.integers(0, 4, n)])
    return X, np.sin(2.0 * X[:, 0]) + 0.4 * X[:, 1] + 0.5 * (X[:, 2] - 1.5), rng


def by_hand(parts, X, sites, new, mean=0.0, scale=1.0):
    """Means and variances of each part, from the joint normal of parts and rows."""
    K = scale**2 * sum(part(X) for part in parts)
    found = []
    gain = np.linalg.inv(K + np.diag(1.0 / sites.tau))
    pseudo = sites.nu / sites.tau - scale * mean
    for part in parts:
        crossed = scale * part(new, X)
        variance = part.diag(new) - np.einsum("ij,jk,ik->i", crossed, gain, crossed)
        found.append((crossed @ gain @ pseudo, variance))
    return np.array(found).transpose(1, 2, 0)


@every_case("kernel", [KERNEL, ConstantKernel(1.0, "fixed") * KERNEL])
def test_of_classes(kernel):
    X, f, rng = drawn()
    model = GPClassifier(kernel, method="ep", tol=1e-10).fit(X, f + rng.normal(size=40) > 0.0)
    new = np.column_stack([rng.normal(size=(9, 2)), rng.integers(0, 6, 9)])
    found = model.components(new)
    mean, variance = by_hand(PARTS, X, model.posterior_.sites, new)
    np.testing.assert_allclose(found.mean, mean, atol=1e-8)
    np.testing.assert_allclose(found.variance, variance, atol=1e-8)
    np.testing.assert_allclose(found.mean.sum(axis=1), model.latent(new)[0], atol=1e-8)
    np.testing.assert_array_equal(found.offset, np.zeros(9))
    assert len(found.names) == 3
    assert "Same()" in found.names[2]
    # A group without rows is as before them.
    np.testing.assert_allclose(found.variance[new[:, 2] > 3, 2], 0.5)


def test_centred():
    """Less their means over the rows of the fit, by the same algebra with rows of differences."""
    X, f, rng = drawn()
    model = GPClassifier(KERNEL, method="ep", tol=1e-10).fit(X, f + rng.normal(size=40) > 0.0)
    new = np.column_stack([rng.normal(size=(9, 2)), rng.integers(0, 6, 9)])
    found, plain = model.components(new, centred=True), model.components(new)
    sites = model.posterior_.sites
    gain = np.linalg.inv(KERNEL(X) + np.diag(1.0 / sites.tau))
    both = np.vstack([new, X])
    less = np.hstack([np.eye(9), np.full((9, 40), -1.0 / 40.0)])
    for j, part in enumerate(PARTS):
        crossed = less @ part(both, X)
        mean = crossed @ gain @ (sites.nu / sites.tau)
        wide = less @ part(both, both) @ less.T - crossed @ gain @ crossed.T
        np.testing.assert_allclose(found.mean[:, j], mean, atol=1e-8)
        np.testing.assert_allclose(found.variance[:, j], np.diag(wide), atol=1e-8)
    total = found.mean.sum(axis=1) + found.offset
    np.testing.assert_allclose(total, model.latent(new)[0], atol=1e-8)
    assert np.ptp(found.offset) < 1e-12
    assert found.variance.mean() < plain.variance.mean()


def test_of_counts_with_exposure():
    X, f, rng = drawn()
    exposure = rng.uniform(0.5, 2.0, 40)
    y = rng.poisson(exposure * np.exp(f))
    model = GPPoissonRegressor(KERNEL, link="exp", method="ep", tol=1e-9)
    model.fit(X, y, exposure=exposure)
    found = model.components(X[:5])
    total = found.mean.sum(axis=1) + found.offset
    np.testing.assert_allclose(total, model.latent(X[:5])[0], atol=1e-8)
    sites = model.posterior_.sites
    shifted = type(sites)(sites.tau, sites.nu - sites.tau * np.log(exposure))
    mean, variance = by_hand(PARTS, X, shifted, X[:5], model.mean_)
    np.testing.assert_allclose(found.mean, mean, atol=1e-7)
    np.testing.assert_allclose(found.variance, variance, atol=1e-7)


def test_of_numbers():
    """In the units of y; white noise is a part that knows nothing of new rows."""
    X, f, rng = drawn()
    y = 7.0 + 30.0 * (f + 0.1 * rng.standard_t(4, 40))
    kernel = KERNEL + WhiteKernel(0.05, "fixed")
    model = GPRobustRegressor(kernel, method="ep", noise_bounds={"start": 2.0}).fit(X, y)
    found = model.components(X[:6])
    total = found.mean.sum(axis=1) + found.offset
    np.testing.assert_allclose(total, model.latent(X[:6])[0], rtol=1e-10)
    np.testing.assert_array_equal(found.mean[:, 3], np.zeros(6))
    np.testing.assert_allclose(found.variance[:, 3], 0.05 * model._unit_**2)


def test_of_several_classes_and_of_defaults():
    X, f, _ = drawn()
    model = GPClassifier().fit(X, np.digitize(f, [-0.5, 0.5]))
    found = model.components(X[:4])
    assert len(found) == 3
    means = np.column_stack([one.mean.sum(axis=1) for one in found])
    np.testing.assert_allclose(means, model.latent(X[:4])[0], atol=1e-8)
    assert found[0].mean.shape == (4, 2)  # a constant, and a function


@every_case("options", [{"inducing": 8}, {"solver": "markov", "kernel": Matern(nu=1.5)}])
def test_other_engines_are_refused(options):
    X, f, _ = drawn()
    model = GPClassifier(optimize=False, **({"kernel": RBF()} | options)).fit(X[:, :1], f > 0.0)
    refuses("components need a covariance matrix", model.components, X[:2, :1])
